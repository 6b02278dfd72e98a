"""Pictures of the round model: checks against published numbers, and what it predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from dartree.plots.style import INK, SOFT, Look, method_look

DEVICE_LOOKS = {
    "RTX 6000 Ada": Look("#0173b2", "s", "--"),
    "RTX 5080": Look("#cc78bc", "D", ":"),
    "A100-80GB": Look("#de8f05", "^", "-."),
    "H200": Look("#029e73", "o", "-"),
}
ADAPTIVE = Look("#d55e00", "*", (0, (1, 1)))


def _look(method: str) -> Look:
    return ADAPTIVE if method == "dartree-adaptive" else method_look(method)


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
    ax.set_yticks(range(len(checks)), [check.what for check in checks], fontsize=8)
    ax.set_ylim(len(checks) - 0.4, -0.6)
    ax.set_xscale("log")
    low = min(0.5, *(c.ratio / 1.1 for c in checks))
    ax.set_xlim(low, max(2.0, *(1.15 * c.ratio for c in checks)))
    ticks = [t for t in (0.5, 0.7, 1, 1.5, 2, 3, 4) if ax.get_xlim()[0] <= t <= ax.get_xlim()[1]]
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("model / published  (hollow: fitted)")
    for name in dict.fromkeys(check.device for check in checks):
        look = DEVICE_LOOKS[name]
        ax.plot([], [], look.marker, color=look.color, label=name)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=8)
    return ax


def draw_round_curves(ax: Axes, curves: Sequence[Any], title: str) -> Axes:
    """A round's milliseconds over B, one line a device; a ring marks the end of the flat part.

    ``curves``: :class:`dartree.analysis.scale.Curve`.
    """
    for curve in curves:
        look = DEVICE_LOOKS[curve.device]
        ax.plot(curve.budgets, curve.ms, color=look.color, marker=look.marker, ls=look.dash,
                ms=4, lw=1.4, label=f"{curve.device}, flat to B {curve.flat}")  # fmt: skip
        ax.plot(curve.flat, curve.ms[curve.budgets.index(curve.flat)], "o", ms=11, mfc="none",
                color=look.color)  # fmt: skip
    ax.set_xscale("log", base=2)
    ticks = [1, 4, 16, 64, 256, 1024]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylim(bottom=0)
    ax.set_title(title)
    ax.set_xlabel("budget B")
    ax.set_ylabel("milliseconds of a round")
    ax.legend(fontsize=8, loc="upper left")
    return ax


def draw_memory(ax: Axes, tables: Mapping[str, Mapping[str, float]]) -> Axes:
    """GB by part on a log axis, one marker a model: what is large and what is not."""
    looks = (Look("#0173b2", "s"), Look("#de8f05", "^"))
    names = list(next(iter(tables.values())))
    for (model, parts), look in zip(tables.items(), looks, strict=False):
        ax.plot([parts[name] for name in names], range(len(names)), look.marker, ms=8,
                color=look.color, label=f"{model}: {sum(parts.values()):.1f} GB")  # fmt: skip
    for y, name in enumerate(names):
        text = " / ".join(f"{parts[name]:.3g}" for parts in tables.values())
        ax.annotate(text, (1.02, y), xycoords=("axes fraction", "data"), va="center", size=8,
                    color=SOFT)  # fmt: skip
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xscale("log")
    ax.set_xlabel("GB (log scale)")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9)
    return ax


def draw_concurrency(
    ax: Axes, curves: Mapping[str, Mapping[str, Sequence[float]]], kind: str,
    concurrencies: Sequence[int],
) -> Axes:  # fmt: skip
    """Speedup over concurrency by method; ``kind``: "published" or "model"."""
    for method, values in curves.items():
        look = _look(method)
        size = 9 if look.marker == "*" else 6
        ax.plot(concurrencies, values[kind], color=look.color, marker=look.marker, ls=look.dash,
                ms=size, lw=1.5, label=method)  # fmt: skip
    ax.axhline(1, color=SOFT, lw=1, ls=(0, (1, 2)))
    ax.annotate("plain decoding", (0, 1), xycoords=("axes fraction", "data"), xytext=(4, -3),
                textcoords="offset points", size=8, color=SOFT, va="top")  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_xticks(concurrencies, [str(c) for c in concurrencies])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylim(
        0, 1.06 * max(v for entry in curves.values() for line in entry.values() for v in line)
    )
    ax.set_xlabel("sequences served at the same time")
    ax.set_ylabel("speedup over plain decoding")
    ax.set_title(kind)
    return ax


def draw_choices(ax: Axes, choices: Mapping[str, Sequence[Any]]) -> Axes:
    """Speedup over concurrency by device: solid with the fastest B (written at the marker),
    dotted with B = 64.

    ``choices``: device -> :class:`dartree.analysis.scale.Choice` list.
    """
    for name, found in choices.items():
        look, x = DEVICE_LOOKS[name], [c.concurrency for c in found]
        ax.plot(x, [c.speedup for c in found], color=look.color, marker=look.marker, lw=1.5,
                ms=6, label=f"{name}: fastest B")  # fmt: skip
        ax.plot(x, [c.fixed for c in found], color=look.color, ls=":", lw=1.3,
                label=f"{name}: B 64")  # fmt: skip
    ax.axhline(1, color=SOFT, lw=1, ls=(0, (1, 2)))
    ax.set_xscale("log", base=2)
    ticks = sorted({c.concurrency for found in choices.values() for c in found})
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_ylim(bottom=0)
    ax.set_xlabel("sequences served at the same time")
    ax.set_ylabel("speedup over plain decoding")
    ax.legend(fontsize=8)
    return ax


def draw_budget_choices(ax: Axes, choices: Mapping[str, Sequence[Any]]) -> Axes:
    """The fastest B over concurrency by device; 0: no tree at all."""
    for name, found in choices.items():
        look = DEVICE_LOOKS[name]
        shown = [max(c.budget, 8) for c in found]
        ax.plot([c.concurrency for c in found], shown, color=look.color, marker=look.marker,
                ls=look.dash, ms=6, lw=1.5, label=name)  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ticks = sorted({c.concurrency for found in choices.values() for c in found})
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set_yticks([8, 16, 32, 64, 128, 256], ["none", "16", "32", "64", "128", "256"])
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.set_ylim(7, 300)
    ax.set_xlabel("sequences served at the same time")
    ax.set_ylabel("fastest budget B")
    ax.legend(fontsize=8)
    return ax
