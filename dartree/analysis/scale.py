"""What the checked model predicts: rounds over B, memory, concurrency, budgets that adapt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dartree.analysis import roofline
from dartree.analysis.published import (
    CONCURRENCIES,
    CONTEXT,
    devices,
    number,
    rows,
    serving_speedup,
)
from dartree.analysis.roofline import Device, Engine, Load, ModelShape

SWEEP = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
OPEN = (16, 32, 64, 128, 256)  # budgets to choose from; below 16 no tau was published


@dataclass(frozen=True)
class Curve:
    """Milliseconds of a round for each budget, and the last budget of the flat part."""

    device: str
    budgets: tuple[int, ...]
    ms: tuple[float, ...]
    flat: int

    def to_dict(self) -> dict[str, list | int]:
        """For a figure's data."""
        return {"B": list(self.budgets), "ms": [round(v, 3) for v in self.ms], "flat": self.flat}


def on_each_device(engine: Engine, shares: Mapping[str, float]) -> dict[str, Engine]:
    """The same software on the devices of ``shares``: name -> share of the peak reached."""
    return {name: replace(engine, flops_share=share) for name, share in shares.items()}


def round_curves(
    model: ModelShape, engines: Mapping[str, Engine], load: Load, budgets: Sequence[int] = SWEEP
) -> list[Curve]:
    """A round's time over B on every device; flat: within 5 % of the smallest budget."""
    known, found = devices(), []
    for name, engine in engines.items():

        def cost(budget: int, device: Device = known[name], engine: Engine = engine) -> float:
            return roofline.whole_round_ms(model, device, engine, budget, load)

        times = tuple(cost(b) for b in budgets)
        flat = roofline.flat_until(cost, budgets)
        found.append(Curve(name, tuple(budgets), times, flat))
    return found


def serving_curves(engine: Engine, benchmark: str) -> dict[str, dict[str, list[float]]]:
    """Speedup over concurrency by method: "published" (Table 4) and "model"."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows(id="table4", benchmark=benchmark, quantity="speedup"):
        entry = found.setdefault(row["method"], {"published": [], "model": []})
        c, budget = int(row["batch"]), int(row["budget"])
        entry["published"].append(float(row["value"]))
        entry["model"].append(serving_speedup(engine, row["method"], benchmark, c, budget))
    return found


def crossing(
    tree: Sequence[float], chain: Sequence[float], concurrencies: Sequence[int] = CONCURRENCIES
) -> int | None:
    """The first concurrency at which the chain is the faster one; None if it never is."""
    pairs = zip(concurrencies, tree, chain, strict=True)
    return next((c for c, t, other in pairs if t < other), None)


@dataclass(frozen=True)
class Choice:
    """The fastest budget at one concurrency; 0 where plain decoding is faster than any tree."""

    concurrency: int
    budget: int
    speedup: float
    fixed: float  # of B = 64


def adaptive_budgets(
    model: ModelShape,
    device: str,
    engine: Engine,
    benchmark: str,
    concurrencies: Sequence[int],
    budgets: Sequence[int] = OPEN,
) -> list[Choice]:
    """For every concurrency the budget with the largest speedup, and what B = 64 gives."""
    where, found = devices()[device], []
    for c in concurrencies:
        speeds = {
            b: serving_speedup(engine, "dartree", benchmark, c, b, where, model) for b in budgets
        }
        best = -max((speed, -b) for b, speed in speeds.items())[1]
        choice = (best, speeds[best]) if speeds[best] > 1 else (0, 1.0)
        found.append(Choice(c, *choice, fixed=speeds[64]))
    return found


def fits(parts: Mapping[str, float], device: str) -> bool:
    """Whether the parts of :func:`roofline.memory_gb` fit on the device."""
    return sum(parts.values()) <= devices()[device].memory


def quoted_gains() -> dict[str, float]:
    """The two gains over Domino that are quoted most, from the table they come from, in percent."""
    found = {}
    for quantity in ("tau", "speedup"):
        ours, chain = (
            number(id="table1_t1_average", method=m, quantity=quantity)
            for m in ("dartree", "domino")
        )
        found[quantity] = 100 * (ours / chain - 1)
    return found


def longest_batch(model: ModelShape, device: str, prefix: int, budget: int = 64) -> int:
    """How many sequences of ``prefix`` tokens fit beside weights and tables; 0 for none."""

    def enough(batch: int) -> bool:
        return fits(roofline.memory_gb(model, Load(prefix, batch), budget=budget), device)

    batch = 0
    while enough(batch + 1):
        batch += 1
    return batch


__all__ = [
    "CONTEXT", "Choice", "Curve", "adaptive_budgets", "crossing", "fits", "longest_batch",
    "on_each_device", "quoted_gains", "round_curves", "serving_curves",
]  # fmt: skip
