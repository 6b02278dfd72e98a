"""Depth-wise expansion: the whole beam of a depth is scored by one batched head call.

Paper, section on supertree construction: K candidates per depth come from the base logits of
that depth and are shared by all branches; the W best children by cumulative log-probability
are kept and their head states carried along.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from dartree.drafter import Block
from dartree.fused import FusedHead, plain_head
from dartree.heads import Head, logits_of, scored
from dartree.settings import TreeSettings
from dartree.tree import Supertree


@dataclass
class Expansion:
    """A supertree, the candidates [D, K] it was grown from, and how often the head was called."""

    supertree: Supertree
    candidates: np.ndarray
    head_calls: int


def top_candidates(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids [n, K] of the ``count`` largest values of each row of ``logits`` [n, V].

    Ordered by (value descending, id ascending), so that equal logits cannot reorder a tree.
    """
    best, ids = torch.topk(logits, min(count, logits.shape[1]), dim=-1)
    if not has_ties(best):
        return ids
    ids = ids.sort(dim=-1).values
    order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, order)


def has_ties(best: torch.Tensor) -> bool:
    """Whether neighbours are equal somewhere in sorted values [..., N]."""
    return bool((best[..., 1:] == best[..., :-1]).any())


def conditional_log_probs(logits: torch.Tensor, settings: TreeSettings) -> torch.Tensor:
    """fp32 log-softmax of head logits [R, K] at the settings' score temperature, never above 0."""
    if settings.score_temperature != 1:
        logits = logits / settings.score_temperature
    return torch.log_softmax(logits, dim=-1).clamp_(max=0.0)


def careful_log_probs(logits: torch.Tensor, settings: TreeSettings, what: str) -> torch.Tensor:
    """As :func:`conditional_log_probs`, but a row [K] of -inf alone stays -inf: no children.

    For where NaN was seen, which such a row gives too. Raises ValueError where ``logits`` [R, K],
    called ``what``, hold NaN or +inf themselves.
    """
    if not bool((logits < math.inf).all()):
        raise ValueError(f"{what} must be finite or -inf, got NaN or +inf.")
    empty = (logits == -math.inf).all(dim=-1, keepdim=True)
    return conditional_log_probs(logits, settings).masked_fill(empty, -math.inf)


@torch.no_grad()
def grow_supertree(
    block: Block, head: Head, settings: TreeSettings, quotas: Sequence[int] | None = None
) -> Expansion:
    """Grow a supertree with one batched head call per depth.

    ``quotas`` gives the nodes kept at each depth; None keeps W = ``settings.width`` everywhere.
    A depth keeps what there is where rows * K is smaller. Scores are fp32 log-softmax values
    over the K candidates of the depth (or over the vocabulary, ``settings.normalise``).
    Equal path scores go to the smaller (row, candidate), as in a heap over numbered nodes.
    A candidate to which the head gives -inf is ruled out, and so is all below it. Raises
    ValueError for logits of NaN or +inf, or of another shape than [R, K].

    The same step for a stack, with its arguments checked, is :func:`dartree.expand`.
    """
    limits = block.limits(settings)
    quotas = [limits.width] * limits.depth if quotas is None else list(quotas)
    if isinstance(head, FusedHead) and (found := head.expansion(block, quotas, limits)):
        candidates, *arrays = found
        return Expansion(Supertree.built(*arrays), candidates, head_calls=len(quotas))
    return _grow_on_tensors(plain_head(head), block, quotas, limits)


def _grow_on_tensors(
    head: Head, block: Block, quotas: list[int], limits: TreeSettings
) -> Expansion:
    candidates = top_candidates(block.base_logits[: len(quotas)].float(), limits.candidates)
    # A compiled head brings its own: the same function as one graph.
    own = hasattr(type(head), "grow")  # whatever hands attributes of another head on has none
    grow: Any = cast(Any, head).grow if own else functools.partial(grow_levels, head)
    tokens, rows, scores, best = grow(block, candidates, quotas, limits)
    values = scores.cpu().numpy()
    careful = math.isnan(values.max())
    if careful or has_ties(best):
        tokens, rows, scores, _ = grow_levels(
            head, block, candidates, quotas, limits, ordered=True, careful=careful
        )
        values = scores.cpu().numpy()
    sizes = np.array(limits.level_sizes(quotas), dtype=np.int64)
    firsts = 1 + np.cumsum(sizes) - sizes  # number of the first node of each depth
    above = np.concatenate([[0], firsts[:-1]])  # and of the depth above it; 0 is the root
    supertree = Supertree.built(
        tokens=tokens.cpu().numpy(),
        parents=rows.cpu().numpy() + above.repeat(sizes),
        depths=np.arange(1, len(quotas) + 1).repeat(sizes),
        scores=values,
    )
    return Expansion(supertree, candidates.cpu().numpy(), head_calls=len(quotas))


def grow_levels(
    head: Head,
    block: Block,
    candidates: torch.Tensor,
    quotas: Sequence[int],
    settings: TreeSettings,
    ordered: bool = False,
    careful: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Token ids, rows in the level above, and path scores of all levels, each [nodes], and the
    sorted scores in which ties can be seen: those of a level and the first that was left out.

    ``ordered`` settles ties by a stable sort; without it they fall as they may, several times
    faster on a CPU. ``careful``: with :func:`careful_log_probs`. ``candidates`` [D, K].
    """
    count = candidates.shape[1]
    full = settings.normalise == "vocabulary"
    wide = block.base_logits.shape[1] if full else count
    state = head.start(block, None if full else candidates_for_block(candidates, block))
    score = block.hidden.new_zeros(1, dtype=torch.float32)  # [R]
    columns = candidates.repeat(1, max(quotas)).unbind()  # D times [max R * K] ids
    levels = []
    for depth, quota in enumerate(quotas, start=1):
        corrected, state = scored(head, state, depth, score.shape[0], wide)  # [R, K] or [R, V]
        if careful:
            conditionals = careful_log_probs(corrected, settings, logits_of(head))
        else:
            conditionals = conditional_log_probs(corrected, settings)
        if full:
            conditionals = conditionals[:, candidates[depth - 1]]
        paths = conditionals.add_(score[:, None]).view(-1)  # [R * K]
        if ordered or quota >= len(paths):
            best, kept = paths.sort(descending=True, stable=True)
        else:
            best, kept = torch.topk(paths, quota + 1)
        best, kept = best[: quota + 1], kept[:quota]
        score, rows = best[:quota], kept.div(count, rounding_mode="floor")
        tokens = columns[depth - 1].index_select(0, kept)
        levels.append((tokens, rows, score, best))
        if depth < len(quotas):
            state = head.advance(state, rows, tokens)
    return tuple(torch.cat(parts) for parts in zip(*levels, strict=True))


def candidates_for_block(candidates: torch.Tensor, block: Block) -> torch.Tensor:
    """Candidates for all n rows of ``block``: depths that are not grown repeat the last row."""
    missing = block.drafts - len(candidates)
    return torch.cat([candidates, candidates[-1:].expand(missing, -1)]) if missing else candidates


def fixed_quotas(budget: int, depth: int) -> list[int]:
    """Nodes per depth that spend ``budget`` evenly: ceil(remaining / remaining depths).

    With a budget below ``depth`` it is one node a depth until the budget is spent: a chain.
    """
    quotas = []
    for level in range(depth):
        if budget == 0:
            break
        take = -(-budget // (depth - level))
        quotas.append(take)
        budget -= take
    return quotas
