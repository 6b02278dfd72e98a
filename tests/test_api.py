"""The stateless steps: shapes, checks, agreement with the loop."""

from __future__ import annotations

import pytest
import torch

import dartree
from tests.reference import causal_logits, prompt, random_stack


def test_the_steps_give_the_first_round_of_the_loop():
    stack, settings = random_stack(), dartree.TreeSettings(width=4, candidates=6, budget=9)
    out = dartree.generate(stack, prompt(7), settings=settings, max_new_tokens=12, stop=[])
    record, ids = out.records[0], [*prompt(7), out.token_ids[0]]
    block = dartree.draft(stack, ids)
    supertree = dartree.expand(stack, block, settings)
    tree = dartree.top_b(supertree, 9, settings.depth_penalty)
    assert (block.anchor, block.position) == (record.anchor, record.position)
    assert supertree.path_tokens() == record.supertree.path_tokens()
    assert tree.path_tokens() == record.tree.path_tokens()
    logits = dartree.verify(stack, ids, tree)
    assert logits.argmax(-1).tolist() == record.target_tokens.tolist()
    want = causal_logits(stack.target.model, ids)[-1]
    torch.testing.assert_close(logits[0], want, atol=1e-9, rtol=1e-9)


def test_shapes():
    stack = random_stack()
    block = dartree.draft(stack, prompt(7))
    n, vocabulary = block.drafts, stack.target.vocab_size
    assert block.base_logits.shape == (n, vocabulary)
    assert dartree.corrected_logits(stack, block, prompt(n)).shape == (n, vocabulary)
    assert len(dartree.ddtree(block, 11)) == 11


def test_bad_arguments():
    stack = random_stack()
    block, n = dartree.draft(stack, prompt(7)), 6
    tree = dartree.ddtree(block, 5)
    for call, words in (
        (lambda: dartree.draft(stack, []), "empty"),
        (lambda: dartree.draft(stack, prompt(129)), "context of 128 tokens, got 129 ids"),
        (lambda: dartree.verify(stack, prompt(128), tree), "context of 128 tokens, got 128 ids"),
        (lambda: dartree.corrected_logits(stack, block, prompt(n + 1)), "5 or 6 ids, got 7"),
        (lambda: dartree.corrected_logits(stack, block, prompt(n - 2)), "5 or 6 ids, got 4"),
        (lambda: dartree.corrected_logits(stack, block, [-1] * n), "got -1"),
        (lambda: dartree.expand(stack, block, {}), "settings must be TreeSettings"),
        (lambda: dartree.ddtree(block, 0), "budget"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
