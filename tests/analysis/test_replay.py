"""Replayed rounds against decoding itself, for every method and odd settings."""

from dataclasses import replace

import pytest
import torch

import dartree
from dartree.analysis.replay import Replay
from dartree.methods import METHODS
from dartree.settings import TreeSettings
from tests.reference import random_stack

SETTINGS = (
    TreeSettings(width=3, candidates=5, budget=9, depth_penalty=0.2),
    TreeSettings(width=1, candidates=2, budget=1, depth_penalty=0.0),
    TreeSettings(width=6, candidates=4, budget=500, depth_penalty=1.0, depth=2),
    TreeSettings(width=4, candidates=8, budget=7, normalise="vocabulary", score_temperature=1.5),
)
PROMPTS = [[1, 2, 3], [5], [7, 7, 1, 4, 2]]


@pytest.fixture(scope="module")
def stack():
    return random_stack(head="domino", dtype=torch.float64)


@pytest.mark.parametrize("temperature", (0.0, 1.0))
@pytest.mark.parametrize("method", METHODS)
def test_rounds_are_those_of_decoding(stack, method, temperature):
    options = {"max_new_tokens": 20, "temperature": temperature, "seed": 3}
    replay = Replay(stack, PROMPTS, **options)
    for settings in SETTINGS:
        outs = dartree.generate(stack, PROMPTS, method=method, settings=settings, **options)
        assert [out.token_ids for out in outs] == [text.answer for text in replay.texts]
        assert replay.accepted(method, settings) == [out.accepted_per_round for out in outs]
        rounds = [count for out in outs for count in out.accepted_per_round]
        assert replay.tau(method, settings) == sum(rounds) / len(rounds)


def test_other_budgets_and_penalties_expand_nothing(stack, monkeypatch):
    replay, settings = Replay(stack, PROMPTS, 20), SETTINGS[0]
    for index in range(19):
        replay.supertree(0, index, settings)
    monkeypatch.setattr("dartree.analysis.replay.grow_supertree", None)
    for budget in (1, 4, 30):
        for penalty in (0.0, 0.5):
            replay.rounds(0, "dartree", replace(settings, budget=budget, depth_penalty=penalty))


def test_a_text_of_one_token_has_no_rounds(stack):
    replay = Replay(stack, [[1, 2]], max_new_tokens=1)
    assert replay.accepted("dartree", SETTINGS[0]) == [[]]
    assert replay.tau("dartree", SETTINGS[0]) is None


def test_drafters_with_one_label_are_told_apart(stack):
    other = random_stack("none", seed=7, model=stack.target.model).main
    both = replace(stack, marginal=replace(other, label=stack.main.label))
    replay, options = Replay(both, PROMPTS, 20), {"max_new_tokens": 20, "settings": SETTINGS[0]}
    for method in ("dartree", "ddtree"):
        outs = dartree.generate(both, PROMPTS, method=method, **options)
        expected = [out.accepted_per_round for out in outs]
        assert replay.accepted(method, SETTINGS[0]) == expected
        blocks = [replay.block(both.pairing(method), 0, i) for i in range(19)]
        for i, block in enumerate(blocks):
            ids = [*replay.texts[0].prompt, *replay.texts[0].answer[: i + 1]]
            alone = dartree.draft(both, ids, both.pairing(method))
            torch.testing.assert_close(block.hidden, alone.hidden, rtol=0, atol=1e-10)


def test_unknown_methods_are_named(stack):
    with pytest.raises(ValueError, match="method must be one of"):
        Replay(stack, [[1]], 4).tau("medusa", SETTINGS[0])


@pytest.mark.parametrize("shift", (True, False))
def test_blocks_are_those_of_drafting_alone(shift, monkeypatch):
    """Many anchors in one forward, each blind to what comes after it."""
    monkeypatch.setattr("dartree.analysis.replay.AT_ONCE", 7)
    stack = random_stack(head="domino", dtype=torch.float64, shift_label=shift)
    replay = Replay(stack, [[7, 7, 1, 4, 2]], 20)
    text = replay.texts[0]
    for index in range(19):
        block = replay.block(stack.main, 0, index)
        alone = dartree.draft(stack, [*text.prompt, *text.answer[: index + 1]])
        assert (block.anchor, block.position) == (alone.anchor, alone.position)
        torch.testing.assert_close(block.hidden, alone.hidden, rtol=0, atol=1e-10)
        torch.testing.assert_close(block.base_logits, alone.base_logits, rtol=0, atol=1e-9)
