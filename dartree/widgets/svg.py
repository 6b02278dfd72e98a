"""The tree of a round as an SVG string: fast to redraw, and every node answers to the pointer."""

from __future__ import annotations

import html
import unicodedata
from dataclasses import dataclass

import matplotlib
import numpy as np

from dartree.checks import counted
from dartree.plots.labels import Decode, token_label
from dartree.plots.layout import child_lists, pack_rows
from dartree.plots.style import BONUS, INK, OUTCOME_LOOKS, PAPER, SOFT, tint
from dartree.records import ACCEPTED, UNREACHED, WALKED_PAST
from dartree.widgets.facts import ghost_facts, node_facts
from dartree.widgets.session import PRUNED, View

ANCHOR = "anchor"
# Pixels: text size, a monospaced letter, a node's height, a row, space between columns.
SIZE, LETTER, HEIGHT, ROW, GAP, MARGIN = 11, 6.7, 17, 21, 18, 12
TOP, LEGEND, NARROW, LONGEST = 44, 76, 760, 9
COLORS = {name: look.color for name, look in OUTCOME_LOOKS.items()} | {
    PRUNED: "#8a8a8a",
    ANCHOR: INK,
}
# In drawing order: what matters most comes last and lies on top.
ORDER = (PRUNED, UNREACHED, WALKED_PAST, ACCEPTED, BONUS)
NAMES = {
    ACCEPTED: "accepted",
    WALKED_PAST: "walked past: the target chose another token",
    UNREACHED: "unreached: its parent was not accepted",
    PRUNED: "pruned: scored, but not among the B best",
    BONUS: "the target's own token, which the tree missed",
}


@dataclass
class _Plan:
    """Node numbers as in the view, the ghost last; x is a node's middle, in pixels."""

    nodes: list[int]
    parents: dict[int, int]
    labels: dict[int, str]
    x: dict[int, float]
    y: dict[int, float]
    columns: list[float]
    width: float
    height: float
    ghost: int


def tree_svg(view: View, decode: Decode, *, pruned: bool = True, selected: int = 0) -> str:
    """``view`` from left (the anchor) to right, as one SVG element.

    Colour and shape of a node say what became of it, the width of an edge is its conditional
    probability; a ``<title>`` holds the rest. ``pruned``: draw the pruned nodes too; the target's
    own token is drawn in any case. ``selected``: a node with a ring around it.
    """
    plan = _plan(view, decode, pruned)
    outcomes = {node: _outcome(view, plan, node) for node in plan.nodes}
    order = sorted(plan.nodes, key=lambda node: ORDER.index(outcomes[node]))
    parts = [_heading(plan, depth) for depth in range(len(plan.columns))]
    parts += [_edge(view, plan, node, outcomes[node]) for node in order]
    parts += [_node(view, plan, node, outcomes.get(node, ANCHOR), decode, node == selected)
              for node in (0, *order)]  # fmt: skip
    parts += [_note(plan, node, f"{view.odds[node - 1]:.2f}") for node in view.path]
    target = view.missed or plan.ghost
    if view.record.missing:
        parts.append(_note(plan, target, view.record.missing, COLORS[BONUS]))
    over = "vocabulary" if view.normalise == "vocabulary" else "K candidates"
    parts.append(_legend(plan.height - LEGEND, list(outcomes.values()), over))
    width, height = round(plan.width), round(plan.height)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(summary(view))}" style="width:100%;max-width:{width}px;'
        f'min-width:{min(width, max(NARROW, round(0.8 * width)))}px" font-size="{SIZE}" '
        "font-family=\"ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace\">"
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>{"".join(parts)}</svg>'
    )


def summary(view: View) -> str:
    """One sentence for those who cannot see the picture."""
    record = view.record
    return (
        f"Round {record.index} of {record.method}: {counted(len(view.nodes), 'node')} scored, "
        f"{len(record.tree)} verified, {len(record.path)} accepted, then the target's own token"
        + (f" ({record.missing})." if record.missing else ".")
    )


