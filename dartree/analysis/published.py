"""The round model against published numbers, before it predicts anything.

The numbers lie in ``data/published``, each with its source. A few of them set what no data sheet
says (what a launch costs a host, which share of the peak is reached); they are marked as fitted,
and all others are checks.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dartree.analysis import roofline
from dartree.analysis.roofline import QWEN3_4B, QWEN3_8B, Device, Engine, Load, ModelShape, TauCurve
from dartree.report_tables import text_table
from dartree.stack import data_dir

ADA, A100, H200, RTX5080 = "RTX 6000 Ada", "A100-80GB", "H200", "RTX 5080"
CONCURRENCIES = (2, 4, 8, 16, 32)  # of the paper's Table 4
BUDGETS = (16, 32, 64, 128, 256, 384, 512, 768, 1024)
CONTEXT = 300  # tokens in the cache, halfway through a short answer; not stated by the sources
HEAP_LAUNCHES = 20  # kernels of one head call and the choice of its children, uncaptured


def file(name: str) -> Path:
    """A CSV file of ``data/published``."""
    return data_dir() / "published" / f"{name}.csv"


@lru_cache(maxsize=2)
def _all_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def devices() -> dict[str, Device]:
    """Devices by name."""
    return {
        row["name"]: Device(
            row["name"], float(row["bandwidth_gb_s"]), float(row["tflops_bf16_dense"]),
            float(row["memory_gb"]),
        )
        for row in _all_rows(file("devices"))
    }  # fmt: skip


def rows(**wanted: Any) -> list[dict[str, str]]:
    """Rows of round_times.csv with these values."""
    found = _all_rows(file("round_times"))
    return [r for r in found if all(r[key] == str(value) for key, value in wanted.items())]


def number(**wanted: Any) -> float:
    """The one published number with these values; ValueError where there is none, or several."""
    found = rows(**wanted)
    if len(found) != 1:
        raise ValueError(f"{len(found)} published numbers match {wanted}; one is needed.")
    return float(found[0]["value"])


@dataclass(frozen=True)
class Check:
    """One published number and the model's."""

    device: str
    what: str
    published: float
    model: float
    unit: str
    fitted: bool = False

    @property
    def ratio(self) -> float:
        """Model over published: 1 is right."""
        return self.model / self.published


def table(checks: Sequence[Check]) -> str:
    """Checks as a text table."""
    lines = [("device", "published", "model", "ratio", "unit", "", "what")]
    lines += [
        (c.device, f"{c.published:.4g}", f"{c.model:.4g}", f"{c.ratio:.2f}", c.unit,
         "fitted" if c.fitted else "", c.what)
        for c in checks
    ]  # fmt: skip
    return text_table(lines)


def spread(checks: Sequence[Check]) -> str:
    """How far the checks are off, in one sentence; fitted numbers are left out."""
    ratios = np.array([c.ratio for c in checks if not c.fitted])
    off = np.exp(np.abs(np.log(ratios)))
    return (
        f"{len(ratios)} numbers that were not fitted: half are within a factor of "
        f"{np.median(off):.2f}, the worst is off by {off.max():.2f}."
    )


@lru_cache(maxsize=1)
def tau_curve() -> TauCurve:
    """tau over B relative to B = 64, from three sources that share that point.

    Left out: B = 192 at W = 12, where nothing is pruned any more.
    """
    base = number(id="fig4_budget", quantity="tau", budget=64)
    points = [(b, number(id="fig4_budget", quantity="tau", budget=b) / base) for b in (32, 64, 128)]
    few, usual = (number(id="dominotree_tau", budget=b) for b in (16, 64))
    more = 1 + number(id="budget_256", quantity="tau against B 64") / 100
    most = more * (1 + number(id="budget_384", quantity="tau against B 256") / 100)
    return TauCurve(((16, few / usual), *points, (256, more), (384, most)))


