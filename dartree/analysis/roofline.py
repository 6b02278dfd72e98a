"""A round on paper: bytes over bandwidth, FLOPs over peak, launches times what a launch costs.

The model knows shapes, not tokens. A forward takes whatever is longer: the device's work, or the
host's time to start the kernels. What software adds is in :class:`Engine`, apart from the device.
Units are in the names: ms, us (microseconds), GB = 1e9 bytes; weights, cache and tables are 2 bytes
a number (bfloat16).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dartree import memory, public
from dartree.configs import parse_drafter_config
from dartree.drafter import DrafterConfig
from dartree.settings import TreeSettings

BYTES = 2  # of a bfloat16


@dataclass(frozen=True)
class Device:
    """Data-sheet numbers: GB/s of memory, dense bfloat16 TFLOP/s, GB of memory."""

    name: str
    bandwidth: float
    tflops: float
    memory: float


@dataclass(frozen=True)
class ModelShape:
    """What a Qwen3 config.json says about sizes."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool  # lm_head is the embedding table

    @property
    def matrices(self) -> int:
        """Weights of one layer's seven matrices."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def table(self) -> int:
        """Weights of the embedding table, and of lm_head."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, norms included."""
        norms = 2 * self.hidden + 2 * self.head_dim
        tables = self.table * (1 if self.tied else 2)
        return self.layers * (self.matrices + norms) + tables + self.hidden

    @property
    def kv_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return BYTES * 2 * self.layers * self.kv_heads * self.head_dim

    def config(self) -> dict[str, Any]:
        """The config.json that it was read from, as far as it fixes sizes."""
        return {
            "vocab_size": self.vocab, "hidden_size": self.hidden,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "intermediate_size": self.intermediate, "tie_word_embeddings": self.tied,
        }  # fmt: skip


def shape_of(name: str) -> ModelShape:
    """The shape of a public target, by its hub id."""
    c = public.target_config(name)
    return ModelShape(
        name.removeprefix("Qwen/"), c["num_hidden_layers"], c["hidden_size"],
        c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["intermediate_size"],
        c["vocab_size"], c["tie_word_embeddings"],
    )  # fmt: skip


QWEN3_4B, QWEN3_8B = shape_of("Qwen/Qwen3-4B"), shape_of("Qwen/Qwen3-8B")


@dataclass(frozen=True)
class DrafterShape:
    """A block drafter of the target's width and its Domino head (arXiv 2605.29707)."""

    layers: int
    taps: int
    drafts: int
    mlp: int  # M
    gru: int  # G

    def config(self, model: ModelShape) -> DrafterConfig:
        """The drafter's configuration on a target; which layers it taps does not matter here."""
        return DrafterConfig(
            hidden_size=model.hidden, num_hidden_layers=self.layers,
            num_attention_heads=model.heads, num_key_value_heads=model.kv_heads,
            head_dim=model.head_dim, intermediate_size=model.intermediate,
            vocab_size=model.vocab, block_size=self.drafts, mask_token_id=0,
            target_layer_ids=tuple(range(self.taps)), num_target_layers=model.layers,
            shift_label=True, head="domino", emb_dim=self.mlp, gru_hidden_dim=self.gru,
        )  # fmt: skip

    def body(self, model: ModelShape) -> ModelShape:
        """The drafter's layers as a model of their own; its tables are the target's."""
        return replace(model, name="drafter", layers=self.layers)

    def parameters(self, model: ModelShape) -> int:
        """Weights of the body: layers, the fusing matrix, norms; no tables."""
        body = self.body(model)
        norms = self.layers * (2 * model.hidden + 2 * model.head_dim) + 2 * model.hidden
        return self.layers * body.matrices + self.taps * model.hidden**2 + norms


def drafter_shape_of(name: str) -> DrafterShape:
    """The shape of a public Domino drafter, by its hub id."""
    c = parse_drafter_config(public.DRAFTERS[name][1])
    taps = len(c.target_layer_ids)
    return DrafterShape(c.num_hidden_layers, taps, c.drafts, c.emb_dim, c.gru_hidden_dim)


