"""Memory of a round, measured: what the tensors of each stage take at their most, and what stays.

Counted is what torch allocates for tensors. Left out are numpy arrays (the trees: kilobytes), the
scratch space inside one kernel, and a second copy of weights laid out for oneDNN.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dartree.clock import STAGES, Clock
from dartree.compiled import compiled_parts
from dartree.decode import Decoding
from dartree.fused import FusedHead, plain_head
from dartree.settings import TreeSettings
from dartree.stack import Stack


def storages(tree: Any) -> dict[int, torch.UntypedStorage]:
    """The storages of all tensors in nested containers, each once."""
    tensors = (x for x in tree_leaves(tree) if isinstance(x, torch.Tensor))
    # A tensor in oneDNN's own layout has no storage.
    found = (x.untyped_storage() for x in tensors if x.layout == torch.strided)
    return {storage._cdata: storage for storage in found}


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages that were made inside and are alive, and their ``peak``.

    A storage counts once; views and results that are written in place make none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with self:  # in inference mode composite operations arrive whole; their parts make tensors
            out = function.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        out = function(*args, **kwargs)
        given = storages((args, kwargs))
        for key, storage in storages(out).items():
            if key not in given:
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes())
        return out

    def _add(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)


class StageBytes(Clock):
    """A clock that also notes each stage's peak of ``live``, above what was alive before it.

    ``round_peak`` is the peak over all stages, above what was alive before the first.
    """

    def __init__(self, live: LiveBytes) -> None:
        super().__init__()
        self._live = live
        self.bytes = dict.fromkeys(STAGES, 0)
        self.round_peak = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge the tensors of the enclosed work to stage ``name``."""
        before = self._live.peak = self._live.live
        with super().stage(name):
            yield
        self.bytes[name] = max(self.bytes.get(name, 0), self._live.peak - before)
        self.round_peak = max(self.round_peak, self._live.peak)


def stage_memory(
    stack: Stack,
    ids: Sequence[int],
    method: str = "dartree",
    settings: TreeSettings | None = None,
    max_new_tokens: int = 128,
) -> dict[str, Any]:
    """Bytes of one round after the prompt ``ids``: {stages, round, kept}.

    stages
        By stage, the peak of its tensors above what was alive when it began.
    round
        The same for the whole round: what a stage leaves for the next ones counts there too.
    kept
        What stays from round to round: weights of target, drafter and head, head_tables,
        fused (what fused steps need beside),
        kv_cache and drafter_cache. ``max_new_tokens`` is what the KV cache has room for.

    It is the third round, where one is left, by the loop that users run: head tables and the
    drafter's first buffers are then there. Buffers that grow in this round count in its stage,
    too. Raises ValueError for a stack of which anything is compiled.
    """
    pairing = stack.pairing(method)
    if compiled_parts(stack):
        raise ValueError("stack must not be compiled: its graphs make their tensors out of sight.")
    if isinstance(pairing.head, FusedHead):
        pairing.head.forget()  # what other methods have left there
    decoding = Decoding(
        stack, ids, method=method, settings=settings, max_new_tokens=max_new_tokens, stop=[]
    )
    list(itertools.islice(decoding, 2))
    with LiveBytes() as live:
        clock = StageBytes(live)
        # Where the limit has cut a round this is not its last token; no size depends on that.
        decoding._round(decoding.result.token_ids[-1], clock)
    kept = {
        "target": list(pairing.target.model.parameters()),
        "drafter": list(pairing.drafter.parameters()) if pairing.drafter else [],
        "head": list(pairing.head.parameters()) if hasattr(pairing.head, "parameters") else [],
        "head_tables": vars(plain_head(pairing.head)),
        "fused": pairing.head.kept() if isinstance(pairing.head, FusedHead) else [],
        "kv_cache": vars(decoding._cache),
        "drafter_cache": vars(decoding._context) if pairing.drafter else [],
    }
    counted: set[int] = set()  # the head's attributes hold weights too
    sizes = dict.fromkeys(kept, 0)
    for name, tensors in kept.items():
        found = storages(tensors)
        sizes[name] = sum(found[key].nbytes() for key in found.keys() - counted)
        counted |= found.keys()
    return {"stages": clock.bytes, "round": clock.round_peak, "kept": sizes}
