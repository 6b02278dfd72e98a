"""Methods side by side: tau and tokens per second, with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dartree.compare import domain_tau
from dartree.plots.style import INK, SOFT, method_look, tint

Entry = Mapping[str, Any]


def draw_tau(ax: Axes, result: Mapping[str, Any]) -> Axes:
    """Tau by method: bars pooled over all prompts, one dot per prompt; returns ``ax``.

    ``result`` is what :func:`dartree.compare.compare` returns.
    """
    entries = list(result["methods"])
    _bars(ax, entries, [entry["tau"] or 0.0 for entry in entries], "{:.2f}")
    for y, entry in enumerate(entries):
        dots = prompt_taus(entry)
        shift = _spread_out(len(dots))
        color = method_look(entry["method"]).color
        ax.scatter(dots, y + shift, s=11, fc="white", ec=color, lw=0.8, zorder=3, alpha=0.9)
    ax.set_xlabel("tau: tokens committed per round (dots: single prompts)")
    _limit(ax, [value for entry in entries for value in [*prompt_taus(entry), entry["tau"] or 0]])
    return ax


def draw_speed(ax: Axes, result: Mapping[str, Any]) -> Axes:
    """Tokens per second by method, prefill left out; whiskers: slowest and fastest repeat."""
    entries = list(result["methods"])
    speeds = [entry["tokens_per_second"] or 0.0 for entry in entries]
    _bars(ax, entries, speeds, "{:.0f}")
    highest, label = list(speeds), "tokens per second, prefill left out"
    for y, entry in enumerate(entries):
        spread = entry.get("tokens_per_second_range")
        if spread and spread[1] > spread[0]:
            ax.plot(spread, [y, y], color=INK, lw=1.2, marker="|", ms=7, zorder=4)
            highest.append(spread[1])
            label = "tokens per second, prefill left out (whisker: slowest to fastest repeat)"
    ax.set_xlabel(label)
    _limit(ax, highest)
    return ax


def draw_tau_by_domain(ax: Axes, result: Mapping[str, Any]) -> Axes:
    """Tau by domain, one line per method: where a method gains and where it does not."""
    domains = sorted({prompt["domain"] for prompt in result["prompts"]})
    columns = np.arange(len(domains))
    entries = list(result["methods"])
    for number, entry in enumerate(entries):
        look = method_look(entry["method"])
        taus = [domain_tau(entry, result["prompts"], domain) for domain in domains]
        shift = (number - (len(entries) - 1) / 2) * 0.05
        ax.plot(
            columns + shift,
            [np.nan if tau is None else tau for tau in taus],
            color=look.color,
            marker=look.marker,
            ls=look.dash,
            lw=1.0,
            ms=7,
            mec="white" if look.marker != "x" else look.color,
            mew=0.6 if look.marker != "x" else 1.6,
            label=entry["method"],
        )
    ax.set_xticks(columns, domains)
    ax.set_xlim(-0.5, len(domains) - 0.5)
    ax.set_ylim(0, 1.08 * max(ax.get_ylim()[1], 1e-9))
    ax.grid(axis="x", visible=False)
    ax.set_ylabel("tau: tokens committed per round")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=3)
    return ax


def prompt_taus(entry: Entry) -> list[float]:
    """Tau of every prompt that had a round."""
    return [statistics.fmean(rounds) for rounds in entry["accepted_per_round"] if rounds]


def _bars(ax: Axes, entries: list[Entry], values: list[float], form: str) -> None:
    for y, (entry, value) in enumerate(zip(entries, values, strict=True)):
        look = method_look(entry["method"])
        ax.barh(
            y,
            value,
            height=0.68,
            fc=tint(look.color, 0.55),
            ec=look.color,
            hatch=look.hatch,
            lw=1.2,
        )
        ax.annotate(
            form.format(value),
            (1.0, y),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            size=9,
            color=SOFT if entry["method"] == "ar" else INK,
        )
    ax.set_yticks(range(len(entries)), [entry["method"] for entry in entries])
    ax.set_ylim(len(entries) - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    ax.tick_params(axis="y", length=0)


def _limit(ax: Axes, values: Sequence[float]) -> None:
    ax.set_xlim(0, max([*values, 1e-9]) * 1.04)


def _spread_out(count: int) -> np.ndarray:
    """Vertical offsets that keep the dots of one bar apart; fixed, so pictures repeat."""
    return 0.22 * np.sin(2.4 * np.arange(count))
