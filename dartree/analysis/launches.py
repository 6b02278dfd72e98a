"""What an eager forward really does: kernels and bytes, counted on tensors without data.

The real transformers layers run on PyTorch's meta device, where nothing is computed, and every
operation that would start a kernel is counted with the bytes that it reads and writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dartree.analysis.roofline import DOMINO, DrafterShape, Engine, ModelShape
from dartree.drafter import KV, DFlashDrafter, DrafterCache
from dartree.target import KVCache, Target, TreeRows

# Another name for memory that is there: no kernel.
_VIEWS = {"view", "_unsafe_view", "transpose", "permute", "t", "expand", "slice", "select",
          "unsqueeze", "squeeze", "alias", "detach", "split", "unbind"}  # fmt: skip


@dataclass(frozen=True)
class Count:
    """Kernels, and the bytes that they read and write."""

    kernels: int
    bytes: int

    def __sub__(self, other: Count) -> Count:
        return Count(self.kernels - other.kernels, self.bytes - other.bytes)


class _Counter(TorchDispatchMode):
    """Counts every operation that is no view."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.bytes, self.quiet = 0, 0, False

    def add(self, *values: Any) -> None:
        tensors = [v for v in tree_leaves(values) if isinstance(v, torch.Tensor)]
        self.kernels += 1
        self.bytes += sum(_bytes(t) for t in tensors)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not self.quiet and function.overloadpacket.__name__ not in _VIEWS:
            self.add(args, kwargs, result)
        return result


class _OneAttention(TorchFunctionMode):
    """Attention as the one kernel that a GPU starts for it; meta tensors would take it apart."""

    def __init__(self, counter: _Counter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        self.counter.quiet = True
        result = torch.empty_like(args[0])
        self.counter.quiet = False
        self.counter.add(args, kwargs, result)
        return result


def _bytes(tensor: torch.Tensor) -> int:
    """Memory behind a tensor; a row that is repeated by a view is read once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(n for n, stride in sizes if stride or n == 0)


def counted(work: Callable[[], Any]) -> Count:
    """Kernels and bytes of ``work``."""
    with torch.no_grad(), _Counter() as counter, _OneAttention(counter):
        work()
    return Count(counter.kernels, counter.bytes)


@contextmanager
def on_meta() -> Iterator[None]:
    """New tensors have no data in here.

    transformers 4 turns autocast off around its rotary embedding, which PyTorch refuses to do for
    such tensors: there is none to turn off.
    """
    library: Any = torch  # whose types say that a class is not to be replaced
    real, library.autocast = torch.autocast, lambda *_, **__: nullcontext()
    try:
        with torch.device("meta"):
            yield
    finally:
        library.autocast = real


class _Growing(KVCache):
    """Makes a longer copy for every forward, as the cache of transformers does."""

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_, **__) -> KV:
        self.pending = key.shape[2]
        old = self._data[:, layer_idx, :, :, : self.length]
        return torch.cat([old[0], key], dim=-2), torch.cat([old[1], value], dim=-2)


@lru_cache(maxsize=4)
def _target(shape: ModelShape, layers: int) -> Target:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = shape.config() | {"num_hidden_layers": layers, "attn_implementation": "sdpa"}
    config = Qwen3Config(**sizes)
    with torch.device("meta"):
        return Target(Qwen3ForCausalLM(config).bfloat16())


def target_count(shape: ModelShape, rows: int, prefix: int, layers: int = 1) -> Count:
    """One verifying forward of ``rows`` rows behind ``prefix`` cached ones."""
    target = _target(shape, layers)
    with on_meta():
        cache = _Growing(target.config, prefix + rows, target.dtype, target.device)
        cache.length = prefix
        ids = torch.zeros(rows, dtype=torch.long)
        mask = torch.zeros(1, 1, rows, prefix + rows, dtype=torch.bfloat16) if rows > 1 else None
        return counted(lambda: target.verify(cache, TreeRows(ids, ids, mask)))


def layer_count(shape: ModelShape, rows: int, prefix: int) -> Count:
    """One layer of that forward: what a second layer adds."""
    return target_count(shape, rows, prefix, 2) - target_count(shape, rows, prefix, 1)


def draft_count(shape: ModelShape, drafter: DrafterShape = DOMINO, new: int = 8) -> Count:
    """One draft: ``new`` context features fused, the block's forward, lm_head, the top K."""
    with torch.device("meta"):
        model = DFlashDrafter(drafter.config(shape)).to(torch.bfloat16)
        features = torch.zeros(new, drafter.taps * shape.hidden, dtype=torch.bfloat16)
        table = torch.zeros(shape.vocab, shape.hidden, dtype=torch.bfloat16)
        ids = torch.zeros(drafter.drafts, dtype=torch.long)
        cache = DrafterCache(model)

        def work() -> None:
            cache.absorb(features)
            hidden = cache.forward_block(torch.nn.functional.embedding(ids, table)[None])
            torch.nn.functional.linear(hidden, table).float().topk(64)

        return counted(work)


def eager_engine(shape: ModelShape, launch_us: float, **options: Any) -> Engine:
    """An :class:`Engine` whose launches and bytes are those of the transformers code here.

    Three counts of a layer give the bytes that grow with rows and with cached tokens.
    """
    base, taller = layer_count(shape, 64, 256), layer_count(shape, 128, 256)
    longer = layer_count(shape, 64, 512)
    column = shape.kv_bytes / shape.layers
    kv_passes = (longer.bytes - base.bytes) / 256 / column
    per_row = (taller.bytes - base.bytes) / 64 - kv_passes * column
    rest = target_count(shape, 64, 256).kernels - base.kernels
    return Engine(
        "transformers, eager", launch_us, base.kernels, rest, draft_count(shape).kernels,
        row_bytes=per_row, kv_passes=kv_passes, **options,
    )  # fmt: skip
