"""The target: one Qwen3ForCausalLM, its KV cache and its tapped features.

This is the only module that knows how transformers passes a cache. The cache is our own, with
preallocated buffers: library caches changed the meaning of their rollback calls between
releases, and here rows must be compacted in place after every round.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dartree.checks import CheckpointError
from dartree.drafter import KV
from dartree.tree import DraftTree


class KVCache:
    """Keys and values of all layers in one buffer [2, layers, 1, kv_heads, capacity, head_dim].

    ``length`` rows are committed. A forward appends rows behind them ("pending"); ``commit``
    keeps some of these and forgets the rest. ``layers`` and ``kv_heads``: the share of a model
    whose other layers or heads are elsewhere; None for all that ``config`` names.
    """

    def __init__(
        self, config: Any, capacity: int, dtype: torch.dtype, device: torch.device,
        *, layers: int | None = None, kv_heads: int | None = None,
    ) -> None:  # fmt: skip
        layers = layers or config.num_hidden_layers
        kv_heads = kv_heads or config.num_key_value_heads
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        shape = (2, layers, 1, kv_heads, capacity, head_dim)
        self._data = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0
        self.pending = 0

    @property
    def capacity(self) -> int:
        """Rows that fit before the buffer has to grow."""
        return self._data.shape[4]

    # The three methods that transformers calls during a forward.
    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_, **__) -> KV:
        """Write pending rows [1, kv_heads, T, head_dim]; return committed plus pending rows."""
        self.pending = key.shape[2]
        end = self.length + self.pending
        if end > self.capacity:
            self._grow(end)
        keys, values = self._data[0, layer_idx], self._data[1, layer_idx]
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Committed rows."""
        return self.length

    @property
    def is_compileable(self) -> bool:
        """Read by transformers; this cache never asks for its automatic compilation."""
        return False

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Committed keys and values, each [layers, kv_heads, length, head_dim]."""
        data = self._data[:, :, 0, :, : self.length]
        return data[0], data[1]

    def commit(self, rows: torch.Tensor) -> None:
        """Keep pending rows ``rows`` [a] (0-based), in this order, as rows length..length+a-1.

        Keys are already rotated for position anchor + depth, which is their final place.
        """
        count = len(rows)
        if count and (int(rows.max()) >= self.pending or int(rows.min()) < 0):
            raise ValueError(f"rows must lie in 0..{self.pending - 1}, got {rows.tolist()}.")
        start = self.length
        if not torch.equal(rows, torch.arange(count, device=rows.device)):
            self._move(rows)
        self.length, self.pending = start + count, 0

    def _move(self, rows: torch.Tensor) -> None:
        window = self._data[..., self.length : self.length + self.pending, :]
        # index_select copies before it is written back: rows may cross.
        kept = window.index_select(4, rows)
        self._data[..., self.length : self.length + len(rows), :] = kept

    def _grow(self, rows: int) -> None:
        shape = list(self._data.shape)
        shape[4] = max(rows, 2 * self.capacity)
        fresh = torch.empty(shape, dtype=self._data.dtype, device=self._data.device)
        end = self.length + self.pending  # earlier layers already hold pending rows
        fresh[..., : min(end, self.capacity), :] = self._data[..., :end, :]
        self._data = fresh


def cached_rows(arguments: dict[str, Any]) -> int:
    """Rows in the library cache among a model's keyword arguments; 0 without one."""
    cache = arguments.get("cache", arguments.get("past_key_values"))
    return 0 if cache is None else cache.get_seq_length()


@dataclass
class TargetOutput:
    """One target forward over T rows: ``logits`` [T or 1, V], ``features`` [T, taps * H]."""

    logits: torch.Tensor
    features: torch.Tensor


