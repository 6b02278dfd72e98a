"""One round's draft tree as a static picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.legend_handler import HandlerPatch
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch, PathPatch
from matplotlib.path import Path as Outline

from dartree.checks import counted
from dartree.plots.labels import Decode, plot_label, token_fonts
from dartree.plots.layout import child_lists, pack_rows
from dartree.plots.style import BONUS, INK, OUTCOME_LOOKS, PAPER, SOFT, tint
from dartree.records import ACCEPTED, UNREACHED, WALKED_PAST, RoundRecord

# Sizes in inches at which text of POINTS is read comfortably.
POINTS, ROW, GAP, LETTER, PADDING = 9.0, 0.25, 0.27, 0.0755, 0.26
_NARROW, _STRETCH = 7.0, 1.5  # least width of a figure; how far a small tree may be pulled apart


def _pointed(x, y, width, height, size, left) -> Outline:
    """Box style: pointed on the right and, as far as ``left`` says, on the left."""
    pad, tip = 0.3 * size, 0.55 * size
    low, high, middle = y - pad, y + height + pad, y + height / 2
    x0, x1 = x - pad, x + width + pad
    points = [(x0, low), (x1, low), (x1 + tip * 0.8, middle), (x1, high), (x0, high)]
    points += [(x0 - left * tip * 2.4, middle), (x0, low)]
    return Outline(points, closed=True)


ANCHOR = "anchor"


def _box(shape: str | Callable, color: str, face: str | tuple, **options: Any) -> dict[str, Any]:
    return {"boxstyle": shape, "fc": face, "ec": color, "lw": 0.8, **options}


_COLORS = {outcome: look.color for outcome, look in OUTCOME_LOOKS.items()}
_BOXES = {
    ANCHOR: _box("round,pad=0.3", INK, INK),
    ACCEPTED: _box("round,pad=0.3,rounding_size=0.6", _COLORS[ACCEPTED], _COLORS[ACCEPTED]),
    WALKED_PAST: _box("square,pad=0.3", _COLORS[WALKED_PAST], tint(_COLORS[WALKED_PAST], 0.13)),
    UNREACHED: _box(partial(_pointed, left=0.3), _COLORS[UNREACHED],
                    tint(_COLORS[UNREACHED], 0.13)),
    BONUS: _box(partial(_pointed, left=0.0), _COLORS[BONUS], PAPER, ls=(0, (3, 1.5)), lw=1.1),
}  # fmt: skip
_INKS = {ANCHOR: PAPER, ACCEPTED: PAPER, WALKED_PAST: INK, UNREACHED: SOFT, BONUS: _COLORS[BONUS]}
_NAMES = {
    ACCEPTED: "accepted",
    WALKED_PAST: "walked past: the target chose another token here",
    UNREACHED: "never reached: its parent was not accepted",
    BONUS: "the target's own token, not in the tree",
}
_SUMS = {None: "", "candidates": ", over the K candidates", "vocabulary": ", over the vocabulary"}


@dataclass
class _Plan:
    """Places of nodes 0..N, and of the ghost (the target's own token) as node N + 1."""

    labels: list[str]
    x: np.ndarray  # in inches at full size, 0 is the anchor
    y: np.ndarray  # in rows
    headings: dict[int, float]  # x by depth
    width: float  # inches that all columns need
    ghost_parent: int

    @property
    def ghost(self) -> int:
        return len(self.labels) - 1

    @property
    def height(self) -> float:
        """Rows; a small tree gets room for three."""
        return max(float(self.y.max()), 2.0)


def _plan(record: RoundRecord, decode: Decode) -> _Plan:
    tree, path = record.tree, record.path.tolist()
    last = path[-1] if path else 0
    parents = [*tree.parents.tolist(), last]
    depths = np.append(tree.node_depths(), len(path) + 1)
    tokens = [record.anchor, *tree.tokens.tolist(), int(record.target_tokens[last])]
    labels = [plot_label(decode(token)) for token in tokens]
    # Siblings from top to bottom: the accepted one or the ghost, then by falling score.
    order = np.concatenate([[0.0], -tree.scores, [-np.inf]])
    order[path] = -np.inf
    rows = pack_rows(child_lists(parents, order), depths)
    longest = np.full(depths.max() + 1, 5.0)  # a heading's length
    np.maximum.at(longest, depths, [len(label) for label in labels])
    longest[depths[-1]] = max(longest[depths[-1]], 0.75 * len(record.missing or ""))
    widths = longest * LETTER + PADDING
    middles = np.cumsum(widths + GAP) - (widths + GAP) / 2
    middles -= middles[0]
    width = float(middles[-1] + (widths[0] + widths[-1]) / 2)
    return _Plan(labels, middles[depths], rows, dict(enumerate(middles)), width, last)


def round_figsize(record: RoundRecord, decode: Decode) -> tuple[float, float]:
    """A figure size (inches) at which every token of ``record``'s tree can be read."""
    plan = _plan(record, decode)
    # An axes takes about 0.775 by 0.77 of its figure; saving trims the margins.
    return max(plan.width / 0.775, _NARROW), ROW * (plan.height + 2) / 0.77 + 0.2


def draw_round(
    ax: Axes,
    record: RoundRecord,
    decode: Decode,
    *,
    normalise: str | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the draft tree of one round from left (the anchor) to right; return ``ax``.

    Colour and shape of a node say what became of it, the width of an edge is the conditional
    probability that the drafter and its head gave the token under its parent; ``normalise``, as
    in the settings of the run, says over what these sum to one. The top line is the accepted
    path; the tag at its end is the target's own token, which the tree did not hold, with the
    reason. ``decode`` turns a token id into str or bytes. Make the figure with
    ``round_figsize(record, decode)``.
    """
    plan, outcomes = _plan(record, decode), record.outcomes()
    size = _scale(ax, plan) * POINTS
    odds = np.exp(np.clip(record.tree.conditionals().astype(float), -60, 0))
    for node, outcome in enumerate(outcomes, start=1):
        _edge(ax, plan, int(record.tree.parents[node - 1]), node, odds[node - 1], outcome)
    _edge(ax, plan, plan.ghost_parent, plan.ghost, None, BONUS)
    for node, outcome in enumerate([ANCHOR, *outcomes, BONUS]):
        _node(ax, plan, node, outcome, size)
    if record.missing:
        _note(ax, plan, plan.ghost, record.missing, size, _COLORS[BONUS], "italic")
    for node in record.path.tolist():
        _note(ax, plan, node, f"{odds[node - 1]:.2f}", size)
    _frame(ax, plan, title or _title(record), size)
    _legend(ax, [name for name in _NAMES if name in outcomes], _SUMS[normalise], size)
    return ax


def _scale(ax: Axes, plan: _Plan) -> float:
    """Set the limits of ``ax``; returns how large the tree is drawn, 1 is full size."""
    box, dpi = ax.get_window_extent(), ax.figure.dpi
    left = len(plan.labels[0]) * LETTER / 2 + PADDING
    width = max(plan.width, box.width / dpi / _STRETCH)
    ax.set_xlim(-left, width - left + 0.1)
    ax.set_ylim(plan.height + 0.7, -1.35)
    high = box.height / dpi / (plan.height + 2.05) / ROW
    return float(np.clip(min(high, box.width / dpi / width), 0.35, 1.0))


def _edge(ax: Axes, plan: _Plan, parent: int, child: int, odds: float | None, outcome: str) -> None:
    x0, y0, x1, y1 = plan.x[parent], plan.y[parent], plan.x[child], plan.y[child]
    bend = 0.55 * (x1 - x0)
    points = [(x0, y0), (x0 + bend, y0), (x1 - bend, y1), (x1, y1)]
    codes = [Outline.MOVETO, Outline.CURVE4, Outline.CURVE4, Outline.CURVE4]
    color = tint(_COLORS[outcome], 1.0 if outcome in (ACCEPTED, BONUS) else 0.45)
    width, style = (1.2, (0, (2, 1.5))) if odds is None else (_edge_width(odds), "-")
    ax.add_patch(
        PathPatch(Outline(points, codes), fill=False, ec=color, lw=width, ls=style, zorder=1)
    )


def _edge_width(odds: float) -> float:
    return 0.5 + 4.5 * float(odds)


def _node(ax: Axes, plan: _Plan, node: int, outcome: str, size: float) -> None:
    ax.text(plan.x[node], plan.y[node], plan.labels[node], size=size, ha="center", va="center",
            color=_INKS[outcome], bbox=_BOXES[outcome], zorder=3, family=list(token_fonts()),
            weight="normal" if outcome in (WALKED_PAST, UNREACHED) else "bold",
            parse_math=False)  # fmt: skip


def _note(ax, plan, node, text, size, color=SOFT, style="normal") -> None:
    """Small print above a node of the top line."""
    x, y = plan.x[node], plan.y[node] - 0.52
    small = max(size - 2, 3)
    ax.text(x, y, text, size=small, ha="center", va="bottom", color=color, style=style, zorder=4)


def _frame(ax: Axes, plan: _Plan, title: str, size: float) -> None:
    ax.set_axis_off()
    for depth, x in plan.headings.items():
        name = f"depth {depth}" if depth else ANCHOR
        ax.text(x, -1.3, name, size=max(size - 1, 3), ha="center", va="center", color=SOFT)
    ax.set_title(title, fontsize=max(size + 2, 8), pad=9)


def _legend(ax: Axes, outcomes: list[str], over: str, size: float) -> None:
    """``over``: what the probabilities sum to one over, as the end of a name."""
    shown = [*outcomes, BONUS]
    handles: list = [Patch(label=name) for name in shown]
    names = [_NAMES[name] for name in shown]
    styles = {handle: _Box(name) for handle, name in zip(handles, shown, strict=True)}
    if outcomes:  # there are drafts, so there are edges with a width
        for odds in (0.05, 0.5, 1.0):
            handles.append(Line2D([], [], color=SOFT, lw=_edge_width(odds)))
            names.append(f"conditional probability {odds:g}")
        names[-2] += over
        names[-1] += " (numbers: the accepted path)"
    ax.legend(handles, names, handler_map=styles, loc="upper left", bbox_to_anchor=(0, 0), ncols=2,
              fontsize=max(size - 0.5, 6), handlelength=2.2, borderaxespad=0.3)  # fmt: skip


class _Box(HandlerPatch):
    """Legend key of an outcome: a small box of its shape."""

    def __init__(self, outcome: str) -> None:
        super().__init__()
        self._look = _BOXES[outcome]

    def create_artists(self, legend, handle, x, y, width, height, fontsize, trans):
        corner, sides = (x + width * 0.25, y + height * 0.2), (width * 0.5, height * 0.6)
        return [FancyBboxPatch(corner, *sides, mutation_scale=fontsize * 0.8, transform=trans,
                               **self._look)]  # fmt: skip


def telling_round(records: Sequence[RoundRecord]) -> RoundRecord:
    """The round that shows best what a tree is for; the earliest of equals.

    Its accepted path leaves the likeliest child most often, where a chain would have stopped;
    among such rounds it is the one that accepted most.
    """
    if not records:
        raise ValueError("records must hold at least one round; give max_new_tokens above 1.")
    return max(records, key=lambda record: (_saved(record), len(record.path)))


def _saved(record: RoundRecord) -> int:
    """Accepted nodes that are not the likeliest child of their parent."""
    best: dict[int, int] = {}
    for node in np.lexsort((np.arange(len(record.tree)), -record.tree.scores)):
        best.setdefault(int(record.tree.parents[node]), int(node) + 1)
    return len(set(record.path.tolist()) - set(best.values()))


def _title(record: RoundRecord) -> str:
    count, accepted = len(record.tree), len(record.path)
    if not count:
        return f"Round {record.index} of {record.method}: no drafts, the target's own token"
    return (
        f"Round {record.index} of {record.method}: {counted(count, 'node')} verified in one pass, "
        f"{accepted} accepted, then the target's own token"
    )
