"""Training blocks: many anchors of one sequence, one forward, one weighted loss.

Each block is the anchor token and mask tokens. It sees the target's features strictly before its
anchor and itself, never another block (DFlash, arXiv 2602.06036, appendix A.1). The labels are
the tokens after the anchor; a head is teacher-forced on them (Domino, arXiv 2605.29707).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from dartree.drafter import DFlashDrafter, DrafterConfig


@dataclass(frozen=True)
class Blocks:
    """A blocks of one sequence, sorted by anchor; n drafts each.

    anchors [A]
        Position of the anchor; the block covers positions anchor..anchor + L - 1.
    ids [A, L]
        Drafter input: the anchor's token, then mask tokens.
    prefix [A, n]
        Token at anchor + i: what the head has read before it corrects draft i + 1.
    labels [A, n]
        Token at anchor + i + 1, the truth for draft i + 1.
    weights [A, n]
        exp(-i / gamma), and 0 where the label is outside the sequence or unsupervised.
    """

    anchors: torch.Tensor
    ids: torch.Tensor
    prefix: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


def anchor_positions(supervised: torch.Tensor) -> torch.Tensor:
    """Positions [M] that may be an anchor: it and its successor are supervised ([T] bool)."""
    return (supervised[:-1] & supervised[1:]).nonzero()[:, 0]


def make_blocks(
    config: DrafterConfig,
    ids: torch.Tensor,  # [T]
    supervised: torch.Tensor,  # [T] bool: tokens of the answers
    anchors: torch.Tensor,  # [A]
    gamma: float,
) -> Blocks:
    """Inputs, labels and weights of the blocks at ``anchors``."""
    n, mask = config.drafts, config.mask_token_id
    inputs = torch.full((len(anchors), config.block_size), mask, dtype=torch.long)
    inputs[:, 0] = ids[anchors]
    padded = torch.cat([ids, ids.new_zeros(n + 1)])
    allowed = torch.cat([supervised, supervised.new_zeros(n + 1)])
    steps = torch.arange(n)
    places = anchors[:, None] + steps  # [A, n]
    weights = torch.exp(-steps / gamma) * allowed[places + 1]
    return Blocks(anchors, inputs, padded[places], padded[places + 1], weights)


def sample_anchors(
    supervised: torch.Tensor, count: int, generator: torch.Generator
) -> torch.Tensor:
    """Up to ``count`` different anchor positions, ascending."""
    positions = anchor_positions(supervised)
    chosen = torch.randperm(len(positions), generator=generator)[:count]
    return positions[chosen].sort().values


@dataclass(frozen=True)
class Context:
    """Target features of one or more sequences, laid end to end.

    features [T, taps * H]
    positions [T]
        Position of each row in its own sequence.
    source [T]
        Number of the sequence a row belongs to.
    """

    features: torch.Tensor
    positions: torch.Tensor
    source: torch.Tensor


def context_of(features: list[torch.Tensor]) -> Context:
    """Context of sequences whose features are [T_i, taps * H]."""
    lengths = [len(f) for f in features]
    return Context(
        torch.cat(features),
        torch.cat([torch.arange(n) for n in lengths]),
        torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
    )


def join_blocks(parts: list[Blocks]) -> tuple[Blocks, torch.Tensor]:
    """All blocks of several sequences, and the number [A] of the sequence each belongs to."""
    names = ("anchors", "ids", "prefix", "labels", "weights")
    joined = Blocks(*(torch.cat([getattr(p, name) for p in parts]) for name in names))
    counts = torch.tensor([len(p.anchors) for p in parts])
    return joined, torch.repeat_interleave(torch.arange(len(parts)), counts)


def block_forward(
    drafter: DFlashDrafter,
    embeddings: torch.Tensor,  # [A, L, H]
    context: Context,  # T rows
    anchors: torch.Tensor,  # [A] positions in their own sequences
    owners: torch.Tensor,  # [A] sequence of each block
) -> torch.Tensor:
    """Hidden states [A, L, H]; a block sees its sequence before its anchor, and itself.

    The same function as ``DFlashDrafter.forward`` with a mask over [context ; block]. Context
    and block are scored apart, which turns the large part into one matrix product for all
    blocks and halves the time of a training step on a CPU.
    """
    fused = drafter.fuse(context.features[None])  # [1, T, H]
    x = embeddings.to(drafter.dtype)
    positions = anchors[:, None] + torch.arange(x.shape[1])  # [A, L]
    rope = drafter.rotary(positions, x.dtype)
    context_rope = drafter.rotary(context.positions[None], x.dtype)
    unseen = context.positions >= anchors[:, None]  # [A, T]
    unseen = unseen | (context.source != owners[:, None])
    for layer in drafter.layers:
        attention = layer.self_attn
        h = layer.input_layernorm(x)
        out = _two_part_attention(
            attention.queries(h, rope),
            attention.keys_values(fused, context_rope),
            attention.keys_values(h, rope),
            unseen,
        )
        x = x + attention.o_proj(out.transpose(1, 2).flatten(2))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return drafter.norm(x)


def _two_part_attention(
    q: torch.Tensor,  # [A, heads, L, head_dim]
    context: tuple[torch.Tensor, torch.Tensor],  # each [1, kv_heads, T, head_dim]
    own: tuple[torch.Tensor, torch.Tensor],  # each [A, kv_heads, L, head_dim]
    unseen: torch.Tensor,  # [A, T] bool
) -> torch.Tensor:
    """Softmax attention [A, heads, L, head_dim] over the seen context and the block itself."""
    blocks, heads, length, size = q.shape
    kv_heads, seen = context[0].shape[1], context[0].shape[2]
    group = heads // kv_heads
    q = q.unflatten(1, (kv_heads, group)).transpose(0, 1)  # [kv, A, group, L, head_dim]
    q = (q * size**-0.5).reshape(kv_heads, blocks, group * length, size)
    keys, values = context[0][0], context[1][0]  # [kv, T, head_dim]
    own_keys, own_values = own[0].transpose(0, 1), own[1].transpose(0, 1)  # [kv, A, L, head_dim]
    far = torch.matmul(q.flatten(1, 2), keys.transpose(1, 2))  # [kv, A * group * L, T]
    far = far.view(kv_heads, blocks, -1, seen)
    far = far.masked_fill(unseen[None, :, None], float("-inf"))
    near = torch.matmul(q, own_keys.transpose(2, 3))  # [kv, A, group * L, L]
    share = torch.cat([far, near], dim=-1).softmax(-1).to(near.dtype)
    far, near = share.split([seen, length], dim=-1)
    values = values.to(far.dtype)
    out = torch.matmul(far.flatten(1, 2), values).view(kv_heads, blocks, -1, size)
    out = out + torch.matmul(near, own_values.to(near.dtype))  # [kv, A, group * L, head_dim]
    out = out.view(kv_heads, blocks, group, length, size).permute(1, 0, 2, 3, 4)
    return out.reshape(blocks, heads, length, size)


class _WeightedLoss(torch.autograd.Function):
    """(1 - mix) CE(base + bias) + mix CE(base), summed with row weights, and its gradient.

    Logits [R, V] exist for one chunk of rows at a time and are never kept: the gradient is
    computed with the value, since softmax - one-hot needs nothing from later.
    """

    @staticmethod
    def forward(ctx, hidden, middle, embedding, output, labels, weights, mix, dtype, chunk):
        head = middle is not None
        table = embedding.to(dtype)  # [V, H]
        last: Any = output.to(dtype) if head else None  # [V, M]
        d_hidden = torch.empty_like(hidden, dtype=torch.float32)
        d_middle: Any = torch.empty_like(middle, dtype=torch.float32) if head else None
        d_output = torch.zeros_like(output, dtype=torch.float32) if head else None
        loss, hits = hidden.new_zeros(()), hidden.new_zeros(2)
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            truth, weight = labels[rows], weights[rows]
            base = F.linear(hidden[rows].to(dtype), table)  # [r, V]
            share = mix if head else 1.0
            value, grad, hit = _softmax_loss(base, truth, weight * share)
            loss, hits[0] = loss + value, hits[0] + hit
            if head:
                m = middle[rows].to(dtype)
                final = base + F.linear(m, last)
                value, final_grad, hit = _softmax_loss(final, truth, weight * (1 - mix))
                loss, hits[1] = loss + value, hits[1] + hit
                d_middle[rows] = (final_grad @ last).float()
                d_output += (final_grad.t() @ m).float()
                grad = grad + final_grad
            d_hidden[rows] = (grad @ table).float()
        ctx.save_for_backward(d_hidden, d_middle, d_output)
        ctx.mark_non_differentiable(hits)
        return loss, hits

    @staticmethod
    def backward(ctx, d_loss, _):
        scaled = [None if g is None else g * d_loss for g in ctx.saved_tensors]
        d_hidden, d_middle, d_output = scaled
        return d_hidden, d_middle, None, d_output, None, None, None, None, None


def _softmax_loss(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> tuple:
    """Weighted cross-entropy sum, its gradient [r, V] in the logits' dtype, correct rows."""
    hits = (logits.argmax(-1) == labels).sum()
    share = logits.float().softmax(-1)  # [r, V]
    index = labels[:, None]
    value = -(share.gather(1, index)[:, 0].clamp_min(1e-30).log() * weights).sum()
    share.scatter_add_(1, index, share.new_full(index.shape, -1.0))
    return value, share.mul_(weights[:, None]).to(logits.dtype), hits


def weighted_loss(
    hidden: torch.Tensor,  # [R, H]
    middle: torch.Tensor | None,  # [R, M] input of the head's last matrix; None without a head
    embedding: torch.Tensor,  # [V, H] the target's lm_head
    output: torch.Tensor | None,  # [V, M] the head's last matrix
    labels: torch.Tensor,  # [R]
    weights: torch.Tensor,  # [R]
    mix: float,
    dtype: torch.dtype = torch.float32,
    chunk: int = 512,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum over rows of weight * ((1 - mix) CE(final) + mix CE(base)), and correct rows [2].

    The counts are rows whose most probable token is the label, by base and by final logits (0
    without a head). ``dtype`` is that of the matrix products; softmax and sums are fp32.
    """
    return _WeightedLoss.apply(
        hidden, middle, embedding, output, labels, weights, mix, dtype, chunk
    )