class Target:
    """An unmodified Qwen3ForCausalLM with hooks on the layers that the drafter reads.

    tap_ids follow the public convention: id i reads ``hidden_states[i + 1]``. So -1 is the
    embedding output, i the output of decoder layer i, and the last layer's id the state after
    the final norm (that is what transformers stores there).
    """

    def __init__(self, model: Any, tap_ids: tuple[int, ...] = ()) -> None:
        config = model.config
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise CheckpointError(
                f"the target's layer_types must all be full_attention (a sliding window cannot "
                f"be rolled back after a rejected draft), got {sorted(kinds)}."
            )
        attention = getattr(config, "_attn_implementation", "sdpa")
        if attention not in ("sdpa", "eager"):
            raise CheckpointError(
                f"the target's attention must be sdpa or eager (tree masks are not causal), "
                f"got {attention!r}."
            )
        self.model = model.eval()
        self.config = config
        self.vocab_size: int = model.lm_head.weight.shape[0]
        self.max_positions: int = config.max_position_embeddings
        self._sdpa = attention == "sdpa"
        parameters = inspect.signature(model.model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self.tap_ids = tuple(tap_ids)
        self._own = _Own()
        for tap in sorted(set(self.tap_ids)):
            handle = self._tapped_module(tap).register_forward_hook(_hook(tap, self._own))
            # The model may live on, and be given to many targets.
            weakref.finalize(self, handle.remove).atexit = False

    def without_taps(self) -> Target:
        """The same model with no features recorded: all that plain decoding needs."""
        return Target(self.model)

    def _tapped_module(self, tap: int) -> torch.nn.Module:
        body, count = self.model.model, self.config.num_hidden_layers
        if not -1 <= tap < count:
            raise CheckpointError(
                f"target_layer_ids must lie in -1..{count - 1} for a target of {count} layers, "
                f"got {tap}."
            )
        if tap == -1:
            return body.embed_tokens
        return body.norm if tap == count - 1 else body.layers[tap]

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.model.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.model.lm_head.weight.dtype

    @property
    def embedding(self) -> torch.Tensor:
        """Input embedding table [V, H], which drafter and head share."""
        return self.model.model.embed_tokens.weight

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., V] of hidden states [..., H] of any dtype."""
        return self.model.lm_head(hidden.to(self.dtype))

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache with room for ``capacity`` rows."""
        return KVCache(self.config, capacity, self.dtype, self.device)

    @torch.no_grad()
    def prefill(self, cache: KVCache, ids: torch.Tensor) -> TargetOutput:
        """Run ``ids`` [T] causally and commit them; logits [1, V] of the last row only."""
        count = len(ids)
        positions = torch.arange(cache.length, cache.length + count, device=self.device)
        mask = None
        if not (self._sdpa and cache.length == 0):
            columns = torch.arange(cache.length + count, device=self.device)
            mask = self._additive(columns[None] <= positions[:, None])
        output = self._forward(cache, ids, positions, mask, last_only=True)
        cache.commit(torch.arange(count, device=self.device))
        return output

    @torch.no_grad()
    def verify(self, cache: KVCache, rows: TreeRows) -> TargetOutput:
        """ONE forward over the anchor and all nodes: logits [1 + N, V]; nothing is committed.

        Raises ValueError where the mask does not cover the cached rows and the tree's own.
        """
        self.check_mask(cache, rows)
        return self._forward(cache, rows.ids, rows.positions, rows.mask)

    @staticmethod
    def check_mask(cache: KVCache, rows: TreeRows) -> None:
        """ValueError unless the mask covers cached and own rows; one row alone may have none."""
        want = (1, 1, len(rows.ids), cache.length + len(rows.ids))
        given = None if rows.mask is None else tuple(rows.mask.shape)
        if given != want and (given or len(rows.ids) > 1):
            raise ValueError(f"mask must have shape {want}, got {given}.")

    def _additive(self, visible: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(visible.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~visible, torch.finfo(self.dtype).min)[None, None]

    def _forward(self, cache, ids, positions, mask, last_only: bool = False) -> TargetOutput:
        taken: dict[int, Any] = {}
        self._own.taps = taken
        try:
            body = self.model.model(
                input_ids=ids[None],
                position_ids=positions[None],
                # A mapping is handed to the layers as it is, in every supported release.
                attention_mask={"full_attention": mask},
                use_cache=True,
                **{self._cache_name: cache},
            )
            taps = [taken[t][0].to(self.device) for t in self.tap_ids]
        finally:
            self._own.taps = None  # a stale feature must never pass for a fresh one
        hidden = body.last_hidden_state[0]  # [T, H]
        logits = self.model.lm_head(hidden[-1:] if last_only else hidden)
        features = torch.cat(taps, dim=-1) if taps else hidden.new_empty(len(ids), 0)
        return TargetOutput(logits, features)


class _Own(threading.local):
    """What this thread's own forward taps; None between forwards, and for whoever else runs it."""

    taps: dict[int, Any] | None = None


def _hook(tap: int, own: _Own) -> Callable[[Any, Any, Any], None]:
    """A hook that keeps a module's output in a forward of ours.

    No method: it would keep the target alive.
    """

    def keep(module: Any, args: Any, output: Any) -> None:
        if own.taps is not None:
            own.taps[tap] = output[0] if isinstance(output, tuple) else output

    return keep


@dataclass
class TreeRows:
    """The target's input for one tree: ids [1 + N], positions [1 + N], mask [1, 1, 1+N, P+1+N].

    The anchor alone sees all there is and has the mask None: attention is faster without one.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor | None


def tree_rows(target: Target, tree: DraftTree, anchor: int, past: int) -> TreeRows:
    """Input rows for the anchor at position ``past`` and the nodes of ``tree`` below it.

    A row sees the whole past, itself and its ancestors. Its position is anchor + depth, which
    differs from its row in the cache until the round is committed.
    """
    device = target.device
    ids = torch.from_numpy(np.concatenate([[anchor], tree.tokens])).to(device)
    positions = torch.from_numpy(tree.node_depths() + past).to(device)
    if not len(tree):
        return TreeRows(ids, positions, None)
    visible = torch.from_numpy(tree.ancestor_mask()).to(device)
    mask = torch.zeros((1, 1, len(ids), past + len(ids)), dtype=target.dtype, device=device)
    mask[0, 0, :, past:].masked_fill_(~visible, torch.finfo(target.dtype).min)
    return TreeRows(ids, positions, mask)
