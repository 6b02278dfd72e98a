"""Pictures of training: what a run's log says, and what the trained parts are worth together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dartree.plots.style import INK, SOFT, Look, method_look

RUN_LOOKS = {
    "target": Look("#4d4d4d", "x", (0, (1, 1))),
    "dflash": method_look("dflash"),
    "drafter": method_look("domino"),
    "dspark": Look("#cc78bc", "P", "-."),
    "yours": Look("#029e73", "X", "-"),
    "without head": method_look("ar"),
    "with head": Look("#029e73", "X", "-"),
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
        values = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
        if steps:
            look = RUN_LOOKS[run]
            ax.plot(steps, values, color=look.color, marker=look.marker, ls=look.dash, ms=5,
                    lw=1.4, markevery=max(1, len(steps) // 8), label=run)  # fmt: skip
    ax.set_xlabel("step")
    ax.set_ylabel(key.replace("_", " "))
    ax.legend(fontsize=8)
    return ax


def draw_level(ax: Axes, value: float, text: str, above: bool = True) -> Axes:
    """A dotted line at ``value`` of the y axis with its name at the right."""
    ax.axhline(value, color=SOFT, lw=1, ls=(0, (1, 2)))
    side = (3, "bottom") if above else (-3, "top")
    ax.annotate(text, (1, value), xycoords=("axes fraction", "data"), xytext=(-3, side[0]),
                textcoords="offset points", ha="right", va=side[1], size=8, color=INK)  # fmt: skip
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
            ax.annotate(f"{tau:.2f}", (tau, y), xytext=(0, 7), textcoords="offset points",
                        ha="center", size=8, color=INK)  # fmt: skip
    ax.set_yticks(range(len(table)), list(table))
    ax.set_ylim(len(table) - 0.5, -0.7)
    ax.set_xlim(0, 1.1 * max(tau for taus in table.values() for tau in taus.values()))
    ax.set_xlabel("tau: tokens committed per round")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=9)
    return ax