DOMINO = drafter_shape_of("Huang2020/Qwen3-4B-Domino-b16")


@dataclass(frozen=True)
class Engine:
    """What software makes of a device.

    launch_us
        Host time of one kernel launch; 0 where the forward is one captured graph.
    layer_launches, fixed_launches, draft_launches
        Kernels of a target layer, of the rest of its forward, of a whole draft.
    row_bytes
        Bytes that element-wise kernels move for a row and layer; 0 where they are fused.
    kv_passes
        How often the cache is read or written; 1 for an attention kernel that reads it once.
    bandwidth_share, flops_share
        Of the data sheet's numbers, what is reached.
    head_call_ms
        One batched head call with the choice of its children.
    step_ms, token_ms, round_ms
        Host time of any forward; of each sequence for a plain step, and for a drafted round.
    """

    name: str
    launch_us: float = 0.0
    layer_launches: int = 0
    fixed_launches: int = 0
    draft_launches: int = 0
    row_bytes: float = 0.0
    kv_passes: float = 1.0
    bandwidth_share: float = 0.8
    flops_share: float = 0.5
    head_call_ms: float = 0.1
    step_ms: float = 0.0
    token_ms: float = 0.0
    round_ms: float = 0.0

    def launches(self, model: ModelShape) -> int:
        """Kernels of one forward of the target."""
        return model.layers * self.layer_launches + self.fixed_launches


@dataclass(frozen=True)
class Load:
    """What a step has to serve: tokens already in the cache, and sequences side by side."""

    prefix: int = 256
    batch: int = 1


def device_ms(
    model: ModelShape,
    device: Device,
    engine: Engine,
    rows: int,
    load: Load,
    logits: int | None = None,
) -> float:
    """Milliseconds of the device for a forward of ``rows`` rows of each sequence.

    Matrices, lm_head (``logits`` rows, default all) and attention each take the longer of their
    bytes and their FLOPs; element-wise kernels take their bytes.
    """
    speed = device.bandwidth * 1e9 * engine.bandwidth_share
    peak = device.tflops * 1e12 * engine.flops_share
    all_rows, columns = rows * load.batch, load.prefix + rows
    body = model.layers * model.matrices
    last = load.batch * (rows if logits is None else logits)
    scores = 4 * all_rows * columns * model.heads * model.head_dim * model.layers
    cached = engine.kv_passes * model.kv_bytes * columns * load.batch
    seconds = (
        max(BYTES * body / speed, 2 * body * all_rows / peak)
        + max(BYTES * model.table / speed, 2 * model.table * last / peak)
        + max(cached / speed, scores / peak)
        + engine.row_bytes * all_rows * model.layers / speed
    )
    return 1e3 * seconds


def forward_ms(
    model: ModelShape, device: Device, engine: Engine, rows: int, load: Load | None = None
) -> float:
    """Milliseconds of a target forward: the device's work, or the launches if they take longer."""
    launched = engine.launch_us * engine.launches(model) / 1e3
    return max(launched, device_ms(model, device, engine, rows, load or Load()))


def token_ms(model: ModelShape, device: Device, engine: Engine, load: Load | None = None) -> float:
    """Milliseconds of a plain step: one token for each sequence."""
    load = load or Load()
    forward = forward_ms(model, device, engine, 1, load)
    return forward + engine.step_ms + engine.token_ms * load.batch


def round_ms(
    model: ModelShape,
    device: Device,
    engine: Engine,
    budget: int,
    load: Load | None = None,
    head_calls: int | None = None,
    drafter: DrafterShape = DOMINO,
) -> dict[str, float]:
    """Milliseconds of a round by stage: draft, expand, verify, commit, host.

    ``budget``: nodes beside the root; ``head_calls``: batched head calls (default: one a depth; 0
    for trees on the marginals). Launch-bound drafters and commits (two copies of keys and of
    values a layer) pay launches; the head's own bytes are small beside them.
    """
    load = load or Load()
    calls = drafter.drafts if head_calls is None else head_calls
    body, launch = drafter.body(model), engine.launch_us / 1e3
    draft = device_ms(body, device, engine, drafter.drafts, load)
    return {
        "draft": max(draft, launch * engine.draft_launches),
        "expand": calls * engine.head_call_ms,
        "verify": forward_ms(model, device, engine, 1 + budget, load),
        "commit": launch * 4 * model.layers,
        "host": 2 * engine.step_ms + engine.round_ms * load.batch,
    }


