"""The toy language by brute force, and the gap on a random stack against plain runs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import dartree
from dartree.analysis import gap, toy
from tests.reference import causal_logits, greedy, prompt, random_stack


@pytest.mark.parametrize(
    "sentences", [toy.WEATHER, toy.STORMS, {"a b": 0.2, "a c": 0.3, "d c": 0.5}]
)
def test_tables_by_brute_force(sentences):
    language = toy.ToyLanguage(sentences)
    words, n = language.words, language.length
    texts = list(itertools.product(words, repeat=n))
    p = {t: language.probability(t) for t in texts}
    assert math.isclose(sum(p.values()), 1)
    for i, j in itertools.product(range(n), range(len(words))):
        want = sum(q for t, q in p.items() if t[i] == words[j])
        assert math.isclose(language.marginals()[i, j], want, abs_tol=1e-12)
    drawn = {t: math.prod(language.marginals()[i, words.index(w)] for i, w in enumerate(t))
             for t in texts}  # fmt: skip
    assert math.isclose(language.valid_share(), sum(drawn[t] for t in texts if p[t] > 0))
    best = max(texts, key=lambda t: drawn[t])
    assert math.isclose(drawn[language.argmax_of_marginals()], drawn[best])
    for prefix in itertools.chain([()], texts[0][:1], [texts[0][:1]]):
        if isinstance(prefix, tuple) and len(prefix) < n:
            row = language.conditional(prefix)
            mass = sum(q for t, q in p.items() if t[: len(prefix)] == prefix)
            want = [sum(q for t, q in p.items() if t[: len(prefix) + 1] == (*prefix, w))
                    for w in words]  # fmt: skip
            np.testing.assert_allclose(row, np.array(want) / mass if mass else 0)


def test_the_two_languages_show_what_they_are_for():
    two, three = toy.ToyLanguage(toy.WEATHER), toy.ToyLanguage(toy.STORMS)
    assert two.valid_share() == 0.25
    assert " ".join(three.argmax_of_marginals()) == "the storm is lovely"
    assert three.probability(three.argmax_of_marginals()) == 0
    assert three.probability(three.corrected_argmax()) == pytest.approx(1 / 3)


@pytest.mark.parametrize("sentences", [{"a": 0.5, "a b": 0.5}, {"a": 0.4}, {"a": 1.5, "b": -0.5}])
def test_what_is_no_language_is_refused(sentences):
    with pytest.raises(ValueError, match="sentences must|probabilities must"):
        toy.ToyLanguage(sentences)


def test_the_gap_is_that_of_plain_runs():
    stack = random_stack(dtype=torch.float64)
    stack = replace(stack, marginal=random_stack("none", model=stack.target.model).main)
    start, model = prompt(5), stack.target.model
    found = gap.measure(stack, [start], every=4, max_new_tokens=10)
    text = greedy(model, start, 10)
    assert found["corrected"].tv.shape == (3, 6) == found["marginals"].tv.shape
    ids, rest = start + text[:5], text[5:]  # the second anchor
    block = dartree.draft(stack, ids)
    path = (rest + [0] * 6)[:6]
    guess = dartree.corrected_logits(stack, block, path).float().softmax(-1)
    for i in range(len(rest)):
        target = causal_logits(model, ids + rest[:i])[-1].float().softmax(-1)
        want = float(0.5 * (guess[i] - target).abs().sum())
        assert found["corrected"].tv[1, i] == pytest.approx(want, abs=1e-5)
        assert found["corrected"].agrees[1, i] == (guess[i].argmax() == target.argmax())
    assert np.isnan(found["corrected"].tv[1, len(rest) :]).all()
    alone = dartree.draft(stack, ids, stack.marginal)
    own, total = alone.base_logits.argmax(-1).tolist(), 0.0
    for i, token in enumerate(own):
        row = causal_logits(model, ids + own[:i])[-1].float().log_softmax(-1)
        total += float(row[token])
    assert found["marginals"].chain[1] == pytest.approx(total, rel=1e-3)
    assert 0 <= found["marginals"].impossible() <= 1
