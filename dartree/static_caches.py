"""Caches that hand over buffers of a fixed shape, so that torch.compile sees one graph for each.

What is not filled is hidden by the caller's mask.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dartree.drafter import KV, DrafterCache
from dartree.target import KVCache

COLUMNS = 512  # the capacity of a cache is a multiple of this
KEPT = 4  # sets of buffers without a cache that wait for the next one


def whole_columns(rows: int) -> int:
    """The capacity that holds ``rows`` rows."""
    return -(-rows // COLUMNS) * COLUMNS


@dataclass(eq=False)  # comparing tensors has no single answer
class Lent:
    """Buffers of one cache, all of one shape; ``give_back()`` ends the loan early."""

    kind: tuple
    tensors: list[torch.Tensor]
    give_back: Callable[[], Any] = lambda: None


@dataclass
class Buffers:
    """Buffers of zeros for static caches; with ``reuse`` those of a dead cache serve the next one.

    A CUDA graph is recorded for the addresses that it reads and writes: buffers of their own would
    have every prompt record its graphs anew. Two caches that are alive never share buffers.
    """

    reuse: bool = False
    _free: list[Lent] = field(default_factory=list)  # the last one given back comes last

    def lend(
        self, cache: Any, count: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> Lent:
        """``count`` buffers of ``shape`` for ``cache``, until it dies or gives them back."""
        kind = (count, tuple(shape), dtype, device)
        lent = next((free for free in reversed(self._free) if free.kind == kind), None)
        if lent:
            self._free.remove(lent)
            for tensor in lent.tensors:
                tensor.zero_()
        else:
            del self._free[:-KEPT]
            # Zeros: hidden rows are weighted with 0, and 0 * NaN would be NaN.
            lent = Lent(kind, [zeros(shape, dtype, device, self.reuse) for _ in range(count)])
        if self.reuse:
            returns = weakref.finalize(cache, self._free.append, Lent(kind, lent.tensors))
            returns.atexit = False
            return Lent(kind, lent.tensors, returns)
        return lent


def zeros(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, static: bool
) -> torch.Tensor:
    """A buffer for inputs of graphs; ``static``: a CUDA graph may rely on its address."""
    # A tensor made in inference mode could not be written to outside of it.
    with torch.inference_mode(False):
        made = torch.zeros(shape, dtype=dtype, device=device)
    if static:
        torch._dynamo.mark_static_address(made)
    return made


class StaticKVCache(KVCache):
    """A :class:`KVCache` that hands over its whole capacity while ``slots`` is set.

    ``slots`` [R]: where a static forward writes its rows. None: a prefill, as in the base class.
    Each layer has buffers of its own: a graph that writes into a view of one large buffer would
    copy all of it, once per layer.
    """

    def __init__(
        self, config: Any, capacity: int, dtype: torch.dtype, device: torch.device,
        buffers: Buffers | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, 0, dtype, device)
        self._buffers = buffers or Buffers()
        self._lend(capacity)
        self.slots: torch.Tensor | None = None

    def _lend(self, capacity: int) -> None:
        _, count, *shape, _, head_dim = self._data.shape
        shape = [*shape, capacity, head_dim]
        self._lent = self._buffers.lend(self, 2 * count, shape, self._data.dtype, self._data.device)
        flat = self._lent.tensors
        self._layers = [flat[i : i + 2] for i in range(0, len(flat), 2)]

    @property
    def capacity(self) -> int:
        """Rows that fit before the buffers have to grow."""
        return self._layers[0][0].shape[2]

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_, **__) -> KV:
        """Write rows [1, kv_heads, R, head_dim]; return the rows that attention reads."""
        keys, values = self._layers[layer_idx]
        if self.slots is not None:
            keys.index_copy_(2, self.slots, key)
            values.index_copy_(2, self.slots, value)
            return keys, values
        self.pending = key.shape[2]
        end = self.length + self.pending
        if end > self.capacity:
            self.reserve(end)
            keys, values = self._layers[layer_idx]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Committed keys and values, each [layers, kv_heads, length, head_dim]."""
        both = zip(*self._layers, strict=True)
        keys, values = (torch.cat(t)[:, :, : self.length] for t in both)
        return keys, values

    def _move(self, rows: torch.Tensor) -> None:
        start, count = self.length, len(rows)
        for layer in self._layers:
            for buffer in layer:
                kept = buffer[:, :, start : start + self.pending].index_select(2, rows)
                buffer[:, :, start : start + count] = kept

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` rows in all, in whole steps of COLUMNS."""
        capacity, before = self.capacity, self._lent
        if rows <= capacity:
            return
        self._lend(whole_columns(rows))
        for old, new in zip(before.tensors, self._lent.tensors, strict=True):
            new[:, :, :capacity] = old
        before.give_back()


@dataclass
class StaticDrafterCache(DrafterCache):
    """A drafter's context cache whose block forward runs a compiled graph.

    The buffers are handed over at their full capacity, a multiple of COLUMNS, with a mask.
    """

    drafter: Any  # a CompiledDrafter
    buffers: Buffers = field(default_factory=Buffers)
    _lent: Lent | None = None

    def reserve(self, rows: int, device: torch.device) -> None:
        """Make room for ``rows`` rows per layer, in whole steps of COLUMNS."""
        c, before = self.drafter.config, self._lent
        have = self._keys[0].shape[2] if self._keys else 0
        if rows <= have:
            return
        shape = (1, c.num_key_value_heads, max(whole_columns(rows), 2 * have), c.head_dim)
        layers = c.num_hidden_layers
        self._lent = self.buffers.lend(self, 2 * layers, shape, self.drafter.dtype, device)
        fresh = self._lent.tensors
        for old, new in zip((*self._keys, *self._values), fresh, strict=False):
            new[:, :, : self.length] = old[:, :, : self.length]
        self._keys[:], self._values[:] = fresh[:layers], fresh[layers:]
        if before:
            before.give_back()

    @torch.no_grad()
    def forward_block(self, block_embeddings: torch.Tensor) -> torch.Tensor:
        """As :meth:`DrafterCache.forward_block`: hidden states [L, H] of one block [1, L, H]."""
        count, device = block_embeddings.shape[1], block_embeddings.device
        end = self.length + count
        self.reserve(end, device)
        slots = torch.arange(self.length, end, device=device)
        columns = torch.arange(self._keys[0].shape[2], device=device)
        mask = torch.zeros(len(columns), dtype=self.drafter.dtype, device=device)
        mask = mask.masked_fill_(columns >= end, torch.finfo(mask.dtype).min)[None, None, None]
        return self.drafter.static_block(block_embeddings, slots, mask, self._keys, self._values)
