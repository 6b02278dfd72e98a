"""Tree settings, method names and the checks of every numeric argument, in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

METHODS = (
    "ar",
    "dflash",
    "domino",
    "ddtree",
    "domino-ddtree",
    "heap",
    "dartree-fixed",
    "dartree",
)

added_methods: list[str] = []  # names given to proposers.add_method

# Counts above this are typing errors, and would overflow where tensors are indexed.
LARGEST = 2**31 - 1

# Above these a tree would take many gigabytes in a single step.
MOST_ROWS = 2**17  # nodes at one depth of a supertree
MOST_SCORES = 2**26  # scores at one depth: rows times K, or times V
MOST_NODES = 2**13  # nodes that are verified; mask and logits grow with them

MOST_PENALTY = 1e9  # sums of larger ones could overflow
LEAST_SCORE_TEMPERATURE = 1e-6  # logits over smaller ones could overflow

NORMALISERS = ("candidates", "vocabulary")


class CheckpointError(ValueError):
    """A checkpoint, configuration or stack folder that cannot be used; the message says why."""


def first_line(error: Exception) -> str:
    """First line of a library's error message, or its repr where it has no message."""
    text = str(error).strip()
    return text.splitlines()[0] if text else repr(error)


def positive_int(name: str, value: Any) -> int:
    """Return ``value`` as an int, or raise ValueError unless it is an integer >= 1."""
    if isinstance(value, bool) or not _is_integer(value) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}.")
    if value > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST}, got {value!r}.")
    return int(value)


def integer(name: str, value: Any) -> int:
    """Return ``value`` as an int, or raise ValueError unless it is an integer."""
    if isinstance(value, bool) or not _is_integer(value):
        raise ValueError(f"{name} must be an integer, got {value!r}.")
    return int(value)


def non_negative(name: str, value: Any) -> float:
    """Return ``value`` as a float, or raise ValueError unless it is finite and >= 0."""
    number = _as_float(value)
    if number is None or not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}.")
    return number


def penalty(value: Any) -> float:
    """A depth penalty as a float; ValueError, with the reason, for a bonus."""
    number = _as_float(value)
    if number is not None and math.isfinite(number) and number < 0:
        raise ValueError(
            f"depth_penalty must be a finite number of at least 0, got {value!r}: with a bonus a "
            "node can outrank its own parent, and the best nodes need not form a tree."
        )
    if number is not None and MOST_PENALTY < number < math.inf:
        raise ValueError(f"depth_penalty must be at most {MOST_PENALTY:g}, got {value!r}.")
    return non_negative("depth_penalty", value)


def finite(name: str, value: Any) -> float:
    """Return ``value`` as a float, or raise ValueError unless it is finite."""
    number = _as_float(value)
    if number is None or not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {value!r}.")
    return number


def positive(name: str, value: Any) -> float:
    """Return ``value`` as a float, or raise ValueError unless it is finite and > 0."""
    number = _as_float(value)
    if number is None or not math.isfinite(number) or number <= 0:
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}.")
    return number


def fraction(name: str, value: Any) -> float:
    """Return ``value`` as a float, or raise ValueError unless 0 <= value <= 1."""
    number = _as_float(value)
    if number is None or not 0 <= number <= 1:
        raise ValueError(f"{name} must be a number between 0 and 1, got {value!r}.")
    return number


def check_method(method: str) -> str:
    """Return ``method`` if it is one of METHODS or was added, else raise ValueError."""
    known = (*METHODS, *added_methods)
    if not isinstance(method, str) or method not in known:
        raise ValueError(f"method must be one of {', '.join(known)}, got {method!r}.")
    return method


def _is_integer(value: Any) -> bool:
    try:
        return isinstance(value, int) or (
            float(value) == int(value) and not isinstance(value, (str, bytes))
        )
    except (TypeError, ValueError, OverflowError):
        return False


