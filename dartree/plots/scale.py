"""Pictures of the round model: checks against published numbers, and what it predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from dartree.plots.parts import ABOVE, AT_Y, DOTTED, draw_line, name_rows, note, powers_of_two
from dartree.plots.style import INK, SOFT, Look, method_look

DEVICE_LOOKS = {
    "RTX 6000 Ada": Look("#0173b2", "s", "--"),
    "RTX 5080": Look("#cc78bc", "D", ":"),
    "A100-80GB": Look("#de8f05", "^", "-."),
    "H200": Look("#029e73", "o", "-"),
}
ADAPTIVE = Look("#d55e00", "*", (0, (1, 1)))  # the fastest B of each concurrency
CONCURRENCY = "sequences served at the same time"
SPEEDUP = "speedup over plain decoding"


def draw_checks(ax: Axes, checks: Sequence[Any]) -> Axes:
    """Model over published on a log axis, one line a number; hollow where it was fitted.

    ``checks``: :class:`dartree.analysis.published.Check`.
    """
    for y, check in enumerate(checks):
        look = DEVICE_LOOKS[check.device]
        ax.plot([1, check.ratio], [y, y], color=look.color, lw=1, alpha=0.6)
        ax.plot(check.ratio, y, look.marker, color=look.color, ms=6,
                mfc="white" if check.fitted else look.color)  # fmt: skip
    ax.axvline(1, color=INK, lw=1)
    name_rows(ax, [check.what for check in checks], fontsize=8)
    ax.set_xscale("log")
    low = min(0.5, *(c.ratio / 1.1 for c in checks))
    high = max(2.0, *(1.15 * c.ratio for c in checks))
    ax.set_xlim(low, high)
    ticks = [tick for tick in (0.5, 0.7, 1, 1.5, 2, 3, 4) if low <= tick <= high]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("model / published  (hollow: fitted)")
    for name in dict.fromkeys(check.device for check in checks):
        look = DEVICE_LOOKS[name]
        ax.plot([], [], look.marker, color=look.color, label=name)
    ax.legend(ncols=4, fontsize=8, **ABOVE)
    return ax


def draw_round_curves(ax: Axes, curves: Sequence[Any], title: str) -> Axes:
    """A round's milliseconds over B, one line a device; a ring marks the end of the flat part.

    ``curves``: :class:`dartree.analysis.scale.Curve`.
    """
    for curve in curves:
        look = DEVICE_LOOKS[curve.device]
        draw_line(ax, curve.budgets, curve.ms, look, f"{curve.device}, flat to B {curve.flat}",
                  ms=4)  # fmt: skip
        ax.plot(curve.flat, curve.ms[curve.budgets.index(curve.flat)], "o", ms=11, mfc="none",
                color=look.color)  # fmt: skip
    powers_of_two(ax, [1, 4, 16, 64, 256, 1024])
    ax.set_ylim(bottom=0)
    ax.set_title(title)
    ax.set_xlabel("budget B")
    ax.set_ylabel("milliseconds of a round")
    ax.legend(fontsize=8, loc="upper left")
    return ax


def draw_memory(ax: Axes, tables: Mapping[str, Mapping[str, float]]) -> Axes:
    """GB by part on a log axis, one marker a model: what is large and what is not.

    ``tables``: model -> part -> GB, for one or two models.
    """
    looks = (Look("#0173b2", "s"), Look("#de8f05", "^"))
    names = list(next(iter(tables.values())))
    for (model, parts), look in zip(tables.items(), looks, strict=False):
        ax.plot([parts[name] for name in names], range(len(names)), look.marker, ms=8,
                color=look.color, label=f"{model}: {sum(parts.values()):.1f} GB")  # fmt: skip
    for y, name in enumerate(names):
        text = " / ".join(f"{parts[name]:.3g}" for parts in tables.values())
        ax.annotate(text, (1.02, y), xycoords=AT_Y, va="center", size=8, color=SOFT)
    name_rows(ax, names)
    ax.set_xscale("log")
    ax.set_xlabel("GB (log scale)")
    ax.legend(ncols=2, fontsize=9, **ABOVE)
    return ax


def draw_concurrency(
    ax: Axes, curves: Mapping[str, Mapping[str, Sequence[float]]], kind: str,
    concurrencies: Sequence[int],
) -> Axes:  # fmt: skip
    """Speedup over concurrency by method; ``kind``: "published" or "model".

    ``curves``: method -> kind -> speedups, one for each of the ``concurrencies``.
    """
    for method, values in curves.items():
        look = ADAPTIVE if method == "dartree-adaptive" else method_look(method)
        draw_line(ax, concurrencies, values[kind], look, method, lw=1.5,
                  ms=9 if look.marker == "*" else 6)  # fmt: skip
    ax.axhline(1, **DOTTED)
    note(ax, "plain decoding", (0, 1), (4, -3), xycoords=AT_Y, size=8, color=SOFT, va="top")
    powers_of_two(ax, concurrencies)
    highest = max(v for entry in curves.values() for line in entry.values() for v in line)
    ax.set_ylim(0, 1.06 * highest)
    ax.set_xlabel(CONCURRENCY)
    ax.set_ylabel(SPEEDUP)
    ax.set_title(kind)
    return ax


def _concurrencies(choices: Mapping[str, Sequence[Any]]) -> list[int]:
    return sorted({choice.concurrency for found in choices.values() for choice in found})


def draw_choices(ax: Axes, choices: Mapping[str, Sequence[Any]]) -> Axes:
    """Speedup over concurrency by device: with the fastest B, and dotted with B = 64.

    ``choices``: device -> :class:`dartree.analysis.scale.Choice` list.
    """
    for name, found in choices.items():
        look, x = DEVICE_LOOKS[name], [c.concurrency for c in found]
        speedups = [c.speedup for c in found]
        draw_line(ax, x, speedups, look, f"{name}: fastest B", ls="-", lw=1.5, ms=6)
        ax.plot(x, [c.fixed for c in found], color=look.color, ls=":", lw=1.3,
                label=f"{name}: B 64")  # fmt: skip
    ax.axhline(1, **DOTTED)
    powers_of_two(ax, _concurrencies(choices))
    ax.set_ylim(bottom=0)
    ax.set_xlabel(CONCURRENCY)
    ax.set_ylabel(SPEEDUP)
    ax.legend(fontsize=8)
    return ax


def draw_budget_choices(ax: Axes, choices: Mapping[str, Sequence[Any]]) -> Axes:
    """The fastest B over concurrency by device; 0: no tree at all.

    ``choices``: device -> :class:`dartree.analysis.scale.Choice` list.
    """
    for name, found in choices.items():
        concurrencies, budgets = zip(
            *((c.concurrency, max(c.budget, 8)) for c in found), strict=True
        )
        draw_line(ax, concurrencies, budgets, DEVICE_LOOKS[name], name, lw=1.5, ms=6)
    ax.set_yscale("log", base=2)
    powers_of_two(ax, _concurrencies(choices))
    ax.set_yticks([8, 16, 32, 64, 128, 256], ["none", "16", "32", "64", "128", "256"])
    ax.set_ylim(7, 300)
    ax.set_xlabel(CONCURRENCY)
    ax.set_ylabel("fastest budget B")
    ax.legend(fontsize=8)
    return ax
