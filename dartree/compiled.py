"""Target, drafter and head with static shapes, so that torch.compile sees one graph each.

Rows are padded to a fixed count and caches are handed over at their full capacity, with a mask
that hides what is not filled. :func:`report` says what was compiled and what that cost; there is
no silent fallback: where it cannot work, a sentence says why.

On a GPU the graphs can be recorded as CUDA graphs, too. inductor's trees of CUDA graphs do that;
they may rely on the addresses of buffers that :class:`dartree.static_caches.Buffers` reuses.
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
from torch.utils._pytree import tree_map

from dartree.drafter import KV, Block, DFlashDrafter
from dartree.fused import FusedHead, plain_head
from dartree.heads import Head
from dartree.settings import TreeSettings
from dartree.stack import Pairing, Stack
from dartree.static_caches import (
    Buffers,
    StaticDrafterCache,
    StaticKVCache,
    whole_columns,
    zeros,
)
from dartree.supertree import grow_levels
from dartree.target import KVCache, Target, TargetOutput, TreeRows

# 1 for plain decoding, 17 for a chain of 16 drafts, 1 + B for the usual budgets.
ROW_COUNTS = (1, 17, 33, 65, 129, 257)


def why_not() -> str | None:
    """Why torch.compile cannot work on the CPU here, in one sentence; None where it can."""
    folder = Path(torch.__file__).parent
    if " " in str(folder):
        return f"torch.compile needs a path without blanks, and torch lies in {str(folder)!r}."
    if not any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        return "torch.compile needs a C++ compiler, and none was found."
    return None


class Graphs:
    """One compiled graph for each key, and in ``seconds`` what the first use of each took.

    ``cuda``: each is to be recorded as a CUDA graph, too; ``recorded`` has the keys of those that
    are. inductor leaves graphs out for reasons of its own, which TORCH_LOGS=cudagraphs shows.
    """

    def __init__(self, cuda: bool = False) -> None:
        self.cuda = cuda
        self.seconds: dict[Hashable, float] = {}
        self.recorded: set[Hashable] = set()
        self._graphs: dict[Hashable, Callable] = {}

    def run(self, key: Hashable, function: Callable, *inputs: Any) -> Any:
        """``function(*inputs)`` as the graph of ``key``, whose shapes are always the same.

        ``function`` must do nothing that a second call with the same inputs does not repeat.
        """
        start = time.perf_counter()
        run = self._replay if self.cuda else self._call
        if key not in self._graphs:
            self._graphs[key] = _compile(function, self.cuda)
            if self.cuda:
                run(key, *inputs)  # inductor records a graph at its second call
        out = run(key, *inputs)
        self.seconds.setdefault(key, time.perf_counter() - start)
        return out

    def _call(self, key: Hashable, *inputs: Any) -> Any:
        return self._graphs[key](*inputs)

    def _replay(self, key: Hashable, *inputs: Any) -> Any:
        """As a CUDA graph; what comes back is the caller's own."""
        before = _recordings()
        torch.compiler.cudagraph_mark_step_begin()
        out = self._graphs[key](*inputs)
        recorded, left_out = (a - b for a, b in zip(_recordings(), before, strict=True))
        if left_out:
            self.recorded.discard(key)
        elif recorded:
            self.recorded.add(key)
        # The next replay writes to the same memory, whoever still reads it.
        return tree_map(torch.clone, out)


def _recordings() -> tuple[int, int]:
    """inductor's counts of inputs of recorded CUDA graphs, and of graphs that it left out."""
    counts = torch._dynamo.utils.counters["inductor"]
    return counts["cudagraph_recorded_non_static_inputs"], counts["cudagraph_skips"]


def _compile(function: Callable, cuda_graphs: bool = False) -> Callable:
    """``function`` as one graph of fixed shapes; on a CPU without Python between its kernels."""
    options: dict[str, Any] | None
    options = None if torch.cuda.is_available() else {"cpp_wrapper": True}
    if cuda_graphs:
        # All of a function or nothing: of parts that are left out inductor keeps no count.
        options = {"triton.cudagraphs": True, "graph_partition": False}
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


