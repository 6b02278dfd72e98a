"""Where the time of a round goes, and how it grows: pictures of benchmarks and sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dartree.clock import STAGES
from dartree.plots.style import INK, SOFT, Look, method_look

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
        ax.annotate(
            f"{entry['ms_per_round']:.1f} ms, tau {entry['tau']:.2f}", (entry["ms_per_round"], y),
            xytext=(5, 0), textcoords="offset points", va="center", size=9, color=INK,
        )  # fmt: skip
    ax.set_yticks(range(len(entries)), [entry["method"] for entry in entries])
    ax.set_ylim(len(entries) - 0.4, -0.6)
    ax.set_xlim(0, 1.32 * max(entry["ms_per_round"] for entry in entries))
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("milliseconds of a round, by stage")
    ax.legend(ncols=len(STAGES), loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8,
              handlelength=1.2, columnspacing=1.0)  # fmt: skip
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
        ax.plot(values, middle, color=look.color, marker=look.marker, ls=look.dash, ms=5, lw=1.4,
                label=method)  # fmt: skip
        if share:
            ax.plot(values, [row["stage_ms"][share] for row in rows], color=look.color, lw=0.8,
                    ls=":", label=f"{method}: {share}")  # fmt: skip
    ax.set_xscale("log", base=2)
    ticks = sorted({row["value"] for row in result["rows"]})
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    # Panels may share the axis: what a panel beside this one needs is kept.
    slowest = max(row["ms_per_round"][2] for row in result["rows"])
    ax.set_ylim(0, max(ax.get_ylim()[1], 1.05 * slowest))
    ax.set_ylabel("milliseconds of a round")
    ax.legend(fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return ax


def draw_tau_sweep(ax: Axes, result: Mapping[str, Any]) -> Axes:
    """tau over the swept parameter, one line a method; ``result`` of :func:`bench.sweep`."""
    for method, rows in _by_method(result).items():
        look = method_look(method)
        ax.plot([r["value"] for r in rows], [r["tau"] for r in rows], color=look.color,
                marker=look.marker, ls=look.dash, ms=5, lw=1.4, label=method)  # fmt: skip
    ax.set_xlabel(result["parameter"].replace("_", " "))
    ax.set_ylabel("tau: tokens committed per round")
    ax.set_ylim(0, 1.12 * max(row["tau"] for row in result["rows"]))
    ax.legend(loc="lower right")
    return ax


def draw_matched(ax: Axes, result: Mapping[str, Any], chains: Mapping[str, Any]) -> Axes:
    """tau over the milliseconds of a round: a line a tree over its budgets, a point a chain.

    ``result``: a budget sweep of :func:`bench.sweep`; ``chains``: a result of :func:`bench.bench`.
    """
    for method, rows in _by_method(result).items():
        look = method_look(method)
        ax.plot([r["ms_per_round"][0] for r in rows], [r["tau"] for r in rows], color=look.color,
                marker=look.marker, ls=look.dash, ms=5, lw=1.4, label=method)  # fmt: skip
    for entry in chains["methods"]:
        if entry["method"] in ("ar", "dflash", "domino"):
            look = method_look(entry["method"])
            ax.plot(entry["ms_per_round"], entry["tau"], color=look.color, marker=look.marker,
                    ms=8, ls="none", label=entry["method"])  # fmt: skip
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("milliseconds of a round")
    ax.set_ylabel("tau: tokens committed per round")
    ax.legend(fontsize=8, loc="lower right")
    return ax


def knee(result: Mapping[str, Any], method: str = "dartree") -> int:
    """The largest value of a sweep whose round takes at most KNEE times the first one's."""
    rows = _by_method(result)[method]
    limit = KNEE * rows[0]["ms_per_round"][0]
    return max(row["value"] for row in rows if row["ms_per_round"][0] <= limit)


def mark(ax: Axes, value: float, text: str) -> None:
    """A dotted line at ``value`` of the x axis, with its name at the top."""
    ax.axvline(value, color=SOFT, lw=1, ls=(0, (1, 2)), zorder=0)
    ax.annotate(text, (value, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -4),
                textcoords="offset points", va="top", size=8, color=SOFT)  # fmt: skip


# What conditions on nothing drafted, and what conditions on the path.
GUESS_LOOKS = {"marginals": method_look("dflash"), "corrected": method_look("dartree")}


def draw_positions(ax: Axes, values: Mapping[str, np.ndarray], label: str) -> Axes:
    """One line a kind of guess ("marginals", "corrected") over draft positions 1..n."""
    for name, line in values.items():
        look = GUESS_LOOKS[name]
        ax.plot(range(1, len(line) + 1), line, color=look.color, marker=look.marker, ls=look.dash,
                ms=5, lw=1.4, label=name)  # fmt: skip
    ax.set_xlabel("draft position")
    ax.set_ylabel(label)
    ax.set_ylim(0, 1)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend()
    return ax


def draw_table(ax: Axes, table: np.ndarray, words: list[str], title: str) -> Axes:
    """A table of probabilities [n, V] as a heat map with its numbers; zeros are left empty."""
    ax.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (i, j), p in np.ndenumerate(table):
        if p > 0:
            ax.text(j, i, f"{p:.2f}", ha="center", va="center", size=9,
                    color="white" if p > 0.6 else INK)  # fmt: skip
    ax.set_xticks(range(len(words)), words, rotation=30, ha="right")
    ax.set_yticks(range(len(table)), [f"position {i + 1}" for i in range(len(table))])
    ax.grid(visible=False)
    ax.set_title(title)
    return ax
