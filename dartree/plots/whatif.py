"""tau and an estimate of speed over one setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from dartree.plots.parts import TAU, mark, note, powers_of_two
from dartree.plots.style import INK, method_look

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
    at = curve.values.index(curve.current)
    lines = {TAU: curve.tau, "estimated tokens/s": curve.tokens_per_second}
    for ax, (label, line) in zip(axes, lines.items(), strict=True):
        ax.plot(curve.values, line, ms=4, **method_look("dartree").line)
        ax.plot([curve.current], [line[at]], marker="o", ms=11, mfc="none", mec=INK, mew=1.6)
        note(ax, f"{line[at]:.3g}", (curve.current, line[at]), (0, -17), ha="center", size=9)
        if curve.parameter != "depth_penalty":
            powers_of_two(ax, _ticks(curve))
        mark(ax, curve.current, "now")
        ax.set_ylim(0, 1.18 * max(line))
        ax.set_xlabel(LABELS[curve.parameter])
        ax.set_ylabel(label)
    return axes


def _ticks(curve: Any) -> list[float]:
    """Powers of two that leave room for the current value, and the current value."""
    powers = [v for v in curve.values if v & (v - 1) == 0 and not 0.6 < v / curve.current < 1.7]
    return sorted([*powers, curve.current])
