"""Methods side by side: tau and tokens per second, with their spread.

``result`` is what :func:`dartree.compare.compare` returns.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dartree.plots import parts
from dartree.plots.style import INK, SOFT, method_look

Entry = Mapping[str, Any]


def draw_tau(ax: Axes, result: Mapping[str, Any]) -> Axes:
    """Tau by method: bars pooled over all prompts, one dot per prompt; returns ``ax``."""
    entries = list(result["methods"])
    values = [entry["tau"] or 0.0 for entry in entries]
    _bars(ax, entries, values, "{:.2f}")
    for y, entry in enumerate(entries):
        dots = prompt_taus(entry)
        shift = 0.22 * np.sin(2.4 * np.arange(len(dots)))  # apart, and the same in every picture
        color = method_look(entry["method"]).color
        ax.scatter(dots, y + shift, s=11, fc="white", ec=color, lw=0.8, zorder=3, alpha=0.9)
        values += dots
    ax.set_xlabel("tau: tokens committed per round (dots: single prompts)")
    _limit(ax, values)
    return ax


def draw_speed(ax: Axes, result: Mapping[str, Any]) -> Axes:
    """Tokens per second by method, prefill left out; whiskers: slowest and fastest repeat."""
    entries = list(result["methods"])
    speeds = [entry["tokens_per_second"] or 0.0 for entry in entries]
    _bars(ax, entries, speeds, "{:.0f}")
    label = "tokens per second, prefill left out"
    for y, entry in enumerate(entries):
        spread = entry.get("tokens_per_second_range")
        if spread and spread[1] > spread[0]:
            ax.plot(spread, [y, y], color=INK, lw=1.2, marker="|", ms=7, zorder=4)
            speeds.append(spread[1])
            label = "tokens per second, prefill left out (whisker: slowest to fastest repeat)"
    ax.set_xlabel(label)
    _limit(ax, speeds)
    return ax


def draw_tau_by_domain(ax: Axes, result: Mapping[str, Any]) -> Axes:
    """Tau by domain, one line per method: where a method gains and where it does not."""
    domains = sorted({prompt["domain"] for prompt in result["prompts"]})
    columns, entries = np.arange(len(domains)), list(result["methods"])
    for number, entry in enumerate(entries):
        look = method_look(entry["method"])
        taus = [entry["domains"][domain]["tau"] for domain in domains]
        shift = (number - (len(entries) - 1) / 2) * 0.05
        # A marker that is all edge would be gone in white.
        filled = look.marker in Line2D.filled_markers
        edge = {"mec": "white", "mew": 0.6} if filled else {"mec": look.color, "mew": 1.6}
        parts.draw_line(ax, columns + shift, [np.nan if tau is None else tau for tau in taus], look,
                        entry["method"], lw=1.0, ms=7, **edge)  # fmt: skip
    ax.set_xticks(columns, domains)
    ax.set_xlim(-0.5, len(domains) - 0.5)
    ax.set_ylim(0, 1.08 * max(ax.get_ylim()[1], 1e-9))
    ax.grid(axis="x", visible=False)
    ax.set_ylabel(parts.TAU)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=3)
    return ax


def prompt_taus(entry: Entry) -> list[float]:
    """Tau of every prompt that had a round."""
    return [statistics.fmean(rounds) for rounds in entry["accepted_per_round"] if rounds]


def _bars(ax: Axes, entries: list[Entry], values: list[float], form: str) -> None:
    for y, (entry, value) in enumerate(zip(entries, values, strict=True)):
        method = entry["method"]
        ax.barh(y, value, height=0.68, lw=1.2, **method_look(method).bar)
        parts.note(ax, form.format(value), (1.0, y), (4, 0), xycoords=parts.AT_Y, va="center",
                   size=9, color=SOFT if method == "ar" else INK)  # fmt: skip
    parts.name_bars(ax, [entry["method"] for entry in entries])


def _limit(ax: Axes, values: Sequence[float]) -> None:
    ax.set_xlim(0, max([*values, 1e-9]) * 1.04)
