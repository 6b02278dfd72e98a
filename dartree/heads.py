"""Correction heads: re-condition the drafter's marginals on the tokens already chosen.

A head is a scorer of paths. ``start`` prepares a block, ``score`` gives corrected logits for
the children of all rows of a state in one batched call, ``advance`` moves to chosen children.
Everything that depends only on the depth (the z part of the first layer, the rows of the output
matrix that belong to the K candidates) is computed once per block in ``start``.

Sources: Domino (arXiv 2605.29707), DSpark (arXiv 2607.05147).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import nn

from dartree.drafter import Block, DrafterConfig

# Largest table of GRU input projections [V, 3G] that is kept; larger ones are not built.
TABLE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class HeadState:
    """R rows (paths) of one block, all at the same depth.

    base [n, K]
        fp32 base logits of the candidates, or of the whole vocabulary (K = V).
    plan
        What the head computed once for this block; None where there is no correction.
    hidden [R, G]
        Per-row summary of the path; None for a head without one.
    products [R, M + 3G]
        What W1 and the GRU make of ``hidden``, in one product (Domino).
    """

    base: torch.Tensor
    rows: int
    plan: tuple[torch.Tensor, ...] | None = None
    hidden: torch.Tensor | None = None
    products: torch.Tensor | None = None
    last: torch.Tensor | None = None  # [R, r] embedding of the last token (Markov)


class Head(Protocol):
    """What the rest of the package knows about a correction head."""

    name: str

    def start(self, block: Block, candidates: torch.Tensor | None) -> HeadState:
        """State of the root path. ``candidates`` [n, K] token ids, None = all V tokens."""

    def score(self, state: HeadState, depth: int) -> tuple[torch.Tensor, HeadState]:
        """fp32 corrected logits [R, K] of the children at ``depth`` (1..n), and the state."""

    def advance(self, state: HeadState, parents: torch.Tensor, tokens: torch.Tensor) -> HeadState:
        """State of children: ``parents`` [R'] rows of ``state``, ``tokens`` [R'] their ids."""


def base_values(block: Block, candidates: torch.Tensor | None) -> torch.Tensor:
    """fp32 base logits [n, K] of ``candidates`` [n, K], or [n, V] for None."""
    logits = block.base_logits.float()
    return logits if candidates is None else logits.gather(1, candidates)


def _output_rows(weight: torch.Tensor, candidates: torch.Tensor | None) -> torch.Tensor:
    """Rows [n, K, M] of an output matrix [V, M] for ``candidates`` [n, K]; all of it for None."""
    # An embedding lookup copies whole rows: five times faster here than weight[candidates].
    return weight if candidates is None else F.embedding(candidates, weight)


class NoCorrection:
    """The identity: every path keeps the marginals of its depth."""

    name = "none"

    def start(self, block: Block, candidates: torch.Tensor | None) -> HeadState:
        return HeadState(base_values(block, candidates), rows=1)

    def score(self, state: HeadState, depth: int) -> tuple[torch.Tensor, HeadState]:
        return state.base[depth - 1].expand(state.rows, -1), state

    def advance(self, state, parents: torch.Tensor, tokens: torch.Tensor) -> HeadState:
        return replace(state, rows=len(parents))


class DominoHead(nn.Module):
    """GRU over the chosen tokens, two-layer MLP to a bias over the vocabulary.

    logits_i = base_i + W2 SiLU(W1 [z_i ; s_i]), s_i the GRU state after the anchor and drafts
    1..i; the first ``pure_draft_prefix_len`` drafts stay uncorrected. Columns of W1 act on z
    first, then on the state, so W1 z_i is one product for the whole block.
    """

    name = "domino"

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        h, g, m = config.hidden_size, config.gru_hidden_dim, config.emb_dim
        self.prefix = config.pure_draft_prefix_len
        self.hidden_size = h
        self.prefix_gru = nn.GRU(h, g, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(h + g, m, bias=False), nn.SiLU(), nn.Linear(m, config.vocab_size, bias=False)
        )
        self._embedding: torch.Tensor | None = None
        self._table: torch.Tensor | None = None
        self._joint: torch.Tensor | None = None

    def attach(self, embedding: torch.Tensor) -> None:
        """Use the target's embedding table [V, H] for the GRU's inputs.

        Tables made of the weights are kept from the first block on: call this again after
        changing weights.
        """
        self._embedding = embedding.detach()  # a Parameter would become one of this module's
        self._table = self._joint = None

    def chain_bias(self, hidden: torch.Tensor, token_embeddings: torch.Tensor) -> torch.Tensor:
        """Bias [A, n, V], row i from the state after ``token_embeddings`` [A, n, H] 0..i.

        Teacher-forced over A chains at once; rows below the uncorrected prefix get zero.
        """
        states, _ = self.prefix_gru(token_embeddings.to(self.prefix_gru.weight_ih_l0.dtype))
        bias = self.embed_proj(torch.cat([hidden, states.to(hidden.dtype)], dim=-1))
        corrected = torch.arange(hidden.shape[1], device=hidden.device) >= self.prefix
        return bias * corrected[:, None]

    def start(self, block: Block, candidates: torch.Tensor | None) -> HeadState:
        first, last = self.embed_proj[0].weight, self.embed_proj[2].weight
        z_part = F.linear(block.hidden.to(first.dtype), first[:, : self.hidden_size])  # [n, M]
        rows = _output_rows(last, candidates)  # [V, M] or [n, K, M]
        if self._joint is None:
            # Both layers that read the state: one product a depth in place of two.
            self._joint = torch.cat([first[:, self.hidden_size :], self.prefix_gru.weight_hh_l0])
        hidden = z_part.new_zeros(1, self.prefix_gru.hidden_size)
        products = z_part.new_zeros(1, len(self._joint))
        plan = (z_part, rows)
        state = HeadState(base_values(block, candidates), 1, plan, hidden, products)
        anchor = torch.tensor([block.anchor], device=hidden.device)
        return self.advance(state, torch.zeros_like(anchor), anchor)

    def score(self, state: HeadState, depth: int) -> tuple[torch.Tensor, HeadState]:
        base = state.base[depth - 1]  # [K]
        if depth <= self.prefix:
            return base.expand(state.rows, -1), state
        z_part, rows = state.plan
        s_part = state.products[:, : z_part.shape[1]]  # [R, M] W1 s
        middle = F.silu(z_part[depth - 1] + s_part)  # [R, M]
        last = rows if rows.dim() == 2 else rows[depth - 1]  # [K, M]
        if base.dtype == middle.dtype:
            return torch.addmm(base, middle, last.t()), state  # [R, K]
        return base + F.linear(middle, last).float(), state

    def advance(self, state, parents: torch.Tensor, tokens: torch.Tensor) -> HeadState:
        size = state.hidden.shape[1]
        previous = state.hidden.index_select(0, parents)  # [R', G]
        from_state = state.products.index_select(0, parents)[:, -3 * size :]  # [R', 3G]
        from_token = self._input_gates(tokens)  # [R', 3G], torch order: reset, update, new
        gates = torch.sigmoid(from_state[:, : 2 * size] + from_token[:, : 2 * size])
        reset, update = gates[:, :size], gates[:, size:]
        new = torch.tanh(torch.addcmul(from_token[:, 2 * size :], reset, from_state[:, 2 * size :]))
        hidden = torch.lerp(new, previous, update)  # (1 - update) * new + update * previous
        products = F.linear(hidden, self._joint)  # [R', M + 3G]
        return replace(state, rows=len(parents), hidden=hidden, products=products)

    def _input_gates(self, tokens: torch.Tensor) -> torch.Tensor:
        weight = self.prefix_gru.weight_ih_l0
        if self._embedding is None:
            raise RuntimeError("attach() the target's embedding table before decoding.")
        size = self._embedding.shape[0] * weight.shape[0] * weight.element_size()
        if self._table is None and size <= TABLE_BYTES:
            # The input half of the GRU depends on the token alone: one gather per step.
            self._table = F.linear(self._embedding.to(weight.dtype), weight)  # [V, 3G]
        if self._table is not None:
            return self._table.index_select(0, tokens)
        return F.linear(self._embedding[tokens].to(weight.dtype), weight)


class MarkovHead(nn.Module):
    """DSpark's head: a low-rank bias from the previous token, in three variants.

    vanilla: W2 W1[x]; gated: W2 (sigmoid(Wg [z ; W1[x]] + b) * W1[x]); rnn: a recurrent state
    over [s ; W1[x] ; z] that is updated from the hidden state z of the scored depth. Every
    draft is corrected, the first included.
    """

    name = "markov"

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        h, r = config.hidden_size, config.markov_rank
        self.kind, self.rank = config.markov_head_type, r
        self.markov_head = nn.Module()
        self.markov_head.markov_w1 = nn.Embedding(config.vocab_size, r)
        self.markov_head.markov_w2 = nn.Linear(r, config.vocab_size, bias=False)
        if self.kind == "gated":
            self.markov_head.gate_proj = nn.Linear(h + r, r)
        elif self.kind == "rnn":
            self.markov_head.joint_proj = nn.Linear(2 * r + h, 3 * r)
        if config.enable_confidence_head:
            width = h + r if config.confidence_head_with_markov else h
            self.confidence_head = nn.Module()
            self.confidence_head.proj = nn.Linear(width, 1)

    def start(self, block: Block, candidates: torch.Tensor | None) -> HeadState:
        w2 = self.markov_head.markov_w2.weight
        hidden = block.hidden.to(w2.dtype)
        z_part = hidden
        if self.kind == "gated":  # input order: z, W1[x]
            gate = self.markov_head.gate_proj
            z_part = F.linear(hidden, gate.weight[:, : hidden.shape[1]], gate.bias)  # [n, r]
        elif self.kind == "rnn":  # input order: s, W1[x], z
            joint = self.markov_head.joint_proj
            z_part = F.linear(hidden, joint.weight[:, 2 * self.rank :], joint.bias)  # [n, 3r]
        rows = _output_rows(w2, candidates)  # [V, r] or [n, K, r]
        anchor = torch.tensor([block.anchor], device=w2.device)
        last = self.markov_head.markov_w1(anchor)  # [1, r]
        state = torch.zeros_like(last) if self.kind == "rnn" else None
        return HeadState(base_values(block, candidates), 1, (z_part, rows), state, last=last)

    def score(self, state: HeadState, depth: int) -> tuple[torch.Tensor, HeadState]:
        z_part, rows = state.plan
        z, feature = z_part[depth - 1], state.last
        if self.kind == "gated":
            weight = self.markov_head.gate_proj.weight[:, -self.rank :]
            feature = torch.sigmoid(z + F.linear(state.last, weight)) * state.last  # [R, r]
        elif self.kind == "rnn":
            weight = self.markov_head.joint_proj.weight[:, : 2 * self.rank]
            joint = z + F.linear(torch.cat([state.hidden, state.last], dim=-1), weight)
            gate, content, output = joint.chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            state = replace(state, hidden=gate * state.hidden + (1 - gate) * torch.tanh(content))
            feature = torch.tanh(output)  # [R, r]
        bias = F.linear(feature, rows if rows.dim() == 2 else rows[depth - 1])  # [R, K]
        return state.base[depth - 1] + bias.float(), state

    def advance(self, state, parents: torch.Tensor, tokens: torch.Tensor) -> HeadState:
        hidden = None if state.hidden is None else state.hidden[parents]
        last = self.markov_head.markov_w1(tokens)  # [R', r]
        return replace(state, rows=len(parents), hidden=hidden, last=last)

    @torch.no_grad()
    def confidence_logits(self, block: Block, draft_ids: torch.Tensor) -> torch.Tensor:
        """Logits [n] of the predicted overlap with the target, along ``draft_ids`` [>= n-1]."""
        proj = self.confidence_head.proj
        x = block.hidden.to(proj.weight.dtype)
        if proj.in_features > x.shape[1]:
            previous = torch.cat([draft_ids.new_tensor([block.anchor]), draft_ids])[: len(x)]
            x = torch.cat([x, self.markov_head.markov_w1(previous)], dim=-1)
        return proj(x)[:, 0]


@torch.no_grad()
def corrected_logits(head: Head, block: Block, draft_ids: torch.Tensor) -> torch.Tensor:
    """Corrected logits [n, V] along one chain: row i given the anchor and ``draft_ids[:i]``."""
    state = head.start(block, None)
    rows = []
    for depth in range(1, block.drafts + 1):
        logits, state = head.score(state, depth)
        rows.append(logits[0])
        if depth < block.drafts:
            state = head.advance(state, draft_ids.new_zeros(1), draft_ids[depth - 1 : depth])
    return torch.stack(rows)
