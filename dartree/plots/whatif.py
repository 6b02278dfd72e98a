"""tau and an estimate of speed over one setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from dartree.plots.curves import mark
from dartree.plots.style import method_look

LABELS = {
    "budget": "budget B: nodes verified in a round",
    "width": "width W: nodes kept at each depth",
    "candidates": "candidates K: tokens proposed at each depth",
    "depth_penalty": "depth penalty",
}


def draw_what_if(axes: Sequence[Axes], curve: Any) -> Sequence[Axes]:
    """tau on the left and estimated tokens/s on the right, the current point ringed.

    ``curve`` has parameter, current, values, tau and tokens_per_second. Returns ``axes``.
    """
    look, at = method_look("dartree"), curve.values.index(curve.current)
    for ax, line, label in zip(
        axes,
        (curve.tau, curve.tokens_per_second),
        ("tau: tokens committed per round", "estimated tokens/s"),
        strict=True,
    ):
        ax.plot(curve.values, line, color=look.color, marker=look.marker, ls=look.dash, ms=4)
        ax.plot([curve.current], [line[at]], marker="o", ms=11, mfc="none", mec="#222222", mew=1.6)
        ax.annotate(f"{line[at]:.3g}", (curve.current, line[at]), xytext=(0, -17),
                    textcoords="offset points", ha="center", size=9)  # fmt: skip
        if curve.parameter != "depth_penalty":
            ax.set_xscale("log", base=2)
            ticks = _ticks(curve)
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.minorticks_off()
        mark(ax, curve.current, "now")
        ax.set_ylim(0, 1.18 * max(line))
        ax.set_xlabel(LABELS[curve.parameter])
        ax.set_ylabel(label)
    return axes


def _ticks(curve: Any) -> list[float]:
    """Powers of two that leave room for the current value, and the current value."""
    powers = [v for v in curve.values if v & (v - 1) == 0 and not 0.6 < v / curve.current < 1.7]
    return sorted([*powers, curve.current])