def eager_engines(counted: Engine, ada_share: float) -> dict[str, Engine]:
    """Engines of three hosts: launches as counted, one published forward each for their price.

    ``ada_share``: the share of its peak that the RTX 6000 Ada reaches. The A100's follows from
    its forward of 513 queries and serves for the RTX 5080 too.
    """
    kernels = counted.launches(QWEN3_4B)
    measured = {
        ADA: number(id="implied_ar"),
        A100: number(id="flat_forward", quantity="verify", budget=16),
        RTX5080: number(id="stages", quantity="verify"),
    }
    expand = number(id="builder", method="dartree", budget=16) / 16
    found = {
        name: replace(counted, launch_us=1e3 * ms / kernels, head_call_ms=expand)
        for name, ms in measured.items()
    }
    grown = measured[A100] * (1 + number(id="flat_forward", quantity="verify growth") / 100)
    device = devices()[A100]

    def residual(share: np.ndarray) -> np.ndarray:
        engine = replace(found[A100], flops_share=float(share[0]))
        return np.log([roofline.device_ms(QWEN3_4B, device, engine, 513, Load()) / grown])

    share = float(roofline.fit(residual, [0.5])[0])
    shares = {ADA: ada_share}
    return {n: replace(e, flops_share=shares.get(n, share)) for n, e in found.items()}


def eager_checks(engines: dict[str, Engine]) -> list[Check]:
    """What the paper, DominoTree and the A100 reproduction measured with eager transformers."""
    return [*_ada_checks(engines[ADA]), *_stage_checks(engines[RTX5080]),
            *_a100_checks(engines[A100])]  # fmt: skip


def _ada_checks(engine: Engine) -> list[Check]:
    device, load = devices()[ADA], Load(CONTEXT)
    token = roofline.token_ms(QWEN3_4B, device, engine, load)
    found = [Check(ADA, "one-token step", number(id="implied_ar"), token, "ms", True)]
    for method in ("domino-ddtree", "dartree", "heap"):
        made = roofline.round_ms(QWEN3_4B, device, engine, 64, load)
        if method == "heap":  # a head call a node, each started kernel by kernel
            made["expand"] = 64 * HEAP_LAUNCHES * engine.launch_us / 1e3
        for text in ("GSM8K", "HumanEval", "MT-Bench"):
            given = number(id="table2", quantity="round", benchmark=text, method=method)
            found.append(Check(ADA, f"{method}: round, {text}", given, sum(made.values()), "ms"))
    for budget in (32, 64, 128, 192):
        tau, speedup = (
            number(id="fig4_budget", quantity=q, budget=budget) for q in ("tau", "speedup")
        )
        ms = roofline.whole_round_ms(QWEN3_4B, device, engine, budget, load)
        given = number(id="implied_ar") * tau / speedup
        found.append(Check(ADA, f"dartree: round, B {budget} (Figure 4)", given, ms, "ms"))
    return found


def _stage_checks(engine: Engine) -> list[Check]:
    made = roofline.round_ms(QWEN3_4B, devices()[RTX5080], engine, 16, Load(CONTEXT))
    found = []
    for stage in ("verify", "draft", "commit"):
        given = number(id="stages", quantity=stage)
        what = f"DominoTree: {stage}"
        found.append(Check(RTX5080, what, given, made[stage], "ms", stage == "verify"))
    for method, start, what in (
        ("dartree", 16, "tree by depth"),
        ("heap", 16, "tree node by node"),
    ):
        first = number(id="builder", method=method, budget=start)
        for row in rows(id="builder", method=method):
            budget = int(row["budget"])
            model = first if method == "dartree" else first * budget / start
            found.append(Check(RTX5080, f"{what}, {budget} nodes", float(row["value"]), model, "ms",
                               budget == start))  # fmt: skip
    return found


def _a100_checks(engine: Engine) -> list[Check]:
    device, found = devices()[A100], []
    for budget, fitted in ((16, True), (256, False), (512, True)):
        model = roofline.forward_ms(QWEN3_4B, device, engine, 1 + budget, Load())
        given = number(id="flat_forward", quantity="verify", budget=16)
        if budget == 512:
            given *= 1 + number(id="flat_forward", quantity="verify growth") / 100
        found.append(Check(A100, f"forward, {1 + budget} queries", given, model, "ms", fitted))
    for row in rows(id="plateau"):
        load = Load(int(row["prefix"]), int(row["batch"]))

        def forward(budget: int, load: Load = load) -> float:
            return roofline.forward_ms(QWEN3_4B, device, engine, 1 + budget, load)

        flat = roofline.flat_until(forward, BUDGETS)
        what = f"flat up to B: prefix {load.prefix}, batch {load.batch}"
        found.append(Check(A100, what, float(row["value"]), flat, "nodes"))
    return found