def _plan(view: View, decode: Decode, pruned: bool) -> _Plan:
    tree, path = view.nodes, view.path
    last, count = path[-1] if path else 0, len(tree)
    shown = [n for n in range(1, count + 1)
             if pruned or view.outcomes[n - 1] != PRUNED or n == view.missed]  # fmt: skip
    ghost = count + 1  # not among the nodes where the target's own token is one of them
    nodes = shown if view.missed else [*shown, ghost]
    parents = {n: int(tree.parents[n - 1]) if n <= count else last for n in nodes}
    tokens = {n: int(tree.tokens[n - 1]) if n <= count else view.bonus for n in nodes}
    # Siblings from top to bottom: the target's path, then the kept ones by falling score.
    order = {n: 1e6 * (view.outcomes[n - 1] == PRUNED) - float(tree.scores[n - 1]) for n in shown}
    order |= dict.fromkeys([*path, view.missed or ghost], -np.inf)
    index = {n: i for i, n in enumerate([0, *nodes])}
    depths = [0] + [int(tree.depths[n - 1]) if n <= count else len(path) + 1 for n in nodes]
    rows = pack_rows(
        child_lists(
            [index[parents[n]] for n in nodes], np.array([0.0] + [order[n] for n in nodes])
        ),
        depths,
    )
    labels = {n: _label(decode(tokens[n])) for n in nodes}
    labels[0] = _label(decode(view.record.anchor))
    widest = np.full(max(depths) + 1, 3.0)
    np.maximum.at(widest, depths, [_letters(labels[n]) for n in (0, *nodes)])
    rights = MARGIN + np.cumsum(widest * LETTER + 12 + GAP)
    columns = rights - GAP - (widest * LETTER + 12) / 2
    note = LETTER * 0.45 * len(view.record.missing or "")
    width = max(rights[-1] - GAP + 8, columns[len(path) + 1] + note, NARROW) + MARGIN
    return _Plan(
        nodes, parents, labels,
        {n: float(columns[d]) for n, d in zip((0, *nodes), depths, strict=True)},
        {n: TOP + ROW * float(r) for n, r in zip((0, *nodes), rows, strict=True)},
        columns.tolist(), float(width), TOP + ROW * (float(rows.max()) + 1) + LEGEND, ghost,
    )  # fmt: skip


def _label(text: str | bytes) -> str:
    label = token_label(text)
    while _letters(label) > LONGEST:
        label = label[: -2 if label.endswith("…") else -1] + "…"
    return label