class CompiledTarget(Target):
    """A target whose ``verify`` runs a compiled graph with fixed row and column counts.

    A tree of 1 + N rows runs in the smallest of ``ROW_COUNTS`` that holds it; each is compiled when
    it is first needed. Padding rows repeat the first one; their output is dropped and their cache
    rows are never committed. The prefill stays eager: its length differs from prompt to prompt.
    """

    def __init__(self, target: Target, buffers: Buffers | None = None) -> None:
        super().__init__(target.model)
        self.tap_ids, self._eager = target.tap_ids, target
        self._buffers = buffers or Buffers()
        self.graphs = Graphs(self._buffers.reuse)
        self._masks: dict[tuple[int, int], torch.Tensor] = {}
        self._plain: CompiledTarget | None = None

    def without_taps(self) -> CompiledTarget:
        """As :meth:`Target.without_taps`; always the same object, which keeps its graphs."""
        if self.tap_ids and self._plain is None:
            self._plain = CompiledTarget(Target(self.model), self._buffers)
        return self._plain or self

    def new_cache(self, capacity: int) -> StaticKVCache:
        """A static cache with room for ``capacity`` rows and more, in whole steps of COLUMNS."""
        columns = whole_columns(capacity + ROW_COUNTS[-1])
        return StaticKVCache(self.config, columns, self.dtype, self.device, self._buffers)

    def prefill(self, cache: KVCache, ids: torch.Tensor) -> TargetOutput:
        """As :meth:`Target.prefill`, eager."""
        return self._eager.prefill(cache, ids)

    @torch.no_grad()
    def verify(self, cache: StaticKVCache, rows: TreeRows) -> TargetOutput:  # type: ignore[override]  # of new_cache
        """As :meth:`Target.verify`; ValueError, too, for a tree that no graph has rows for."""
        self.check_mask(cache, rows)
        count, past = len(rows.ids), cache.length
        padded = next((n for n in ROW_COUNTS if n >= count), None)
        if padded is None:
            raise ValueError(
                f"a tree for a compiled target must have at most {ROW_COUNTS[-1] - 1} nodes, got "
                f"{count - 1}: the budget must be smaller."
            )
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
            self._masks[rows, columns] = zeros(shape, self.dtype, self.device, self.graphs.cuda)
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


class CompiledDrafter:
    """A drafter whose block forward is compiled; everything else is the drafter's own."""

    def __init__(self, drafter: DFlashDrafter, buffers: Buffers | None = None) -> None:
        self._drafter, self._buffers = drafter, buffers or Buffers()
        self.graphs = Graphs(self._buffers.reuse)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def new_cache(self) -> StaticDrafterCache:
        """An empty context cache whose blocks run the compiled graph."""
        return StaticDrafterCache(self, buffers=self._buffers)

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

    def __init__(self, head: Head, cuda_graphs: bool = False) -> None:
        self._head = head
        self.graphs = Graphs(cuda_graphs)

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


def compiled_stack(stack: Stack, parts: str = "all", *, cuda_graphs: bool = False) -> Stack:
    """``stack`` with compiled targets and drafters for all methods, and heads that are not fused.

    ``parts``: "all", or "head" for the heads alone, which are compiled then even where fused.

    Single steps of a head, as the chains and `heap` use them, stay eager: on a CPU the call of a
    compiled graph costs as much as a few products of small matrices. Graphs of the target and the
    drafter take the plain weights, so that with "all" the stack does not count as packed.
    ``cuda_graphs``: each is also recorded as a CUDA graph, in buffers that stay in memory; for one
    generation at a time. Raises ValueError where torch.compile or CUDA graphs cannot work.
    """
    device = stack.target.device
    if cuda_graphs and device.type != "cuda":
        raise ValueError(f"cuda_graphs must be False for a stack on {device}, got True.")
    if device.type == "cpu" and (reason := why_not()):
        raise ValueError(reason)
    return _with_graphs(stack, parts, cuda_graphs)


def _with_graphs(stack: Stack, parts: str, cuda_graphs: bool) -> Stack:
    kv, context = Buffers(cuda_graphs), Buffers(cuda_graphs)  # only a few of each are kept

    def compiled(pairing: Pairing) -> Pairing:
        if parts == "head" or not isinstance(pairing.head, FusedHead):
            head = CompiledHead(plain_head(pairing.head), cuda_graphs)
            pairing = replace(pairing, head=head)
        if parts == "all":
            drafter = pairing.drafter and CompiledDrafter(pairing.drafter, context)
            target = CompiledTarget(pairing.target, kv)
            pairing = replace(pairing, target=target, drafter=drafter)
        return pairing

    marginal = None if stack.marginal is None else compiled(stack.marginal)
    packed = stack.packed and parts != "all"
    return replace(stack, main=compiled(stack.main), marginal=marginal, packed=packed)


def compiled_parts(stack: Stack) -> str | None:
    """The ``parts`` that :func:`compiled_stack` made ``stack`` with; None for any other stack."""
    if isinstance(stack.target, CompiledTarget):
        return "all"
    return "head" if isinstance(stack.head, CompiledHead) else None


def uses_cuda_graphs(stack: Stack) -> bool:
    """Whether :func:`compiled_stack` made ``stack`` with ``cuda_graphs``."""
    return isinstance(stack.head, CompiledHead) and stack.head.graphs.cuda


def report(stack: Stack) -> str:
    """What is compiled in ``stack``, what that cost, and what became CUDA graphs, in one line."""
    found, why = [], ""
    for pairing in filter(None, (stack.pairing("ar"), stack.main, stack.marginal)):
        for name in ("target", "drafter", "head"):
            graphs = getattr(getattr(pairing, name), "graphs", None)
            if not graphs or not graphs.seconds:
                continue
            line = f"{name} {len(graphs.seconds)} in {sum(graphs.seconds.values()):.0f} s"
            if graphs.cuda:
                line += f" ({len(graphs.recorded)} as CUDA graphs)"
                if len(graphs.recorded) < len(graphs.seconds):
                    why = "; TORCH_LOGS=cudagraphs says why not all are CUDA graphs"
            found.append(line)
    return f"torch.compile, graphs: {', '.join(found) or 'nothing yet'}{why}"