def budget_checks(engines: dict[str, Engine]) -> list[Check]:
    """The budgets that were the fastest, against the model's; what a larger budget was worth.

    Where a range was published, its point that is nearest to the model stands for it.
    """
    tau, known, found = tau_curve(), devices(), []
    published = (
        (ADA, QWEN3_4B, ADA, (64, 128), "64 to 128"),
        (A100, QWEN3_4B, A100, (256, 256), "256"),
        (H200, QWEN3_8B, A100, (256, 512), "256 to 512 by DDTree; the A100's host"),
    )
    for name, model, host, (low, high), what in published:
        best = roofline.best_budget(tau, eager_cost(model, known[name], engines[host]), BUDGETS)
        nearest = min(max(best, low), high)
        found.append(
            Check(name, f"fastest B, {model.name} (published: {what})", nearest, best, "nodes")
        )
    cost = eager_cost(QWEN3_4B, known[A100], engines[A100])
    for budget, base in ((256, 64), (384, 256)):
        given = rows(id=f"budget_{budget}", quantity=f"ms per token against B {base}")
        mean = 1 + sum(float(row["value"]) for row in given) / len(given) / 100
        ours = cost(budget) / cost(base) * tau(base) / tau(budget)
        found.append(Check(A100, f"time per token, B {budget} against {base}", mean, ours, "x"))
    return found


def eager_cost(model: ModelShape, device: Device, engine: Engine) -> Callable[[int], float]:
    """Milliseconds of a DARTree round, one sequence, as a function of B."""
    return lambda b: roofline.whole_round_ms(model, device, engine, b, Load(CONTEXT))


# Serving: everything captured, many sequences side by side.


def serving_speedup(
    engine: Engine,
    method: str,
    benchmark: str,
    concurrency: int,
    budget: int,
    device: Device | None = None,
    model: ModelShape = QWEN3_4B,
) -> float:
    """Speedup over plain decoding at the same concurrency (default: on an RTX 6000 Ada)."""
    device, load = device or devices()[ADA], Load(CONTEXT, concurrency)
    base = "dartree" if method.startswith("dartree") else method
    tau = number(id="table1_tau", method=base, benchmark=benchmark)
    if base == "dartree":
        tau *= tau_curve()(budget)
    calls = 0 if method == "ddtree" else None
    made = roofline.whole_round_ms(model, device, engine, budget, load, calls)
    return tau * roofline.token_ms(model, device, engine, load) / made


def serving_engine() -> Engine:
    """Four parameters from 15 numbers: plain decoding, the Domino chain and DDTree on GSM8K."""
    plain = Engine("SGLang, captured", head_call_ms=0.03)

    def engine_of(p: np.ndarray) -> Engine:
        names = ("flops_share", "step_ms", "token_ms", "round_ms")
        fitted: dict[str, Any] = dict(zip(names, map(float, p), strict=True))
        return replace(plain, **fitted)

    def residuals(p: np.ndarray) -> np.ndarray:
        checks = serving_checks(engine_of(p))
        return np.log([check.ratio for check in checks if check.fitted])

    return engine_of(roofline.fit(residuals, (0.3, 2.0, 0.2, 1.0), steps=60))


def serving_checks(engine: Engine) -> list[Check]:
    """The paper's Table 4; its adaptive rows use the budgets of its schedule."""
    device, found = devices()[ADA], []
    for row in rows(id="table4"):
        c, given, text = int(row["batch"]), float(row["value"]), row["benchmark"]
        method = row["method"]
        fitted = text == "GSM8K" and method in ("ar", "domino", "ddtree")
        if method == "ar":
            step = roofline.token_ms(QWEN3_4B, device, engine, Load(CONTEXT, c))
            what, model, unit = f"ar: step, concurrency {c}", step, "ms"
            given = 1e3 * c / given
        else:
            model = serving_speedup(engine, method, text, c, int(row["budget"]))
            what, unit = f"{method}: speedup, {text}, concurrency {c}", "x"
        found.append(Check(ADA, what, given, model, unit, fitted))
    return found
