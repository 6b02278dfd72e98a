"""Where the time of a round goes, and how it grows: pictures of benchmarks and sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dartree.clock import STAGES
from dartree.plots import parts
from dartree.plots.parts import ROUND_MS, TAU, draw_line, note
from dartree.plots.style import INK, Look, method_look

# The models' own forwards in solid colours, what is paid around them hatched.
STAGE_LOOKS: dict[str, Look] = {
    "draft": Look("#56b4e9"),
    "expand": Look("#d55e00"),
    "prune": Look("#de8f05", hatch="////"),
    "mask": Look("#cc78bc", hatch="xxxx"),
    "verify": Look("#029e73"),
    "walk": Look("#ca9161", hatch="...."),
    "commit": Look("#949494", hatch="----"),
}
KNEE = 1.25  # a round at the knee takes this many times the round with one node


def draw_stages(ax: Axes, result: Mapping[str, Any]) -> Axes:
    """Milliseconds of a round by stage, one bar a method; ``result`` of :func:`bench.bench`.

    The number behind a bar is the whole round; what the stages leave is white.
    """
    entries = [e for e in result["methods"] if e["rounds"]]
    for y, entry in enumerate(entries):
        left = 0.0
        for stage in STAGES:
            width, look = entry["stage_ms"][stage], STAGE_LOOKS[stage]
            ax.barh(y, width, left=left, height=0.68, fc=look.color, ec="white", lw=0.4,
                    hatch=look.hatch, label=stage if y == 0 else None)  # fmt: skip
            left += width
        whole = entry["ms_per_round"]
        note(ax, f"{whole:.1f} ms, tau {entry['tau']:.2f}", (whole, y), (5, 0), va="center",
             size=9, color=INK)  # fmt: skip
    parts.name_bars(ax, [entry["method"] for entry in entries])
    ax.set_xlim(0, 1.32 * max(entry["ms_per_round"] for entry in entries))
    ax.set_xlabel("milliseconds of a round, by stage")
    ax.legend(ncols=len(STAGES), fontsize=8, handlelength=1.2, columnspacing=1.0, **parts.ABOVE)
    return ax


def _by_method(result: Mapping[str, Any]) -> dict[str, list]:
    """The rows of a sweep by method, in order."""
    found: dict[str, list] = {}
    for row in result["rows"]:
        found.setdefault(row["method"], []).append(row)
    return found


def draw_sweep(ax: Axes, result: Mapping[str, Any], share: str | None = None) -> Axes:
    """Milliseconds of a round over the swept parameter, one line a method, band: the repeats.

    ``share``: a stage that is drawn as well, thinner. ``result`` of :func:`bench.sweep`.
    """
    for method, rows in _by_method(result).items():
        look, values = method_look(method), [row["value"] for row in rows]
        middle, low, high = np.array([row["ms_per_round"] for row in rows]).T
        ax.fill_between(values, low, high, color=look.color, alpha=0.2, lw=0)
        draw_line(ax, values, middle, look, method)
        if share:
            ax.plot(values, [row["stage_ms"][share] for row in rows], color=look.color, lw=0.8,
                    ls=":", label=f"{method}: {share}")  # fmt: skip
    parts.powers_of_two(ax, sorted({row["value"] for row in result["rows"]}))
    # Panels may share the axis: what a panel beside this one needs is kept.
    slowest = max(row["ms_per_round"][2] for row in result["rows"])
    ax.set_ylim(0, max(ax.get_ylim()[1], 1.05 * slowest))
    ax.set_ylabel(ROUND_MS)
    ax.legend(fontsize=8, ncols=2, **parts.ABOVE)
    return ax


def draw_tau_sweep(ax: Axes, result: Mapping[str, Any]) -> Axes:
    """tau over the swept parameter, one line a method; ``result`` of :func:`bench.sweep`."""
    for method, rows in _by_method(result).items():
        values, taus = [row["value"] for row in rows], [row["tau"] for row in rows]
        draw_line(ax, values, taus, method_look(method), method)
    ax.set_xlabel(result["parameter"].replace("_", " "))
    ax.set_ylabel(TAU)
    ax.set_ylim(0, 1.12 * max(row["tau"] for row in result["rows"]))
    ax.legend(loc="lower right")
    return ax


def draw_matched(ax: Axes, result: Mapping[str, Any], chains: Mapping[str, Any]) -> Axes:
    """tau over the milliseconds of a round: a line a tree over its budgets, a point a chain.

    ``result``: a budget sweep of :func:`bench.sweep`; ``chains``: a result of :func:`bench.bench`.
    """
    for method, rows in _by_method(result).items():
        times, taus = [row["ms_per_round"][0] for row in rows], [row["tau"] for row in rows]
        draw_line(ax, times, taus, method_look(method), method)
    for entry in chains["methods"]:
        if (method := entry["method"]) in ("ar", "dflash", "domino"):
            draw_line(ax, entry["ms_per_round"], entry["tau"], method_look(method), method, ms=8,
                      ls="none")  # fmt: skip
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(ROUND_MS)
    ax.set_ylabel(TAU)
    ax.legend(fontsize=8, loc="lower right")
    return ax


def draw_build(ax: Axes, sweeps: Mapping[str, Mapping[str, Any]]) -> Axes:
    """Milliseconds until the tree is there (expand and prune) over the swept parameter.

    ``sweeps``: results of :func:`bench.sweep` by the name of what they ran with; the first one's
    lines are dashed.
    """
    for place, (name, result) in enumerate(sweeps.items()):
        dash = {"ls": (0, (4, 2)), "mfc": "white"} if place == 0 else {"ls": "-"}
        for method, rows in _by_method(result).items():
            values = [row["value"] for row in rows]
            draw_line(ax, values, list(map(build_ms, rows)), method_look(method),
                      f"{method}, {name}", **dash)  # fmt: skip
    parts.powers_of_two(ax, sorted({row["value"] for r in sweeps.values() for row in r["rows"]}))
    ax.set_ylim(bottom=0)
    ax.set_ylabel("milliseconds to build the tree")
    ax.legend(fontsize=8, ncols=2, **parts.ABOVE)
    return ax


def build_ms(row: Mapping[str, Any]) -> float:
    """Milliseconds of a row of a benchmark or sweep until the tree is there: expand and prune."""
    return row["stage_ms"]["expand"] + row["stage_ms"]["prune"]


def knee(result: Mapping[str, Any], method: str = "dartree") -> int:
    """The largest value of a sweep whose round takes at most KNEE times the first one's."""
    rows = _by_method(result)[method]
    limit = KNEE * rows[0]["ms_per_round"][0]
    return max(row["value"] for row in rows if row["ms_per_round"][0] <= limit)
