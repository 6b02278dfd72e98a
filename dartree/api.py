"""The steps of one round as plain functions, for notebooks and other people's research.

They are stateless: each call prefills ``ids[:-1]``; the last id is the anchor, whose own
position is not yet in the target's cache.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Sequence

import torch

from dartree import heads, supertree
from dartree.checks import instance
from dartree.decode import draft_block
from dartree.drafter import Block
from dartree.methods import check_budget
from dartree.proposers import best_first_on_rows
from dartree.settings import TreeSettings
from dartree.stack import Pairing, Stack
from dartree.target import tree_rows
from dartree.tree import DraftTree, Supertree


def draft(stack: Stack, ids: Sequence[int], pairing: Pairing | None = None) -> Block:
    """The drafter's Block after ``ids`` (hidden [n, H], base_logits [n, V]).

    ``pairing`` chooses another drafter of the stack (``stack.pairing(method)``).
    """
    instance("stack", stack, Stack)
    pairing = stack.main if pairing is None else instance("pairing", pairing, Pairing)
    if pairing.drafter is None:
        raise ValueError(f"pairing must have a drafter; {pairing.label!r} has none.")
    ids = _within_context(stack, ids, 0)
    context = pairing.drafter.new_cache()
    if len(ids) > 1:
        before = torch.tensor(ids[:-1], device=pairing.target.device)
        cache = pairing.target.new_cache(len(before))
        context.absorb(pairing.target.prefill(cache, before).features)
    return draft_block(pairing, context, ids[-1])


def _token_ids(stack: Stack, name: str, ids: Sequence[int]) -> list[int]:
    """``ids`` as ints; ValueError unless they are ids of the stack's vocabulary."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise ValueError(f"{name} must be a list of token ids, got {type(ids).__name__}.")
    found: list[int] = []
    for i in ids:
        try:
            found.append(operator.index(i))
        except TypeError:
            raise ValueError(f"{name} must hold integers alone, got {reprlib.repr(i)}.") from None
    top = stack.target.vocab_size - 1
    bad = [i for i in found if not 0 <= i <= top]
    if bad:
        raise ValueError(f"{name} must lie in 0..{top}, got {bad[0]}.")
    return found


def _within_context(stack: Stack, ids: Sequence[int], depth: int) -> list[int]:
    """Checked ids; the anchor and ``depth`` positions below it must fit into the context."""
    ids, most = _token_ids(stack, "ids", ids), stack.target.max_positions
    if not ids:
        raise ValueError("ids must not be empty; the last one is the anchor.")
    if len(ids) + depth > most:
        raise ValueError(
            f"ids and tree must fit into the model's context of {most} tokens, got "
            f"{len(ids)} ids and a tree of depth {depth}."
        )
    return ids


def _check_block(stack: Stack, block: Block) -> None:
    instance("stack", stack, Stack)
    shape = (instance("block", block, Block).hidden.shape[1], block.base_logits.shape[1])
    own = (stack.drafter.config.hidden_size, stack.target.vocab_size)
    if shape != own:
        raise ValueError(f"block must be of this stack (H and V {own}), got {shape}.")


def corrected_logits(stack: Stack, block: Block, draft_ids: Sequence[int]) -> torch.Tensor:
    """Corrected logits [n, V] along a chain: row i given the anchor and ``draft_ids[:i]``."""
    _check_block(stack, block)
    ids = _token_ids(stack, "draft_ids", draft_ids)
    if len(ids) not in (block.drafts - 1, block.drafts):
        raise ValueError(
            f"draft_ids must hold {block.drafts - 1} or {block.drafts} ids, got {len(ids)}."
        )
    chain = torch.tensor(ids, dtype=torch.long, device=block.hidden.device)
    return heads.corrected_logits(stack.head, block, chain)


def expand(stack: Stack, block: Block, settings: TreeSettings | None = None) -> Supertree:
    """The supertree of ``block`` under the stack's head (W, K and depth of ``settings``).

    A round calls :func:`dartree.supertree.grow_supertree`, which takes any head, checks no
    arguments and also returns the candidates and the number of head calls.
    """
    _check_block(stack, block)
    settings = stack.chosen_settings(settings)
    return supertree.grow_supertree(block, stack.head, settings).supertree


def ddtree(block: Block, budget: int) -> DraftTree:
    """Best-first tree of ``budget`` nodes on the marginals of ``block`` (DDTree)."""
    settings = TreeSettings(budget=budget)
    used = instance("block", block, Block).limits(settings)
    check_budget("ddtree", used, block.base_logits.shape[1])
    return best_first_on_rows(block.base_logits.float(), settings)[0]


def verify(stack: Stack, ids: Sequence[int], tree: DraftTree) -> torch.Tensor:
    """Target logits [1 + N, V] at the anchor ``ids[-1]`` (row 0) and every node of ``tree``."""
    target = instance("stack", stack, Stack).target
    _token_ids(stack, "tree tokens", instance("tree", tree, DraftTree).tokens)
    ids = _within_context(stack, ids, int(tree.depths.max(initial=0)))
    cache = target.new_cache(len(ids) + len(tree))
    if len(ids) > 1:
        target.prefill(cache, torch.tensor(ids[:-1], device=target.device))
    return target.verify(cache, tree_rows(target, tree, ids[-1], len(ids) - 1)).logits
