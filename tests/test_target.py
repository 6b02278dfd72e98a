"""The target: cache, features, tree verification against plain runs."""

from __future__ import annotations

import dataclasses
import gc
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import dartree
from dartree.checks import CheckpointError
from dartree.target import Target, tree_rows
from dartree.tree import DraftTree
from tests.reference import causal_logits, prompt, random_model
from tests.test_tree import random_tree

CLOSE = dict(atol=1e-9, rtol=1e-9)
# transformers' eager attention takes its softmax in fp32 whatever the dtype of the model.
BY_ATTENTION = {"sdpa": CLOSE, "eager": dict(atol=1e-5, rtol=1e-4)}


def fresh(target, ids):
    cache = target.new_cache(len(ids))
    return cache, target.prefill(cache, torch.tensor(ids))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("shape", "count"),
    [("chain", 16), ("star", 12), ("comb", 17), ("random", 1), ("random", 40), ("random", 200)],
)
def test_node_logits_equal_a_plain_run_per_path(attention, shape, count):
    model = random_model(attention=attention, vocab_size=256)
    target = Target(model, (0, 2))
    ids, anchor = prompt(11), 7
    tree = random_tree(np.random.default_rng(count), count, shape)
    cache, _ = fresh(target, ids)
    logits = target.verify(cache, tree_rows(target, tree, anchor, len(ids))).logits
    nodes = np.unique(np.linspace(0, count, 12).astype(int))
    for node in nodes:
        path = [int(tree.tokens[n - 1]) for n in tree.path(int(node))]
        want = causal_logits(model, [*ids, anchor, *path])[-1]
        torch.testing.assert_close(logits[node], want, **BY_ATTENTION[attention])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_cache_and_features_after_commits_equal_a_fresh_prefill(attention):
    """Three rounds with accepted rows that are not contiguous: 0, 2, 5 and so on."""
    model = random_model(attention=attention)
    target = Target(model, (0, 2))
    ids = prompt(6)
    cache, output = fresh(target, ids)
    features, committed, anchor = [output.features], list(ids), 5
    tree = DraftTree(
        [1, 2, 3, 4, 6, 8], [0, 0, 1, 2, 2, 5], [1, 1, 2, 2, 2, 3], np.zeros(6)
    )  # nodes 2 -> 5 -> 6 are rows 2, 5, 6
    for rows in ([0, 2, 5], [0], [0, 2, 5, 6]):
        verified = target.verify(cache, tree_rows(target, tree, anchor, cache.length))
        cache.commit(torch.tensor(rows))
        features.append(verified.features[rows])
        committed += [anchor, *(int(tree.tokens[r - 1]) for r in rows[1:])]
    again, output = fresh(target, committed)
    for ours, theirs in zip(cache.rows(), again.rows(), strict=True):
        torch.testing.assert_close(ours, theirs, **BY_ATTENTION[attention])
    close = BY_ATTENTION[attention]
    torch.testing.assert_close(torch.cat(features), output.features, **close)


def test_rows_may_cross_while_they_are_compacted():
    target = Target(random_model())
    ids = prompt(4)
    cache, _ = fresh(target, ids)
    tree = DraftTree([1, 2, 3], [0, 0, 0], [1, 1, 1], np.zeros(3))
    target.verify(cache, tree_rows(target, tree, 9, 4))
    before = cache._data[..., 4:8, :].clone()
    cache.commit(torch.tensor([3, 0, 1]))
    assert torch.equal(cache._data[..., 4:7, :], before[..., [3, 0, 1], :])


def test_only_pending_rows_can_be_committed():
    cache, _ = fresh(Target(random_model()), prompt(7))
    with pytest.raises(ValueError, match="rows"):
        cache.commit(torch.tensor([0]))


def test_a_full_cache_grows():
    model = random_model()
    target, ids = Target(model), prompt(9)
    cache = target.new_cache(1)
    target.prefill(cache, torch.tensor(ids[:5]))
    logits = target.prefill(cache, torch.tensor(ids[5:])).logits[0]
    torch.testing.assert_close(logits, causal_logits(model, ids)[-1], **CLOSE)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_taps_follow_the_index_plus_one_rule(attention):
    """Id i is transformers' hidden_states[i + 1]: -1 the embeddings, the last after the norm."""
    model = random_model(attention=attention)
    taps = (-1, 0, 2, 3)
    target, ids = Target(model, taps), prompt(5)
    _, output = fresh(target, ids)
    with torch.no_grad():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    want = torch.cat([states[t + 1][0] for t in taps], dim=-1)
    torch.testing.assert_close(output.features, want, **CLOSE)
    for bad in (4, -2):
        with pytest.raises(CheckpointError, match=f"target_layer_ids.*{bad}"):
            Target(model, (bad,))


