"""Training blocks: what a block may see, what its labels are, and the fused loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dartree.drafter import Block
from dartree.heads import corrected_logits
from dartree.training.batched_heads import (
    confidence_loss,
    head_middle,
    output_matrix,
    self_fed_chains,
)
from dartree.training.blocks import (
    anchor_positions,
    block_forward,
    context_of,
    join_blocks,
    make_blocks,
    sample_anchors,
    weighted_loss,
)
from dartree.training.drafter_run import new_modules
from tests.training.drafter_fixtures import VOCABULARY, tiny_config


def random_modules(config):
    """Drafter and head without zeros: every path must carry something."""
    modules = new_modules(config, seed=0)
    for parameter in modules.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return modules


@pytest.fixture
def scene():
    torch.manual_seed(3)
    config = tiny_config()
    modules = random_modules(config)
    features = [torch.randn(15, 2 * config.hidden_size), torch.randn(8, 2 * config.hidden_size)]
    anchors = torch.tensor([2, 5, 9])
    embeddings = torch.randn(3, config.block_size, config.hidden_size)
    return config, modules, features, anchors, embeddings


@pytest.fixture(params=["domino", "markov"])
def chains(request):
    """(head, embedding table, hidden [3, n, H]) for both kinds of head."""
    torch.manual_seed(4)
    config = tiny_config(request.param)
    head = random_modules(config)["head"]
    table = torch.randn(VOCABULARY, config.hidden_size)
    if request.param == "domino":
        head.attach(table)
    return head, table, torch.randn(3, config.drafts, config.hidden_size)


OWNERS = torch.tensor([0, 0, 0])


def forward(scene, features=None, embeddings=None, owners=OWNERS):
    _, modules, own, anchors, inputs = scene
    features = own if features is None else features
    inputs = inputs if embeddings is None else embeddings
    return block_forward(modules["drafter"], inputs, context_of(features), anchors, owners)


def test_two_part_forward_equals_the_drafter_with_a_mask(scene):
    config, modules, features, anchors, embeddings = scene
    length = config.block_size
    mask = torch.zeros(3, 1, length, 15 + length)
    unseen = torch.arange(15) >= anchors[:, None]
    mask[..., :15].masked_fill_(unseen[:, None, None], float("-inf"))
    drafter = modules["drafter"]
    expected = drafter(
        embeddings,
        drafter.fuse(features[0][None]),
        anchors[:, None] + torch.arange(length),
        torch.arange(15),
        mask,
    )
    torch.testing.assert_close(forward(scene, features[:1]), expected)


def test_sequences_that_share_a_forward_do_not_mix(scene):
    _, _, features, _, _ = scene
    owners = torch.tensor([0, 1, 0])
    together = forward(scene, owners=owners)
    alone = [forward(scene, [f]) for f in features]
    torch.testing.assert_close(together, torch.stack([alone[0][0], alone[1][1], alone[0][2]]))


def test_a_block_sees_the_context_strictly_before_its_anchor(scene):
    _, _, features, anchors, _ = scene
    before = forward(scene)
    for place in range(15):
        changed = features[0].clone()
        changed[place] += 1.0
        after = forward(scene, [changed, features[1]])
        for i, anchor in enumerate(anchors.tolist()):
            same = torch.equal(before[i], after[i])
            assert same == (place >= anchor), (place, anchor)


def test_a_block_sees_itself_both_ways_and_no_other_block(scene):
    before, embeddings = forward(scene), scene[4].clone()
    embeddings[1, -1] += 1.0
    after = forward(scene, embeddings=embeddings)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert all(not torch.equal(before[1, row], after[1, row]) for row in range(before.shape[1]))


def test_labels_prefix_and_weights():
    ids, supervised = torch.arange(10, 20), torch.arange(10) >= 4
    blocks = make_blocks(tiny_config(), ids, supervised, torch.tensor([4, 7]), gamma=7.0)
    mask = VOCABULARY - 1
    assert blocks.ids.tolist() == [[14, mask, mask, mask], [17, mask, mask, mask]]
    assert blocks.labels[0].tolist() == [15, 16, 17, 18]
    assert blocks.prefix[0].tolist() == [14, 15, 16, 17]
    decay = torch.exp(-torch.arange(4) / 7.0)
    torch.testing.assert_close(blocks.weights[0], decay)
    # after token 19 at position 9 there is nothing
    torch.testing.assert_close(blocks.weights[1], decay * torch.tensor([1.0, 1, 0, 0]))


def test_joined_blocks_keep_their_order_and_owner():
    config, supervised = tiny_config(), torch.ones(10, dtype=torch.bool)
    parts = [
        make_blocks(config, torch.arange(start, start + 10), supervised, anchors, gamma=7.0)
        for start, anchors in ((10, torch.tensor([2, 4])), (30, torch.tensor([1])))
    ]
    blocks, owners = join_blocks(parts)
    assert blocks.anchors.tolist() == [2, 4, 1] and owners.tolist() == [0, 0, 1]
    assert blocks.labels[:, 0].tolist() == [13, 15, 32]


def test_without_shift_there_is_one_draft_less():
    ids, supervised = torch.arange(10, 20), torch.ones(10, dtype=torch.bool)
    blocks = make_blocks(tiny_config("none"), ids, supervised, torch.tensor([2]), gamma=7.0)
    assert blocks.labels.tolist() == [[13, 14, 15]]
    assert blocks.ids.shape == (1, 4)


def test_anchors_lie_where_they_and_their_successor_are_supervised():
    supervised = torch.tensor([0, 0, 1, 1, 1, 0, 1, 0, 1, 1], dtype=torch.bool)
    assert anchor_positions(supervised).tolist() == [2, 3, 8]
    some = sample_anchors(supervised, 2, torch.Generator().manual_seed(0))
    assert len(some) == 2 and set(some.tolist()) <= {2, 3, 8}
    assert sample_anchors(supervised, 9, torch.Generator()).tolist() == [2, 3, 8]


def test_a_label_does_not_reach_the_row_that_predicts_it(chains):
    head, table, hidden = chains
    tokens = torch.tensor([[5, 6, 7, 8]])  # x[a] .. x[a + 3]
    before = head_middle(head, hidden[:1], tokens, table)
    for label in range(1, 4):  # x[a + label] is the label of row label - 1
        changed = tokens.clone()
        changed[0, label] += 20
        after = head_middle(head, hidden[:1], changed, table)
        assert torch.equal(before[0, :label], after[0, :label])
        assert not torch.equal(before[0, label], after[0, label])


def test_teacher_forced_head_equals_the_head_used_in_decoding(chains):
    head, table, hidden = chains
    tokens = torch.randint(0, VOCABULARY, (3, 5))
    bias = F.linear(head_middle(head, hidden, tokens[:, :4], table), output_matrix(head)).detach()
    for i in range(3):
        base = F.linear(hidden[i], table)
        block = Block(int(tokens[i, 0]), 0, hidden[i], base)
        logits = corrected_logits(head, block, tokens[i, 1:])
        torch.testing.assert_close(base + bias[i], logits, atol=1e-4, rtol=1e-4)


def test_teacher_forced_middle_is_that_of_chain_bias(scene):
    config, modules, _, _, hidden = scene
    head, table = modules["head"], torch.randn(VOCABULARY, config.hidden_size)
    tokens = torch.randint(0, VOCABULARY, (3, 4))
    bias = F.linear(head_middle(head, hidden, tokens, table), output_matrix(head))
    torch.testing.assert_close(bias, head.chain_bias(hidden, table[tokens]))


def test_self_fed_chain_follows_the_head_used_in_decoding(chains):
    head, table, hidden = chains
    anchors = torch.tensor([3, 7, 11])
    with torch.no_grad():
        base, drafts = self_fed_chains(head, hidden, anchors, table)
    for i in range(3):
        logits = F.linear(hidden[i], table)
        assert base[i].tolist() == logits.argmax(-1).tolist()
        block = Block(int(anchors[i]), 0, hidden[i], logits)
        # each draft is the argmax of its own row, given the drafts before it
        assert corrected_logits(head, block, drafts[i]).argmax(-1).tolist() == drafts[i].tolist()


def test_confidence_is_trained_on_the_overlap_and_moves_nothing_else():
    torch.manual_seed(5)
    config = tiny_config("markov")
    head = random_modules(config)["head"]
    table = torch.randn(VOCABULARY, config.hidden_size)
    hidden = torch.randn(6, config.hidden_size, requires_grad=True)
    middle = torch.randn(6, config.markov_rank, requires_grad=True)
    target = torch.randn(6, config.hidden_size)
    weights = torch.rand(6)
    loss = confidence_loss(head, hidden, middle, target, table, weights)
    with torch.no_grad():
        draft = (hidden @ table.t() + middle @ output_matrix(head).t()).softmax(-1)
        overlap = 1 - (draft - (target @ table.t()).softmax(-1)).abs().sum(-1) / 2
        p = torch.sigmoid(head.confidence_head.proj(torch.cat([hidden, middle], -1))[:, 0])
        expected = -(overlap * p.log() + (1 - overlap) * (1 - p).log())
    torch.testing.assert_close(loss, (expected * weights).sum())
    grads = torch.autograd.grad(
        loss, [hidden, middle, head.confidence_head.proj.weight], allow_unused=True
    )
    assert grads[0] is None and grads[1] is None and grads[2].abs().sum() > 0


@pytest.mark.parametrize("chunk", [3, 64])
@pytest.mark.parametrize("with_head", [True, False])
def test_fused_loss_equals_cross_entropy(chunk, with_head):
    torch.manual_seed(0)
    rows, vocabulary = 10, 17
    hidden = torch.randn(rows, 6, requires_grad=True)
    middle = torch.randn(rows, 5, requires_grad=True) if with_head else None
    output = torch.randn(vocabulary, 5, requires_grad=True) if with_head else None
    table, labels, weights = torch.randn(vocabulary, 6), torch.arange(rows), torch.rand(rows)
    leaves = [t for t in (hidden, middle, output) if t is not None]
    base = hidden @ table.t()
    final = base + middle @ output.t() if with_head else base
    mix = 0.3 if with_head else 1.0
    each = (1 - mix) * F.cross_entropy(final, labels, reduction="none")
    each = each + mix * F.cross_entropy(base, labels, reduction="none")
    expected = (each * weights).sum()
    loss, hits = weighted_loss(hidden, middle, table, output, labels, weights, mix, chunk=chunk)
    torch.testing.assert_close(loss, expected)
    assert hits[0] == (base.argmax(-1) == labels).sum()
    assert hits[1] == ((final.argmax(-1) == labels).sum() if with_head else 0)
    for ours, theirs in zip(
        torch.autograd.grad(loss * 2, leaves), torch.autograd.grad(expected * 2, leaves),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(ours, theirs)
