"""The compiled target: the same logits, the same cache, the same text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import dartree
from dartree import compiled as module
from dartree.compiled import (
    ROW_COUNTS,
    CompiledDrafter,
    CompiledHead,
    CompiledTarget,
    compiled_stack,
    report,
    why_not,
)
from dartree.packed import pack
from dartree.supertree import grow_supertree
from dartree.target import TreeRows, tree_rows
from tests.reference import prompt, random_stack
from tests.test_tree import random_tree

works = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.mark.parametrize("parts", ["all", "head"])
def test_where_it_cannot_work_a_sentence_says_why(parts, monkeypatch):
    monkeypatch.setattr(module.torch, "__file__", "/a b/torch/__init__.py")
    with pytest.raises(ValueError, match="path without blanks"):
        compiled_stack(random_stack(), parts)
    monkeypatch.setattr(module.torch, "__file__", "/ab/torch/__init__.py")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match="C\\+\\+ compiler"):
        compiled_stack(random_stack(), parts)


@pytest.fixture(scope="module")
def pair():
    stack = random_stack(dtype=torch.float32)
    return stack.target, CompiledTarget(stack.target)


@works
def test_verify_and_commit_are_those_of_the_eager_target(pair):
    eager, compiled = pair
    ids = torch.tensor(prompt(9))
    caches = [t.new_cache(64) for t in (eager, compiled)]
    for target, cache in zip((eager, compiled), caches, strict=True):
        target.prefill(cache, ids)
    for seed, nodes in ((0, 16), (1, 3), (2, 7)):  # a smaller tree after a larger one
        tree = random_tree(np.random.default_rng(seed), nodes)
        rows = tree_rows(eager, tree, anchor=5, past=caches[0].length)
        one, two = (t.verify(c, rows) for t, c in zip((eager, compiled), caches, strict=True))
        assert bool(torch.isfinite(two.logits).all())  # no row is hidden from itself
        torch.testing.assert_close(two.logits, one.logits, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(two.features, one.features, atol=2e-5, rtol=1e-4)
        for cache in caches:
            cache.commit(torch.tensor([0, 2]))
        for a, b in zip(caches[0].rows(), caches[1].rows(), strict=True):
            torch.testing.assert_close(b, a, atol=2e-5, rtol=1e-4)
    assert list(compiled.graphs.seconds) == [(17, 512)]


@works
def test_a_static_cache_grows_in_whole_steps_and_keeps_its_rows(pair):
    _, compiled = pair
    cache = compiled.new_cache(200)
    assert cache.capacity == 512
    compiled.prefill(cache, torch.tensor(prompt(9)))
    before = [t.clone() for t in cache.rows()]
    cache.reserve(513)
    assert cache.capacity == 1024 and all(
        not t[:, :, 9:].any() for pair in cache._layers for t in pair
    )
    assert all(torch.equal(a, b) for a, b in zip(before, cache.rows(), strict=True))


def test_a_tree_beyond_the_largest_graph_is_refused(pair):
    eager, compiled = pair
    cache = compiled.new_cache(64)
    compiled.prefill(cache, torch.tensor(prompt(4)))
    tree = random_tree(np.random.default_rng(0), ROW_COUNTS[-1])
    rows = tree_rows(eager, tree, anchor=5, past=4)
    with pytest.raises(ValueError, match="at most 256 nodes, got 257: the budget must be smaller"):
        compiled.verify(cache, rows)


def test_several_rows_need_a_mask(pair):
    rows = TreeRows(torch.tensor([5, 6, 7]), torch.tensor([4, 5, 6]), None)
    for target in pair:
        cache = target.new_cache(64)
        target.prefill(cache, torch.tensor(prompt(4)))
        with pytest.raises(ValueError, match=r"mask must have shape \(1, 1, 3, 7\), got None"):
            target.verify(cache, rows)


@pytest.mark.parametrize("parts", ["all", "head"])
def test_graphs_of_the_target_do_not_count_as_packed(eager_graphs, parts):
    stack = eager_graphs(replace(random_stack(dtype=torch.float32), packed=True), parts)
    out = dartree.generate(stack, prompt(5), max_new_tokens=2)
    assert stack.packed is out.packed is (parts == "head")
    assert module.compiled_parts(stack) == parts


def test_a_mask_made_in_inference_mode_serves_outside_of_it(eager_graphs):
    """Generation runs in that mode, a single step does not."""
    stack, tree = eager_graphs(random_stack(dtype=torch.float32)), dartree.DraftTree.empty()
    with torch.inference_mode():
        inside = dartree.verify(stack, prompt(5), tree)
    assert torch.equal(dartree.verify(stack, prompt(5), tree), inside)


@works
def test_a_compiled_drafter_gives_the_same_blocks():
    stack = random_stack(dtype=torch.float32)
    fast = CompiledDrafter(stack.drafter)
    caches = stack.drafter.new_cache(), fast.new_cache()
    generator = torch.Generator().manual_seed(0)
    width = len(stack.drafter.config.target_layer_ids) * stack.drafter.config.hidden_size
    for count in (5, 1, 509):  # the last one needs a larger buffer
        features = torch.randn(count, width, generator=generator)
        block = torch.randn(1, stack.drafter.config.block_size, stack.drafter.config.hidden_size)
        one, two = ((c.absorb(features), c.forward_block(block))[1] for c in caches)
        torch.testing.assert_close(two, one, atol=2e-5, rtol=1e-4)
    assert list(fast.graphs.seconds) == [512, 1024] and fast.config is stack.drafter.config


@works
@pytest.mark.parametrize("table", [True, False])
def test_a_compiled_head_grows_the_same_supertree(monkeypatch, table):
    monkeypatch.setattr("dartree.heads.TABLE_BYTES", 2**20 if table else 0)
    stack = random_stack(head="domino", dtype=torch.float32)
    fast = CompiledHead(stack.head)
    settings = dartree.TreeSettings(width=3, candidates=4, depth=3)
    for seed in (1, 2):  # the anchor is an input of the graph, not a constant
        block = dartree.draft(stack, prompt(5, seed))
        one, two = (grow_supertree(block, head, settings).supertree for head in (stack.head, fast))
        assert two.path_tokens() == one.path_tokens()
        np.testing.assert_allclose(two.scores, one.scores, atol=1e-5)
    assert len(fast.graphs.seconds) == 1 and fast.name == "domino"


@works
def test_there_may_be_more_graphs_than_torch_compile_allows_for_one_function(monkeypatch):
    real = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, options, **kinds: real(f, backend="eager", **kinds)
    )
    made, limit = module.Graphs(), torch._dynamo.config.recompile_limit
    for size in range(2, limit + 5):
        weight = torch.ones(size)

        def scaled(x, weight=weight):
            return x * weight.shape[0]

        class Scaler:
            def __init__(self, by):
                self.by = by

            def scale(self, x):
                return x * self.by

        for name, function in (("method", Scaler(size).scale), ("function", scaled)):
            for _ in range(2):
                out = made.run((name, size), function, torch.ones(size))
                assert torch.equal(out, torch.full((size,), float(size)))
    assert len(made.seconds) == 2 * (limit + 3)


@works
@pytest.mark.long
@pytest.mark.parametrize("head", ["markov", "none"])
@pytest.mark.parametrize("normalise", ["candidates", "vocabulary"])
def test_other_heads_compile_too(head, normalise):
    stack = random_stack(head=head, dtype=torch.float32)
    settings = dartree.TreeSettings(width=3, candidates=4, depth=2, normalise=normalise)
    block = dartree.draft(stack, prompt(5))
    one, two = (grow_supertree(block, h, settings) for h in (stack.head, CompiledHead(stack.head)))
    assert two.supertree.path_tokens() == one.supertree.path_tokens()
    np.testing.assert_allclose(two.supertree.scores, one.supertree.scores, atol=1e-5)


@works
@pytest.mark.long
@pytest.mark.parametrize("method", ["dartree", "ddtree"])
def test_a_compiled_stack_writes_the_same_text(method):
    stack = random_stack(dtype=torch.float32)
    settings = dartree.TreeSettings(width=3, candidates=5, budget=16)
    plain = dartree.generate(stack, prompt(6), method="ar", max_new_tokens=20, stop=[])
    assert pack([stack.target.model, stack.drafter])
    fast = compiled_stack(stack)
    for name in ("ar", method):
        out = dartree.generate(
            fast, prompt(6), method=name, settings=settings, max_new_tokens=20, stop=[]
        )
        assert out.token_ids == plain.token_ids
    said = report(fast)
    assert "target 1 in " in said and ("head 1 in " in said) == (method == "dartree")


@works
def test_the_head_alone():
    stack = random_stack(dtype=torch.float32)
    fast = compiled_stack(stack, "head")
    assert fast.target is stack.target and fast.drafter is stack.drafter
    assert isinstance(fast.head, CompiledHead) and "nothing yet" in report(fast)


def test_a_compiled_head_that_corrects_nothing_is_none(monkeypatch):
    monkeypatch.setattr(module, "why_not", lambda: None)
    stack = random_stack(head="none", dtype=torch.float32)
    fast = compiled_stack(stack, "head")
    for method in ("dflash", "dartree"):
        one, two = stack.pairing(method), fast.pairing(method)
        assert (one.label, one.lacks_head) == (two.label, two.lacks_head)