def test_features_are_recorded_in_our_own_forwards_only():
    model = random_model()
    target = Target(model, (0, 2))
    with torch.no_grad():
        model(torch.tensor([prompt(5)]))
    assert target._own.taps is None
    fresh(target, prompt(5))
    assert target._own.taps is None
    assert fresh(target.without_taps(), prompt(5))[1].features.shape == (5, 0)


def test_a_forward_of_another_thread_takes_no_features():
    model = random_model()
    target = Target(model, (0, 2))
    want = fresh(target, prompt(5))[1].features
    found = []

    def meanwhile(*_):
        between.remove()
        other = threading.Thread(target=lambda: found.append(fresh(target, prompt(7))[1].features))
        other.start()
        other.join()

    between = model.model.layers[1].register_forward_hook(meanwhile)
    assert torch.equal(fresh(target, prompt(5))[1].features, want)
    assert torch.equal(found[0], fresh(target, prompt(7))[1].features)


def test_a_target_that_is_gone_leaves_no_hooks_on_its_model():
    model = random_model()
    kept, gone = Target(model, (0, 2)), Target(model, (0, 1, 3))
    want = fresh(kept, prompt(5))[1].features
    del gone
    gc.collect()
    assert sum(len(part._forward_hooks) for part in model.modules()) == 2
    assert torch.equal(fresh(kept, prompt(5))[1].features, want)


def test_positions_and_mask_rows():
    target = Target(random_model())
    tree = DraftTree([1, 2, 3], [0, 1, 0], [1, 2, 1], np.zeros(3))
    rows = tree_rows(target, tree, 9, 4)
    assert rows.ids.tolist() == [9, 1, 2, 3]
    assert rows.positions.tolist() == [4, 5, 6, 5]
    assert rows.mask.shape == (1, 1, 4, 8)
    assert ((rows.mask[0, 0, :, 4:] == 0).numpy() == tree.ancestor_mask()).all()
    assert (rows.mask[..., :4] == 0).all()


def test_a_mask_that_lacks_past_columns_is_refused():
    target = Target(random_model())
    cache, _ = fresh(target, prompt(4))
    rows = tree_rows(target, DraftTree.chain(np.array([3]), np.zeros(1)), 9, 3)
    with pytest.raises(ValueError, match=r"mask must have shape \(1, 1, 2, 6\)"):
        target.verify(cache, rows)


def test_one_kind_of_module_knows_how_a_cache_is_passed():
    """A static check: names of transformers' cache calls occur in target.py, and in
    spread.py, which keeps the same cache on several devices."""
    package = Path(dartree.__file__).parent
    words = ("past_key_values", "DynamicCache", "key_cache", ".crop(", "get_seq_length")
    users = {
        path.name for path in package.rglob("*.py") if any(w in path.read_text() for w in words)
    }
    assert users == {"target.py", "spread.py"}


def test_models_that_cannot_be_verified_are_refused():
    sliding = random_model()
    sliding.config.layer_types = ["sliding_attention"] * 4
    with pytest.raises(CheckpointError, match="sliding"):
        Target(sliding)
    flash = random_model()
    flash.config._attn_implementation = "flash_attention_2"
    with pytest.raises(CheckpointError, match="flash_attention_2"):
        Target(flash)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_anchor_alone_needs_no_mask(attention):
    target, ids = Target(random_model(attention=attention)), torch.tensor(prompt(6))
    outs = []
    for masked in (True, False):
        cache = target.new_cache(8)
        target.prefill(cache, ids[:-1])
        rows = tree_rows(target, DraftTree.empty(), int(ids[-1]), past=5)
        assert rows.mask is None
        mask = torch.zeros(1, 1, 1, 6, dtype=target.dtype) if masked else None
        outs.append(target.verify(cache, dataclasses.replace(rows, mask=mask)).logits)
    whole = causal_logits(target.model, ids.tolist())[-1:]
    for out in outs:
        torch.testing.assert_close(out, whole, **BY_ATTENTION[attention])


def test_a_tree_without_a_mask_is_refused():
    target = Target(random_model())
    cache = target.new_cache(8)
    tree = DraftTree.chain(np.array([3]), np.zeros(1))
    rows = dataclasses.replace(tree_rows(target, tree, 2, past=0), mask=None)
    with pytest.raises(ValueError, match=r"mask must have shape \(1, 1, 2, 2\), got None"):
        target.verify(cache, rows)
