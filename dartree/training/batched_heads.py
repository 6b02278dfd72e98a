"""Correction heads over many blocks at once: teacher-forced in training, self-fed to measure tau.

``dartree.heads`` scores the paths of one block. Training needs the same functions for hundreds of
chains; both heads end in one matrix to the vocabulary, so the loss is given that matrix and its
input (``middle``) and never has to keep logits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dartree.drafter import DrafterConfig
from dartree.heads import DominoHead, MarkovHead


def new_head(config: DrafterConfig) -> DominoHead | MarkovHead | None:
    """The head that ``config`` names, with random weights; None for "none"."""
    if config.head == "domino":
        return DominoHead(config)
    if config.head == "markov":
        if config.markov_head_type != "vanilla":
            raise ValueError(
                f"markov_head_type is {config.markov_head_type!r}; vanilla can be trained here"
            )
        return MarkovHead(config)
    return None


def output_matrix(head: DominoHead | MarkovHead) -> nn.Parameter:
    """The head's last matrix [V, M]."""
    if isinstance(head, DominoHead):
        return head.embed_proj[2].weight
    return head.markov_head.markov_w2.weight


def head_middle(
    head: DominoHead | MarkovHead,
    hidden: torch.Tensor,  # [A, n, H]
    prefix: torch.Tensor,  # [A, n] token ids: row i is what precedes draft i + 1
    embedding: torch.Tensor,  # [V, H]
) -> torch.Tensor:
    """Input [A, n, M] of the head's last matrix, teacher-forced; 0 in uncorrected rows.

    Row i has read tokens 0..i of ``prefix``, never its label i + 1. For Domino,
    ``DominoHead.chain_bias`` is the last matrix times this.
    """
    if isinstance(head, MarkovHead):
        return head.markov_head.markov_w1(prefix)
    states, _ = head.prefix_gru(F.embedding(prefix, embedding))  # [A, n, G]
    return _domino_middle(head, hidden, states)


def _domino_middle(head: DominoHead, hidden: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    joined = torch.cat([hidden, states.to(hidden.dtype)], dim=-1)  # [A, n, H + G]
    middle = head.embed_proj[1](head.embed_proj[0](joined))
    corrected = torch.arange(hidden.shape[1]) >= head.prefix
    return middle * corrected[:, None]


def self_fed_chains(
    head: DominoHead | MarkovHead | None,
    hidden: torch.Tensor,  # [A, n, H]
    anchors: torch.Tensor,  # [A] token ids
    embedding: torch.Tensor,  # [V, H]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy drafts [A, n] of A blocks: the base chain, and the corrected self-fed chain."""
    logits = F.linear(hidden, embedding).float()  # [A, n, V]
    base = logits.argmax(-1)
    if head is None:
        return base, base
    token, state, drafts = anchors, None, []
    for i in range(hidden.shape[1]):
        row = logits[:, i]
        if isinstance(head, MarkovHead):
            row = row + head.markov_head.markov_w2(head.markov_head.markov_w1(token)).float()
        else:
            out, state = head.prefix_gru(embedding[token][:, None], state)  # [A, 1, G]
            if i >= head.prefix:
                joined = torch.cat([hidden[:, i], out[:, 0].to(hidden.dtype)], dim=-1)
                row = row + head.embed_proj(joined).float()
        token = row.argmax(-1)
        drafts.append(token)
    return base, torch.stack(drafts, dim=1)


def confidence_loss(
    head: MarkovHead,
    hidden: torch.Tensor,  # [R, H] drafter output
    middle: torch.Tensor,  # [R, r] embedding of the token before
    target_hidden: torch.Tensor,  # [R, H] the target's own last state for the same label
    embedding: torch.Tensor,  # [V, H] lm_head of both
    weights: torch.Tensor,  # [R]
) -> torch.Tensor:
    """Weighted BCE sum of the confidence head against 1 - |p_draft - p_target|_1 / 2.

    Drafter and head are not moved by it: their inputs are detached (DSpark, arXiv 2607.05147).
    """
    hidden, middle = hidden.detach(), middle.detach()
    with torch.no_grad():
        logits = F.linear(hidden, embedding) + F.linear(middle, output_matrix(head))
        draft = logits.float().softmax(-1)
        target = F.linear(target_hidden.to(embedding.dtype), embedding).float().softmax(-1)
        overlap = torch.minimum(draft, target).sum(-1)  # [R]
    proj = head.confidence_head.proj
    inputs = hidden if proj.in_features == hidden.shape[1] else torch.cat([hidden, middle], -1)
    each = F.binary_cross_entropy_with_logits(proj(inputs)[:, 0].float(), overlap, reduction="none")
    return (each * weights).sum()
