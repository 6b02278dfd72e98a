"""The proposers: a method is one, since it turns a block into a draft tree and all else is shared.

To add one, write a function ``(block, head, settings, clock) -> Proposal`` and give it a name with
:func:`dartree.add_method`; those of the package are named in ``methods.py``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dartree.checks import instance
from dartree.clock import Clock
from dartree.drafter import Block
from dartree.heads import Head, logits_of, scored
from dartree.pruning import Children, grow_best_first, subtree, top_b_nodes
from dartree.settings import TreeSettings
from dartree.supertree import (
    candidates_for_block,
    careful_log_probs,
    conditional_log_probs,
    fixed_quotas,
    grow_supertree,
    top_candidates,
)
from dartree.tree import DraftTree, Supertree


@dataclass
class Proposal:
    """A draft tree and where it came from.

    candidates [D, K]
        Token ids that were open to the tree at each depth; None for chains.
    kept [N]
        Supertree number of each node of ``tree``; None without a supertree.

    Raises ValueError where ``tree`` is no DraftTree.
    """

    tree: DraftTree
    head_calls: int = 0
    candidates: np.ndarray | None = None
    supertree: Supertree | None = None
    kept: np.ndarray | None = None

    def __post_init__(self) -> None:
        instance("tree", self.tree, DraftTree)


def possible(proposal: Proposal) -> Proposal:
    """``proposal`` without the nodes of its tree whose score is -inf; itself where none is."""
    scores = proposal.tree.scores
    if np.minimum.reduce(scores, initial=0.0) > -np.inf:
        return proposal
    nodes = 1 + np.flatnonzero(scores > -np.inf)
    kept = None if proposal.kept is None else proposal.kept[nodes - 1]
    return replace(proposal, tree=subtree(proposal.tree, nodes), kept=kept)


@torch.no_grad()
def propose_dflash(block: Block, head: Head, settings: TreeSettings, clock: Clock) -> Proposal:
    """The argmax of every marginal, one chain (DFlash)."""
    with clock.stage("expand"):
        depth = block.limits(settings).depth
        logps = torch.log_softmax(block.base_logits[:depth].float(), dim=-1)  # [D, V]
        best, ids = logps.max(dim=-1)
        tree = DraftTree.chain(ids.cpu().numpy(), best.cumsum(0).cpu().numpy())
    return Proposal(tree)


@torch.no_grad()
def greedy_chain(block: Block, head: Head, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Self-fed corrected chain (Domino): ids [D] and the corrected logits [D, V] along it."""
    if chain := getattr(head, "chain", None):  # a fused head brings its own
        return chain(block, depth)
    state = head.start(block, None)
    ids, rows = [], []
    for level in range(1, depth + 1):
        logits, state = scored(head, state, level, 1, block.base_logits.shape[1])  # [1, V]
        token = logits.argmax(dim=-1)  # [1]
        ids.append(token)
        rows.append(logits)
        if level < depth:
            state = head.advance(state, torch.zeros_like(token), token)
    return torch.cat(ids), torch.cat(rows)


def propose_domino(block: Block, head: Head, settings: TreeSettings, clock: Clock) -> Proposal:
    """The corrected greedy chain over the whole vocabulary; K plays no part."""
    with clock.stage("expand"):
        depth = block.limits(settings).depth
        ids, logits = greedy_chain(block, head, depth)
        logps = torch.log_softmax(logits, dim=-1).gather(1, ids[:, None])[:, 0]  # [D]
        scores = logps.cumsum(0).cpu().numpy()
        if math.isnan(scores[-1]):
            logps = careful_log_probs(logits, TreeSettings(), logits_of(head))
            scores = logps.gather(1, ids[:, None])[:, 0].cumsum(0).cpu().numpy()
        tree = DraftTree.chain(ids.cpu().numpy(), scores)
    return Proposal(tree, head_calls=depth)


@torch.no_grad()
def best_first_on_rows(
    logits: torch.Tensor, settings: TreeSettings, what: str = "base_logits of the block"
) -> tuple[DraftTree, np.ndarray]:
    """DDTree's builder on logits [D, V] that every path of a depth shares; penalty 0.

    Raises ValueError for NaN or +inf in ``logits``, which messages call ``what``.
    """
    budget = settings.budget
    candidates = top_candidates(logits, min(budget, logits.shape[1]))  # [D, min(B, V)]
    logps = conditional_log_probs(logits, settings).gather(1, candidates)
    ids, values = candidates.tolist(), logps.tolist()
    if any(math.isnan(row[0]) for row in values):
        values = careful_log_probs(logits, settings, what).gather(1, candidates).tolist()

    def children(depth: int, token: int, parent_state: None) -> tuple[Children | None, None]:
        return ((ids[depth], values[depth]) if depth < len(ids) else None), None

    return grow_best_first(children, budget, 0.0), candidates.cpu().numpy()


