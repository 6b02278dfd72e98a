"""The steps between the models as C functions: the best tokens of a depth, a step of a head.

The same numbers as :mod:`dartree.heads` gives, up to rounding, at a fraction of the time: a head
is so small that on a CPU most of a step is the dispatch of its dozen operations. All methods use
them: chains, best-first and depth-wise trees. :mod:`dartree.native` builds the functions.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dartree.drafter import Block
from dartree.heads import DominoHead, Head, MarkovHead, NoCorrection
from dartree.native import MOST_BEST, PANEL, GrowthStruct, HeadStruct, available, library, whole
from dartree.pruning import Children
from dartree.settings import TreeSettings


def reason(head: Any, like: torch.Tensor) -> str | None:
    """Why ``head`` cannot be fused, in one sentence; None where it can.

    ``like``: a weight of the drafter, for the dtype and device of a head that has none.
    """
    weight, kind = like, type(head)  # not what was derived from them: it may score otherwise
    if kind is DominoHead:
        weight = head.embed_proj[2].weight
        if not head.has_table():
            return "a fused head needs the table of its GRU's inputs, which is too large here."
    elif kind is MarkovHead and head.kind == "vanilla":
        weight = head.markov_head.markov_w2.weight
    elif kind is not NoCorrection:
        name = f"{head.kind} Markov" if kind is MarkovHead else kind.__name__
        return f"only Domino's and DSpark's vanilla heads can be fused, got {name}."
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return f"fusing is for float32 on cpu, got {weight.dtype} on {weight.device}."
    return available()


def fuse_head(head: Head, like: torch.Tensor, asked: bool = False) -> Head:
    """``head`` with fused steps where it can have them; ``asked``: ValueError where it cannot."""
    why = reason(head, like)
    if why and asked:
        raise ValueError(f"fuse cannot be had: {why}")
    return head if why else FusedHead(head)


def plain_head(head: Head) -> Head:
    """The head that a fused one was made of; any other as it is."""
    return head.plain if isinstance(head, FusedHead) else head


class FusedHead:
    """A head with faster forms of what the package makes of its three functions.

    ``expansion`` does what :func:`dartree.supertree.grow_supertree` does, ``children_of``,
    ``chain`` and ``marginals`` are for the functions of ``proposers.py``; each gives None, or
    raises FloatingPointError, where logits are not finite: what that means is said by the plain
    head, to which everything else belongs. For inference. A weight that was changed in place is
    seen; for another Parameter in its place call ``attach`` again, or fuse again.
    """

    def __init__(self, head: Head | Any) -> None:
        self.plain = head
        self._library = library()
        self._struct: HeadStruct | Any = None
        self._tables: tuple[torch.Tensor | Any, ...] = ()
        self._weights: list[torch.Tensor] = []
        self._made_of: list[tuple[int, int]] = []
        self._local = threading.local()  # what is reused from round to round, by thread

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not there yet, in a copy that is being made
            raise AttributeError(name)
        return getattr(self.plain, name)

    def __reduce__(self) -> tuple:
        return fuse_head, (self.plain, torch.empty(0))  # plain where there is no compiler

    def expansion(
        self, block: Block, quotas: Sequence[int], settings: TreeSettings
    ) -> tuple[np.ndarray, ...] | None:
        """Candidates [D, K], and tokens, parents, depths and scores [N] of a supertree."""
        key = ("grow", settings.candidates, *quotas)
        if (made := self._steps(key, block, settings, quotas)) is None:
            return None
        first, rows, source, most = 0, 1, 0, max(made.sizes)
        for depth, size in enumerate(made.sizes, start=1):
            to = 1 + (depth % 2) * most  # states of two levels at a time
            if not made.step(depth, first, rows, source, to, first + rows, size):
                return None
            first, rows, source = first + rows, size, to
        tokens, parents, scores = (x[1:].copy() for x in (made.tokens, made.parents, made.scores))
        return made.candidates.copy(), tokens, parents, made.depths.copy(), scores

    def children_of(
        self, block: Block, settings: TreeSettings
    ) -> tuple[np.ndarray, Callable[[int, int, Any], tuple[Children, Any]]] | None:
        """Candidates [D, K], and the function of one node, which raises FloatingPointError.

        The next block of this thread takes the function's memory over.
        """
        key = ("heap", settings.candidates, settings.depth, settings.budget)
        if (made := self._steps(key, block, settings)) is None:
            return None
        most, calls = len(made.tokens) - 1, 0

        def children(depth: int, token: int, above: int | None) -> tuple[Children, int]:
            nonlocal calls
            calls += 1
            made.tokens[0] = block.anchor if above is None else token
            if not made.step(depth + 1, 0, 1, above or 0, calls, 1, most):
                raise FloatingPointError
            return (made.tokens[1:].tolist(), made.scores[1:].tolist()), calls

        return made.candidates.copy(), children

    def chain(self, block: Block, depth: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """As :func:`dartree.proposers.greedy_chain`."""
        if (made := self._steps(("chain", depth), block, TreeSettings(depth=depth))) is None:
            return None
        logits = torch.empty(depth, block.base_logits.shape[1])  # [D, V]
        for level in range(depth):
            made.growth.logits = logits[level].data_ptr()
            if not made.step(level + 1, level, 1, level, level + 1, level + 1, 1):
                return None
        return torch.from_numpy(made.tokens[1:].copy()), logits

    def marginals(
        self, logits: torch.Tensor, count: int, temperature: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Best ids of each row of ``logits`` [D, V], and their log-softmax over V: both [D, K]."""
        if count > MOST_BEST or not logits.is_cpu:
            return None
        logits = _readable(logits)
        depth, vocabulary = logits.shape
        ids, log_probs = np.empty((depth, count), np.int64), np.empty((depth, count), np.float32)
        failed = self._library.marginals(
            logits.data_ptr(), depth, vocabulary, count, temperature, _at(ids), _at(log_probs)
        )
        return None if failed else (ids, log_probs)

    def kept(self) -> list[Any]:
        """Tensors that stay from round to round: copies of weights, and what steps are done in."""
        made = vars(self._local).values()
        return [getattr(self._struct, "kept", []), [steps.tensors for _, steps in made]]

    def forget(self) -> None:
        """Drop what this thread keeps for blocks of any method; the next ones make it anew."""
        vars(self._local).clear()

    def _steps(
        self, key: tuple, block: Block, settings: TreeSettings, quotas: Sequence[int] = ()
    ) -> _Steps | None:
        """What was made for the last block with the same ``key``, begun anew for this one."""
        struct, kind = self.struct(), key[0]
        best = (settings.candidates, *quotas)
        if min(best) < 1 or max(best) > MOST_BEST:
            return None
        if not _fits(struct, block, len(quotas) or settings.depth):
            return None
        last, made = getattr(self._local, kind, (None, None))
        if made is None or last != (key, id(struct)):
            made = _Steps(self._library, struct, key, settings, quotas)
            setattr(self._local, kind, ((key, id(struct)), made))
        return made if made.begin(block, settings) else None

    def struct(self) -> HeadStruct:
        """The head as C sees it; made again where the plain head got other weights."""
        head = self.plain
        tables = head.tables() if type(head) is DominoHead else ()
        same = len(tables) == len(self._tables) and all(map(operator.is_, tables, self._tables))
        if not same or self._struct is None or self._made_of != _versions(self._weights):
            self._tables, self._struct = tables, self._make(*tables)
        return self._struct

    def _make(self, *tables: torch.Tensor | Any) -> HeadStruct:
        """With a vocabulary of 0, which fits no block, where it cannot be fused (any more)."""
        head, sizes = self.plain, (0, 0, 0, 0, 0)
        weights = _weights(head)
        made: list[torch.Tensor | None] = [None] * 4
        if not all(map(_is_plain, (*tables, *weights))):
            pass
        elif type(head) is DominoHead:
            (joint, inputs), (first, output) = tables, weights
            middle, _, state = head.sizes
            z = _padded(first[:, : head.hidden_size], middle, dim=0)
            both = _padded(_padded(joint, middle, *(state,) * 3, dim=0), state)
            inputs = _padded(inputs, *(state,) * 3)
            made = [_panels(z), _panels(both), inputs, _padded(output, middle)]
            known = min(len(inputs), len(output))
            sizes = (whole(state), whole(middle), known, head.prefix, head.hidden_size)
        elif type(head) is MarkovHead:
            made[2:] = [_padded(weight, head.rank) for weight in weights]
            sizes = (0, whole(head.rank), min(map(len, weights)), 0, 0)
        struct: Any = HeadStruct(*sizes, *(None if t is None else t.data_ptr() for t in made))
        # Held as long as anything points there, and so that no other tensor comes to lie there.
        struct.kept = [t for t in made if t is not None]
        struct.held = [t.detach() for t in weights]
        self._weights, self._made_of = weights, _versions(weights)
        return struct


