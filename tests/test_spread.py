"""Targets spread over devices. There is one device here: two names of it stand for two."""

from __future__ import annotations

import pytest
import torch

import dartree
from dartree.spread import SpreadKVCache, SpreadTarget, target_of
from dartree.target import KVCache, Target
from tests.reference import greedy, prompt, random_model, random_stack

PLACES = [torch.device("cpu"), torch.device("cpu", 0)]


@pytest.mark.parametrize("method", ["ar", "domino", "dartree"])
def test_every_method_is_plain_greedy(method):
    stack = random_stack(head="domino")
    model = stack.target.model
    devices = [PLACES[i % 2] for i in range(4)]  # layers in turn, the hardest case
    stack.main.target = SpreadTarget(model, stack.target.tap_ids, devices)
    ids = prompt(9)
    out = dartree.generate(stack, ids, method=method, max_new_tokens=30, stop=[])
    assert out.token_ids == greedy(model, ids, 30)
    assert isinstance(stack.pairing("ar").target, SpreadTarget)


def test_the_cache_keeps_what_one_cache_keeps():
    """Layers 0, 2 on one device, 1, 3 on the other; crossing rows, growth and truncation."""
    model = random_model()
    one = KVCache(model.config, 4, torch.float64, PLACES[0])
    spread = SpreadKVCache(model.config, 4, torch.float64, [PLACES[i % 2] for i in range(4)])
    torch.manual_seed(0)
    for count, kept in ((3, [0, 1, 2]), (6, [0, 4, 2]), (9, [8])):
        for layer in range(4):
            new = torch.randn(2, 1, 2, count, 8, dtype=torch.float64)
            want, got = (cache.update(*new, layer) for cache in (one, spread))
            assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
        for cache in (one, spread):
            cache.commit(torch.tensor(kept))
        assert spread.length == one.length == spread.get_seq_length()


def test_a_model_in_one_place_has_a_plain_target():
    assert type(target_of(random_model(), (0, 2))) is Target


def test_plain_decoding_copies_no_embedding_table():
    """A table on the meta device cannot be copied from there."""
    model = random_model(tie_word_embeddings=False)
    model.model.embed_tokens.to("meta")
    target = SpreadTarget(model, (0, 2), [PLACES[i % 2] for i in range(4)])
    plain = target.without_taps()
    for one in (target, plain):
        with pytest.raises(NotImplementedError, match="meta tensor"):
            one.embedding  # noqa: B018


def test_all_drafters_of_a_model_share_one_copy_of_its_embedding_table():
    """lm_head on the meta device: what is copied there is another tensor each time."""
    model = random_model(tie_word_embeddings=False)
    model.lm_head.to("meta")
    devices = [PLACES[i % 2] for i in range(4)]
    one, two = (SpreadTarget(model, taps, devices) for taps in ((0, 2), (1, 3)))
    assert one.embedding.device.type == "meta" and one.embedding is two.embedding
    assert one.without_taps().embedding is one.embedding
    other = random_model(tie_word_embeddings=False)
    other.lm_head.to("meta")
    assert SpreadTarget(other, (0,), devices).embedding is not one.embedding


def test_a_changed_table_is_copied_again_once_no_target_holds_the_old_copy():
    model = random_model(tie_word_embeddings=False)
    model.lm_head.to("meta")
    target = SpreadTarget(model, (), [PLACES[i % 2] for i in range(4)])
    assert target.embedding.shape == (model.config.vocab_size, model.config.hidden_size)
    del target
    model.model.embed_tokens.weight = torch.nn.Parameter(torch.zeros(3, 2))
    assert SpreadTarget(model, ()).embedding.shape == (3, 2)
