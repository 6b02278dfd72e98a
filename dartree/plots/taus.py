"""What rounds accept: bars by group, survival by depth, lengths, heat maps, fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dartree.checks import counted
from dartree.plots.parts import AT_Y, TAU, draw_line, note, powers_of_two
from dartree.plots.style import INK, SOFT, method_look


def draw_groups(ax: Axes, values: Mapping[str, Mapping[str, float]], label: str) -> Axes:
    """Horizontal bars: ``values`` group -> method -> number; the numbers stand behind the bars."""
    y, ticks, names = 0.0, [], []
    for group, bars in values.items():
        note(ax, group, (0, y + (len(bars) - 1) / 2), (-112, 0), xycoords=AT_Y, ha="right",
             va="center", weight="bold")  # fmt: skip
        for method, value in bars.items():
            ax.barh(y, value, height=0.74, lw=1.2, **method_look(method).bar)
            note(ax, f"{value:.2f}", (value, y), (4, 0), va="center", size=9)
            ticks.append(y)
            names.append(method)
            y += 1
        y += 0.8
    ax.set_yticks(ticks, names)
    ax.set_ylim(y - 1.2, -0.6)
    ax.set_xlim(0, 1.1 * max(v for bars in values.values() for v in bars.values()))
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(label)
    return ax


def accepted_drafts(accepted: Sequence[Sequence[int]]) -> np.ndarray:
    """Drafts accepted in each round; the last round of a text is left out, it may be cut short.

    ``accepted``: by text, the tokens committed in each round.
    """
    return np.array([n - 1 for counts in accepted for n in counts[:-1]], dtype=np.int64)


def survival(accepted: Sequence[Sequence[int]], drafts: int) -> np.ndarray:
    """Share of rounds [n + 1] that accepted at least d drafts, d = 0..n."""
    lengths = accepted_drafts(accepted)
    return np.array([(lengths >= depth).mean() for depth in range(drafts + 1)])


def draw_survival(ax: Axes, runs: Mapping[str, Sequence[Sequence[int]]], drafts: int) -> Axes:
    """Share of rounds that accepted at least d drafts, one line a method.

    Its sum over d >= 1 is the mean number of accepted drafts of these rounds. It is not tau - 1:
    tau counts the last round of each text too, as the stop token or the length limit cut it.
    """
    for method, accepted in runs.items():
        shares = survival(accepted, drafts)
        draw_line(ax, range(drafts + 1), shares, method_look(method), method)
    ax.set_xlabel("depth d")
    ax.set_ylabel("rounds that accept at least d drafts")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(0, 1.03)
    ax.legend()
    return ax


def draw_lengths(ax: Axes, method: str, accepted: Sequence[Sequence[int]], drafts: int) -> Axes:
    """How many rounds accepted 0, 1 .. n drafts; the share that hit the block's end is named."""
    lengths = accepted_drafts(accepted)
    shares = np.bincount(lengths, minlength=drafts + 1) / max(1, len(lengths))
    ax.bar(range(drafts + 1), shares, width=0.8, lw=1, **method_look(method).bar)
    note(ax, f"block's end: {shares[drafts]:.0%}", (1.0, 1.0), (-2, -2), xycoords="axes fraction",
         ha="right", va="top", size=9)  # fmt: skip
    ax.set_title(f"{method} ({counted(len(lengths), 'round')})")
    ax.margins(y=0.18)  # room for the note
    ax.set_xlabel("accepted drafts")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def draw_heat(
    ax: Axes, cells: np.ndarray, rows: Sequence[Any], columns: Sequence[Any], form: str = "{:.2f}"
) -> Axes:
    """Numbers [rows, columns] as a heat map; the best one is framed."""
    low, high = float(np.min(cells)), float(np.max(cells))
    ax.imshow(cells, cmap="cividis", aspect="auto", vmin=low, vmax=high)
    for (i, j), value in np.ndenumerate(cells):
        dark = value < low + 0.55 * (high - low)
        ax.text(j, i, form.format(value), ha="center", va="center", size=8.5,
                color="white" if dark else INK)  # fmt: skip
    i, j = divmod(int(np.argmax(cells)), cells.shape[1])
    ax.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, ec="#d55e00", lw=2.5, zorder=4))
    ax.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
    ax.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
    ax.grid(visible=False)
    return ax


def draw_front(ax: Axes, points: Sequence[Any], front: Sequence[Any]) -> Axes:
    """tau over the milliseconds of a round: all points, and the front with its settings named.

    ``points``, ``front``: :class:`dartree.analysis.grids.Point`.
    """
    ax.scatter([p.ms_per_round for p in points], [p.tau for p in points], s=9, color=SOFT,
               alpha=0.4, lw=0, label="all settings")  # fmt: skip
    xs, ys = [p.ms_per_round for p in front], [p.tau for p in front]
    draw_line(ax, xs, ys, method_look("dartree"), "front")
    fastest = max(front, key=lambda p: p.tau / p.ms_per_round)
    top, slope = 1.06 * max(ys), fastest.tau / fastest.ms_per_round
    reach = min(max(xs) * 1.05, top / slope)
    ax.plot([0, reach], [0, slope * reach], color=SOFT, lw=1, ls=":",
            label=f"most tokens/s: {1000 * slope:.0f}")  # fmt: skip
    s = fastest.settings
    note(ax, f"W {s.width}, K {s.candidates}, B {s.budget}, penalty {s.depth_penalty:g}",
         (fastest.ms_per_round, fastest.tau), (14, -14), size=9)  # fmt: skip
    ax.set_xlim(0, max(p.ms_per_round for p in points) * 1.05)
    ax.set_ylim(0, top)
    ax.set_xlabel("milliseconds of a round (estimated from the cost curve)")
    ax.set_ylabel(TAU)
    ax.legend(loc="lower right")
    return ax


def draw_lines(
    ax: Axes, xs: Sequence[float], lines: Mapping[str, Sequence[float]], looks: Mapping[str, str]
) -> Axes:
    """``lines`` name -> values over ``xs`` (log scale); ``looks`` name -> method it looks like."""
    for name, values in lines.items():
        draw_line(ax, xs, values, method_look(looks[name]), name)
    powers_of_two(ax, xs)
    ax.set_ylim(0, 1.08 * max(max(values) for values in lines.values()))
    ax.legend()
    return ax