def propose_ddtree(block: Block, head: Head, settings: TreeSettings, clock: Clock) -> Proposal:
    """Best-first tree on the marginals (DDTree, arXiv 2604.12989), vocabulary-normalised."""
    with clock.stage("expand"):
        depth = block.limits(settings).depth
        tree, candidates = best_first_on_rows(block.base_logits[:depth].float(), settings)
    return Proposal(tree, candidates=candidates)


def propose_domino_ddtree(
    block: Block, head: Head, settings: TreeSettings, clock: Clock
) -> Proposal:
    """Corrected once along the greedy chain, then best-first as if that held for all paths."""
    with clock.stage("expand"):
        depth = block.limits(settings).depth
        _, logits = greedy_chain(block, head, depth)
        tree, candidates = best_first_on_rows(logits, settings, logits_of(head))
    return Proposal(tree, head_calls=depth, candidates=candidates)


@torch.no_grad()
def propose_heap(block: Block, head: Head, settings: TreeSettings, clock: Clock) -> Proposal:
    """Best-first with one head call per expanded node: what depth-wise expansion replaces."""
    with clock.stage("expand"):
        limits = block.limits(settings)
        candidates = top_candidates(block.base_logits[: limits.depth].float(), limits.candidates)
        # A fused head brings its own.
        made = getattr(head, "children_of", None) or functools.partial(children_of, head)
        try:
            tree, calls = grow_by_heap(made(block, candidates, limits), limits)
        except FloatingPointError:  # what is refused and what is empty is said by the eager form
            eager = getattr(head, "plain", head)
            tree, calls = grow_by_heap(children_of(eager, block, candidates, limits), limits)
    return Proposal(tree, head_calls=calls, candidates=candidates.cpu().numpy())


# (depth of a node, its token, state of its parent) to its children, best first, and its own state.
NodeExpander = Callable[[int, int, Any], tuple[Children | None, Any]]


def grow_by_heap(children: NodeExpander, limits: TreeSettings) -> tuple[DraftTree, int]:
    """The best-first tree over ``children``, and how many nodes were expanded."""
    calls = 0

    def counted(depth: int, token: int, above: Any) -> tuple[Children | None, Any]:
        nonlocal calls
        if depth == limits.depth:
            return None, None
        calls += 1
        return children(depth, token, above)

    return grow_best_first(counted, limits.budget, limits.depth_penalty), calls


def children_of(
    head: Head, block: Block, candidates: torch.Tensor, limits: TreeSettings
) -> NodeExpander:
    """Children of one node at a time among ``candidates`` [D, K]: one head call over one row."""
    full = limits.normalise == "vocabulary"
    wide = block.base_logits.shape[1] if full else candidates.shape[1]
    root = head.start(block, None if full else candidates_for_block(candidates, block))
    zero = candidates.new_zeros(1)

    def children(depth: int, token: int, above: Any) -> tuple[Children | None, Any]:
        state = root if above is None else head.advance(above, zero, candidates.new_tensor([token]))
        corrected, state = scored(head, state, depth + 1, 1, wide)
        logps = conditional_log_probs(corrected, limits)[0]
        logps = logps[candidates[depth]] if full else logps
        values, order = logps.sort(descending=True, stable=True)
        best = values.tolist()
        if math.isnan(best[0]):  # all of them: one NaN makes every log-softmax NaN
            careful_log_probs(corrected, limits, logits_of(head))
            return None, None
        return (candidates[depth][order].tolist(), best), state

    return children


def propose_dartree_fixed(
    block: Block, head: Head, settings: TreeSettings, clock: Clock
) -> Proposal:
    """The budget spread over the depths, no pruning, no penalty: every node is verified."""
    with clock.stage("expand"):
        depth = block.limits(settings).depth
        grown = grow_supertree(block, head, settings, fixed_quotas(settings.budget, depth))
    with clock.stage("prune"):
        nodes = np.arange(1, len(grown.supertree) + 1)
        tree = subtree(grown.supertree, nodes)
    return Proposal(tree, grown.head_calls, grown.candidates, grown.supertree, nodes)


def propose_dartree(block: Block, head: Head, settings: TreeSettings, clock: Clock) -> Proposal:
    """DARTree: one batched head call per depth, then one global Top-B without any model call."""
    with clock.stage("expand"):
        grown = grow_supertree(block, head, settings)
    with clock.stage("prune"):
        nodes = top_b_nodes(grown.supertree, settings.budget, settings.depth_penalty)
        tree = subtree(grown.supertree, nodes)
    return Proposal(tree, grown.head_calls, grown.candidates, grown.supertree, nodes)
