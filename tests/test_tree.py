"""Draft trees: invariants, masks, paths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dartree.tree import DraftTree


def random_tree(rng: np.random.Generator, count: int, shape: str = "random") -> DraftTree:
    """A valid tree of ``count`` nodes; distinct tokens everywhere."""
    parents, depths = [], []
    for node in range(1, count + 1):
        parent = {
            "chain": node - 1,
            "star": 0,
            "comb": max(0, node - 2) if node % 2 else node - 1,
            "random": int(rng.integers(0, node)),
        }[shape]
        parents.append(parent)
        depths.append(1 + (depths[parent - 1] if parent else 0))
    tokens = rng.permutation(max(97, count))[:count]
    return DraftTree(tokens, parents, depths, -np.arange(count))


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.integers(0, 64), st.sampled_from(["chain", "star", "comb", "random"]), st.integers(0, 999)
)
def test_ancestor_mask_is_the_walk_to_the_root(count, shape, seed):
    tree = random_tree(np.random.default_rng(seed), count, shape)
    mask = tree.ancestor_mask()
    for node in range(count + 1):
        assert set(np.flatnonzero(mask[node])) == {0, node, *tree.path(node)}


def test_paths_children_and_conditionals():
    tree = DraftTree([5, 6, 7, 5], [0, 1, 1, 3], [1, 2, 2, 3], [-1.0, -1.5, -3.0, -3.25])
    assert tree.path_tokens() == [(5,), (5, 6), (5, 7), (5, 7, 5)]
    assert tree.child(1, 7) == 3 and tree.child(1, 9) == 0 and tree.child(0, 5) == 1
    np.testing.assert_allclose(tree.conditionals(), [-1.0, -0.5, -2.0, -0.25])
    assert len(DraftTree.empty()) == 0 and DraftTree.empty().ancestor_mask().tolist() == [[True]]
    again = DraftTree.from_dict(tree.to_dict())
    assert again.path_tokens() == tree.path_tokens()


@pytest.mark.parametrize(
    ("parents", "depths", "tokens", "words"),
    [
        ([1, 0], [1, 1], [1, 2], "earlier node"),  # names itself
        ([2, 0], [2, 1], [1, 2], "earlier node"),  # names a later node
        ([-1, 0], [1, 1], [1, 2], "earlier node"),
        ([0, 1], [1, 3], [1, 2], "depths"),
        ([0, 0], [1, 1], [4, 4], "siblings"),
        ([0, 0], [1, 1], [4], "one length"),
    ],
)
def test_malformed_trees_are_refused(parents, depths, tokens, words):
    with pytest.raises(ValueError, match=words):
        DraftTree(tokens, parents, depths, np.zeros(len(parents)))


@pytest.mark.parametrize("name", ["tokens", "parents", "depths"])
@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf"), 1e30])
def test_fractions_are_not_cut_off(name, value):
    good = {"tokens": [4.0], "parents": [0.0], "depths": [1.0], "scores": [-1]}
    assert DraftTree(**good).tokens.dtype == np.int64
    with pytest.raises(ValueError, match=f"{name} must be whole numbers, got"):
        DraftTree(**(good | {name: [value]}))


def test_scores_are_numbers_or_minus_infinity():
    assert DraftTree([4], [0], [1], [-np.inf]).scores[0] == -np.inf
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="scores must not be NaN or .inf: node 2 has"):
            DraftTree([4, 5], [0, 1], [1, 2], [-1.0, value])


def test_a_built_tree_still_has_its_scores_checked():
    one = np.ones(1, dtype=np.int64)
    with pytest.raises(ValueError, match="scores must not be NaN"):
        DraftTree.built(one, one - 1, one, np.full(1, np.nan, dtype=np.float32))
