"""Verification measured: right trees agree with plain runs, planted mistakes do not."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import dartree
from dartree.analysis import verification
from tests.reference import causal_logits, prompt, random_stack

SETTINGS = dartree.TreeSettings(width=4, candidates=6, budget=10, depth_penalty=0.1)


@pytest.fixture(scope="module")
def case():
    """(stack, ids, tree) of a random fp64 stack; the tree holds a part of the target's text."""
    stack, ids = random_stack(), prompt(7)
    text = dartree.generate(stack, ids, method="ar", max_new_tokens=3, stop=[]).token_ids
    others = [t for t in range(5) if t not in text][:2]
    tree = dartree.DraftTree(
        [others[0], text[0], others[1], text[1], text[2], others[0]],
        [0, 0, 1, 2, 4, 4], [1, 1, 2, 2, 3, 3], -np.arange(1.0, 7),
    )  # fmt: skip
    return stack, ids, tree


def test_one_forward_is_as_good_as_one_run_per_path(case):
    stack, ids, tree = case
    plain = verification.logits_by_path(stack, ids, tree)
    assert torch.equal(plain[0], causal_logits(stack.target.model, ids)[-1])
    assert (dartree.verify(stack, ids, tree) - plain).abs().max() < 1e-9
    right, *wrong = verification.differences(stack, ids, tree).values()
    assert right < 1e-9 and len(wrong) == 2 and min(wrong) > 1e-3


def test_on_a_chain_the_two_mistakes_are_none(case):
    stack, ids, _ = case
    chain = dartree.DraftTree.chain([5, 3, 8, 1], -np.arange(1.0, 5))
    assert max(verification.differences(stack, ids, chain).values()) < 1e-9


def test_a_tree_without_nodes_has_no_mistakes_to_make(case):
    stack, ids, _ = case
    with pytest.raises(ValueError, match="tree must have a node"):
        verification.differences(stack, ids, dartree.DraftTree.empty())


def test_the_compacted_cache_is_a_fresh_one(case):
    stack, ids, tree = case
    kept = verification.commit_round(stack, ids, tree)
    assert kept.rows == [0, 2, 4, 5] and kept.past == len(ids) - 1
    assert kept.tokens == [ids[-1], *tree.tokens[[1, 3, 4]].tolist()]
    assert kept.error < 1e-9 and kept.shuffled > 1e-3


def test_a_single_id_has_no_past(case):
    stack, _, tree = case
    assert verification.commit_round(stack, [3], tree).error < 1e-9
    assert next(iter(verification.differences(stack, [3], tree).values())) < 1e-9


def test_sampled_walks_follow_the_law_and_counts_are_counts(case):
    stack, ids, tree = case
    logits = dartree.verify(stack, ids, tree)
    walks = verification.sample_walks(tree, logits, 3000, temperature=1.3, seed=1)
    assert walks == verification.sample_walks(tree, logits, 3000, temperature=1.3, seed=1)
    child = int(tree.tokens[1])
    for prefix in ((), (child,)):
        counts = verification.next_counts(walks, prefix, stack.target.vocab_size)
        n = len(prefix)
        want = [w[n] for w in walks if w[:n] == prefix and len(w) > n]
        assert counts.sum() == len(want) and counts[want[0]] == want.count(want[0])
        p = (causal_logits(stack.target.model, [*ids, *prefix])[-1] / 1.3).softmax(-1).numpy()
        test = verification.check_law(counts, p)
        assert test.draws == len(want) and test.distance <= 1.5 * test.limit
        assert abs(test.deviations) < 5


def test_the_telling_path_is_visited_and_uncertain(case):
    _, _, tree = case
    vocabulary = 97
    logits = torch.zeros(7, vocabulary)  # every row is uniform ...
    logits[2, 5] = 50  # ... but the one below node 2 is certain
    paths = tree.path_tokens()
    texts = [(*paths[1], 5)] * 5 + [(*paths[0], 7)] * 3 + [(*paths[2], 7)] * 2
    assert verification.telling_path(tree, logits, texts) == paths[0], "5 visits, and 3 to 5"
    assert verification.telling_path(tree, logits, [(*paths[4], 1)]) in (paths[3], paths[4])


def test_another_law_is_noticed():
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.ones(20))
    counts = generator.multinomial(4000, 0.8 * p + 0.2 * p[::-1])
    test = verification.check_law(counts, p)
    assert test.distance > test.limit > test.expected and test.deviations > 10
    want = 0.5 * np.abs(counts / 4000 - p).sum()
    assert test.distance == pytest.approx(want)
    with pytest.raises(ValueError, match="sum above 0"):
        verification.check_law(np.zeros(20), p)


def test_a_certain_law_has_no_noise():
    test = verification.check_law(np.array([0, 50, 0]), np.array([0.0, 1.0, 0.0]))
    assert test.distance == test.limit == 0


def test_the_ratio_rule_by_enumeration():
    """Exact where the draft is drawn from q, biased where it is chosen."""
    law, rate = verification.ratio_law([0.5, 0.5], [0.8, 0.2], 0)
    assert rate == pytest.approx(0.625) and law == pytest.approx([0.625, 0.375])
    for seed in range(5):
        generator = np.random.default_rng(seed)
        p, q = generator.dirichlet(np.ones(6), size=2)
        laws = np.array([verification.ratio_law(p, q, draft)[0] for draft in range(6)])
        assert laws.sum(1) == pytest.approx(np.ones(6))
        assert q @ laws == pytest.approx(p), "drawn from q, the rule is exact"
        best = int(q.argmax())
        assert verification.total_variation(laws[best], p) > 1e-3
    same = verification.ratio_law(p, p, 2)
    assert same[1] == 1 and same[0][2] == 1


def test_the_most_uncertain_place_is_the_one_of_largest_entropy(case):
    stack, ids, _ = case
    prompts, answers = [ids, prompt(4, 2)], [prompt(5, 3), prompt(6, 4)]
    best = -1.0
    for start, answer in zip(prompts, answers, strict=True):
        for n in range(1, len(answer) + 1):
            p = causal_logits(stack.target.model, [*start, *answer[:n]])[-1].softmax(-1)
            entropy = float(-(p * p.log()).sum())
            if entropy > best:
                best, want = entropy, [*start, *answer[:n]]
    assert verification.most_uncertain(stack, prompts, answers) == want


def test_half_precision_differs_by_rounding_only(case):
    stack, ids, tree = case
    half = random_stack(dtype=torch.bfloat16)
    kept = verification.differences(half, ids, replace(tree))
    assert next(iter(kept.values())) < min(list(kept.values())[1:])