def _weights(head: Any) -> list[torch.Tensor]:
    """The weights that C functions read from, beside the tables of the head."""
    if type(head) is DominoHead:
        return [head.embed_proj[0].weight, head.embed_proj[2].weight]
    if type(head) is MarkovHead and head.kind == "vanilla":
        return [head.markov_head.markov_w1.weight, head.markov_head.markov_w2.weight]
    return []


def _is_plain(tensor: torch.Tensor | None) -> bool:
    """Whether it is there and fp32 on the CPU, and not moved or cast since."""
    return tensor is not None and tensor.is_cpu and tensor.dtype is torch.float32


def _fits(struct: HeadStruct, block: Block, depth: int) -> bool:
    """Whether C functions find all that they read: they check no bounds."""
    hidden, base = block.hidden, block.base_logits
    return (
        base.shape[1] == struct.vocab > block.anchor >= 0
        and (not struct.state or hidden.shape[1] == struct.hidden)
        and min(len(hidden), len(base)) >= depth
        and hidden.is_cpu
        and base.is_cpu
    )


def _versions(weights: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """What changes where a weight is moved or written to."""
    return [(w.data_ptr(), 0 if w.is_inference() else w._version) for w in weights]


def _padded(weight: torch.Tensor, *parts: int, dim: int = -1) -> torch.Tensor:
    """``weight`` with each of ``parts`` along ``dim`` filled up with zeros to whole panels.

    Zeros change nothing: a state of 0 stays 0, and adds 0 to what is made of it.
    """
    if not any(part % PANEL for part in parts):
        return weight.detach().contiguous()
    filled = []
    for piece in weight.detach().split(parts, dim):
        shape = list(piece.shape)
        shape[dim] = -shape[dim] % PANEL
        filled += [piece, piece.new_zeros(shape)]
    return torch.cat(filled, dim)


def _panels(weight: torch.Tensor) -> torch.Tensor:
    """A layer's weight [out, in] as out / PANEL panels [in, PANEL], as fused.c reads it."""
    return weight.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as C reads it: fp32, one row behind the other."""
    right = tensor.dtype is torch.float32 and tensor.is_contiguous()
    return tensor if right else tensor.float().contiguous()


def _at(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


class _Steps:
    """Memory of a growth: its entries (number 0 is the anchor's) and the states above them.

    ``key``: "grow" for ``quotas``, "heap" for one node at a time, "chain" for one node a depth.
    Made once and used for many blocks: every operation costs several times as much in a round,
    where the models have emptied the processor's caches, as it does by itself.
    """

    def __init__(
        self,
        library: Any,
        struct: HeadStruct,
        key: tuple,
        settings: TreeSettings,
        quotas: Sequence[int],
    ) -> None:
        self._chain, count, depth = key[0] == "chain", settings.candidates, settings.depth or 0
        if key[0] == "grow":
            depth, self.sizes = len(quotas), settings.level_sizes(quotas)
            entries, states = sum(self.sizes), 2 * max(self.sizes)
            self.depths = np.arange(1, depth + 1).repeat(self.sizes)
        elif key[0] == "heap":
            entries = min(count, settings.budget)  # no tree asks for more of a node
            states = settings.budget
        else:
            count, entries, states = struct.vocab, depth, depth
        self.tokens, self.rows, self.parents = np.zeros((3, 1 + entries), dtype=np.int64)
        self.scores = np.zeros(1 + entries, dtype=np.float32)
        self.candidates = np.zeros((depth, 0 if self._chain else count), dtype=np.int64)
        memory = torch.zeros(1 + states, struct.middle + 4 * struct.state)
        z, logits = torch.zeros(depth, struct.middle), torch.zeros(struct.vocab)
        self.growth = GrowthStruct(
            None, None, depth, count, z.data_ptr(), None if self._chain else _at(self.candidates),
            self._chain, 1.0, memory.data_ptr(), _at(self.tokens), _at(self.rows),
            _at(self.parents), _at(self.scores), logits.data_ptr(),
        )  # fmt: skip
        self.tensors, self._struct = (memory, z, logits), struct
        self._inputs: tuple[torch.Tensor, ...] = ()
        both = ctypes.addressof(struct), ctypes.addressof(self.growth)
        self._begin = functools.partial(library.begin, *both)
        self._step = functools.partial(library.step, *both)

    def begin(self, block: Block, settings: TreeSettings) -> bool:
        """Candidates and all that depends on the depth alone; False for logits not finite."""
        growth = self.growth
        self._inputs = hidden, base = _readable(block.hidden), _readable(block.base_logits)
        growth.hidden, growth.base = hidden.data_ptr(), base.data_ptr()
        if not self._chain:
            growth.temperature = settings.score_temperature
            growth.whole = settings.normalise == "vocabulary"
        self.tokens[0] = block.anchor
        return self._done(self._begin())

    def step(self, *numbers: int) -> bool:
        """``step`` of fused.c from ``depth`` on; False for logits that are not finite."""
        return self._done(self._step(*numbers))

    def _done(self, failed: int) -> bool:
        if failed == 2:
            raise MemoryError("no memory for a fused step.")
        return not failed
