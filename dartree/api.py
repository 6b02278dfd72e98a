"""The steps of one round as plain functions, for notebooks and other people's research.

They are stateless: each call prefills ``ids[:-1]``; the last id is the anchor, whose own
position is not yet in the target's cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dartree import heads, supertree
from dartree.decode import draft_block
from dartree.drafter import Block
from dartree.proposers import best_first_on_rows
from dartree.settings import TreeSettings, check_settings
from dartree.stack import Pairing, Stack
from dartree.target import tree_rows
from dartree.tree import DraftTree, Supertree


def draft(stack: Stack, ids: Sequence[int], pairing: Pairing | None = None) -> Block:
    """The drafter's Block after ``ids`` (hidden [n, H], base_logits [n, V]).

    ``pairing`` chooses another drafter of the stack (``stack.pairing(method)``).
    """
    pairing = pairing or stack.main
    ids = _within_context(stack, ids, 0)
    context = pairing.drafter.new_cache()
    if len(ids) > 1:
        before = torch.tensor(ids[:-1], device=pairing.target.device)
        cache = pairing.target.new_cache(len(before))
        context.absorb(pairing.target.prefill(cache, before).features)
    return draft_block(pairing, context, ids[-1])


def _within_context(stack: Stack, ids: Sequence[int], depth: int) -> list[int]:
    """Checked ids; the anchor and ``depth`` positions below it must fit into the context."""
    ids, most = stack.encode(list(ids)), stack.target.max_positions
    if len(ids) + depth > most:
        raise ValueError(
            f"ids and tree must fit into the model's context of {most} tokens, got "
            f"{len(ids)} ids and a tree of depth {depth}."
        )
    return ids


def corrected_logits(stack: Stack, block: Block, draft_ids: Sequence[int]) -> torch.Tensor:
    """Corrected logits [n, V] along a chain: row i given the anchor and ``draft_ids[:i]``."""
    ids = torch.as_tensor(draft_ids, dtype=torch.long, device=block.hidden.device)
    if len(ids) not in (block.drafts - 1, block.drafts):
        raise ValueError(
            f"draft_ids must hold {block.drafts - 1} or {block.drafts} ids, got {len(ids)}."
        )
    if len(ids):
        stack.encode(ids.tolist())  # ids outside the vocabulary are refused
    return heads.corrected_logits(stack.head, block, ids)


def expand(stack: Stack, block: Block, settings: TreeSettings | None = None) -> Supertree:
    """The supertree of ``block`` under the stack's head (W, K and depth of ``settings``)."""
    settings = check_settings(stack.settings if settings is None else settings)
    return supertree.expand(block, stack.head, settings).supertree


def ddtree(block: Block, budget: int) -> DraftTree:
    """Best-first tree of ``budget`` nodes on the marginals of ``block`` (DDTree)."""
    return best_first_on_rows(block.base_logits.float(), TreeSettings(budget=budget))[0]


def verify(stack: Stack, ids: Sequence[int], tree: DraftTree) -> torch.Tensor:
    """Target logits [1 + N, V] at the anchor ``ids[-1]`` (row 0) and every node of ``tree``."""
    ids, target = _within_context(stack, ids, int(tree.depths.max(initial=0))), stack.target
    cache = target.new_cache(len(ids) + len(tree))
    if len(ids) > 1:
        target.prefill(cache, torch.tensor(ids[:-1], device=target.device))
    return target.verify(cache, tree_rows(target, tree, ids[-1], len(ids) - 1)).logits