def _letters(label: str) -> int:
    """Width of a label in letters: CJK characters and most emoji take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in label)


def _outcome(view: View, plan: _Plan, node: int) -> str:
    return BONUS if node in (plan.ghost, view.missed) else view.outcomes[node - 1]


def _edge(view: View, plan: _Plan, node: int, outcome: str) -> str:
    parent = plan.parents[node]
    x0 = plan.x[parent] + _half(plan.labels[parent])
    x1 = plan.x[node] - _half(plan.labels[node])
    y0, y1, bend = plan.y[parent], plan.y[node], 0.5 * (x1 - x0)
    width = 1.2 if node == plan.ghost else _edge_width(view.odds[node - 1])
    strong = outcome in (ACCEPTED, BONUS)
    color = COLORS[outcome] if strong else _hex(COLORS[outcome], 0.45)
    dash = {BONUS: ' stroke-dasharray="4 3"', PRUNED: ' stroke-dasharray="1 3"'}.get(outcome, "")
    return (
        f'<path d="M{x0:.1f} {y0:.1f}C{x0 + bend:.1f} {y0:.1f} {x1 - bend:.1f} {y1:.1f} '
        f'{x1:.1f} {y1:.1f}" fill="none" stroke="{color}" stroke-width="{width:.2f}"{dash}/>'
    )


def _edge_width(odds: float) -> float:
    return 0.5 + 4.5 * odds


def _half(label: str) -> float:
    return _letters(label) * LETTER / 2 + 6


def _node(view: View, plan: _Plan, node: int, outcome: str, decode: Decode, selected: bool) -> str:
    x, y, half = plan.x[node], plan.y[node], _half(plan.labels[node])
    facts = ghost_facts(view, decode) if node == plan.ghost else node_facts(view, node, decode)
    title = html.escape("\n".join(f"{key}: {value}" for key, value in facts))
    ink = PAPER if outcome in (ANCHOR, ACCEPTED) else COLORS[BONUS] if outcome == BONUS else INK
    ink = SOFT if outcome == PRUNED else ink
    weight = ' font-weight="bold"' if outcome in (ANCHOR, ACCEPTED, BONUS) else ""
    ring = ""
    if selected:
        ring = (f'<rect x="{x - half - 5:.1f}" y="{y - 11:.1f}" width="{2 * half + 10:.1f}" '
                f'height="22" rx="5" fill="none" stroke="{INK}" stroke-width="2"/>')  # fmt: skip
    label = html.escape(plan.labels[node])
    return (
        f'<g data-node="{node}" data-outcome="{outcome}"><title>{title}</title>{ring}'
        f"{shape(outcome, x, y, half)}"
        f'<text x="{x:.1f}" y="{y + 3.8:.1f}" text-anchor="middle" fill="{ink}"{weight}>'
        f"{label}</text></g>"
    )


def shape(outcome: str, x: float, y: float, half: float) -> str:
    """Outline of a node: a pill, a box, a hexagon, a dotted underline or a dashed tag."""
    color, top, low = COLORS[outcome], y - HEIGHT / 2, y + HEIGHT / 2
    left, right = x - half, x + half
    if outcome == PRUNED:
        return (
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{2 * half:.1f}" height="{HEIGHT}" '
            f'fill="{PAPER}" fill-opacity="0.85"/><path d="M{left:.1f} {low + 1:.1f}H{right:.1f}" '
            f'stroke="{color}" stroke-dasharray="1.5 2.5"/>'
        )
    if outcome in (UNREACHED, BONUS):
        tip = 5.0
        back = left - tip if outcome == UNREACHED else left
        points = [(left, top), (right, top), (right + tip, y), (right, low), (left, low), (back, y)]
        style = f'fill="{_hex(color, 0.1)}"'
        if outcome == BONUS:
            style = f'fill="{PAPER}" stroke-dasharray="4 2.5" stroke-width="1.5"'
        return f'<polygon points="{_points(points)}" stroke="{color}" {style}/>'
    radius = {ACCEPTED: HEIGHT / 2, ANCHOR: 3}.get(outcome, 0)
    fill = color if outcome in (ACCEPTED, ANCHOR) else _hex(color, 0.14)
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{2 * half:.1f}" height="{HEIGHT}" '
        f'rx="{radius}" fill="{fill}" stroke="{color}"/>'
    )


def _points(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _hex(color: str, share: float) -> str:
    return matplotlib.colors.to_hex(tint(color, share))


def _heading(plan: _Plan, depth: int) -> str:
    name = f"depth {depth}" if depth == 1 else str(depth) if depth else ANCHOR
    return (f'<text x="{plan.columns[depth]:.1f}" y="14" text-anchor="middle" fill="{SOFT}">'
            f"{name}</text>")  # fmt: skip


def _note(plan: _Plan, node: int, text: str, color: str = SOFT) -> str:
    """Small print above a node of the top line."""
    style = "" if color == SOFT else ' font-style="italic"'
    return (f'<text x="{plan.x[node]:.1f}" y="{plan.y[node] - 14:.1f}" text-anchor="middle" '
            f'font-size="9.5" fill="{color}"{style}>{html.escape(text)}</text>')  # fmt: skip


def _legend(y: float, shown: list[str], over: str) -> str:
    """The outcomes that occur, and what the width of an edge says."""
    parts = []
    names = [name for name in reversed(ORDER) if name in shown]
    for place, name in enumerate(names):
        x, line = _slot(place, y)
        parts.append(shape(name, x, line, 7) + _words(x + 22, line, NAMES[name]))
    x, line = _slot(len(names), y)
    for step, odds in enumerate((0.05, 0.5, 1.0)):
        parts.append(
            f'<path d="M{x - 8 + 16 * step:.0f} {line:.0f}h12" stroke="{SOFT}" '
            f'stroke-width="{_edge_width(odds):.2f}"/>'
        )
    parts.append(_words(x + 46, line, f"conditional 0.05, 0.5, 1 over the {over}"))
    return "".join(parts)


def _slot(place: int, y: float) -> tuple[float, float]:
    return MARGIN + 12 + 370 * (place % 2), y + ROW * (place // 2) + 16


def _words(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y + 3.8:.1f}" fill="{INK}">{html.escape(text)}</text>'
