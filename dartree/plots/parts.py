"""What several pictures share: lines in a look, notes, rows with names, axes in powers of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from dartree.plots.style import SOFT, Look

TAU = "tau: tokens committed per round"
ROUND_MS = "milliseconds of a round"
DOTTED: dict[str, Any] = {"color": SOFT, "lw": 1, "ls": (0, (1, 2))}
# What a note's place means: a value of one axis, and a share 0..1 of the way along the other.
AT_X, AT_Y = ("data", "axes fraction"), ("axes fraction", "data")
# Places of a legend.
ABOVE: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
ABOVE_LEFT: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1)}


def draw_line(ax: Axes, xs: Any, ys: Any, look: Look, label: str, **options: Any) -> None:
    """``ys`` over ``xs`` in the colour, marker and dash of ``look``."""
    ax.plot(xs, ys, label=label, **{"ms": 5, "lw": 1.4, **look.line, **options})


def note(
    ax: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], **options: Any
) -> None:
    """Text that stands ``offset`` points away from ``at``."""
    ax.annotate(text, at, xytext=offset, textcoords="offset points", **options)


def mark(ax: Axes, value: float, text: str) -> None:
    """A dotted line at ``value`` of the x axis, with its name at the top."""
    ax.axvline(value, zorder=0, **DOTTED)
    note(ax, text, (value, 1.0), (4, -4), xycoords=AT_X, va="top", size=8, color=SOFT)


def name_rows(ax: Axes, names: Sequence[str], **options: Any) -> None:
    """One name a row, from the top down."""
    ax.set_yticks(range(len(names)), names, **options)
    ax.set_ylim(len(names) - 0.4, -0.6)


def name_bars(ax: Axes, names: Sequence[str]) -> None:
    """As :func:`name_rows`, without grid and ticks beside the bars."""
    name_rows(ax, names)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)


def powers_of_two(ax: Axes, ticks: Sequence[float]) -> None:
    """A logarithmic x axis with these ticks alone."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
