"""The generated text, round by round, coloured by what was accepted."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Patch

from dartree.checks import counted
from dartree.plots.labels import Decode, plot_label, token_fonts, token_label
from dartree.plots.style import BONUS, INK, OUTCOME_LOOKS, PAPER, SOFT, tint
from dartree.records import ACCEPTED, RoundRecord

_ROW = 0.29  # inches
_WIDTH = 84  # characters across a row of draw_rounds, at least
_DEEP = 8  # drafts as deep as this have the full colour


def _pieces(record: RoundRecord) -> list[tuple[int, int]]:
    """(token, depth in the draft tree) of what was committed; depth 0: the target's own token."""
    accepted = len(record.path)
    return [
        (int(token), depth if depth <= accepted else 0)
        for depth, token in enumerate(record.committed, start=1)
    ]


def _sum(records: Sequence[RoundRecord]) -> str:
    committed = sum(len(record.committed) for record in records)
    tokens, rounds = counted(committed, "token"), counted(len(records), "round")
    return f"{tokens} in {rounds}, tau {committed / len(records):.2f}"


def _shade(depth: int) -> tuple[float, float, float]:
    """Green, the stronger the deeper an accepted draft lies; blue for the target's own token."""
    if not depth:
        return tint(OUTCOME_LOOKS[BONUS].color, 0.16)
    return tint(OUTCOME_LOOKS[ACCEPTED].color, 0.16 + 0.64 * min(depth, _DEEP) / _DEEP)


def rounds_figsize(records: Sequence[RoundRecord]) -> tuple[float, float]:
    """A figure size (inches) at which :func:`draw_rounds` can be read."""
    return 11.0, _ROW * (len(records) + 1) + 1.1


def draw_rounds(ax: Axes, records: Sequence[RoundRecord], decode: Decode) -> Axes:
    """One line a round: accepted drafts in green (deeper ones stronger), the target's own in blue.

    The first line holds the token that the prefill gave. ``decode`` turns a token id into str
    or bytes. Make the figure with ``rounds_figsize(records)``; returns ``ax``.
    """
    if not records:
        raise ValueError("records must hold at least one round; give max_new_tokens above 1.")
    rows = [
        [(plot_label(decode(token), 24), depth) for token, depth in pieces]
        for pieces in ([(int(records[0].anchor), 0)], *map(_pieces, records))
    ]
    across = max(_WIDTH, *(sum(len(label) + 1.6 for label, _ in row) for row in rows)) + 20
    ax.set_xlim(-11, across - 11)
    ax.set_ylim(len(rows) - 0.3, -0.8)
    size = _font_size(ax, across, len(rows))
    for number, row in enumerate(rows):
        name = f"round {records[number - 1].index}" if number else "prefill"
        ax.text(-1.2, number, name, ha="right", va="center", size=size, color=SOFT)
        end = _row(ax, number, row, size)
        if number:
            count = counted(len(row), "token")
            ax.text(end + 1, number, count, ha="left", va="center", size=size - 1, color=SOFT)
    _legend(ax, size)
    ax.set_title(f"{records[0].method}: {_sum(records)}")
    ax.set_axis_off()
    return ax


def _row(ax: Axes, y: int, row: list[tuple[str, int]], size: float) -> float:
    """Draw one line of (label, depth) boxes; returns the right end of the last, in characters."""
    x = 0.0
    for label, depth in row:
        width = len(label) + 1.0
        shape = "round,pad=0,rounding_size=0.35" if depth else "square,pad=0"
        ax.add_patch(FancyBboxPatch((x, y - 0.4), width, 0.8, boxstyle=shape, mutation_aspect=0.6,
                                    lw=0.8, ls="-" if depth else (0, (3, 1.5)),
                                    **_colors(depth)))  # fmt: skip
        ax.text(x + width / 2, y, label, size=size, ha="center", va="center", color=_ink(depth),
                weight="normal" if depth else "bold", family=list(token_fonts()),
                parse_math=False)  # fmt: skip
        x += width + 0.6
    return x


def _colors(depth: int) -> dict[str, Any]:
    return {"fc": _shade(depth), "ec": OUTCOME_LOOKS[ACCEPTED if depth else BONUS].color}


def _ink(depth: int) -> str:
    """A colour for text that can be read on the shade."""
    return PAPER if sum(_shade(depth)) < 1.5 else INK


def _font_size(ax: Axes, across: float, rows: int) -> float:
    """Points at which a monospaced character is one unit wide and a row is high enough."""
    box = ax.get_window_extent()
    dpi = ax.figure.dpi
    wide = box.width / dpi * 72 / across / 0.602  # DejaVu Sans Mono: 0.602 em per character
    high = box.height / dpi * 72 / (rows + 0.5) * 0.5
    return float(np.clip(min(wide, high), 3, 11))


def _legend(ax: Axes, size: float) -> None:
    names = {1: "accepted at depth 1", 4: "depth 4", _DEEP: f"depth {_DEEP} or more",
             0: "the target's own token"}  # fmt: skip
    handles = [Patch(ls="-" if depth else "--", label=name, **_colors(depth))
               for depth, name in names.items()]  # fmt: skip
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.0, 0.0), ncols=len(names),
              fontsize=max(size, 7))  # fmt: skip


_STYLE = (
    "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:13px;"
    "line-height:1.9;background:#fff;color:#222;padding:8px 10px;border:1px solid #ddd;"
    "border-radius:6px;overflow-wrap:anywhere"
)


def rounds_html(records: Sequence[RoundRecord], decode: Decode) -> str:
    """The text of ``records`` as HTML: drafts in green by depth, the target's own tokens in blue.

    The target's own tokens are also bold and underlined, and a thin bar starts every round;
    pointing at a token shows its round and depth. Readable on dark pages too.
    """
    if not records:
        return f'<div style="{_STYLE}">no rounds: nothing was drafted</div>'
    parts = [_span(int(records[0].anchor), 0, decode, "from the prefill")]
    for record in records:
        parts.append('<span style="border-left:2px solid #bbb;margin:0 2px 0 3px"></span>')
        for token, depth in _pieces(record):
            what = f"accepted at depth {depth}" if depth else "the target's own token"
            parts.append(_span(token, depth, decode, f"round {record.index}: {what}"))
    names = {1: "depth 1", 4: "depth 4", _DEEP: f"depth {_DEEP}+", 0: "the target's own"}
    key = "".join(
        f'<span style="{_css(depth)};margin-right:10px">{name}</span>'
        for depth, name in names.items()
    )
    head = f"<b>{html.escape(records[0].method)}</b>: {_sum(records)}"
    return (
        f'<div style="{_STYLE}"><div style="margin-bottom:4px">{head}</div>'
        f"<div>{''.join(parts)}</div>"
        f'<div style="margin-top:6px;font-size:11px">{key}</div></div>'
    )


def _css(depth: int) -> str:
    shade = matplotlib.colors.to_hex(_shade(depth))
    extra = "" if depth else ";font-weight:bold;text-decoration:underline"
    box = "border-radius:3px;padding:1px 2px;margin-right:1px"
    return f"background:{shade};color:{_ink(depth)};{box}{extra}"


def _span(token: int, depth: int, decode: Decode, hint: str) -> str:
    """One token; a newline shows its sign and then breaks the line."""
    label = html.escape(token_label(decode(token))).replace("↵", "↵<br>").replace("␣", "&nbsp;")
    return f'<span title="{html.escape(hint)}" style="{_css(depth)}">{label}</span>'
