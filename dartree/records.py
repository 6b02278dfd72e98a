"""What a round leaves behind: the record that notebooks, widgets and benchmarks read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dartree.acceptance import Verdict
from dartree.checks import file_path, instance
from dartree.files import write_atomically
from dartree.methods import TABLE
from dartree.proposers import Proposal
from dartree.tree import DraftTree, Supertree

# Why the token that the target chose after the accepted path was not in the tree.
BLOCK_END = "block end"
NOT_PROPOSED = "not proposed"
CUT_AT_DEPTH = "cut at its depth"
CUT_BY_BUDGET = "cut by the budget"
NO_ROOM = "no room at its depth"
NOT_EXPANDED = "parent not expanded"

# What each of them means, and what would have held the token.
REASONS = {
    NOT_PROPOSED: (
        "it was not among the K candidates of its depth (a chain: not the one token there)",
        "a larger K; where that does not do it, a better drafter",
    ),
    CUT_AT_DEPTH: (
        "it was a candidate, but not among the W best nodes of its depth",
        "a larger W",
    ),
    CUT_BY_BUDGET: (
        "it was scored and kept, but not among the B best nodes of all depths",
        "a larger B, or another depth penalty",
    ),
    NO_ROOM: (
        "`dartree-fixed` alone, which spreads B over the depths beforehand: the share of its depth "
        "went to other nodes, or B was spent above it",
        "a larger B",
    ),
    NOT_EXPANDED: (
        "its parent was the last node that a best-first search took, and got no children",
        "a larger B",
    ),
    BLOCK_END: (
        "all positions that may be drafted were accepted: there was no depth left",
        "a larger D where it was set, else a drafter with longer blocks",
    ),
}

ACCEPTED, WALKED_PAST, UNREACHED = "accepted", "walked past", "unreached"


def missing_reason(
    method: str, proposal: Proposal, verdict: Verdict, depth_limit: int
) -> str | None:
    """Why the bonus token was not a child of the last accepted node; None for `ar`."""
    if method == "ar":
        return None
    tree, token = proposal.tree, verdict.next_anchor
    node = int(verdict.path[-1]) if len(verdict.path) else 0
    depth = len(verdict.path)
    if depth == depth_limit:
        return BLOCK_END
    if proposal.candidates is None:  # chains propose one token a depth
        return NOT_PROPOSED
    spread = proposal.supertree is not None and "width" not in TABLE[method].uses
    if depth >= len(proposal.candidates):
        return NO_ROOM if spread else NOT_PROPOSED
    if token not in proposal.candidates[depth]:
        return NOT_PROPOSED
    if proposal.supertree is not None and proposal.kept is not None:
        parent = int(proposal.kept[node - 1]) if node else 0
        if proposal.supertree.child(parent, token):
            return CUT_BY_BUDGET
        return NO_ROOM if spread else CUT_AT_DEPTH
    # A node-by-node search does not expand the node that it popped last.
    return NOT_EXPANDED if node == len(tree) else CUT_BY_BUDGET


@dataclass
class RoundRecord:
    """One finished round.

    anchor, position
        The anchor token and its absolute position.
    candidates [D, K]
        Token ids open to the tree at each depth; None for chains and `ar`.
    kept [N]
        Supertree number of each draft-tree node; None without a supertree.
    target_tokens [1 + N]
        The target's choice at each row, row 0 the anchor; -1 where sampling did not look.
    path [a]
        Accepted nodes in order.
    committed
        Accepted drafts and the bonus token, cut at a stop token and at the length limit.
    missing
        Why the bonus token was not in the tree; None for `ar`.
    seconds
        By stage: draft, expand, prune, mask, verify, walk, commit.
    """

    index: int
    method: str
    anchor: int
    position: int
    tree: DraftTree
    target_tokens: np.ndarray
    path: np.ndarray
    committed: list[int]
    missing: str | None = None
    head_calls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    candidates: np.ndarray | None = None
    supertree: Supertree | None = None
    kept: np.ndarray | None = None

    def outcomes(self) -> list[str]:
        """Per node: accepted, walked past (its parent was visited) or unreached."""
        accepted = set(self.path.tolist())
        visited = accepted | {0}
        return [
            ACCEPTED if node in accepted else WALKED_PAST if int(parent) in visited else UNREACHED
            for node, parent in enumerate(self.tree.parents, start=1)
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able dict; :meth:`from_dict` reverses it."""
        data: dict[str, Any] = {}
        for name, value in self.__dict__.items():
            if isinstance(value, DraftTree):
                value = value.to_dict()
            elif isinstance(value, np.ndarray):
                value = value.tolist()
            data[name] = value
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RoundRecord:
        """Inverse of :meth:`to_dict`."""
        data = dict(data)
        data["tree"] = DraftTree.from_dict(data["tree"])
        if data.get("supertree") is not None:
            data["supertree"] = Supertree.from_dict(data["supertree"])
        for name in ("target_tokens", "path", "candidates", "kept"):
            if data.get(name) is not None:
                data[name] = np.asarray(data[name], dtype=np.int64)
        return cls(**data)


def save_records(records: Iterable[RoundRecord], path: str | Path) -> None:
    """Write one JSON object a line to ``path``, complete or not at all."""
    path, records = file_path("path", path), list(instance("records", records, Iterable))
    lines = [json.dumps(instance("records", r, RoundRecord).to_dict()) + "\n" for r in records]
    write_atomically(path, "".join(lines))


def load_records(path: str | Path) -> list[RoundRecord]:
    """Records saved by :func:`save_records`; ValueError names a bad line."""
    records = []
    try:
        lines = file_path("path", path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from None
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            records.append(RoundRecord.from_dict(json.loads(line)))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} line {number} is not a round record: {error}.") from None
    return records
