"""Target, drafter and head with static shapes, so that torch.compile sees one graph each.

Rows are padded to a fixed count and caches are handed over at their full capacity, with a mask
that hides what is not filled. :func:`report` says what was compiled and what that cost; there is
no silent fallback: where it cannot work, a sentence says why.
"""

from __future__ import annotations

import shutil
import time
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from dartree.drafter import KV, Block, DFlashDrafter, DrafterCache
from dartree.heads import Head
from dartree.settings import TreeSettings
from dartree.stack import Pairing, Stack
from dartree.supertree import grow_levels
from dartree.target import KVCache, Target, TargetOutput, TreeRows

# 1 for plain decoding, 17 for a chain of 16 drafts, 1 + B for the usual budgets.
ROW_COUNTS = (1, 17, 33, 65, 129, 257)
COLUMNS = 512  # the cache's capacity is a multiple of this


def why_not() -> str | None:
    """Why torch.compile cannot work on the CPU here, in one sentence; None where it can."""
    folder = Path(torch.__file__).parent
    if " " in str(folder):
        return f"torch.compile needs a path without blanks, and torch lies in {str(folder)!r}."
    if not any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        return "torch.compile needs a C++ compiler, and none was found."
    return None


class Graphs:
    """One compiled graph for each key, and in ``seconds`` what the first call of each took."""

    def __init__(self) -> None:
        self.seconds: dict[Hashable, float] = {}
        self._graphs: dict[Hashable, Callable] = {}

    def run(self, key: Hashable, function: Callable, *inputs: Any) -> Any:
        """``function(*inputs)`` as the graph of ``key``, whose shapes are always the same."""
        start = time.perf_counter()
        if key not in self._graphs:
            self._graphs[key] = _compile(function)
        out = self._graphs[key](*inputs)
        self.seconds.setdefault(key, time.perf_counter() - start)
        return out


def _compile(function: Callable) -> Callable:
    """``function`` as one graph of fixed shapes; on a CPU without Python between its kernels."""
    options: dict[str, Any] | None
    options = None if torch.cuda.is_available() else {"cpp_wrapper": True}
    plain: Any = getattr(function, "__func__", function)
    # Code of its own: torch.compile counts graphs by code object and gives up after a few.
    own: Any = types.FunctionType(
        plain.__code__.replace(),
        plain.__globals__,
        plain.__name__,
        plain.__defaults__,
        plain.__closure__,
    )
    if plain is not function:
        own = types.MethodType(own, cast(Any, function).__self__)
    return torch.compile(own, dynamic=False, fullgraph=True, options=options)


