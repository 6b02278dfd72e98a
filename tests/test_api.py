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
    tree, far = dartree.ddtree(block, 5), dartree.DraftTree([97], [0], [1], [0.0])
    other = dartree.Block(3, 6, block.hidden, block.base_logits[:, :50])
    for call, words in (
        (lambda: dartree.draft(stack, []), "empty"),
        (lambda: dartree.draft(stack, prompt(129)), "context of 128 tokens, got 129 ids"),
        (lambda: dartree.verify(stack, prompt(128), tree), "context of 128 tokens, got 128 ids"),
        (lambda: dartree.corrected_logits(stack, block, prompt(n + 1)), "5 or 6 ids, got 7"),
        (lambda: dartree.corrected_logits(stack, block, prompt(n - 2)), "5 or 6 ids, got 4"),
        (lambda: dartree.corrected_logits(stack, block, [-1] * n), "got -1"),
        (lambda: dartree.expand(stack, block, {}), "settings must be a TreeSettings"),
        (lambda: dartree.ddtree(block, 0), "budget must be"),
        (lambda: dartree.ddtree(block, 10**9), "budget must be at most 8192"),
        (lambda: dartree.ddtree(None, 4), "block must be a Block, got NoneType"),
        (lambda: dartree.draft(None, [1]), "stack must be a Stack, got NoneType"),
        (lambda: dartree.draft(stack, "hi"), "ids must be a list of token ids, got str"),
        (lambda: dartree.draft(stack, None), "ids must be a list of token ids, got NoneType"),
        (lambda: dartree.draft(stack, [1.5]), "ids must hold integers alone, got 1.5"),
        (lambda: dartree.draft(stack, [97]), "ids must lie in 0..96, got 97"),
        (lambda: dartree.draft(stack, [1], "dflash"), "pairing must be a Pairing, got str"),
        (lambda: dartree.draft(stack, [1], stack.pairing("ar")), "pairing must have a drafter"),
        (lambda: dartree.corrected_logits(stack, None, [1] * n), "block must be a Block"),
        (lambda: dartree.corrected_logits(stack, block, None), "draft_ids must be a list"),
        (lambda: dartree.corrected_logits(stack, block, "ab"), "draft_ids must be a list"),
        (lambda: dartree.expand(stack, None), "block must be a Block"),
        (lambda: dartree.expand(stack, other), "block must be of this stack"),
        (lambda: dartree.expand(stack, block, dartree.TreeSettings(10**6)), "width must be sm"),
        (lambda: dartree.verify(stack, [1], None), "tree must be a DraftTree, got NoneType"),
        (lambda: dartree.verify(stack, None, tree), "ids must be a list of token ids"),
        (lambda: dartree.verify(stack, [1], far), "tree tokens must lie in 0..96, got 97"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
