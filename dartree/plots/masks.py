"""One verification forward as pictures: its mask, its positions, its cache, its samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Rectangle

from dartree.plots.parts import ABOVE_LEFT, DOTTED
from dartree.plots.style import INK, PAPER, SOFT, tint

_BLUE, _GREEN = "#0173b2", "#029e73"
_HIDDEN, _PAST, _ANCESTOR, _SELF = range(4)
# From light to dark, so that the picture reads in grey.
_SHADES = ("#ffffff", "#dfe7ee", "#5aa2cf", "#12344d")
_PAST_CELL = {"fc": tint(_BLUE, 0.2), "ec": _BLUE}
_KEPT = {"fc": _GREEN, "ec": _GREEN}
_DROPPED = {"fc": PAPER, "ec": SOFT, "ls": ":"}
_NAMES = ("hidden", "past, seen by all", "ancestor", "the row itself")


def draw_mask(ax: Axes, visible: np.ndarray, labels: Sequence[str] = (), shown: int = 6) -> Axes:
    """What each row of one forward may look at: ``visible`` [1 + N, P + 1 + N] bool.

    Rows are the anchor and the nodes, columns the cache: only the last ``shown`` of the P past
    columns are drawn. ``labels`` [1 + N] name the rows; none for trees too large to name.
    """
    rows, columns = visible.shape
    past = columns - rows
    shown = min(shown, past)
    codes = np.where(visible[:, past - shown :], _ANCESTOR, _HIDDEN)
    codes[:, :shown][codes[:, :shown] == _ANCESTOR] = _PAST
    own = np.arange(rows)
    codes[own, shown + own] = np.where(visible[own, past + own], _SELF, _HIDDEN)
    ax.imshow(codes, cmap=ListedColormap(_SHADES), vmin=0, vmax=3, aspect="equal")
    ax.axvline(shown - 0.5, color=INK, lw=1.2)
    if len(labels):
        for edge in range(rows + shown):
            ax.axvline(edge - 0.5, color="#cfd6dd", lw=0.5, zorder=1.5)
        for edge in range(rows):
            ax.axhline(edge - 0.5, color="#cfd6dd", lw=0.5, zorder=1.5)
        ax.set_yticks(own, labels, family="DejaVu Sans Mono", fontsize=8, parse_math=False)
        ax.set_xticks(shown + own, own.astype(str), fontsize=8)
    else:
        ticks = own[:: max(1, 16 * (rows // 64))]
        ax.set_yticks(ticks, ticks.astype(str), fontsize=8)
        ax.set_xticks(shown + ticks, ticks.astype(str), fontsize=8)
    ax.grid(visible=False)
    ax.tick_params(length=0)
    hidden = "" if shown == past else f" (the last {shown} of {past} past rows, then the tree's)"
    ax.set_xlabel(f"cache row{hidden}")
    handles = [Patch(fc=c, ec="#888888", lw=0.5) for c in _SHADES]
    ax.legend(handles, _NAMES, ncols=2, fontsize=8, **ABOVE_LEFT)
    return ax


def draw_cache_rows(ax: Axes, positions: np.ndarray, past: int, shown: int = 6) -> Axes:
    """Position id of every cache row: ``positions`` [1 + N] of the tree rows after ``past``.

    In a plain text row and position are the same (dotted line). Siblings share a position.
    """
    rows = past + np.arange(len(positions))
    before = np.arange(max(0, past - shown), past)
    span = np.array([before[0] if len(before) else past, rows[-1]])
    ax.plot(span, span, zorder=1, label="row = position", **DOTTED)
    ax.plot(before, before, ls="none", marker="s", ms=5, color=SOFT, label="past")
    ax.plot(rows[:1], positions[:1], ls="none", marker="D", ms=7, color=INK, label="anchor")
    ax.plot(rows[1:], positions[1:], ls="none", marker="o", ms=5, color=_BLUE, label="tree nodes")
    ax.set_xlabel("row in the cache while the round is verified")
    ax.set_ylabel("position: anchor + depth")
    ax.legend(loc="upper left", fontsize=8)
    return ax


def draw_compaction(
    ax: Axes, past: int, rows: Sequence[int], count: int, labels: Sequence[str], shown: int = 3
) -> Axes:
    """The cache after verify (above) and after commit (below).

    ``rows`` [1 + a] are the kept ones of ``count`` tree rows, ``labels`` [1 + a] their tokens. Of
    the ``past`` rows only the last ``shown`` are drawn.
    """
    shown, kept = min(shown, past), set(rows)
    for column in range(-shown, count):
        if column < 0:
            for y in (1.0, 0.0):
                _cell(ax, column, y, **_PAST_CELL)
            continue
        stays = column in kept
        _cell(ax, column, 1.0, **(_KEPT if stays else _DROPPED))
        ax.text(column, 1.0, str(column), ha="center", va="center", size=7,
                color=PAPER if stays else SOFT, zorder=3)  # fmt: skip
    for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
        _cell(ax, place, 0.0, **_KEPT)
        ax.text(place, 0.0, str(row), ha="center", va="center", size=7, color=PAPER, zorder=3)
        ax.text(place, -0.42, label, ha="center", va="top", size=8, rotation=90,
                family="DejaVu Sans Mono", parse_math=False)  # fmt: skip
        ax.annotate("", (place, 0.34), (row, 0.66),
                    arrowprops={"arrowstyle": "->", "color": _GREEN, "lw": 0.9})  # fmt: skip
    ax.set_xlim(-shown - 0.8, count - 0.2)
    ax.set_ylim(-1.3, 1.5)
    ax.set_yticks([1.0, 0.0], ["after verify", "after commit"])
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    looks: dict[str, dict[str, Any]] = {
        f"past (the last {shown} of {past} rows)": _PAST_CELL,
        "kept: anchor and accepted drafts": _KEPT, "dropped": _DROPPED,
    }  # fmt: skip
    ax.legend([Patch(**look) for look in looks.values()], looks, ncols=3, fontsize=8, **ABOVE_LEFT)
    return ax


def _cell(ax: Axes, x: float, y: float, **look: Any) -> None:
    ax.add_patch(Rectangle((x - 0.44, y - 0.3), 0.88, 0.6, lw=0.8, zorder=2, **look))


def draw_law(
    ax: Axes, p: np.ndarray, counts: np.ndarray, names: Sequence[str], ids: Sequence[int]
) -> Axes:
    """Exact probabilities (bars) and sampled frequencies (dots, whisker: two standard errors).

    ``p`` and ``counts`` [V]; ``ids`` are the tokens shown, ``names`` their labels; the last
    column holds all others. The whisker is the noise that ``p`` itself would give.
    """
    ids, draws = list(ids), counts.sum()
    exact = np.append(p[ids], 1 - p[ids].sum()).clip(0)
    seen = np.append(counts[ids], draws - counts[ids].sum()) / draws
    noise = 2 * np.sqrt(exact * (1 - exact) / draws)
    x = np.arange(len(exact))
    ax.bar(x, exact, width=0.7, fc=tint(_BLUE, 0.25), ec=_BLUE, lw=0.8, label="the target: exact")
    ax.errorbar(x, seen, yerr=noise, fmt="o", ms=4, color=INK, lw=1, capsize=2,
                label=f"sampled, n {draws} (whisker: 2 standard errors)")  # fmt: skip
    ax.set_xticks(x, [*names, "all others"], rotation=60, ha="right", rotation_mode="anchor",
                  fontsize=8, family="DejaVu Sans Mono", parse_math=False)  # fmt: skip
    ax.set_ylim(bottom=0)
    ax.grid(axis="x", visible=False)
    ax.set_ylabel("probability")
    ax.legend(fontsize=8)
    return ax
