"""Agreement with outputs of the public reference implementations (fp32, 1e-4 + 1e-5 |b|)."""

from __future__ import annotations

import torch

import dartree
from dartree.decode import draft_block
from dartree.drafter import DrafterCache
from tests.reference import causal_logits


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)


def test_context_features(case):
    stack, expected, _ = case
    ids = expected["prompt_ids"][0]
    cache = stack.target.new_cache(len(ids))
    close(stack.target.prefill(cache, ids).features, expected["context_features_1"][0])


def test_first_block(case):
    stack, expected, _ = case
    ids = [*expected["prompt_ids"][0].tolist(), int(expected["block_ids_1"][0, 0])]
    block = dartree.draft(stack, ids)
    offset = stack.drafter.config.row_offset
    close(block.hidden, expected["draft_hidden_1"][0, offset:])
    close(block.base_logits, expected["base_logits_1"][0, offset:])
    assert block.position == len(ids) - 1
    row = stack.drafter.block_ids(ids[-1], stack.target.device)
    assert torch.equal(row, expected["block_ids_1"])


def test_second_block_continues_the_cache(case):
    """The drafter's cache must hold exactly the context: its block rows are cut back."""
    stack, expected, _ = case
    context = DrafterCache(stack.drafter)
    context.absorb(expected["context_features_1"][0])
    draft_block(stack.main, context, int(expected["block_ids_1"][0, 0]))
    assert context.length == expected["prompt_ids"].shape[1]
    context.absorb(expected["context_features_2"][0])
    block = draft_block(stack.main, context, int(expected["block_ids_2"][0, 0]))
    offset = stack.drafter.config.row_offset
    close(block.hidden, expected["draft_hidden_2"][0, offset:])
    close(block.base_logits, expected["base_logits_2"][0, offset:])


def test_second_features_and_anchor(case):
    stack, expected, _ = case
    ids = torch.cat([expected["prompt_ids"][0], expected["committed_ids_2"][0]])
    cache = stack.target.new_cache(len(ids))
    output = stack.target.prefill(cache, ids)
    close(output.features[expected["prompt_ids"].shape[1] :], expected["context_features_2"][0])
    assert int(output.logits[0].argmax()) == int(expected["block_ids_2"][0, 0])


def test_corrected_logits_and_greedy_chain(case):
    stack, expected, _ = case
    ids = [*expected["prompt_ids"][0].tolist(), int(expected["block_ids_1"][0, 0])]
    block = dartree.draft(stack, ids)
    if "corrected_logits_1" in expected:
        chain = expected["chain_ids_1"][0, 1:]
        close(dartree.corrected_logits(stack, block, chain), expected["corrected_logits_1"][0])
    out = dartree.Decoding(stack, ids, method="domino", max_new_tokens=2, stop=[])
    greedy_chain = expected["greedy_draft_ids_1"][0].tolist()
    from dartree.clock import Clock
    from dartree.proposers import propose_domino

    proposal = propose_domino(block, stack.head, out.settings, Clock())
    assert proposal.tree.tokens.tolist() == greedy_chain
    assert proposal.head_calls == len(greedy_chain)


def test_confidence(case):
    stack, expected, name = case
    if name != "dspark-vanilla":
        assert "confidence_logits_1" not in expected
        return
    ids = [*expected["prompt_ids"][0].tolist(), int(expected["block_ids_1"][0, 0])]
    block = dartree.draft(stack, ids)
    ours = stack.head.confidence_logits(block, expected["chain_ids_1"][0, 1:])
    close(ours, expected["confidence_logits_1"].flatten())


def test_every_method_is_plain_greedy(case):
    stack, expected, _ = case
    prompt = expected["prompt_ids"][0].tolist()
    want = expected["greedy_ids"][0, len(prompt) :].tolist()
    for method in dartree.METHODS:
        out = dartree.generate(stack, prompt, method=method, max_new_tokens=40, stop=[])
        assert out.token_ids == want, method
        assert sum(out.accepted_per_round) + 1 == out.new_tokens == 40


def test_ddtree(case):
    stack, expected, _ = case
    ids = [*expected["prompt_ids"][0].tolist(), int(expected["block_ids_1"][0, 0])]
    block = dartree.draft(stack, ids)
    for budget in (1, 7, 16, 64):
        tree = dartree.ddtree(block, budget)
        tokens = expected[f"ddtree_{budget}_tokens"].flatten().tolist()
        parents = expected[f"ddtree_{budget}_parents"].flatten().tolist()
        paths = [()]
        for token, parent in zip(tokens, parents[1:], strict=True):
            paths.append((*paths[parent], token))
        base = torch.log_softmax(block.base_logits.float(), -1)
        ours, theirs = set(tree.path_tokens()), set(paths[1:])
        scores = [sum(float(base[d, t]) for d, t in enumerate(p)) for p in ours ^ theirs]
        assert not scores or max(scores) - min(scores) < 1e-4
        assert len(tree) == budget
        if not ours ^ theirs:
            order = {p: i + 1 for i, p in enumerate(paths[1:])} | {(): 0}
            index = [0] + [order[p] for p in tree.path_tokens()]
            visible = expected[f"ddtree_{budget}_visible"].bool().reshape(budget + 1, budget + 1)
            assert torch.equal(visible[index][:, index], torch.from_numpy(tree.ancestor_mask()))


def test_node_logits(case):
    stack, expected, _ = case
    ids = [*expected["prompt_ids"][0].tolist(), int(expected["block_ids_1"][0, 0])]
    tokens = expected["ddtree_16_tokens"].flatten().tolist()
    parents = expected["ddtree_16_parents"].flatten().tolist()[1:]
    depths = expected["ddtree_16_depths"].flatten().tolist()[-16:]
    tree = dartree.DraftTree(tokens, parents, depths, [0.0] * 16)
    logits = dartree.verify(stack, ids, tree)
    close(logits, expected["ddtree_16_node_logits"].reshape(logits.shape))
    plain = causal_logits(stack.target.model, ids + [tokens[i - 1] for i in tree.path(16)])
    close(logits[16], plain[-1])