def _as_float(value: Any) -> float | None:
    try:
        return None if isinstance(value, (bool, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(frozen=True)
class TreeSettings:
    """Settings of one draft tree (paper, section on experiments: W 12, K 64, B 64, beta -0.2).

    width
        W: nodes kept at each depth of the supertree.
    candidates
        K: tokens proposed at each depth, the K largest base logits of that depth.
    budget
        B: nodes of the verified draft tree; the root (anchor token) is not counted.
    depth_penalty
        Subtracted once per level from a node's path score before Top-B; equals -beta.
    depth
        Deepest level of the tree; None means every draft position of the drafter.
    normalise
        ``"candidates"``: conditionals sum to one over the K candidates (as the paper's code);
        ``"vocabulary"``: over all V tokens.
    score_temperature
        Head logits are divided by it before they are normalised; set to the sampling
        temperature, the tree is built for what will be sampled. Any value is lossless.

    Values above what a stack can give (K > V, W > rows x K, B > supertree, depth > draft
    positions) are legal and clamped where they are used. Raises ValueError for anything below its
    minimum; :meth:`clamped` also for a supertree too large to be scored.
    """

    width: int = 12
    candidates: int = 64
    budget: int = 64
    depth_penalty: float = 0.2
    depth: int | Any = None  # clamped settings have an int
    normalise: str = "candidates"
    score_temperature: float = 1.0

    def __post_init__(self) -> None:
        for name in ("width", "candidates", "budget"):
            object.__setattr__(self, name, positive_int(name, getattr(self, name)))
        object.__setattr__(self, "depth_penalty", penalty(self.depth_penalty))
        object.__setattr__(
            self, "score_temperature", positive("score_temperature", self.score_temperature)
        )
        if self.score_temperature < LEAST_SCORE_TEMPERATURE:
            raise ValueError(
                f"score_temperature must be at least {LEAST_SCORE_TEMPERATURE:g}, got "
                f"{self.score_temperature!r}."
            )
        if self.depth is not None:
            object.__setattr__(self, "depth", positive_int("depth", self.depth))
        if self.normalise not in NORMALISERS:
            raise ValueError(
                f"normalise must be one of {', '.join(NORMALISERS)}, got {self.normalise!r}."
            )

    def clamped(self, drafts: int, vocabulary: int) -> TreeSettings:
        """The values really used on a drafter with ``drafts`` positions and V ``vocabulary``.

        Raises ValueError, before anything is allocated, where W and K together ask for more than
        MOST_ROWS nodes or MOST_SCORES scores at a depth.
        """
        used = replace(
            self,
            candidates=min(self.candidates, vocabulary),
            depth=drafts if self.depth is None else min(self.depth, drafts),
        )
        k, sizes = used.candidates, used.level_sizes()
        each = k if self.normalise == "candidates" else vocabulary
        scores = each * max([1, *sizes[:-1]])
        if max(sizes) > MOST_ROWS or scores > MOST_SCORES:
            raise ValueError(
                f"width must be smaller, got {self.width}: with {k} candidates a depth of the "
                f"supertree would hold {max(sizes)} nodes (at most {MOST_ROWS}) and take {scores} "
                f"scores (at most {MOST_SCORES})."
            )
        return used

    def level_sizes(self, quotas: Sequence[int] | None = None) -> list[int]:
        """Nodes at each depth of a supertree, of settings that are :meth:`clamped`.

        A depth keeps its quota (None: W everywhere), or all rows * K where that is fewer.
        """
        sizes = [1]
        for quota in [self.width] * self.depth if quotas is None else quotas:
            sizes.append(min(quota, sizes[-1] * self.candidates))
        return sizes[1:]

    def to_dict(self) -> dict[str, Any]:
        """Plain dict of all fields, for JSON."""
        return asdict(self)


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


def check_settings(settings: Any) -> TreeSettings:
    """Return ``settings`` if they are TreeSettings, else raise ValueError."""
    if not isinstance(settings, TreeSettings):
        raise ValueError(f"settings must be TreeSettings, got {type(settings).__name__}.")
    return settings


# Trees that grow until B is spent, whatever W is.
_BY_BUDGET_ALONE = ("ddtree", "domino-ddtree", "heap", "dartree-fixed")


def check_budget(method: str, used: TreeSettings, vocabulary: int) -> None:
    """ValueError where ``method`` would verify more than MOST_NODES nodes.

    ``used``: clamped settings. `dartree` cannot verify more than its supertree holds.
    """
    if method in _BY_BUDGET_ALONE:
        k = min(used.budget, vocabulary) if "ddtree" in method else used.candidates
        used = replace(used, width=used.budget, candidates=k)
    elif method != "dartree":
        return
    nodes = min(used.budget, sum(used.level_sizes()))
    if nodes > MOST_NODES:
        raise ValueError(
            f"budget must be at most {MOST_NODES}, got {used.budget}: {method} would verify "
            f"{nodes} nodes at once."
        )
