"""Top-B against the heap, brute force, ties and Lemma 1."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree.pruning import best_first, grow_best_first, pruning_scores, top_b, top_b_nodes
from dartree.tree import Supertree


def random_supertree(rng: np.random.Generator, depth: int, width: int, tied: bool) -> Supertree:
    """Depth-major supertree; ``tied`` draws conditionals from {0, -1}: certain children, ties."""
    tokens, parents, depths, scores = [], [], [], []
    frontier = [(0, 0.0)]
    number = 1
    for level in range(1, depth + 1):
        children = []
        for parent, score in frontier:
            for token in range(rng.integers(1, 4)):
                step = -float(rng.integers(0, 2)) if tied else -float(rng.exponential())
                children.append((score + step, parent, token))
        children.sort(key=lambda c: -c[0])
        frontier = []
        for score, parent, token in children[:width]:
            tokens.append(token)
            parents.append(parent)
            depths.append(level)
            scores.append(score)
            frontier.append((number, np.float32(score)))
            number += 1
    return Supertree(tokens, parents, depths, scores)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 6), st.booleans(),
    st.integers(1, 40), st.sampled_from([0.0, 0.2, 1.0]),
)  # fmt: skip
def test_top_b_is_the_heap(seed, depth, width, tied, budget, penalty):
    supertree = random_supertree(np.random.default_rng(seed), depth, width, tied)
    ours, heap = top_b(supertree, budget, penalty), best_first(supertree, budget, penalty)
    assert ours.path_tokens() == heap.path_tokens()
    assert len(ours) == min(budget, len(supertree))


@pytest.mark.parametrize("seed", range(20))
def test_top_b_is_the_best_subtree_by_brute_force(seed):
    """Among all prefix-closed sets of B nodes none has a larger sum of f."""
    supertree = random_supertree(np.random.default_rng(seed), 3, 3, tied=False)
    f = pruning_scores(supertree, 0.3)
    count = len(supertree)
    for budget in range(1, count + 1):
        best = -np.inf
        for nodes in itertools.combinations(range(1, count + 1), budget):
            if all(supertree.parents[n - 1] in (0, *nodes) for n in nodes):
                best = max(best, sum(f[n - 1] for n in nodes))
        kept = top_b_nodes(supertree, budget, 0.3)
        assert sum(f[n - 1] for n in kept) == pytest.approx(best)


def test_certain_children_keep_their_parents():
    """All conditionals 1, penalty 0: every score ties, ancestors must win."""
    supertree = Supertree([1, 2, 3, 4], [0, 1, 2, 3], [1, 2, 3, 4], np.zeros(4))
    for budget in range(1, 5):
        assert top_b(supertree, budget, 0.0).tokens.tolist() == [1, 2, 3, 4][:budget]


def test_a_bonus_is_refused_because_it_orphans_nodes():
    supertree = Supertree([1, 2, 3], [0, 0, 2], [1, 1, 2], [-1.0, -1.2, -1.3])
    with pytest.raises(ValueError, match="depth_penalty.*-0.5: below, a node can outrank"):
        top_b(supertree, 1, -0.5)
    # With a bonus of 0.5 per level node 3 has the best f, but its parent has the worst.
    f = pruning_scores(supertree, -0.5)
    assert int(np.argmax(f)) == 2
    assert best_first(supertree, 1, -0.5).tokens.tolist() == [1]


@pytest.mark.parametrize("budget", [0, -1, 1.5, "4", True, float("nan")])
def test_bad_budget(budget):
    supertree = Supertree([1], [0], [1], [-1.0])
    with pytest.raises(ValueError, match="budget"):
        top_b(supertree, budget, 0.0)


def test_lazy_growth_equals_the_full_enumeration():
    """On a factorised table, sibling by sibling growth gives the B best of all paths."""
    rng = np.random.default_rng(3)
    table = np.sort(np.log(rng.dirichlet(np.ones(4), size=3)), axis=1)[:, ::-1]
    paths = {
        path: sum(table[d, t] for d, t in enumerate(path)) - 0.1 * len(path)
        for length in (1, 2, 3)
        for path in itertools.product(range(4), repeat=length)
    }
    best = sorted(paths, key=lambda p: -paths[p])

    def children(depth, token, state):
        return ((range(4), table[depth].tolist()) if depth < 3 else None), None

    for budget in (1, 5, 30, 84, 100):
        tree = grow_best_first(children, budget, 0.1)
        assert set(tree.path_tokens()) == set(best[:budget])


@pytest.mark.parametrize("build", [top_b, best_first])
def test_what_is_no_supertree_or_no_penalty_is_refused(build):
    tree = Supertree([1], [0], [1], [-0.5])
    with pytest.raises(ValueError, match="supertree must be a DraftTree, got NoneType"):
        build(None, 4, 0.0)
    for value in (None, float("nan"), float("inf"), "0.1"):
        with pytest.raises(ValueError, match="depth_penalty must be"):
            build(tree, 4, value)
