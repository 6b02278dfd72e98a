"""Heads against plain step-by-step rewritings of the formulas."""

from __future__ import annotations

import pytest
import torch

import dartree
from dartree.heads import NoCorrection, corrected_logits
from tests.reference import prompt, random_stack


def block_of(stack, seed=5):
    return dartree.draft(stack, prompt(9, seed))


def naive_domino(stack, block, ids):
    """nn.GRU over the whole prefix and one concatenation per row, as the paper writes it."""
    head, embedding = stack.head, stack.target.embedding
    rows = []
    for i in range(block.drafts):
        chain = torch.tensor([block.anchor, *ids[:i]])
        _, state = head.prefix_gru(embedding[chain][None])
        bias = head.embed_proj(torch.cat([block.hidden[i], state[0, 0]]))
        rows.append(block.base_logits[i] + (bias if i >= head.prefix else 0))
    return torch.stack(rows)


def naive_markov(stack, block, ids):
    """The three variants of DSpark, one token at a time."""
    head = stack.head
    w1, w2 = head.markov_head.markov_w1.weight, head.markov_head.markov_w2.weight
    s, rows = torch.zeros(head.rank, dtype=w1.dtype), []
    for i in range(block.drafts):
        m, z = w1[[block.anchor, *ids][i]], block.hidden[i]
        feature = m
        if head.kind == "gated":
            gate = head.markov_head.gate_proj
            feature = torch.sigmoid(gate.weight @ torch.cat([z, m]) + gate.bias) * m
        if head.kind == "rnn":
            joint = head.markov_head.joint_proj
            g, c, o = (joint.weight @ torch.cat([s, m, z]) + joint.bias).split(head.rank)
            s = torch.sigmoid(g) * s + (1 - torch.sigmoid(g)) * torch.tanh(c)
            feature = torch.tanh(o)
        rows.append(block.base_logits[i] + w2 @ feature)
    return torch.stack(rows)


VARIANTS = [
    dict(head="domino", shift_label=True, prefix=1),
    dict(head="domino", shift_label=False, prefix=0),
    dict(head="domino", shift_label=False, prefix=1),
    dict(head="domino", shift_label=True, prefix=3),
    dict(head="markov", markov_kind="vanilla"),
    dict(head="markov", markov_kind="gated"),
    dict(head="markov", markov_kind="rnn"),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
@pytest.mark.parametrize("restricted", [False, True])
def test_head_equals_its_formula(variant, restricted):
    stack = random_stack(**variant)
    block = block_of(stack)
    ids = prompt(block.drafts, seed=8)
    naive = naive_domino if variant["head"] == "domino" else naive_markov
    want = naive(stack, block, ids)
    candidates = torch.arange(7).repeat(block.drafts, 1) * 3 if restricted else None
    state = stack.head.start(block, candidates)
    for depth in range(1, block.drafts + 1):
        logits, state = stack.head.score(state, depth)
        expected = want[depth - 1] if candidates is None else want[depth - 1][candidates[0]]
        torch.testing.assert_close(logits[0].double(), expected, atol=1e-5, rtol=1e-5)
        state = stack.head.advance(state, torch.tensor([0]), torch.tensor([ids[depth - 1]]))
    chain = corrected_logits(stack.head, block, torch.tensor(ids))
    torch.testing.assert_close(chain.double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_a_batch_of_paths_equals_each_path_alone(variant):
    stack = random_stack(**variant)
    block, head = block_of(stack), stack.head
    state = head.start(block, None)
    _, state = head.score(state, 1)
    state = head.advance(state, torch.tensor([0, 0, 0]), torch.tensor([3, 4, 5]))
    _, state = head.score(state, 2)
    state = head.advance(state, torch.tensor([2, 0, 0, 1]), torch.tensor([9, 9, 8, 7]))
    logits, _ = head.score(state, 3)
    for row, path in enumerate([(5, 9), (3, 9), (3, 8), (4, 7)]):
        chain = torch.tensor([*path, *[0] * block.drafts])[: block.drafts]
        alone = corrected_logits(head, block, chain)[2]
        torch.testing.assert_close(logits[row], alone, atol=1e-6, rtol=1e-6)


def test_domino_gru_step_equals_torch_over_a_sequence():
    stack = random_stack(head="domino")
    block = block_of(stack)
    ids = prompt(5, seed=2)
    state = stack.head.start(block, None)
    for token in ids:
        state = stack.head.advance(state, torch.tensor([0]), torch.tensor([token]))
    chain = torch.tensor([block.anchor, *ids])
    _, hidden = stack.head.prefix_gru(stack.target.embedding[chain][None])
    torch.testing.assert_close(state.hidden, hidden[0], atol=1e-9, rtol=1e-9)


def test_without_the_input_table_nothing_changes(monkeypatch):
    stack = random_stack(head="domino")
    block = block_of(stack)
    ids = torch.tensor(prompt(block.drafts, seed=4))
    with_table = corrected_logits(stack.head, block, ids)
    monkeypatch.setattr("dartree.heads.TABLE_BYTES", 0)
    stack.head.attach(stack.target.embedding)
    torch.testing.assert_close(corrected_logits(stack.head, block, ids), with_table)
    assert stack.head._table is None


def test_teacher_forced_bias_equals_the_chain():
    stack = random_stack(head="domino")
    block = block_of(stack)
    ids = prompt(block.drafts, seed=6)
    inputs = torch.tensor([block.anchor, *ids[:-1]])
    bias = stack.head.chain_bias(block.hidden[None], stack.target.embedding[inputs][None])[0]
    want = corrected_logits(stack.head, block, torch.tensor(ids))
    torch.testing.assert_close((block.base_logits + bias).float(), want, atol=1e-5, rtol=1e-5)


def test_no_correction_keeps_the_marginals():
    stack = random_stack(head="none")
    block = block_of(stack)
    assert isinstance(stack.head, NoCorrection)
    ids = torch.tensor(prompt(block.drafts))
    assert torch.equal(corrected_logits(stack.head, block, ids), block.base_logits.float())


@pytest.mark.parametrize("with_markov", [True, False])
def test_confidence_reads_the_previous_token(with_markov):
    stack = random_stack(head="markov")
    block, head = block_of(stack), stack.head
    ids = prompt(block.drafts, seed=3)
    if not with_markov:
        head.confidence_head.proj = torch.nn.Linear(block.hidden.shape[1], 1).double()
    proj = head.confidence_head.proj
    got = head.confidence_logits(block, torch.tensor(ids))
    for i, previous in enumerate([block.anchor, *ids][: block.drafts]):
        x = block.hidden[i]
        if with_markov:
            x = torch.cat([x, head.markov_head.markov_w1.weight[previous]])
        torch.testing.assert_close(got[i], proj(x)[0])


def test_the_targets_embedding_is_not_a_weight_of_the_head():
    head = random_stack(head="domino").head
    assert set(head.state_dict()) == {
        "prefix_gru.weight_ih_l0", "prefix_gru.weight_hh_l0",
        "embed_proj.0.weight", "embed_proj.2.weight",
    }  # fmt: skip
