"""Pictures of records and comparisons: pure functions from results and an Axes to the Axes."""

from dartree.plots.bars import draw_speed, draw_tau, draw_tau_by_domain
from dartree.plots.curves import (
    draw_matched,
    draw_positions,
    draw_stages,
    draw_sweep,
    draw_table,
    draw_tau_sweep,
    knee,
    mark,
)
from dartree.plots.labels import plot_label, token_decoder, token_label
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

__all__ = [
    "METHOD_LOOKS",
    "OUTCOME_LOOKS",
    "draw_front",
    "draw_groups",
    "draw_heat",
    "draw_lengths",
    "draw_lines",
    "draw_matched",
    "draw_positions",
    "draw_round",
    "draw_rounds",
    "draw_speed",
    "draw_stages",
    "draw_supertree",
    "draw_survival",
    "draw_sweep",
    "draw_table",
    "draw_tau",
    "draw_tau_by_domain",
    "draw_tau_sweep",
    "figure_folder",
    "knee",
    "mark",
    "method_look",
    "plot_label",
    "round_figsize",
    "rounds_figsize",
    "rounds_html",
    "save_figure",
    "supertree_figsize",
    "survival",
    "telling_round",
    "token_decoder",
    "token_label",
    "use_style",
    "write_json",
]
