"""A head's step as one C function: state, logits, log-softmax and the best children of all rows.

The same numbers as :mod:`dartree.heads` gives, up to rounding, at a fraction of the time: a head
is so small that on a CPU most of a step is the dispatch of its dozen operations. The function lies
in ``fused.c``; it is built once per process by the C compiler that is found, in about half a
second, for the processor at hand. Depth-wise growth, the heap and the chains all use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from dartree.checks import first_line
from dartree.drafter import Block
from dartree.heads import DominoHead, Head, MarkovHead
from dartree.pruning import Children
from dartree.settings import TreeSettings

SOURCE = Path(__file__).with_suffix(".c")
COMPILERS = ("cc", "gcc", "clang")
# No -ffast-math: NaN and infinity must stay what they are.
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-shared", "-fPIC")
PANEL = 64  # that of fused.c


class _Head(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("state", "middle", "vocab", "prefix")] + [
        (name, ctypes.c_void_p) for name in ("joint", "inputs", "output")
    ]


class _Growth(ctypes.Structure):
    _fields_ = [
        ("z", ctypes.c_void_p), ("base", ctypes.c_void_p), ("candidates", ctypes.c_void_p),
        ("count", ctypes.c_int64), ("whole", ctypes.c_int64), ("temperature", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("memory", "tokens", "rows", "scores", "logits")),
    ]  # fmt: skip


class BuildError(RuntimeError):
    """The C function could not be built; the message says why."""


@functools.lru_cache(maxsize=1)
def library() -> tuple[Any, float]:
    """The C function ``step`` and the seconds its build took; raises BuildError.

    It is built anew by every process: a file that is kept would have to be trusted, and to fit
    the processor of whoever finds it.
    """
    named = os.environ.get("CC")
    compiler = shlex.split(named) if named else [next(filter(shutil.which, COMPILERS), "")]
    if not compiler[0]:
        raise BuildError("no C compiler was found (cc, gcc or clang; CC names another).")
    start = time.perf_counter()
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    with contextlib.ExitStack() as kept:
        # Windows locks a library that is loaded; nobody else does.
        folder = Path(kept.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        out = folder / "fused.so"
        command = [*compiler, *FLAGS, native, str(SOURCE), "-o", str(out), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if done.returncode:  # some compilers do not know the processor
                command.remove(native)
                done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if done.returncode:
                raise BuildError(f"{compiler[0]} failed: {first_line(RuntimeError(done.stderr))}")
            step = ctypes.CDLL(str(out)).step
        except (OSError, subprocess.SubprocessError) as error:
            raise BuildError(f"{compiler[0]} cannot be used: {first_line(error)}") from None
    step.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 7
    step.restype = ctypes.c_int
    return step, time.perf_counter() - start


def reason(head: Head) -> str | None:
    """Why the steps of ``head`` cannot be fused, in one sentence; None where they can."""
    if isinstance(head, DominoHead):
        weight = head.embed_proj[2].weight
        if not head.has_table():
            return "a fused head needs the table of its GRU's inputs, which is too large here."
    elif isinstance(head, MarkovHead) and head.kind == "vanilla":
        weight = head.markov_head.markov_w2.weight
    else:
        return f"only Domino's and DSpark's vanilla heads can be fused, got {_kind(head)}."
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return f"fusing is for float32 on cpu, got {weight.dtype} on {weight.device}."
    return available()


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


def _kind(head: Head) -> str:
    return f"{head.kind} Markov" if isinstance(head, MarkovHead) else head.name


def fuse_head(head: Head, asked: bool = False) -> Head:
    """``head`` with fused steps where it can have them; ``asked``: ValueError where it cannot."""
    why = reason(head)
    if why and asked:
        raise ValueError(f"fuse cannot be had: {why}")
    return head if why else FusedHead(head)


def plain_head(head: Head) -> Head:
    """The head that a fused one was made of; any other as it is."""
    return head.plain if isinstance(head, FusedHead) else head


def available() -> str | None:
    """Why no head can be fused on this machine, in one sentence; None where one can."""
    try:
        library()
    except BuildError as error:
        return f"a fused head must be built, but {error}"
    return None


class FusedHead:
    """A head with faster forms of what the package makes of its three functions.

    ``grow`` is :func:`dartree.supertree.grow_levels`, ``children_of`` and ``chain`` are those of
    ``proposers.py``. Everything else is the plain head's own. For inference.
    """

    def __init__(self, head: DominoHead | MarkovHead | Any) -> None:
        self.plain = head
        self._step, self.seconds = library()
        self._struct: _Head | Any = None
        self._made_of: tuple[tuple[int, int], ...] = ()
        self._kept: tuple[torch.Tensor, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # not there yet, in a copy that is being made
            raise AttributeError(name)
        return getattr(self.plain, name)

    def __reduce__(self) -> tuple:
        return FusedHead, (self.plain,)

    def grow(
        self, block: Block, candidates: torch.Tensor, quotas: list[int], settings: TreeSettings
    ) -> tuple[torch.Tensor, ...]:
        """As :func:`dartree.supertree.grow_levels`, ties settled: the last result shows none.

        Where logits are not finite all scores are NaN.
        """
        sizes = settings.level_sizes(quotas)
        made = _Steps(self, block, candidates, settings, sum(sizes), 1 + 2 * max(sizes))
        first, rows, source, best = 0, 1, 0, torch.zeros(1)
        for depth, size in enumerate(sizes, start=1):
            to = 1 + (depth % 2) * max(sizes)  # states of two levels at a time
            if not made.step(depth, first, rows, source, to, first + rows, size):
                made.scores[:] = np.nan
                break
            first, rows, source = first + rows, size, to
        return *(torch.from_numpy(x[1:]) for x in (made.tokens, made.rows, made.scores)), best

    def children_of(
        self, block: Block, candidates: torch.Tensor, settings: TreeSettings
    ) -> Callable[[int, int, Any], tuple[Children, Any]]:
        """As :func:`dartree.proposers.children_of`; FloatingPointError for logits not finite."""
        count = min(candidates.shape[1], settings.budget)  # no tree asks for more of a node
        made = _Steps(self, block, candidates, settings, count, 1 + settings.budget)
        calls = 0

        def children(depth: int, token: int, above: int | None) -> tuple[Children, int]:
            nonlocal calls
            calls += 1
            made.tokens[0] = block.anchor if above is None else token
            if not made.step(depth + 1, 0, 1, above or 0, calls, 1, count):
                raise FloatingPointError
            return (made.tokens[1:].tolist(), made.scores[1:].tolist()), calls

        return children

    def chain(self, block: Block, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As :func:`dartree.proposers.greedy_chain`."""
        logits = torch.empty(depth, block.base_logits.shape[1])  # [D, V]
        made = _Steps(self, block, None, TreeSettings(), depth, depth + 1)
        for level in range(depth):
            made.into(logits[level])
            made.step(level + 1, level, 1, level, level + 1, level + 1, 1)
        return torch.from_numpy(made.tokens[1:]), logits

    def struct(self) -> _Head:
        """The head as C sees it; made again where the plain head got other weights."""
        made_of = self._weights()
        found = tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in made_of)
        if found != self._made_of:
            self._made_of = found
            self._struct = self._make(*made_of)
            # While these are held no other tensor can come to lie where they do.
            self._struct.held = [tensor.detach() for tensor in made_of]
        return self._struct

    def _weights(self) -> tuple[torch.Tensor | Any, ...]:
        head = self.plain
        if isinstance(head, DominoHead):
            return (*head.tables(), head.embed_proj[2].weight)
        return head.markov_head.markov_w1.weight, head.markov_head.markov_w2.weight

    def _make(self, *weights: torch.Tensor) -> _Head:
        head, prefix, (*joint, inputs, output) = self.plain, 0, weights
        made: tuple[torch.Tensor, ...]
        if isinstance(head, DominoHead):
            middle, _, state = head.sizes
            prefix, gates = head.prefix, (state,) * 3
            wide = _padded(_padded(joint[0], middle, *gates, dim=0), state)
            made = (_panels(wide), _padded(inputs, *gates), _padded(output, middle))
            pointers = [tensor.data_ptr() for tensor in made]
        else:
            state, middle = 0, head.rank
            made = (_padded(inputs, middle), _padded(output, middle))
            pointers = [0, *(tensor.data_ptr() for tensor in made)]
        sizes = (-(-size // PANEL) * PANEL for size in (state, middle))
        struct = _Head(*sizes, len(output), prefix, *pointers)
        struct.kept = self._kept = made  # as long as anything points to them
        return struct

    def z_part(self, block: Block) -> torch.Tensor | None:
        """What W1 makes of the hidden states [n, M]; None for a head that does not read them."""
        if isinstance(self.plain, MarkovHead):
            return None
        first = self.plain.embed_proj[0].weight
        z = F.linear(block.hidden.to(first.dtype), first[:, : block.hidden.shape[1]])
        return _padded(z, z.shape[1])


class _Steps:
    """What is grown on one block: its entries (number 0 is the anchor's) and states.

    ``candidates`` [D, K], or None for all tokens; ``entries`` beside the anchor's; ``states``:
    how many rows of states are kept, row 0 being that above the anchor.
    """

    def __init__(
        self, head: FusedHead, block: Block, candidates: torch.Tensor | None,
        settings: TreeSettings, entries: int, states: int,
    ) -> None:  # fmt: skip
        self._head = struct = head.struct()
        self.tokens, self.rows = (np.zeros(1 + entries, dtype=np.int64) for _ in range(2))
        self.scores = np.zeros(1 + entries, dtype=np.float32)
        self.tokens[0] = block.anchor
        base, z = block.base_logits.float().contiguous(), head.z_part(block)
        self._memory = torch.empty(states, struct.middle + 4 * struct.state)
        self._memory[0] = 0
        full = candidates is None or settings.normalise == "vocabulary"
        self._logits = torch.empty(struct.vocab if full else 0)
        self._inputs = base, z, None if candidates is None else candidates.contiguous()
        _, _, candidates = self._inputs
        self._growth = _Growth(
            None if z is None else z.data_ptr(), base.data_ptr(),
            None if candidates is None else candidates.data_ptr(),
            struct.vocab if candidates is None else candidates.shape[1],
            full, settings.score_temperature, self._memory.data_ptr(),
            *(x.ctypes.data for x in (self.tokens, self.rows, self.scores)),
            self._logits.data_ptr(),
        )  # fmt: skip
        self._call = functools.partial(
            head._step, ctypes.addressof(struct), ctypes.addressof(self._growth)
        )

    def step(self, *numbers: int) -> bool:
        """``step`` of fused.c from ``depth`` on; False for logits that are not finite."""
        failed = self._call(*numbers)
        if failed == 2:
            raise MemoryError("no memory for a step of the fused head.")
        return not failed

    def into(self, logits: torch.Tensor) -> None:
        """Let the logits [V] of the next step be written there."""
        self._growth.logits = logits.data_ptr()
