"""Builds and loads ``fused.c``, the C functions of :mod:`dartree.fused`.

They are built anew by every process, in about half a second: a file that is kept would have to be
trusted, and to fit the processor of whoever finds it.
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
from pathlib import Path
from typing import Any

from dartree.checks import first_line

PANEL = 64  # that of fused.c
MOST_BEST = 1024  # of these fused.c keeps the best by insertion; of more, torch is faster
SOURCE = Path(__file__).with_name("fused.c")
COMPILERS = ("cc", "gcc", "clang")
# No -ffast-math: NaN and infinity must stay what they are.
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-shared", "-fPIC")

PLACE, NUMBER = ctypes.c_void_p, ctypes.c_int64


class HeadStruct(ctypes.Structure):
    """``Head`` of fused.c."""

    _fields_ = [
        *((name, NUMBER) for name in ("state", "middle", "vocab", "prefix", "hidden")),
        *((name, PLACE) for name in ("first", "joint", "inputs", "output")),
    ]


class GrowthStruct(ctypes.Structure):
    """``Growth`` of fused.c."""

    _fields_ = [
        *((name, PLACE) for name in ("hidden", "base")),
        *((name, NUMBER) for name in ("depths", "count")),
        *((name, PLACE) for name in ("z", "candidates")),
        ("whole", NUMBER), ("temperature", ctypes.c_float),
        *((name, PLACE) for name in ("memory", "tokens", "rows", "parents", "scores", "logits")),
    ]  # fmt: skip


def whole(size: int) -> int:
    """``size`` in whole panels."""
    return -(-size // PANEL) * PANEL


class BuildError(RuntimeError):
    """The C functions could not be built; the message says why."""


def available() -> str | None:
    """Why the C functions cannot be had on this machine, in one sentence; None where they can."""
    try:
        library()
    except BuildError as error:
        return f"fused steps must be built, but {error}"
    return None


@functools.lru_cache(maxsize=1)
def library() -> Any:
    """The C functions, built when they are first asked for; raises BuildError."""
    built: Any = _build()
    built.marginals.argtypes = [PLACE, NUMBER, NUMBER, NUMBER, ctypes.c_float, PLACE, PLACE]
    built.begin.argtypes = [PLACE, PLACE]
    built.step.argtypes = [PLACE, PLACE, *[NUMBER] * 7]
    return built


def _build() -> ctypes.CDLL:
    compiler = _compiler()
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    with contextlib.ExitStack() as kept:
        try:
            # Windows locks a library that is loaded; nobody else does.
            made = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            out = Path(kept.enter_context(made)) / "fused.so"
        except OSError as error:
            raise BuildError(f"no folder for it could be made: {first_line(error)}") from None
        rest = [str(SOURCE), "-o", str(out), "-lm"]
        try:
            said = _failure([*compiler, *FLAGS, native, *rest])
            if said is not None:  # some compilers do not know the processor
                said = _failure([*compiler, *FLAGS, *rest])
            if said is not None:
                raise BuildError(f"{compiler[0]} failed: {said}")
            return ctypes.CDLL(str(out))
        except (OSError, subprocess.SubprocessError) as error:
            raise BuildError(f"{compiler[0]} cannot be used: {first_line(error)}") from None


def _compiler() -> list[str]:
    named = os.environ.get("CC", "")
    try:
        command = shlex.split(named) or list(filter(shutil.which, COMPILERS))[:1]
    except ValueError as error:  # a quotation without its end
        raise BuildError(f"CC must be a command, got {named!r}: {error}.") from None
    if not command:
        raise BuildError("no C compiler was found (cc, gcc or clang; CC names another).")
    return command


def _failure(command: list[str]) -> str | None:
    """What a compiler said where it failed, in one line."""
    # Messages come in any encoding, whatever Python takes for the system's.
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=120
    )
    if not done.returncode:
        return None
    said = done.stderr.strip()
    return first_line(RuntimeError(said)) if said else f"exit status {done.returncode}"