class StaticKVCache(KVCache):
    """A :class:`KVCache` that hands over its whole capacity while ``slots`` is set.

    ``slots`` [R]: where a static forward writes its rows. None: a prefill, as in the base class.
    Each layer has buffers of its own: a graph that writes into a view of one large buffer would
    copy all of it, once per layer.
    """

    def __init__(
        self, config: Any, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(config, 0, dtype, device)
        _, layers, *shape, _, head_dim = self._data.shape
        self._shape, self._like = (*shape, capacity, head_dim), self._data
        # Zeros: hidden rows are weighted with 0, and 0 * NaN would be NaN.
        self._layers = [[self._zeros(capacity) for _ in range(2)] for _ in range(layers)]
        self.slots: torch.Tensor | None = None

    def _zeros(self, capacity: int) -> torch.Tensor:
        *shape, _, head_dim = self._shape
        return self._like.new_zeros((*shape, capacity, head_dim))

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
        if rows <= self.capacity:
            return
        for layer in self._layers:
            for i, buffer in enumerate(layer):
                layer[i] = self._zeros(-(-rows // COLUMNS) * COLUMNS)
                layer[i][:, :, : buffer.shape[2]] = buffer


class CompiledTarget(Target):
    """A target whose ``verify`` runs a compiled graph with fixed row and column counts.

    A tree of 1 + N rows runs in the smallest of ``ROW_COUNTS`` that holds it; each is compiled when
    it is first needed. Padding rows repeat the first one; their output is dropped and their cache
    rows are never committed. The prefill stays eager: its length differs from prompt to prompt.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(target.model)
        self.tap_ids, self._eager = target.tap_ids, target
        self.graphs = Graphs()
        self._masks: dict[tuple[int, int], torch.Tensor] = {}
        self._plain: CompiledTarget | None = None

    def without_taps(self) -> CompiledTarget:
        """As :meth:`Target.without_taps`; always the same object, which keeps its graphs."""
        if self.tap_ids and self._plain is None:
            self._plain = CompiledTarget(Target(self.model))
        return self._plain or self

    def new_cache(self, capacity: int) -> StaticKVCache:
        """A static cache with room for ``capacity`` rows and more, in whole steps of COLUMNS."""
        columns = -(-(capacity + ROW_COUNTS[-1]) // COLUMNS) * COLUMNS
        return StaticKVCache(self.config, columns, self.dtype, self.device)

    def prefill(self, cache: KVCache, ids: torch.Tensor) -> TargetOutput:
        """As :meth:`Target.prefill`, eager."""
        return self._eager.prefill(cache, ids)

    @torch.no_grad()
    def verify(self, cache: StaticKVCache, rows: TreeRows) -> TargetOutput:  # type: ignore[override]  # of new_cache
        """As :meth:`Target.verify`; ValueError, too, for more rows than the largest graph has."""
        self.check_mask(cache, rows)
        count, past = len(rows.ids), cache.length
        padded = next((n for n in ROW_COUNTS if n >= count), None)
        if padded is None:
            raise ValueError(f"rows must be at most {ROW_COUNTS[-1]}, got {count}.")
        pad = torch.arange(padded, device=self.device)
        pad = torch.where(pad < count, pad, 0)  # rows beyond the tree repeat the anchor
        cache.reserve(past + padded)
        mask = self._mask(padded, cache.capacity)
        mask[..., : past + count] = 0 if rows.mask is None else rows.mask[0, 0][pad]
        cache.slots = past + torch.arange(padded, device=self.device)
        cache.pending = count
        inputs = rows.ids[pad][None], rows.positions[pad][None], mask, cache
        try:
            hidden, taps = self.graphs.run((padded, cache.capacity), self._static_rows, *inputs)
        finally:
            cache.slots = None
        hidden = hidden[0, :count]
        features = torch.cat([t[0, :count] for t in taps], dim=-1) if taps else None
        if features is None:
            features = hidden.new_empty(count, 0)
        return TargetOutput(self.model.lm_head(hidden), features)

    def _mask(self, rows: int, columns: int) -> torch.Tensor:
        """The mask buffer [1, 1, rows, columns], everything hidden."""
        if (rows, columns) not in self._masks:
            shape = (1, 1, rows, columns)
            self._masks[rows, columns] = torch.empty(shape, dtype=self.dtype, device=self.device)
        return self._masks[rows, columns].fill_(torch.finfo(self.dtype).min)

    def _static_rows(self, ids, positions, mask, cache) -> tuple:
        """Last hidden states [1, R, H] and tapped states; what is compiled."""
        body = self.model.model
        x = body.embed_tokens(ids)
        rope = body.rotary_emb(x, positions)
        states = {-1: x}
        for i, layer in enumerate(body.layers):
            out = layer(
                x, attention_mask=mask, position_ids=positions, position_embeddings=rope,
                use_cache=True, **{self._cache_name: cache},
            )  # fmt: skip
            x = out[0] if isinstance(out, tuple) else out
            states[i] = x
        x = body.norm(x)
        states[len(body.layers) - 1] = x
        return x, [states[tap] for tap in self.tap_ids]


class StaticDrafterCache(DrafterCache):
    """A drafter's context cache whose block forward runs a compiled graph.

    The buffers are handed over at their full capacity, a multiple of COLUMNS, with a mask.
    """

    drafter: Any  # a CompiledDrafter

    def reserve(self, rows: int, device: torch.device) -> None:
        """Make room for ``rows`` rows per layer, in whole steps of COLUMNS."""
        before = self._keys[0].shape[2] if self._keys else 0
        super().reserve(-(-rows // COLUMNS) * COLUMNS, device)
        if self._keys[0].shape[2] > before:
            for buffer in (*self._keys, *self._values):  # hidden rows have the weight 0, not NaN
                buffer[:, :, self.length :] = 0

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


class CompiledDrafter:
    """A drafter whose block forward is compiled; everything else is the drafter's own."""

    def __init__(self, drafter: DFlashDrafter) -> None:
        self._drafter = drafter
        self.graphs = Graphs()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def new_cache(self) -> StaticDrafterCache:
        """An empty context cache whose blocks run the compiled graph."""
        return StaticDrafterCache(cast(DFlashDrafter, self))

    def static_block(
        self, x: torch.Tensor, slots: torch.Tensor, mask: torch.Tensor, keys: list, values: list
    ) -> torch.Tensor:
        """Hidden states [L, H] of a block [1, L, H] at rows ``slots`` [L] of the buffers."""
        inputs = x.to(self._drafter.dtype), slots, mask, keys, values
        return self.graphs.run(keys[0].shape[2], self._static_block, *inputs)[0]

    def _static_block(self, x, slots, mask, keys, values) -> torch.Tensor:
        """[1, L, H]; what is compiled."""
        rope = self._drafter.rotary(slots[None], x.dtype)

        def write(i: int, own: KV) -> KV:
            keys[i].index_copy_(2, slots, own[0])
            values[i].index_copy_(2, slots, own[1])
            return keys[i], values[i]

        return self._drafter.run(x, rope, write, mask)


@dataclass
class _TracedBlock(Block):
    """A block whose anchor is an input of the graph: as a number it would be a constant."""

    ids: torch.Tensor | Any = None

    def anchor_ids(self) -> torch.Tensor:
        return self.ids


class CompiledHead:
    """A head that grows all levels of a supertree in one graph; everything else is the head's own.

    One graph for each list of quotas and each settings of the scores.
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        self.graphs = Graphs()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)

    def grow(
        self, block: Block, candidates: torch.Tensor, quotas: list[int], settings: TreeSettings
    ) -> tuple:
        """As :func:`dartree.supertree.grow_levels`; ties fall as they may."""
        key = (*quotas, candidates.shape[1], settings.normalise, settings.score_temperature)
        if not self.graphs.seconds:
            self._head.start(block, candidates)  # makes the head's tables outside the graph

        def levels(ids, hidden, base_logits, candidates):
            traced = _TracedBlock(0, 0, hidden, base_logits, ids)
            return grow_levels(self._head, traced, candidates, quotas, settings)

        inputs = block.anchor_ids(), block.hidden, block.base_logits, candidates
        return self.graphs.run(key, levels, *inputs)


def _compiled(pairing: Pairing, parts: str) -> Pairing:
    pairing = replace(pairing, head=CompiledHead(pairing.head))
    if parts == "all":
        drafter = pairing.drafter and CompiledDrafter(pairing.drafter)
        pairing = replace(pairing, target=CompiledTarget(pairing.target), drafter=drafter)
    return pairing


def compiled_stack(stack: Stack, parts: str = "all") -> Stack:
    """``stack`` with compiled targets, drafters and heads for all methods; ``parts``: or "head".

    Single steps of a head, as the chains and `heap` use them, stay eager: on a CPU the call of a
    compiled graph costs as much as a few products of small matrices. Graphs of the target and the
    drafter take the plain weights, so that with "all" the stack does not count as packed. Raises
    ValueError where torch.compile cannot work.
    """
    if stack.target.device.type == "cpu" and (reason := why_not()):
        raise ValueError(reason)
    marginal = None if stack.marginal is None else _compiled(stack.marginal, parts)
    packed = stack.packed and parts != "all"
    return replace(stack, main=_compiled(stack.main, parts), marginal=marginal, packed=packed)


def compiled_parts(stack: Stack) -> str | None:
    """The ``parts`` that :func:`compiled_stack` made ``stack`` with; None for any other stack."""
    if isinstance(stack.target, CompiledTarget):
        return "all"
    return "head" if isinstance(stack.head, CompiledHead) else None


def report(stack: Stack) -> str:
    """What is compiled in ``stack`` and what that cost, in one line."""
    found = []
    for pairing in filter(None, (stack.pairing("ar"), stack.main, stack.marginal)):
        for name in ("target", "drafter", "head"):
            part = getattr(pairing, name)
            if seconds := part.graphs.seconds if hasattr(part, "graphs") else {}:
                found.append(f"{name} {len(seconds)} in {sum(seconds.values()):.0f} s")
    return f"torch.compile, graphs: {', '.join(found) or 'nothing yet'}"
