"""Correction heads: re-condition the drafter's marginals on the tokens already chosen.

A head is a scorer of paths. ``start`` prepares a block, ``score`` gives corrected logits for
the children of all rows of a state in one batched call, ``advance`` moves to chosen children.
Everything that depends only on the depth (the z part of the first layer, the rows of the output
matrix that belong to the K candidates) is computed once per block in ``start``.

Sources: Domino (arXiv 2605.29707), DSpark (arXiv 2607.05147).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from dartree.drafter import Block, DrafterConfig

# Largest table of GRU input projections [V, 3G] that is kept; larger ones are not built.
TABLE_BYTES = 256 * 2**20


@dataclass(slots=True)
class HeadState:
    """R rows (paths) of one block, all at the same depth. Not changed once it is made.

    base
        fp32 base logits [K] of the candidates at each of the n depths, or [V] of all tokens.
    plan
        What the head computed once for this block, by depth; None where there is no correction.
    hidden [R, G]
        Per-row summary of the path; None for a head without one.
    products
        What W1 [R, M] and the GRU [R, 3G] make of ``hidden``, in one product (Domino).
    last [R, r]
        Embedding of the last token (Markov).
    """

    base: Sequence[torch.Tensor]
    rows: int
    # `| Any`: a head reads only what it has set itself, and that is never None.
    plan: tuple[Sequence[torch.Tensor], ...] | Any = None
    hidden: torch.Tensor | Any = None
    products: tuple[torch.Tensor, ...] | Any = None
    last: torch.Tensor | Any = None


class Head(Protocol):
    """What the rest of the package knows about a correction head.

    A fused head (:class:`dartree.fused.FusedHead`) brings faster forms of what is made of these.
    """

    name: str  # shown to readers; that of NoCorrection means that nothing is corrected

    def start(self, block: Block, candidates: torch.Tensor | None) -> HeadState:
        """State of the root path. ``candidates`` [n, K] token ids, None = all V tokens."""

    def score(self, state: HeadState, depth: int) -> tuple[torch.Tensor, HeadState]:
        """fp32 corrected logits [R, K] of the children at ``depth`` (1..n), and the state.

        -inf rules a child out, and all below it; NaN and +inf are refused.
        """

    def advance(self, state: HeadState, parents: torch.Tensor, tokens: torch.Tensor) -> HeadState:
        """State of children: ``parents`` [R'] rows of ``state``, ``tokens`` [R'] their ids."""


def check_head(head: Any) -> Head:
    """Return ``head`` if it has all that :class:`Head` names, else raise ValueError."""
    missing = [n for n in ("name", "start", "score", "advance") if not hasattr(head, n)]
    if missing:
        raise ValueError(
            f"head must have name, start, score and advance, got {type(head).__name__} without "
            f"{', '.join(missing)}."
        )
    return head


def scored(
    head: Head, state: HeadState, depth: int, rows: int, columns: int
) -> tuple[torch.Tensor, HeadState]:
    """``head.score``; ValueError unless it gives a float tensor [rows, columns] and a state."""
    answer: Any = head.score(state, depth)  # whatever somebody's own head returns
    if isinstance(answer, tuple) and len(answer) == 2:
        logits = answer[0]
        if (
            isinstance(logits, torch.Tensor)
            and logits.shape == (rows, columns)
            and logits.is_floating_point()
        ):
            return answer
        answer = logits
    got = type(answer).__name__
    if isinstance(answer, torch.Tensor):
        got = f"{answer.dtype} {list(answer.shape)}".removeprefix("torch.")
    raise ValueError(
        f"{type(head).__name__}.score must return (logits, state), logits a float torch.Tensor "
        f"[R, K] = [{rows}, {columns}] at depth {depth}, got {got}."
    )


def logits_of(head: Head) -> str:
    """What messages call the logits of ``head``."""
    return f"logits of {type(head).__name__}.score"


def base_values(block: Block, candidates: torch.Tensor | None) -> Sequence[torch.Tensor]:
    """fp32 base logits of each depth: [K] for ``candidates`` [n, K], [V] for None."""
    logits = block.base_logits.float()
    return (logits if candidates is None else logits.gather(1, candidates)).unbind()


def _output_columns(
    weight: torch.Tensor, candidates: torch.Tensor | None, drafts: int
) -> Sequence[torch.Tensor]:
    """For each depth the columns [M, K] of an output matrix's transpose that belong to
    ``candidates`` [n, K]; all of it, [M, V], for None."""
    if candidates is None:
        return (weight.t(),) * drafts
    # An embedding lookup copies whole rows: five times faster here than weight[candidates].
    return F.embedding(candidates, weight).transpose(1, 2).unbind()


class NoCorrection:
    """The identity: every path keeps the marginals of its depth."""

    name = "none"

    def start(self, block: Block, candidates: torch.Tensor | None) -> HeadState:
        return HeadState(base_values(block, candidates), rows=1)

    def score(self, state: HeadState, depth: int) -> tuple[torch.Tensor, HeadState]:
        return state.base[depth - 1].expand(state.rows, -1), state

    def advance(self, state: HeadState, parents: torch.Tensor, tokens: torch.Tensor) -> HeadState:
        return HeadState(state.base, len(parents))


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
        self.sizes = (m, 2 * g, g)  # W1, reset and update, new
        # Any: torch does not say of which type these modules' weights and items are.
        self.prefix_gru: Any = nn.GRU(h, g, bias=False, batch_first=True)
        self.embed_proj: Any = nn.Sequential(
            nn.Linear(h + g, m, bias=False), nn.SiLU(), nn.Linear(m, config.vocab_size, bias=False)
        )
        self._embedding: torch.Tensor | Any = None
        self._joint: torch.Tensor | Any = None
        self._input: torch.Tensor | Any = None
        self._table: torch.Tensor | None = None

    def attach(self, embedding: torch.Tensor) -> None:
        """Use the target's embedding table [V, H] for the GRU's inputs.

        Tables made of the weights are kept from the first block on: call this again after
        changing weights.
        """
        self._embedding = embedding.detach()  # a Parameter would become one of this module's
        self._joint = self._table = None

    def has_table(self) -> bool:
        """Whether the GRU's input half is kept for all tokens: [V, 3G] of at most TABLE_BYTES."""
        weight, tokens = self.prefix_gru.weight_ih_l0, self.embed_proj[2].weight.shape[0]
        return tokens * weight.shape[0] * weight.element_size() <= TABLE_BYTES

    @torch.no_grad()
    def tables(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What is made of the weights once: both layers that read the state as one [M + 3G, G],
        and the GRU's input half of every token [V, 3G], None where that is too large.
        """
        if self._joint is None:
            if self._embedding is None:
                raise RuntimeError("attach() the target's embedding table before decoding.")
            first, gru = self.embed_proj[0].weight, self.prefix_gru
            self._joint = torch.cat([first[:, self.hidden_size :], gru.weight_hh_l0])
            self._input = weight = gru.weight_ih_l0.detach()  # a GRU cannot be traced
            if self.has_table():
                self._table = F.linear(self._embedding.to(weight.dtype), weight)
        return self._joint, self._table

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
        self.tables()
        plan = (z_part.unbind(), _output_columns(last, candidates, block.drafts))
        hidden = z_part.new_zeros(1, self.sizes[2])
        products = (hidden, hidden.repeat(1, 2), hidden)  # only the GRU's are read
        state = HeadState(base_values(block, candidates), 1, plan, hidden, products)
        anchor = block.anchor_ids()
        return self.advance(state, torch.zeros_like(anchor), anchor)

    def score(self, state: HeadState, depth: int) -> tuple[torch.Tensor, HeadState]:
        base = state.base[depth - 1]  # [K]
        if depth <= self.prefix:
            return base.expand(state.rows, -1), state
        z_part, columns = state.plan
        middle = F.silu(state.products[0] + z_part[depth - 1], inplace=True)  # [R, M]
        if base.dtype == middle.dtype:
            return torch.addmm(base, middle, columns[depth - 1]), state  # [R, K]
        return base + (middle @ columns[depth - 1]).float(), state

    def advance(self, state: HeadState, parents: torch.Tensor, tokens: torch.Tensor) -> HeadState:
        _, gates, new = state.products
        token_gates, token_new = self._from_tokens(tokens)
        gates = gates.index_select(0, parents).add_(token_gates).sigmoid_()  # [R', 2G]
        reset, update = gates.chunk(2, 1)
        new = torch.addcmul(token_new, reset, new.index_select(0, parents)).tanh_()  # [R', G]
        hidden = torch.lerp(new, state.hidden.index_select(0, parents), update)  # (1 - u) n + u h
        products = F.linear(hidden, self._joint).split(self.sizes, 1)
        return HeadState(state.base, len(parents), state.plan, hidden, products)

    def _from_tokens(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The GRU's input half for ``tokens`` [R]: reset and update [R, 2G], new [R, G]."""
        if self._table is not None:  # depends on the token alone: a gather per step
            gates, new = self._table.split(self.sizes[1:], 1)
            return gates.index_select(0, tokens), new.index_select(0, tokens)
        inputs = self._embedding[tokens].to(self._input.dtype)
        return F.linear(inputs, self._input).split(self.sizes[1:], 1)


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
        self.markov_head: Any = nn.Module()  # a name in front of the weights, as published
        self.markov_head.markov_w1 = nn.Embedding(config.vocab_size, r)
        self.markov_head.markov_w2 = nn.Linear(r, config.vocab_size, bias=False)
        if self.kind == "gated":
            self.markov_head.gate_proj = nn.Linear(h + r, r)
        elif self.kind == "rnn":
            self.markov_head.joint_proj = nn.Linear(2 * r + h, 3 * r)
        if config.enable_confidence_head:
            width = h + r if config.confidence_head_with_markov else h
            self.confidence_head: Any = nn.Module()
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
        plan = (z_part.unbind(), _output_columns(w2, candidates, block.drafts))
        last = self.markov_head.markov_w1(block.anchor_ids())  # [1, r]
        state = torch.zeros_like(last) if self.kind == "rnn" else None
        return HeadState(base_values(block, candidates), 1, plan, state, last=last)

    def score(self, state: HeadState, depth: int) -> tuple[torch.Tensor, HeadState]:
        z_part, columns = state.plan
        z, feature = z_part[depth - 1], state.last
        if self.kind == "gated":
            weight = self.markov_head.gate_proj.weight[:, -self.rank :]
            feature = torch.sigmoid(z + F.linear(state.last, weight)) * state.last  # [R, r]
        elif self.kind == "rnn":
            weight = self.markov_head.joint_proj.weight[:, : 2 * self.rank]
            joint = z + F.linear(torch.cat([state.hidden, state.last], dim=-1), weight)
            gate, content, output = joint.chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            hidden = gate * state.hidden + (1 - gate) * torch.tanh(content)
            state = HeadState(state.base, state.rows, state.plan, hidden, last=state.last)
            feature = torch.tanh(output)  # [R, r]
        bias = (feature @ columns[depth - 1]).float()  # [R, K]
        return state.base[depth - 1] + bias, state

    def advance(self, state: HeadState, parents: torch.Tensor, tokens: torch.Tensor) -> HeadState:
        hidden = None if state.hidden is None else state.hidden[parents]
        last = self.markov_head.markov_w1(tokens)  # [R', r]
        return HeadState(state.base, len(parents), state.plan, hidden, last=last)

    @torch.no_grad()
    def confidence_logits(self, block: Block, draft_ids: torch.Tensor) -> torch.Tensor:
        """Logits [n] of the predicted overlap with the target, along ``draft_ids`` [>= n-1].

        No method asks for them: they are here so that conformance tests hold the head whole.
        """
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
        logits, state = scored(head, state, depth, 1, block.base_logits.shape[1])
        rows.append(logits[0])
        if depth < block.drafts:
            state = head.advance(state, draft_ids.new_zeros(1), draft_ids[depth - 1 : depth])
    return torch.stack(rows)
