"""The target's forward with static shapes, so that torch.compile sees one graph.

Rows are padded to a fixed count and the cache is handed over at its full capacity, with a mask
that hides what is not filled.  ``CompiledTarget.report`` says what runs and what compiling cost;
there is no silent fallback: a target that cannot be compiled raises.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from dartree.stack import Stack
from dartree.target import KVCache, Target, TargetOutput, TreeRows


class StaticKVCache(KVCache):
    """A :class:`KVCache` that hands over its whole capacity while ``slots`` is set.

    ``slots`` [R]: where a static forward writes its rows. None: a prefill, as in the base class.
    """

    def __init__(self, config, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(config, capacity, dtype, device)
        self._data.zero_()  # hidden rows are weighted with 0, and 0 * NaN would be NaN
        self.slots: torch.Tensor | None = None

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_, **__):
        """Write rows [1, kv_heads, R, head_dim]; return the rows that attention reads."""
        if self.slots is None:
            return super().update(key, value, layer_idx)
        keys, values = self._data[0, layer_idx], self._data[1, layer_idx]
        keys.index_copy_(2, self.slots, key)
        values.index_copy_(2, self.slots, value)
        return keys, values

    def _grow(self, rows: int) -> None:
        raise ValueError(f"a static cache of {self.capacity} rows cannot take {rows}.")


class CompiledTarget(Target):
    """A target whose ``verify`` is one compiled graph over ``rows`` rows and all of its context.

    The prefill stays eager, since its length differs from prompt to prompt. Padding rows repeat
    the first one; their output is dropped and their cache rows are never committed.
    """

    def __init__(self, target: Target, rows: int) -> None:
        super().__init__(target.model)
        self.tap_ids, self._eager, self.rows = target.tap_ids, target, rows
        self.capacity = self.max_positions + rows
        self.compile_seconds: float | None = None
        self._graph = torch.compile(self._static_rows, dynamic=False, fullgraph=True)
        self._mask = torch.full(
            (1, 1, rows, self.capacity), torch.finfo(self.dtype).min, dtype=self.dtype,
            device=self.device,
        )  # fmt: skip

    def without_taps(self) -> CompiledTarget:
        """As :meth:`Target.without_taps`; plain decoding verifies one row at a time."""
        return CompiledTarget(Target(self.model), rows=1)

    @property
    def report(self) -> str:
        """What runs, in one line."""
        spent = "not yet" if self.compile_seconds is None else f"in {self.compile_seconds:.1f} s"
        return f"torch.compile: {self.rows} rows, {self.capacity} columns, compiled {spent}"

    def new_cache(self, capacity: int) -> StaticKVCache:
        """A static cache for the whole context, whatever capacity is asked for."""
        return StaticKVCache(self.config, self.capacity, self.dtype, self.device)

    def prefill(self, cache: KVCache, ids: torch.Tensor) -> TargetOutput:
        """As :meth:`Target.prefill`, eager."""
        return self._eager.prefill(cache, ids)

    @torch.no_grad()
    def verify(self, cache: StaticKVCache, rows: TreeRows) -> TargetOutput:
        """As :meth:`Target.verify`, padded to ``self.rows``; ValueError for more rows than that."""
        count, past = len(rows.ids), cache.length
        if count > self.rows:
            raise ValueError(f"rows must be at most {self.rows}, got {count}.")
        pad = torch.arange(self.rows, device=self.device)
        pad = torch.where(pad < count, pad, 0)  # rows beyond the tree repeat the anchor
        self._mask.fill_(torch.finfo(self.dtype).min)
        self._mask[..., : past + count] = rows.mask[0, 0][pad]
        cache.slots = past + torch.arange(self.rows, device=self.device)
        cache.pending = count
        start = time.perf_counter()
        try:
            hidden, taps = self._graph(
                rows.ids[pad][None], rows.positions[pad][None], self._mask, cache
            )
        finally:
            cache.slots = None
        if self.compile_seconds is None:
            self.compile_seconds = time.perf_counter() - start
        hidden = hidden[0, :count]
        features = torch.cat([t[0, :count] for t in taps], dim=-1) if taps else None
        if features is None:
            features = hidden.new_empty(count, 0)
        return TargetOutput(self.model.lm_head(hidden), features)

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


def compiled_stack(stack: Stack, rows: int) -> Stack:
    """``stack`` with a compiled target of ``rows`` rows (1 + B) for every method but `ar`.

    `ar` gets a graph of its own with one row. Drafter and head stay eager.
    """
    main = replace(stack.main, target=CompiledTarget(stack.main.target, rows))
    marginal = stack.marginal
    if marginal is not None:
        marginal = replace(marginal, target=CompiledTarget(marginal.target, rows))
    return replace(stack, main=main, marginal=marginal)
