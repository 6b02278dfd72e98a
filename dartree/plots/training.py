"""Pictures of training: what a run's log says, and what the trained parts are worth together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dartree.plots.parts import ABOVE, AT_Y, DOTTED, TAU, draw_line, note
from dartree.plots.style import INK, Look, method_look

YOURS = Look("#029e73", "X", "-")
RUN_LOOKS = {
    "target": Look("#4d4d4d", "x", (0, (1, 1))),
    "dflash": method_look("dflash"),
    "drafter": method_look("domino"),
    "dspark": Look("#cc78bc", "P", "-."),
    "yours": YOURS,
    "without head": method_look("ar"),
    "with head": YOURS,
}


def log_values(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """(steps, values) of one quantity of a log; values by domain become their mean."""
    points = [(row["step"], row[key]) for row in rows if key in row]
    return [step for step, _ in points], [
        float(np.mean(list(v.values()))) if isinstance(v, Mapping) else float(v) for _, v in points
    ]


def draw_log(
    ax: Axes, logs: Mapping[str, Sequence[Mapping[str, Any]]], key: str, window: int = 1
) -> Axes:
    """One quantity of training logs over steps, one line a run; runs without it are left out.

    ``window``: rows of the log that a point is the mean of, itself the last.
    """
    for run, rows in logs.items():
        steps, values = log_values(rows, key)
        values = [
            float(np.mean(values[max(0, i + 1 - window) : i + 1])) for i in range(len(values))
        ]
        if steps:
            draw_line(ax, steps, values, RUN_LOOKS[run], run, markevery=max(1, len(steps) // 8))
    ax.set_xlabel("step")
    ax.set_ylabel(key.replace("_", " "))
    ax.legend(fontsize=8)
    return ax


def draw_level(ax: Axes, value: float, text: str, above: bool = True) -> Axes:
    """A dotted line at ``value`` of the y axis with its name at the right."""
    ax.axhline(value, **DOTTED)
    shift, side = (3, "bottom") if above else (-3, "top")
    note(ax, text, (1, value), (-3, shift), xycoords=AT_Y, ha="right", va=side, size=8, color=INK)
    return ax


def draw_stack_tau(ax: Axes, table: Mapping[str, Mapping[str, float]]) -> Axes:
    """tau by stack and method: one line a stack, one marker a method, their distance a bar.

    ``table``: stack -> method -> tau.
    """
    for y, taus in enumerate(table.values()):
        ax.plot([min(taus.values()), max(taus.values())], [y, y], color="#cccccc", lw=3, zorder=1)
        for method, tau in taus.items():
            look = method_look(method)
            ax.plot(tau, y, look.marker, color=look.color, ms=8, zorder=2,
                    label=method if y == 0 else None)  # fmt: skip
            note(ax, f"{tau:.2f}", (tau, y), (0, 7), ha="center", size=8, color=INK)
    ax.set_yticks(range(len(table)), list(table))
    ax.set_ylim(len(table) - 0.5, -0.7)
    ax.set_xlim(0, 1.1 * max(tau for taus in table.values() for tau in taus.values()))
    ax.set_xlabel(TAU)
    ax.legend(ncols=4, fontsize=9, **ABOVE)
    return ax
