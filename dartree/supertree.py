"""Depth-wise expansion: the whole beam of a depth is scored by one batched head call.

Paper, section on supertree construction: K candidates per depth come from the base logits of
that depth and are shared by all branches; the W best children by cumulative log-probability
are kept and their head states carried along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dartree.drafter import Block
from dartree.heads import Head
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
    ids = torch.topk(logits, min(count, logits.shape[1]), dim=-1).indices
    ids = ids.sort(dim=-1).values
    order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, order)


def first_of_sorted(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``count`` values and indices of a stable descending sort of ``values`` [N]."""
    if values.device.type == "cpu" and count < len(values):
        # A selection is several times faster than the sort, and the same where nothing is tied.
        best, indices = torch.topk(values, count + 1)
        if not bool((best[1:] == best[:-1]).any()):
            return best[:count], indices[:count]
    best, indices = values.sort(descending=True, stable=True)
    return best[:count], indices[:count]


def conditional_log_probs(logits: torch.Tensor, settings: TreeSettings) -> torch.Tensor:
    """fp32 log-softmax of head logits [R, K] at the settings' score temperature, never above 0."""
    if settings.score_temperature != 1:
        logits = logits / settings.score_temperature
    return torch.log_softmax(logits, dim=-1).clamp_(max=0.0)


@torch.no_grad()
def expand(
    block: Block, head: Head, settings: TreeSettings, quotas: Sequence[int] | None = None
) -> Expansion:
    """Grow a supertree with one batched head call per depth.

    ``quotas`` gives the nodes kept at each depth; None keeps W = ``settings.width`` everywhere.
    A depth keeps what there is where rows * K is smaller. Scores are fp32 log-softmax values
    over the K candidates of the depth (or over the vocabulary, ``settings.normalise``).
    """
    limits = block.limits(settings)
    quotas = [limits.width] * limits.depth if quotas is None else list(quotas)
    logits = block.base_logits[: len(quotas)].float()
    candidates = top_candidates(logits, limits.candidates)  # [D, K]
    full = limits.normalise == "vocabulary"
    state = head.start(block, None if full else candidates_for_block(candidates, block))
    score = logits.new_zeros(1)  # [rows]
    tokens, rows, scores = [], [], []
    for depth, quota in enumerate(quotas, start=1):
        corrected, state = head.score(state, depth)  # [rows, K] or [rows, V]
        conditionals = conditional_log_probs(corrected, limits)
        if full:
            conditionals = conditionals[:, candidates[depth - 1]]
        paths = (score[:, None] + conditionals).flatten()  # [rows * K]
        # Ties go to the smaller (row, candidate), as in a heap over numbered nodes.
        score, kept = first_of_sorted(paths, quota)
        row = kept // conditionals.shape[1]
        token = candidates[depth - 1].index_select(0, kept % conditionals.shape[1])
        tokens.append(token)
        rows.append(row)
        scores.append(score)
        if depth < len(quotas):
            state = head.advance(state, row, token)
    # One transfer to the host per array, after the last depth.
    sizes = np.array([len(t) for t in tokens], dtype=np.int64)
    firsts = 1 + np.cumsum(sizes) - sizes  # number of the first node of each depth
    above = np.concatenate([[0], firsts[:-1]])  # and of the depth above it; 0 is the root
    supertree = Supertree(
        tokens=torch.cat(tokens).cpu().numpy(),
        parents=torch.cat(rows).cpu().numpy() + np.repeat(above, sizes),
        depths=np.repeat(np.arange(1, len(quotas) + 1), sizes),
        scores=torch.cat(scores).cpu().numpy(),
    )
    return Expansion(supertree, candidates.cpu().numpy(), head_calls=len(quotas))


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