def whole_round_ms(*args: Any, **options: Any) -> float:
    """The sum of :func:`round_ms`."""
    return sum(round_ms(*args, **options).values())


def memory_gb(
    model: ModelShape,
    load: Load,
    width: int = 12,
    candidates: int = 64,
    budget: int = 64,
    drafter: DrafterShape = DOMINO,
) -> dict[str, float]:
    """GB (1e9 bytes) by what holds them, as :func:`dartree.memory.estimate` counts them.

    Cache, supertree and a round's tensors are there for each sequence; prompts are read one by
    one. The table V x 3G counts, also where this package would not keep it.
    """
    n, g = drafter.drafts, drafter.gru
    need = _estimate(model, load.prefix, width, candidates, budget, drafter)
    supertree = width * n * (BYTES * g + 3 * 8 + 4)  # GRU state; token, parent, depth; score
    parts = {
        "target weights": need.target,
        "drafter weights": need.drafter,
        "head weights": need.head,
        "head tables (V x 3G)": need.head_tables + need.table_left_out,
        "KV caches": load.batch * need.cache,
        "logits and the like": max(load.batch * need.round_peak, need.prefill_peak),
        "supertree": load.batch * supertree,
    }
    return {name: size / 1e9 for name, size in parts.items()}


@lru_cache(maxsize=64)
def _estimate(
    model: ModelShape, prefix: int, width: int, candidates: int, budget: int, drafter: DrafterShape
) -> memory.Estimate:
    settings = TreeSettings(width=width, candidates=candidates, budget=budget)
    return memory.estimate(model.config(), drafter.config(model), settings, prefix, BYTES)


def flat_until(
    cost: Callable[[int], float], budgets: Sequence[int], tolerance: float = 0.05
) -> int:
    """The largest budget whose cost is within ``tolerance`` of the smallest budget's."""
    first = cost(budgets[0])
    return max(b for b in budgets if cost(b) <= (1 + tolerance) * first)


@dataclass(frozen=True)
class TauCurve:
    """tau over the budget, from published points: straight lines over log B, flat outside."""

    points: tuple[tuple[int, float], ...]  # (B, tau relative to B = 64)

    def __call__(self, budget: int) -> float:
        budgets, values = zip(*self.points, strict=True)
        return float(np.interp(math.log(budget), np.log(budgets), values))


def best_budget(
    tau: Callable[[int], float], cost: Callable[[int], float], budgets: Sequence[int]
) -> int:
    """The budget with the most tokens per millisecond; the smaller one of equals."""
    return max(budgets, key=lambda b: (tau(b) / cost(b), -b))


def fit(
    residuals: Callable[[np.ndarray], np.ndarray], start: Sequence[float], steps: int = 200
) -> np.ndarray:
    """Positive parameters that minimise the squared ``residuals``: damped Gauss-Newton on logs."""
    x, damping = np.log(np.asarray(start, dtype=float)), 1e-2
    now = residuals(np.exp(x))
    for _ in range(steps):
        moved = [residuals(np.exp(x + 1e-5 * e)) for e in np.eye(len(x))]
        slope = (np.stack(moved, axis=1) - now[:, None]) / 1e-5
        normal = slope.T @ slope + damping * np.eye(len(x))
        trial = x - np.linalg.solve(normal, slope.T @ now)
        after = residuals(np.exp(trial))
        better = after @ after < now @ now
        damping = damping / 3 if better else damping * 3
        if damping > 1e9:
            break  # no direction is better any more
        if better:
            x, now = trial, after
    return np.exp(x)
