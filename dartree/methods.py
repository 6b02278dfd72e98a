"""The methods in one table: what each proposes, the drafter it runs on, the settings it uses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dartree.checks import instance
from dartree.clock import Clock
from dartree.drafter import Block
from dartree.heads import Head
from dartree.proposers import (
    Proposal,
    possible,
    propose_dartree,
    propose_dartree_fixed,
    propose_ddtree,
    propose_dflash,
    propose_domino,
    propose_domino_ddtree,
    propose_heap,
)
from dartree.settings import MOST_NODES, TreeSettings
from dartree.tree import DraftTree

Proposer = Callable[[Block, Head, TreeSettings, Clock], Proposal]
BEST_FIRST = ("budget", "depth", "score_temperature")
FIXED = ("candidates", *BEST_FIRST, "normalise")
HEAP = (*FIXED, "depth_penalty")
ALL = ("width", *HEAP)


@dataclass(frozen=True)
class Method:
    """One row of the table.

    propose
        From a block to a draft tree; None where nothing is drafted.
    uses
        Fields of TreeSettings that the tree depends on. A tree that uses ``budget`` and not
        ``width`` grows until the budget is spent.
    marginal
        Whether it reads the marginals alone, and so runs on a drafter trained without a head.
    added
        Whether it came by :func:`add_method`, so that its trees are checked.
    """

    propose: Proposer | Any
    uses: tuple[str, ...] = ALL
    marginal: bool = False
    added: bool = False


TABLE: dict[str, Method] = {
    "ar": Method(None, ()),
    "dflash": Method(propose_dflash, ("depth",), marginal=True),
    "domino": Method(propose_domino, ("depth",)),
    "ddtree": Method(propose_ddtree, BEST_FIRST, marginal=True),
    "domino-ddtree": Method(propose_domino_ddtree, BEST_FIRST),
    "heap": Method(propose_heap, HEAP),
    "dartree-fixed": Method(propose_dartree_fixed, FIXED),
    "dartree": Method(propose_dartree, ALL),
}
METHODS = tuple(TABLE)  # those of the package


def check_method(method: str) -> str:
    """Return ``method`` if it is one of METHODS or was added, else raise ValueError."""
    if not isinstance(method, str) or method not in TABLE:
        raise ValueError(f"method must be one of {', '.join(TABLE)}, got {method!r}.")
    return method


def used_settings(
    method: str, settings: TreeSettings, drafts: int, vocabulary: int
) -> dict[str, Any]:
    """What ``method`` makes of ``settings``, clamped to n ``drafts`` and V ``vocabulary``.

    None for a setting that plays no part. Where one is given by the method itself, it is that
    value: penalty 0 for trees that have none, K = B for best-first trees on whole rows of logits,
    whose scores and those of chains are normalised over the vocabulary. Raises ValueError for a
    tree that is too large.
    """
    uses = TABLE[method].uses
    if not uses:
        return dict.fromkeys(settings.to_dict())
    limits = settings.clamped(drafts, vocabulary)
    check_budget(method, limits, vocabulary)
    used = {name: value if name in uses else None for name, value in limits.to_dict().items()}
    if "normalise" not in uses:
        used["normalise"] = "vocabulary"
    if "budget" in uses and "depth_penalty" not in uses:
        used["depth_penalty"] = 0.0
    if "budget" in uses and "candidates" not in uses:
        used["candidates"] = min(limits.budget, vocabulary)
    return used


def check_budget(method: str, used: TreeSettings, vocabulary: int) -> None:
    """ValueError where ``method`` would verify more than MOST_NODES nodes.

    ``used``: clamped settings. `dartree` cannot verify more than its supertree holds; trees of
    added methods are checked when they are there.
    """
    row = TABLE[method]
    if row.added or "budget" not in row.uses:
        return
    if "width" not in row.uses:
        k = used.candidates if "candidates" in row.uses else min(used.budget, vocabulary)
        used = replace(used, width=used.budget, candidates=k)
    nodes = min(used.budget, sum(used.level_sizes()))
    if nodes > MOST_NODES:
        raise ValueError(
            f"budget must be at most {MOST_NODES}, got {used.budget}: {method} would verify "
            f"{nodes} nodes at once."
        )


def add_method(name: str, propose: Proposer, marginal: bool = False) -> None:
    """Make ``propose`` a method: `generate`, `compare` and `bench` take its ``name`` from then on.

    It runs on the main drafter of a stack, or, with ``marginal``, where `dflash` and `ddtree` run:
    on the head-less drafter, if the stack has one, and without a head. A name that was added before
    is replaced; ValueError for one of the methods that come with the package, and for what is no
    function.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"name must be a text, got {name!r}.")
    if name in METHODS:
        raise ValueError(f"name must be a new one, not one of {', '.join(METHODS)}, got {name!r}.")
    if not callable(propose):
        raise ValueError(f"propose must be a function, got {type(propose).__name__}.")
    if not isinstance(marginal, bool):
        raise ValueError(f"marginal must be True or False, got {marginal!r}.")
    TABLE[name] = Method(propose, marginal=marginal, added=True)


def proposal_of(
    method: str, block: Block, head: Head, settings: TreeSettings, clock: Clock
) -> Proposal:
    """What ``method`` makes of ``block``, without the nodes that a score of -inf rules out.

    Raises ValueError, naming the method, for what the method itself or its head does wrong, and
    where the tree of an added method goes beyond the budget, the block or the vocabulary.
    """
    try:
        proposal = TABLE[method].propose(block, head, settings, clock)
        instance("what it returns", proposal, Proposal)
        if TABLE[method].added:
            _check_tree(proposal.tree, block, settings)
        return possible(proposal)
    except ValueError as error:
        reason = str(error)
        if not bool((block.base_logits < math.inf).all()):
            reason = "base_logits of the block must be finite or -inf, got NaN or +inf."
        raise ValueError(f"method {method!r}: {reason}") from error


def _check_tree(tree: DraftTree, block: Block, settings: TreeSettings) -> None:
    """ValueError unless ``tree`` may be verified below ``block`` under ``settings``."""
    most = min(settings.budget, MOST_NODES)
    deepest = min(settings.depth or block.drafts, block.drafts)
    if len(tree) > most:
        raise ValueError(f"its tree must hold at most {most} nodes (the budget), got {len(tree)}.")
    if np.maximum.reduce(tree.depths, initial=0) > deepest:
        raise ValueError(
            f"its tree must be at most {deepest} deep (the block's drafts, or the depth of the "
            f"settings), got depth {tree.depths.max()}."
        )
    top = block.base_logits.shape[1] - 1
    bad = tree.tokens[(tree.tokens < 0) | (tree.tokens > top)]
    if bad.size:
        raise ValueError(f"tokens of its tree must lie in 0..{top}, got {bad[0]}.")
