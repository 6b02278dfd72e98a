# ruff: noqa: F401
"""Pictures of records and comparisons: pure functions from results and an Axes to the Axes."""

from dartree.plots.bars import draw_speed, draw_tau, draw_tau_by_domain
from dartree.plots.curves import (
    build_ms,
    draw_build,
    draw_matched,
    draw_stages,
    draw_sweep,
    draw_tau_sweep,
    knee,
)
from dartree.plots.labels import plot_label, token_decoder, token_label
from dartree.plots.marginals import draw_positions, draw_table
from dartree.plots.parts import mark
from dartree.plots.rounds import draw_rounds, rounds_figsize, rounds_html
from dartree.plots.save import figure_folder, save_figure, write_json
from dartree.plots.style import METHOD_LOOKS, OUTCOME_LOOKS, method_look, use_style
from dartree.plots.supertrees import draw_supertree, supertree_figsize
from dartree.plots.taus import (
    draw_front,
    draw_groups,
    draw_heat,
    draw_lengths,
    draw_lines,
    draw_survival,
    survival,
)
from dartree.plots.tree import draw_round, round_figsize, telling_round
