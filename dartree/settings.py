"""Settings of a draft tree."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dartree.checks import finite, positive, positive_int

# Above these a tree would take many gigabytes in a single step.
MOST_ROWS = 2**17  # nodes at one depth of a supertree
MOST_SCORES = 2**26  # scores at one depth: rows times K, or times V
MOST_NODES = 2**13  # nodes that are verified; mask and logits grow with them

MOST_PENALTY = 1e9  # sums of larger ones could overflow
LEAST_SCORE_TEMPERATURE = 1e-6  # logits over smaller ones could overflow

NORMALISERS = ("candidates", "vocabulary")


def penalty(value: Any) -> float:
    """A depth penalty as a float; ValueError, with the reason, below 0."""
    if finite("depth_penalty", value) < 0:
        raise ValueError(
            f"depth_penalty must be a finite number of at least 0, got {value!r}: below, a "
            "node can outrank its own parent, and the best nodes need not form a tree."
        )
    if value > MOST_PENALTY:
        raise ValueError(f"depth_penalty must be at most {MOST_PENALTY:g}, got {value!r}.")
    return float(value)


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
        return _clamped(self, drafts, vocabulary)

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


@functools.lru_cache(maxsize=256)  # every round asks again
def _clamped(settings: TreeSettings, drafts: int, vocabulary: int) -> TreeSettings:
    used = replace(
        settings,
        candidates=min(settings.candidates, vocabulary),
        depth=drafts if settings.depth is None else min(settings.depth, drafts),
    )
    k, sizes = used.candidates, used.level_sizes()
    each = k if settings.normalise == "candidates" else vocabulary
    scores = each * max([1, *sizes[:-1]])
    if max(sizes) > MOST_ROWS or scores > MOST_SCORES:
        raise ValueError(
            f"width must be smaller, got {settings.width}: with {k} candidates a depth of the "
            f"supertree would hold {max(sizes)} nodes (at most {MOST_ROWS}) and take {scores} "
            f"scores (at most {MOST_SCORES})."
        )
    return used
