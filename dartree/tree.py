"""Draft trees as flat arrays: invariants, ancestor mask, paths, child lookup.

Nodes are numbered 1..N in an order where parents come before children. Number 0 is the root,
the anchor token: it is in no array and not in the budget. Trees live on the host as numpy
arrays; only models work on torch tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, eq=False)
class DraftTree:
    """A scored tree of N draft tokens below the anchor token.

    tokens [N] int64
        Token id of each node.
    parents [N] int64
        Number of each node's parent, 0..N; node i + 1 has parents[i] <= i.
    depths [N] int64
        1 for children of the root.
    scores [N] float32
        Path log-probability under the drafter and head: the sum along the path, in nats. -inf
        rules a node out: decoding does not verify it.

    Raises ValueError where an invariant is broken: whole numbers but for the scores, parents before
    children, depth = parent's depth + 1, no token twice under one parent, no score NaN or +inf.
    """

    tokens: np.ndarray
    parents: np.ndarray
    depths: np.ndarray
    scores: np.ndarray

    def __post_init__(self) -> None:
        for name, kind in (
            ("tokens", np.int64),
            ("parents", np.int64),
            ("depths", np.int64),
            ("scores", np.float32),
        ):
            object.__setattr__(self, name, _as_array(name, getattr(self, name), kind))
        self._validate()

    def _validate(self) -> None:
        count = len(self)
        if any(a.shape != (count,) for a in (self.tokens, self.parents, self.depths, self.scores)):
            raise ValueError("tokens, parents, depths and scores must be 1-D and of one length.")
        if count == 0:
            return
        self._check_scores()
        numbers = np.arange(1, count + 1)
        bad = np.flatnonzero((self.parents < 0) | (self.parents >= numbers))
        if bad.size:
            i = int(bad[0])
            raise ValueError(
                f"parents must name an earlier node: node {i + 1} has parent {self.parents[i]}."
            )
        bad = np.flatnonzero(self.depths != self.node_depths()[self.parents] + 1)
        if bad.size:
            i = int(bad[0])
            raise ValueError(
                f"depths must be the parent's depth plus 1: node {i + 1} has {self.depths[i]}."
            )
        order = np.lexsort((self.tokens, self.parents))
        same = (np.diff(self.parents[order]) == 0) & (np.diff(self.tokens[order]) == 0)
        if same.any():
            i = int(order[1:][same][0])
            raise ValueError(
                f"tokens must differ among siblings: node {i + 1} repeats token {self.tokens[i]}."
            )

    def _check_scores(self) -> None:
        # -inf for a tree without nodes; a maximum over NaN is NaN.
        if not np.maximum.reduce(self.scores, initial=-np.inf) < np.inf:
            i = int(np.flatnonzero(~(self.scores < np.inf))[0])
            raise ValueError(f"scores must not be NaN or +inf: node {i + 1} has {self.scores[i]}.")

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def built(
        cls, tokens: np.ndarray, parents: np.ndarray, depths: np.ndarray, scores: np.ndarray
    ) -> Self:
        """A tree from arrays [N] of the dtypes above that are right by construction.

        Only the scores are checked, which come from models: the other checks take as long as
        pruning does.
        """
        tree = object.__new__(cls)
        tree.__dict__.update(tokens=tokens, parents=parents, depths=depths, scores=scores)
        tree._check_scores()
        return tree

    @classmethod
    def empty(cls) -> DraftTree:
        """The tree of the root alone: what plain decoding verifies."""
        return cls(np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0))

    @classmethod
    def chain(cls, tokens: np.ndarray, scores: np.ndarray) -> DraftTree:
        """A tree of width 1: ``tokens`` [N] below each other, ``scores`` [N] path log-probs."""
        count = len(tokens)
        return cls(tokens, np.arange(count), np.arange(1, count + 1), scores)

    def node_depths(self) -> np.ndarray:
        """Depths with the root in front, [1 + N]."""
        return np.concatenate([np.zeros(1, dtype=np.int64), self.depths])

    def conditionals(self) -> np.ndarray:
        """Log-probability of each node given its path, [N]: its score less its parent's."""
        with_root = np.concatenate([np.zeros(1, dtype=np.float32), self.scores])
        return self.scores - with_root[self.parents]

    def ancestor_mask(self) -> np.ndarray:
        """Visibility [1 + N, 1 + N] bool: row sees column where column is an ancestor or itself.

        Pointer doubling: after step j every row has its 2**j nearest ancestors, so a tree of
        depth D takes ceil(log2(D + 1)) vectorised steps and no loop over nodes.
        """
        count = len(self) + 1
        jump = np.concatenate([np.zeros(1, dtype=np.int64), self.parents])
        visible = np.eye(count, dtype=bool)
        visible[np.arange(count), jump] = True
        for _ in range(int(self.depths.max(initial=0)).bit_length()):
            visible |= visible[jump]
            jump = jump[jump]
        return visible

    def child(self, node: int, token: int) -> int:
        """Number of the child of ``node`` with ``token``, or 0 where there is none."""
        hit = np.flatnonzero((self.parents == node) & (self.tokens == token))
        return int(hit[0]) + 1 if hit.size else 0

    def path(self, node: int) -> list[int]:
        """Node numbers from the first level down to ``node``; empty for the root."""
        nodes: list[int] = []
        while node:
            nodes.append(node)
            node = int(self.parents[node - 1])
        return nodes[::-1]

    def path_tokens(self) -> list[tuple[int, ...]]:
        """Token path of every node, in node order: how trees are compared as sets."""
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(self.tokens.tolist(), self.parents.tolist(), strict=True):
            paths.append((*paths[parent], token))
        return paths[1:]

    def to_dict(self) -> dict[str, list[Any]]:
        """Plain lists for JSON, which has no -inf: a score of -inf is None."""
        return {
            "tokens": self.tokens.tolist(),
            "parents": self.parents.tolist(),
            "depths": self.depths.tolist(),
            # Nine digits tell every float32 from all others.
            "scores": [None if s == -np.inf else float(f"{s:.9g}") for s in self.scores],
        }

    @classmethod
    def from_dict(cls, data: dict[str, list[Any]]) -> DraftTree:
        """Inverse of :meth:`to_dict`."""
        scores = [-np.inf if s is None else s for s in data["scores"]]
        arrays = {k: np.asarray(data[k]) for k in ("tokens", "parents", "depths")}
        return cls(**arrays, scores=np.asarray(scores))


def _as_array(name: str, values: Any, kind: type) -> np.ndarray:
    """``values`` as an array of ``kind``; ValueError where that would cut off fractions."""
    array = np.asarray(values)
    if array.dtype == kind:
        return array
    if kind is np.int64 and array.dtype.kind == "f":
        whole = (np.abs(array) < 2**53) & (np.floor(array) == array)
        if not whole.all():
            raise ValueError(f"{name} must be whole numbers, got {array[~whole][0]}.")
    return array.astype(kind)


class Supertree(DraftTree):
    """All nodes that depth-wise expansion kept, before pruning.

    Depth-major, and inside a depth by descending score, so that one fixed numbering settles
    every tie in favour of the shallower node (paper, Lemma 1).
    """
