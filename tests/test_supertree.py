"""Expansion: against a naive beam, brute force, corners."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dartree
from dartree.clock import Clock
from dartree.drafter import Block
from dartree.heads import NoCorrection, corrected_logits
from dartree.methods import TABLE
from dartree.settings import TreeSettings
from dartree.supertree import fixed_quotas, grow_supertree, top_candidates
from tests.reference import VOCABULARY, prompt, random_stack


def block_of(stack, seed=5):
    return dartree.draft(stack, prompt(9, seed))


def path_score(stack, block, path, candidates, full) -> float:
    """Sum of log-softmax values along ``path``, every prefix run through the chain alone."""
    chain = torch.tensor([*path, *[0] * block.drafts])[: block.drafts]
    logits = corrected_logits(stack.head, block, chain)
    total = 0.0
    for depth, token in enumerate(path):
        row = logits[depth] if full else logits[depth][candidates[depth]]
        place = token if full else candidates[depth].tolist().index(token)
        total += float(torch.log_softmax(row, -1)[place])
    return total


@pytest.mark.parametrize("head", ["domino", "markov", "none"])
@pytest.mark.parametrize("normalise", ["candidates", "vocabulary"])
def test_expansion_equals_a_naive_beam(head, normalise):
    stack = random_stack(head=head)
    block = block_of(stack)
    settings = TreeSettings(width=4, candidates=5, budget=64, normalise=normalise)
    grown = grow_supertree(block, stack.head, settings)
    tree, candidates = grown.supertree, grown.candidates
    full = normalise == "vocabulary"
    assert grown.head_calls == block.drafts
    beam = [()]
    for depth in range(1, block.drafts + 1):
        order = np.argsort(-block.base_logits[depth - 1].numpy(), kind="stable")[:5]
        assert candidates[depth - 1].tolist() == order.tolist()
        scored = {
            (*path, int(t)): path_score(stack, block, (*path, int(t)), candidates, full)
            for path in beam
            for t in order
        }
        beam = sorted(scored, key=lambda p: -scored[p])[:4]
        mine = [p for p in tree.path_tokens() if len(p) == depth]
        assert mine == beam
        scores = tree.scores[tree.depths == depth]
        np.testing.assert_allclose(scores, [scored[p] for p in beam], atol=1e-4)


@pytest.mark.parametrize(
    ("width", "candidates", "depth"),
    [(1, 1, None), (12, 1, None), (1, 64, None), (200, 3, 2), (5, 10**6, 3), (10**6, 2, 3)],
)
def test_corners(width, candidates, depth):
    stack = random_stack()
    block = block_of(stack)
    settings = TreeSettings(width=width, candidates=candidates, depth=depth)
    tree = grow_supertree(block, stack.head, settings).supertree
    rows = 1
    for level in range(1, (depth or block.drafts) + 1):
        rows = min(width, rows * min(candidates, VOCABULARY))
        assert (tree.depths == level).sum() == rows


def test_width_one_with_the_whole_vocabulary_is_the_domino_chain():
    stack = random_stack()
    block = block_of(stack)
    n = block.drafts
    settings = TreeSettings(width=1, candidates=10**6, budget=n, depth_penalty=0.0)
    ours = TABLE["dartree"].propose(block, stack.head, settings, Clock()).tree
    chain = TABLE["domino"].propose(block, stack.head, settings, Clock()).tree
    assert ours.tokens.tolist() == chain.tokens.tolist()
    np.testing.assert_allclose(ours.scores, chain.scores, atol=1e-4)


def test_a_wide_beam_contains_the_best_tree_of_all_paths():
    """W = B loses nothing: DARTree is then the exact best-first tree (heap, brute force)."""
    stack = random_stack(block_size=3)
    block = block_of(stack)
    budget = 9
    settings = TreeSettings(width=budget, candidates=4, budget=budget, depth_penalty=0.1)
    ours = TABLE["dartree"].propose(block, stack.head, settings, Clock()).tree
    heap = TABLE["heap"].propose(block, stack.head, settings, Clock())
    candidates = top_candidates(block.base_logits.float(), 4)
    scores = {}
    for length in range(1, 4):
        for path in itertools.product(*(candidates[d].tolist() for d in range(length))):
            scores[path] = path_score(stack, block, path, candidates, False) - 0.1 * length
    best = sorted(scores, key=lambda p: -scores[p])[:budget]
    assert set(ours.path_tokens()) == set(best) == set(heap.tree.path_tokens())


def test_heap_calls_the_head_once_per_expanded_node():
    stack = random_stack()
    block = block_of(stack)
    settings = TreeSettings(budget=7)
    proposal = TABLE["heap"].propose(block, stack.head, settings, Clock())
    tree = proposal.tree
    # The root, and every popped node but the last, unless it lies at the last depth.
    expanded = 1 + sum(int(d) < block.drafts for d in tree.depths[:-1])
    assert proposal.head_calls == expanded


@pytest.mark.parametrize(
    ("budget", "depth", "want"),
    [
        (64, 16, [4] * 16),
        (64, 15, [5] * 4 + [4] * 11),
        (3, 16, [1, 1, 1]),
        (1, 1, [1]),
        (7, 2, [4, 3]),
    ],
)
def test_fixed_quotas(budget, depth, want):
    assert fixed_quotas(budget, depth) == want


def test_fixed_spends_the_budget_without_pruning():
    stack = random_stack()
    block = block_of(stack)
    for budget in (1, 3, 8, 20):
        settings = TreeSettings(budget=budget, depth_penalty=5.0)
        proposal = TABLE["dartree-fixed"].propose(block, stack.head, settings, Clock())
        assert len(proposal.tree) == budget == len(proposal.supertree)
        assert proposal.head_calls == min(budget, block.drafts)


@pytest.mark.parametrize("method", ["dartree", "heap", "ddtree", "domino-ddtree", "dartree-fixed"])
def test_score_temperature_divides_the_logits(method):
    """A stack whose logits are all doubled, at score temperature 2, grows the same tree."""
    stack = random_stack()
    settings = dict(width=4, candidates=6, budget=9)
    block = block_of(stack)
    want = TABLE[method].propose(block, stack.head, TreeSettings(**settings), Clock()).tree
    block.base_logits = 2 * block.base_logits
    stack.head.embed_proj[2].weight.data *= 2
    hot = TreeSettings(**settings, score_temperature=2.0)
    got = TABLE[method].propose(block, stack.head, hot, Clock()).tree
    assert got.path_tokens() == want.path_tokens()
    np.testing.assert_allclose(got.scores, want.scores, atol=1e-5)


def test_equal_logits_keep_the_smaller_ids_first():
    ids = top_candidates(torch.tensor([[0.0, 2.0, 2.0, 1.0, 2.0]]), 4)
    assert ids.tolist() == [[1, 2, 4, 3]]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(-1, 1), min_size=5, max_size=5), min_size=3, max_size=3),
    st.integers(1, 7),
    st.integers(1, 6),
)
def test_equal_path_scores_go_to_the_smaller_row_and_candidate(rows, width, candidates):
    logits = torch.tensor(rows, dtype=torch.float32)  # [3, 5], nearly everything is tied
    block = Block(0, 0, torch.zeros(3, 2), logits)
    grown = grow_supertree(block, NoCorrection(), TreeSettings(width=width, candidates=candidates))
    paths, want = [((), np.float32(0))], []  # plain Python, level by level
    for row, ids in zip(rows, grown.candidates.tolist(), strict=True):
        assert ids == sorted(ids, key=lambda i: (-row[i], i))
        logps = torch.log_softmax(torch.tensor([row[i] for i in ids]).float(), 0).numpy()
        below = [
            ((*path, i), np.float32(score + logp))
            for path, score in paths
            for i, logp in zip(ids, np.minimum(logps, 0), strict=True)
        ]
        paths = sorted(below, key=lambda entry: -entry[1])[:width]  # Python's sort is stable
        want += [path for path, _ in paths]
    assert grown.supertree.path_tokens() == want


def test_normalisers_agree_where_all_tokens_are_candidates():
    """Over fewer candidates a conditional can only be larger than over the vocabulary."""
    stack = random_stack()
    block = block_of(stack)
    for candidates in (VOCABULARY, 7):
        one, all_ = (
            grow_supertree(
                block, stack.head, TreeSettings(width=3, candidates=candidates, normalise=n)
            )
            for n in ("candidates", "vocabulary")
        )
        first, second = one.supertree.scores[:3], all_.supertree.scores[:3]
        if candidates == VOCABULARY:
            np.testing.assert_allclose(one.supertree.scores, all_.supertree.scores, atol=1e-5)
            assert one.supertree.tokens.tolist() == all_.supertree.tokens.tolist()
        else:
            assert (first > second).all()
