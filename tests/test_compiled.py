"""The compiled target: the same logits, the same cache, the same text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import dartree
from dartree.compiled import CompiledTarget, compiled_stack
from dartree.target import tree_rows
from tests.reference import prompt, random_stack
from tests.test_tree import random_tree

ROWS = 12


@pytest.fixture(scope="module")
def pair():
    stack = random_stack(dtype=torch.float32)
    return stack.target, CompiledTarget(stack.target, ROWS)


def test_verify_and_commit_are_those_of_the_eager_target(pair):
    eager, compiled = pair
    ids = torch.tensor(prompt(9))
    caches = [t.new_cache(64) for t in (eager, compiled)]
    for target, cache in zip((eager, compiled), caches, strict=True):
        target.prefill(cache, ids)
    for seed, nodes in ((0, 11), (1, 3), (2, 7)):  # a smaller tree after a larger one
        tree = random_tree(np.random.default_rng(seed), nodes)
        rows = tree_rows(eager, tree, anchor=5, past=caches[0].length)
        one, two = (t.verify(c, rows) for t, c in zip((eager, compiled), caches, strict=True))
        torch.testing.assert_close(two.logits, one.logits, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(two.features, one.features, atol=2e-5, rtol=1e-4)
        for cache in caches:
            cache.commit(torch.tensor([0, 2]))
        for a, b in zip(caches[0].rows(), caches[1].rows(), strict=True):
            torch.testing.assert_close(b, a, atol=2e-5, rtol=1e-4)
    assert "compiled in" in compiled.report


def test_more_rows_than_the_graph_has_are_refused(pair):
    eager, compiled = pair
    cache = compiled.new_cache(64)
    compiled.prefill(cache, torch.tensor(prompt(4)))
    rows = tree_rows(eager, random_tree(np.random.default_rng(0), ROWS), anchor=5, past=4)
    with pytest.raises(ValueError, match=f"at most {ROWS}"):
        compiled.verify(cache, rows)


@pytest.mark.parametrize("method", ["dartree", "ddtree"])
def test_a_compiled_stack_writes_the_same_text(method):
    stack = random_stack(dtype=torch.float32)
    settings = dartree.TreeSettings(width=3, candidates=5, budget=ROWS - 1)
    plain = dartree.generate(stack, prompt(6), method="ar", max_new_tokens=20, stop=[])
    fast = compiled_stack(stack, ROWS)
    for name in ("ar", method):
        out = dartree.generate(
            fast, prompt(6), method=name, settings=settings, max_new_tokens=20, stop=[]
        )
        assert out.token_ids == plain.token_ids
