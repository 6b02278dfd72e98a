"""The proposers: a method is one, since it turns a block into a draft tree and all else is shared.

To add one, write a function ``(block, head, settings, clock) -> Proposal`` and give it a name with
:func:`dartree.add_method`; those of the package are named in ``methods.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dartree.checks import count, instance
from dartree.clock import Clock
from dartree.drafter import Block
from dartree.fused import FusedHead, plain_head
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

    Raises ValueError where ``tree`` is no DraftTree and ``head_calls`` is no count.
    """

    tree: DraftTree
    head_calls: int = 0
    candidates: np.ndarray | None = None
    supertree: Supertree | None = None
    kept: np.ndarray | None = None

    def __post_init__(self) -> None:
        instance("tree", self.tree, DraftTree)
        self.head_calls = count("head_calls", self.head_calls)


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
        logits = block.base_logits[: block.limits(settings).depth]
        if found := best_marginals(head, logits, 1):
            ids, logps = found
            tree = DraftTree.chain(ids[:, 0], logps[:, 0].cumsum())
        else:
            best, best_ids = torch.log_softmax(logits.float(), dim=-1).max(dim=-1)  # [D]
            tree = DraftTree.chain(best_ids.cpu().numpy(), best.cumsum(0).cpu().numpy())
    return Proposal(tree)


def best_marginals(
    head: Head | None, logits: torch.Tensor, count: int, temperature: float = 1.0
) -> tuple[np.ndarray, np.ndarray] | None:
    """What a fused head makes of ``logits`` [D, V]: the best ids [D, K] and their log-softmax over
    V; None from other heads, and for logits that are not finite.
    """
    return head.marginals(logits, count, temperature) if isinstance(head, FusedHead) else None


@torch.no_grad()
def greedy_chain(block: Block, head: Head, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Self-fed corrected chain (Domino): ids [D] and the corrected logits [D, V] along it."""
    if isinstance(head, FusedHead) and (found := head.chain(block, depth)):
        return found
    head = plain_head(head)
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
            logps = careful_log_probs(logits, TreeSettings(), logits_of(plain_head(head)))
            scores = logps.gather(1, ids[:, None])[:, 0].cumsum(0).cpu().numpy()
        tree = DraftTree.chain(ids.cpu().numpy(), scores)
    return Proposal(tree, head_calls=depth)


@torch.no_grad()
def best_first_on_rows(
    logits: torch.Tensor,
    settings: TreeSettings,
    what: str = "base_logits of the block",
    head: Head | None = None,
) -> tuple[DraftTree, np.ndarray]:
    """DDTree's builder on logits [D, V] that every path of a depth shares; penalty 0.

    ``head``: a fused one brings a faster top-K. Raises ValueError for NaN or +inf in ``logits``,
    which messages call ``what``.
    """
    budget = settings.budget
    count = min(budget, logits.shape[1])
    if found := best_marginals(head, logits, count, settings.score_temperature):
        candidates, logps = found
        ids, values = candidates.tolist(), logps.tolist()
    else:
        best = top_candidates(logits, count)  # [D, min(B, V)]
        candidates, ids = best.cpu().numpy(), best.tolist()
        values = conditional_log_probs(logits, settings).gather(1, best).tolist()
        if any(math.isnan(row[0]) for row in values):
            values = careful_log_probs(logits, settings, what).gather(1, best).tolist()

    def children(depth: int, token: int, parent_state: None) -> tuple[Children | None, None]:
        return ((ids[depth], values[depth]) if depth < len(ids) else None), None

    return grow_best_first(children, budget, 0.0), candidates


def propose_ddtree(block: Block, head: Head, settings: TreeSettings, clock: Clock) -> Proposal:
    """Best-first tree on the marginals (DDTree, arXiv 2604.12989), vocabulary-normalised."""
    with clock.stage("expand"):
        depth = block.limits(settings).depth
        logits = block.base_logits[:depth].float()
        tree, candidates = best_first_on_rows(logits, settings, head=head)
    return Proposal(tree, candidates=candidates)


def propose_domino_ddtree(
    block: Block, head: Head, settings: TreeSettings, clock: Clock
) -> Proposal:
    """Corrected once along the greedy chain, then best-first as if that held for all paths."""
    with clock.stage("expand"):
        depth = block.limits(settings).depth
        _, logits = greedy_chain(block, head, depth)
        tree, candidates = best_first_on_rows(logits, settings, logits_of(plain_head(head)), head)
    return Proposal(tree, head_calls=depth, candidates=candidates)


@torch.no_grad()
def propose_heap(block: Block, head: Head, settings: TreeSettings, clock: Clock) -> Proposal:
    """Best-first with one head call per expanded node: what depth-wise expansion replaces."""
    with clock.stage("expand"):
        limits = block.limits(settings)
        found = head.children_of(block, limits) if isinstance(head, FusedHead) else None
        try:
            candidates, children = found or children_of(head, block, limits)
            tree, calls = grow_by_heap(children, limits)
        except FloatingPointError:  # what is refused and what is empty is said by the eager form
            candidates, children = children_of(head, block, limits)
            tree, calls = grow_by_heap(children, limits)
    return Proposal(tree, head_calls=calls, candidates=candidates)


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


def children_of(head: Head, block: Block, limits: TreeSettings) -> tuple[np.ndarray, NodeExpander]:
    """Candidates [D, K], and the function of one node: one head call over one row."""
    head = plain_head(head)
    candidates = top_candidates(block.base_logits[: limits.depth].float(), limits.candidates)
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

    return candidates.cpu().numpy(), children


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
