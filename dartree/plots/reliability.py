"""Are scores honest? Reliability diagrams, calibration by depth and rank, and penalty fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dartree.analysis.calibration import PenaltyFit
from dartree.analysis.metrics import Reliability
from dartree.plots.parts import ABOVE_LEFT, AT_X, DOTTED, draw_line, note
from dartree.plots.style import INK, SOFT, Look

# Series in the order in which they are given; colour, marker and dash all differ.
SERIES = (
    Look("#0173b2", "o", "-"),
    Look("#d55e00", "s", "--"),
    Look("#029e73", "^", "-."),
    Look("#949494", "D", ":"),
)


def draw_reliability(ax: Axes, curves: Mapping[str, Reliability], *, log: bool = False) -> Axes:
    """Mean label over mean prediction by bin, one line a series; dots grow with their count.

    Below the diagonal the prediction promises too much. ``log``: both axes logarithmic, for path
    scores; bins without a single hit then lie on the lower edge.
    """
    floor = min(c.predicted[c.count > 0].min() for c in curves.values()) / 2 if log else 0.0
    ends = np.array([max(floor, 1e-12) if log else 0.0, 1.0])
    ax.plot(ends, ends, zorder=1, **DOTTED)
    for look, (name, curve) in zip(SERIES, curves.items(), strict=False):
        full = curve.count > 0
        x, y = curve.predicted[full], curve.observed[full]
        y = np.maximum(y, floor) if log else y
        size = 8 + 60 * curve.count[full] / curve.count.max()
        ax.plot(x, y, color=look.color, ls=look.dash, lw=1.2, zorder=2)
        ax.scatter(x, y, s=size, marker=look.marker, fc=look.color, ec="white", lw=0.5, zorder=3,
                   label=f"{name} (n {curve.count.sum()})", clip_on=False)  # fmt: skip
    if log:
        ax.set_xscale("log")
        ax.set_yscale("log")
    limits = (floor, 1.3) if log else (-0.02, 1.02)
    ax.set_xlim(limits)
    ax.set_ylim(limits)
    ax.text(0.97, 0.04, "promises too much", transform=ax.transAxes, ha="right", size=8, color=SOFT)
    ax.set_xlabel("predicted probability")
    ax.set_ylabel("what came of it")
    legend = ax.legend(loc="upper left", fontsize=8)
    for handle in legend.legend_handles:
        handle.set_sizes([28])  # type: ignore[union-attr]  # all come from scatter
    return ax


def draw_predicted_observed(
    ax: Axes, columns: Mapping[str, Mapping[str, np.ndarray]], label: str
) -> Axes:
    """Predicted (hollow, thin) and observed (full) means over an integer such as the depth.

    ``columns``: name -> what :func:`dartree.analysis.calibration.by_column` returns. The band
    between the two lines is the miscalibration.
    """
    for look, (name, column) in zip(SERIES, columns.items(), strict=False):
        x, q, y = column["value"], column["predicted"], column["observed"]
        ax.fill_between(x, q, y, color=look.color, alpha=0.12, lw=0)
        draw_line(ax, x, y, look, f"{name}: observed", lw=1.5)
        draw_line(ax, x, q, look, f"{name}: predicted", lw=0.8, mfc="white")
    ax.set_ylim(0, 1.02)
    ax.set_xlabel(label)
    ax.set_ylabel("mean probability")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(fontsize=8, ncols=2, **ABOVE_LEFT)
    return ax


def draw_intervals(
    ax: Axes,
    series: Mapping[str, Sequence[tuple[str, float, float, float]]],
    label: str,
    reference: float | None = None,
) -> Axes:
    """Values with their intervals: ``series`` maps a name to rows (row name, value, low, high).

    ``reference`` is marked by a dotted line (chance, or zero).
    """
    names = [row[0] for row in next(iter(series.values()))]
    for number, (look, (name, rows)) in enumerate(zip(SERIES, series.items(), strict=False)):
        y = np.arange(len(rows)) + 0.22 * (number - (len(series) - 1) / 2)
        _, value, low, high = zip(*rows, strict=True)
        ax.hlines(y, low, high, color=look.color, lw=1.4)
        draw_line(ax, value, y, look, name, ls="none", ms=6)
    if reference is not None:
        ax.axvline(reference, zorder=0, **DOTTED)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(label)
    ax.legend(fontsize=8, ncols=len(series), **ABOVE_LEFT)
    return ax


def draw_penalty_fit(ax: Axes, fits: Mapping[str, PenaltyFit], used: float) -> Axes:
    """Log loss of path scores over the penalty, above its minimum.

    The bars near the bottom are the minima with their intervals, one below the other.
    """
    top = 1.1 * max(float(fit.loss[-1] - fit.loss.min()) for fit in fits.values())
    for row, (look, (name, fit)) in enumerate(zip(SERIES, fits.items(), strict=False)):
        y = -0.06 * (row + 1) * top
        ax.plot(fit.penalties, fit.loss - fit.loss.min(), color=look.color, ls=look.dash, lw=1.4)
        ax.plot([fit.low, fit.high], [y, y], color=look.color, lw=3, alpha=0.5)
        draw_line(ax, fit.best, y, look, f"{name}: least at {fit.best:.2f}", lw=1.5, ms=7)
    ax.axhline(0, color=SOFT, lw=0.8)
    _used(ax, used)
    ax.set_xlabel("penalty per level")
    ax.set_ylabel("log loss above its minimum (nats per node)")
    ax.set_ylim(-0.06 * (len(fits) + 1) * top, top)
    ticks = ax.get_yticks()
    ax.set_yticks(ticks[(ticks >= 0) & (ticks <= top)])  # below 0 there are bars, no losses
    ax.legend(fontsize=8, ncols=2, **ABOVE_LEFT)
    return ax


def draw_accepted(
    ax: Axes, penalties: Sequence[float], series: Mapping[str, Sequence[float]], used: float
) -> Axes:
    """Accepted drafts a round over the penalty, one line a series."""
    for look, (name, values) in zip(SERIES, series.items(), strict=False):
        draw_line(ax, penalties, values, look, name)
    _used(ax, used)
    ax.set_xlabel("penalty per level")
    ax.set_ylabel("accepted drafts per round")
    ax.set_ylim(0, 1.08 * max(max(values) for values in series.values()))
    ax.legend(fontsize=8, ncols=2, **ABOVE_LEFT)
    return ax


def _used(ax: Axes, value: float) -> None:
    ax.axvline(value, zorder=0, **{**DOTTED, "color": INK})
    note(ax, f"used: {value:g}", (value, 0.5), (4, 0), xycoords=AT_X, size=8, color=INK)
