"""A whole supertree as a grid: one column a depth, one row a rank."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch

from dartree.plots.labels import Decode, plot_label, token_fonts
from dartree.plots.style import INK, OUTCOME_LOOKS, PAPER, SOFT, method_look, tint
from dartree.records import ACCEPTED
from dartree.tree import Supertree

CELL = (0.92, 0.27)  # inches of a node
LONGEST = 9  # characters of a label


def supertree_figsize(supertree: Supertree, depth: int | None = None) -> tuple[float, float]:
    """A figure size (inches) at which every token of ``supertree`` can be read."""
    depths = supertree.depths if depth is None else supertree.depths[supertree.depths <= depth]
    high = np.bincount(depths).max()
    return CELL[0] * (depths.max() + 1) + 0.4, CELL[1] * (high + 3) + 0.4


def draw_supertree(
    ax: Axes,
    supertree: Supertree,
    decode: Decode,
    anchor: int,
    kept: Collection[int] = (),
    path: Collection[int] = (),
    depth: int | None = None,
) -> Axes:
    """Nodes of each depth from the best (top) down, with the edge to the parent that each has.

    ``kept``: numbers of the nodes that Top-B keeps (filled). ``path``: numbers of those that the
    target accepted (green, bold). ``depth``: draw the first levels alone. Returns ``ax``.
    """
    count = len(supertree) if depth is None else int((supertree.depths <= depth).sum())
    depths = supertree.node_depths()[: count + 1]
    rows = np.zeros(count + 1)
    for level in range(1, depths.max() + 1):
        at = np.flatnonzero(depths == level)
        rows[at] = np.arange(len(at))
    for node in range(1, count + 1):
        _edge(ax, depths, rows, int(supertree.parents[node - 1]), node, node in path, node in kept)
    tokens = [anchor, *supertree.tokens[:count].tolist()]
    for node, token in enumerate(tokens):
        kind = "anchor" if not node else ACCEPTED if node in path else ""
        label = plot_label(decode(token), LONGEST)
        _cell(ax, depths[node], rows[node], label, kind, node in kept)
    for level in range(1, depths.max() + 1):
        ax.text(level, -1.1, f"depth {level}", ha="center", va="center", size=8, color=SOFT)
    ax.set_xlim(-0.55, depths.max() + 0.55)
    ax.set_ylim(rows.max() + 0.8, -1.6)
    ax.set_axis_off()
    handles = [
        Patch(fc=OUTCOME_LOOKS[ACCEPTED].color, label="kept, and the target's own path"),
        Patch(fc=tint(method_look("dartree").color, 0.3), ec=method_look("dartree").color,
              label="kept by Top-B"),
        Patch(fc=PAPER, ec="#bbbbbb", label="scored and left out"),
        Line2D([], [], color=SOFT, lw=1, label="parent"),
    ]  # fmt: skip
    ax.legend(handles=handles, ncols=4, loc="upper left", bbox_to_anchor=(0, 0), fontsize=8)
    return ax


def _edge(ax: Axes, depths, rows, parent: int, node: int, on_path: bool, kept: bool) -> None:
    color = OUTCOME_LOOKS[ACCEPTED].color if on_path else "#999999" if kept else "#dddddd"
    x = [depths[parent] + 0.44, depths[node] - 0.44]
    ax.plot(x, [rows[parent], rows[node]], color=color, lw=2 if on_path else 0.8,
            zorder=2 if on_path else 1, solid_capstyle="round")  # fmt: skip


def _cell(ax: Axes, x: float, y: float, label: str, kind: str, kept: bool) -> None:
    green, orange = OUTCOME_LOOKS[ACCEPTED].color, method_look("dartree").color
    face: str | tuple[float, float, float]
    if kind == ACCEPTED:
        face, edge, ink = (green, green, PAPER) if kept else (PAPER, green, green)
    elif kind == "anchor":
        face, edge, ink = INK, INK, PAPER
    else:
        face, edge, ink = (tint(orange, 0.3), orange, INK) if kept else (PAPER, "#bbbbbb", SOFT)
    box = FancyBboxPatch((x - 0.43, y - 0.36), 0.86, 0.72, fc=face, ec=edge, lw=0.8, zorder=3,
                         boxstyle="round,pad=0,rounding_size=0.1")  # fmt: skip
    ax.add_patch(box)
    ax.text(x, y, label, ha="center", va="center", size=7.5, color=ink, zorder=4,
            weight="bold" if kind else "normal", family=list(token_fonts()),
            parse_math=False)  # fmt: skip
