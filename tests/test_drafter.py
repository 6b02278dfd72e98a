"""The drafter: cached and cache-free paths, bidirectional block, alignment."""

from __future__ import annotations

import pytest
import torch

import dartree
from dartree.decode import draft_block
from dartree.drafter import DrafterCache
from tests.reference import prompt, random_stack


def test_cached_block_equals_the_cache_free_forward():
    """Context absorbed in three portions against one forward over all of it."""
    stack = random_stack()
    drafter, target = stack.drafter, stack.target
    ids, anchor = torch.tensor(prompt(12)), 9
    features = target.prefill(target.new_cache(12), ids).features
    cache = DrafterCache(drafter)
    for part in features.split([5, 1, 6]):
        cache.absorb(part)
        draft_block(stack.main, cache, anchor)  # a block in between must leave no trace
    got = draft_block(stack.main, cache, anchor)
    block_ids = drafter.block_ids(anchor, target.device)
    positions = torch.arange(12, 12 + block_ids.shape[1])[None]
    with torch.no_grad():
        embeddings = target.embedding[block_ids]
        want = drafter(embeddings, drafter.fuse(features)[None], positions, torch.arange(12))
    torch.testing.assert_close(got.hidden, want[0], atol=1e-9, rtol=1e-9)


def test_the_block_is_bidirectional():
    stack = random_stack()
    drafter, target = stack.drafter, stack.target
    features = target.prefill(target.new_cache(4), torch.tensor(prompt(4))).features
    embeddings = target.embedding[drafter.block_ids(3, target.device)].clone()
    cache = DrafterCache(drafter)
    cache.absorb(features)
    before = cache.forward_block(embeddings).clone()
    embeddings[0, -1] += 1.0
    after = cache.forward_block(embeddings)
    assert (before[0] - after[0]).abs().max() > 1e-6


@pytest.mark.parametrize("shift", [True, False])
def test_alignment(shift):
    """shift_label: n = L drafts from row 0 on; else n = L - 1 and row 0 is discarded."""
    stack = random_stack(shift_label=shift, block_size=6)
    block = dartree.draft(stack, prompt(5))
    assert block.drafts == (6 if shift else 5)
    cache = DrafterCache(stack.drafter)
    ids = torch.tensor(prompt(5))
    cache.absorb(stack.target.prefill(stack.target.new_cache(5), ids[:-1]).features)
    rows = cache.forward_block(stack.target.embedding[stack.drafter.block_ids(int(ids[-1]), "cpu")])
    torch.testing.assert_close(block.hidden, rows if shift else rows[1:])


def test_the_anchor_enters_slot_zero_and_masks_fill_the_rest(monkeypatch):
    stack = random_stack()
    seen = []
    original = type(stack.drafter).block_ids

    def record(self, anchor, device):
        ids = original(self, anchor, device)
        seen.append(ids[0].tolist())
        return ids

    monkeypatch.setattr(type(stack.drafter), "block_ids", record)
    out = dartree.generate(stack, prompt(5), max_new_tokens=12, stop=[])
    anchors = [r.anchor for r in out.records]
    mask = stack.drafter.config.mask_token_id
    assert [row[0] for row in seen] == anchors
    assert all(row[1:] == [mask] * 5 for row in seen)
    committed = [out.token_ids[0]]
    for record_ in out.records:
        assert record_.anchor == committed[-1]
        committed += record_.committed


def test_one_id_is_enough_to_draft_from():
    stack = random_stack()
    block = dartree.draft(stack, [4])
    assert block.position == 0 and torch.isfinite(block.base_logits).all()
