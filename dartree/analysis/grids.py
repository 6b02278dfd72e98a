"""Grids over W, K, B and the depth penalty, by replay; fronts and best settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dartree.analysis.replay import Replay
from dartree.settings import TreeSettings

FIELDS = ("width", "candidates", "budget", "depth_penalty")


@dataclass(frozen=True)
class Point:
    """One setting of `dartree`: its tau, and where a cost is known, round and token times."""

    settings: TreeSettings
    tau: float
    ms_per_round: float | None = None

    @property
    def tokens_per_second(self) -> float | Any:
        """1000 tau / milliseconds of a round; None without them."""
        return None if self.ms_per_round is None else 1000 * self.tau / self.ms_per_round


def grid(
    replay: Replay,
    settings: TreeSettings,
    values: Mapping[str, Sequence[Any]],
    cost: Any = None,
    only: Sequence[int] | None = None,
) -> list[Point]:
    """All combinations of ``values`` (setting -> values), the last one changing fastest.

    ``cost``: an object with ``ms(settings)`` (``cost.RoundCost``). ``only``: numbers of the texts.
    ValueError for a name that is no setting of the tree, and for texts without rounds.
    """
    _check_fields(values)
    points = []
    for chosen in itertools.product(*values.values()):
        used = replace(settings, **dict(zip(values, chosen, strict=True)))
        tau = replay.tau("dartree", used, only)
        if tau is None:
            raise ValueError("the texts have no rounds; take longer answers or other prompts.")
        points.append(Point(used, tau, None if cost is None else cost.ms(used)))
    return points


def _check_fields(names: Iterable[str]) -> None:
    unknown = sorted(set(names) - set(FIELDS))
    if unknown:
        raise ValueError(f"values must name settings among {', '.join(FIELDS)}, got {unknown[0]}.")


def sweep(
    replay: Replay,
    settings: TreeSettings,
    name: str,
    values: Sequence[Any],
    methods: Sequence[str] = ("dartree",),
    only: Sequence[int] | None = None,
) -> dict[str, Any]:
    """tau of ``methods`` over one setting, in the form of `bench.sweep`: {parameter, rows}.

    A row has method, value and tau. ``only``: numbers of the texts. ValueError for a name that is
    no setting of the tree.
    """
    _check_fields([name])
    rows = [
        {"method": m, "value": v, "tau": replay.tau(m, replace(settings, **{name: v}), only)}
        for v in values
        for m in methods
    ]
    return {"parameter": name, "rows": rows}


def table(points: Sequence[Point], rows: str, columns: str, what: str = "tau") -> np.ndarray:
    """``what`` of the points as [values of ``rows``, values of ``columns``], both ascending.

    Where several points share a cell, the best one counts.
    """
    ys = sorted({getattr(p.settings, rows) for p in points})
    xs = sorted({getattr(p.settings, columns) for p in points})
    cells = np.full((len(ys), len(xs)), -np.inf)
    for p in points:
        at = ys.index(getattr(p.settings, rows)), xs.index(getattr(p.settings, columns))
        cells[at] = max(cells[at], getattr(p, what))
    return cells


def pareto(points: Sequence[Point]) -> list[Point]:
    """Points that no other one beats in tau at the same or a smaller cost, by rising cost."""
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.ms_per_round, -p.tau)):
        if not front or point.tau > front[-1].tau:
            front.append(point)
    return front


def best(points: Sequence[Point], what: str = "tokens_per_second") -> Point:
    """The point with the largest ``what``; the smaller tree of equals."""
    return max(points, key=lambda p: (getattr(p, what), -p.settings.budget, -p.settings.width))
