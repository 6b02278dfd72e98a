"""Checks of single arguments, and the words of messages.

A bad argument raises ValueError: one sentence that names it, the value and what is allowed. For
what is wrong with files there is CheckpointError; :func:`first_line` shortens what a library said,
:func:`counted` puts a noun behind a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Counts above this are typing errors, and would overflow where tensors are indexed.
LARGEST = 2**31 - 1
LARGEST_SEED = 2**32 - 1  # what numpy, torch and the mixing of seeds in training all take


class CheckpointError(ValueError):
    """A checkpoint, configuration or stack folder that cannot be used; the message says why."""


def first_line(error: Exception) -> str:
    """First line of a library's error message, or its repr where it has no message.

    The next line comes too where the first ends in a colon and says no reason yet.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return repr(error)
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def positive_int(name: str, value: Any) -> int:
    """Return ``value`` as an int, or raise ValueError unless it is an integer >= 1."""
    number = _as_float(value)
    if number is None or not number >= 1 or not _is_whole(value):
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
    if number > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST}, got {value!r}.")
    return int(value)


def count(name: str, value: Any, most: int = LARGEST) -> int:
    """Return ``value`` as an int, or raise ValueError unless it is an integer in 0..``most``."""
    number = _as_float(value)
    if number is None or not 0 <= number <= most or not _is_whole(value):
        raise ValueError(f"{name} must be an integer in 0..{most}, got {value!r}.")
    return int(value)


def seed_number(value: Any) -> int:
    """A seed as an int; ValueError unless it is an integer in 0..LARGEST_SEED."""
    return count("seed", value, LARGEST_SEED)


def finite(name: str, value: Any) -> float:
    """Return ``value`` as a float, or raise ValueError unless it is finite."""
    return _number(name, value, "a finite number", math.isfinite)


def non_negative(name: str, value: Any) -> float:
    """Return ``value`` as a float, or raise ValueError unless it is finite and >= 0."""
    return _number(name, value, "a finite number of at least 0", lambda x: 0 <= x < math.inf)


def positive(name: str, value: Any) -> float:
    """Return ``value`` as a float, or raise ValueError unless it is finite and > 0."""
    return _number(name, value, "a finite number above 0", lambda x: 0 < x < math.inf)


def fraction(name: str, value: Any) -> float:
    """Return ``value`` as a float, or raise ValueError unless 0 <= value <= 1."""
    return _number(name, value, "a number between 0 and 1", lambda x: 0 <= x <= 1)


def instance(name: str, value: Any, kind: type) -> Any:
    """Return ``value`` if it is a ``kind``, else raise ValueError."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ValueError(f"{name} must be {article} {kind.__name__}, got {type(value).__name__}.")
    return value


def file_path(name: str, value: Any) -> Path:
    """Return ``value`` as a Path, or raise ValueError unless it is one or a text."""
    if not isinstance(value, (str, Path)):
        raise ValueError(f"{name} must be a path, got {type(value).__name__}.")
    return Path(value)


def _number(name: str, value: Any, allowed: str, fits: Callable[[float], bool]) -> float:
    number = _as_float(value)
    if number is None or not fits(number):
        raise ValueError(f"{name} must be {allowed}, got {value!r}.")
    return number


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) or float(value).is_integer()


def _as_float(value: Any) -> float | None:
    try:
        return None if isinstance(value, (bool, str, bytes)) else float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        return None


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 node, 2 nodes, 2 processes."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}" + (plural if number != 1 else "")
