"""The law of sampled text, exactly: all choices of the sampler are enumerated."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as lp

import dartree
from dartree import acceptance, decode
from dartree.drafter import DFlashDrafter
from dartree.methods import TABLE
from tests.reference import causal_logits, prompt, random_stack
from tests.table import table_stack

PROMPT, COUNT = [1, 2, 0], 3
SETTINGS = dartree.TreeSettings(width=3, candidates=3, budget=4, depth_penalty=0.1)
FILTERS = {
    "none": {},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "all": {"top_k": 3, "top_p": 0.9, "min_p": 0.1},
}


class NeedsChoice(Exception):
    """The script of draws is used up; ``p`` is the distribution of the next one."""

    def __init__(self, p: torch.Tensor) -> None:
        super().__init__()
        self.p = p


class Scripted(acceptance.Chooser):
    """Draws what the script says and multiplies up how probable that was."""

    script: list[int] = []

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.used = 0

    def draw(self, row_logits: torch.Tensor) -> int:
        p = self.probabilities(row_logits[None])[0]
        if self.used == len(self.script):
            raise NeedsChoice(p)
        token = self.script[self.used]
        self.used += 1
        return token


def law_of(stack, method, monkeypatch, temperature, filters) -> dict[tuple, float]:
    """P(first three new tokens) under ``method``, over every sequence of draws."""
    law: dict[tuple, float] = {}
    monkeypatch.setattr(decode, "Chooser", Scripted)

    def explore(script: list[int], weight: float) -> None:
        Scripted.script = script
        try:
            out = dartree.generate(
                stack, PROMPT, method=method, settings=SETTINGS, max_new_tokens=COUNT,
                temperature=temperature, stop=[], **filters,
            )  # fmt: skip
        except NeedsChoice as choice:
            for token, p in enumerate(choice.p.tolist()):
                if p > 0:
                    explore([*script, token], weight * p)
            return
        key = tuple(out.token_ids)
        law[key] = law.get(key, 0.0) + weight

    explore([], 1.0)
    return law


def target_law(stack, temperature, filters) -> dict[tuple, float]:
    """The same from the table alone, with transformers' own warpers."""
    warpers = [lp.TemperatureLogitsWarper(float(temperature))] if temperature != 1 else []
    for name, kind in (("top_k", lp.TopKLogitsWarper), ("top_p", lp.TopPLogitsWarper),
                       ("min_p", lp.MinPLogitsWarper)):  # fmt: skip
        if name in filters:
            warpers.append(kind(filters[name]))
    law = {}
    for tokens in itertools.product(range(4), repeat=COUNT):
        history, weight = list(PROMPT), 1.0
        for token in tokens:
            scores = stack.target.table[history[-2], history[-1]][None]
            for warper in warpers:
                scores = warper(None, scores)
            weight *= float(scores.softmax(-1)[0, token])
            history.append(token)
        law[tokens] = weight
    return law


def distance(ours: dict, theirs: dict) -> float:
    return max(abs(ours.get(key, 0.0) - p) for key, p in theirs.items())


@pytest.mark.parametrize("method", dartree.METHODS)
@pytest.mark.parametrize("filters", FILTERS)
def test_joint_law_of_three_tokens(method, filters, monkeypatch):
    stack = table_stack()
    ours = law_of(stack, method, monkeypatch, 0.8, FILTERS[filters])
    assert sum(ours.values()) == pytest.approx(1.0, abs=1e-6)
    assert distance(ours, target_law(stack, 0.8, FILTERS[filters])) < 1e-6


@pytest.mark.parametrize("heat", [0.3, 2.0])
def test_score_temperature_changes_the_tree_and_not_the_law(heat, monkeypatch):
    stack = table_stack()
    monkeypatch.setitem(globals(), "SETTINGS", replace(SETTINGS, score_temperature=heat))
    assert (
        distance(law_of(stack, "dartree", monkeypatch, 0.8, {}), target_law(stack, 0.8, {})) < 1e-6
    )


def ratio_walk(tree, logits, chooser):
    """The planted fault: a greedy draft accepted with the ratio p / q of two softmaxes.

    q is the drafter's softmax of a token that was not sampled from it, so the rule is biased.
    """
    node, path = 0, []
    choices = np.full(len(tree) + 1, -1)
    while True:
        children = np.flatnonzero(tree.parents == node) + 1
        p = chooser.probabilities(logits[node][None])[0]
        for child in children.tolist():
            q = float(np.exp(tree.conditionals()[child - 1]))
            accept = min(1.0, float(p[tree.tokens[child - 1]]) / q)
            if chooser.draw(torch.tensor([accept, 1 - accept, 0, 0]).log()) == 0:
                break
        else:
            token = chooser.draw(logits[node])
            return acceptance.Verdict(np.asarray(path, dtype=np.int64), token, choices)
        path.append(child)
        node = child


def test_a_softmax_ratio_is_caught(monkeypatch):
    stack = table_stack()
    monkeypatch.setattr(decode, "walk", ratio_walk)
    ours = law_of(stack, "dartree", monkeypatch, 1.0, {})
    assert sum(ours.values()) == pytest.approx(1.0, abs=1e-6)
    assert distance(ours, target_law(stack, 1.0, {})) > 1e-3


@pytest.mark.parametrize("method", dartree.METHODS)
def test_near_zero_temperature_is_nearly_greedy(method):
    stack = table_stack()
    cold = dartree.generate(stack, PROMPT, method=method, settings=SETTINGS, max_new_tokens=20,
                            temperature=1e-6, stop=[])  # fmt: skip
    greedy = dartree.generate(stack, PROMPT, method="ar", max_new_tokens=20, stop=[])
    assert cold.token_ids == greedy.token_ids


class Remembered:
    """A target that computes each forward of the first round once; its answers are the same."""

    def __init__(self, target) -> None:
        self._target, self._prompt, self._seen = target, None, {}

    def __getattr__(self, name):
        return getattr(self._target, name)

    def without_taps(self):
        return self

    def new_cache(self, capacity: int):
        return SimpleNamespace(length=0, commit=lambda rows: None)

    def prefill(self, cache, ids):
        if self._prompt is None:
            self._prompt = self._target.new_cache(64)
            self._seen["prompt"] = self._target.prefill(self._prompt, ids)
        cache.length = len(ids)
        return self._seen["prompt"]

    def verify(self, cache, rows):
        key = tuple(rows.ids.tolist())
        if key not in self._seen:
            self._seen[key] = self._target.verify(self._prompt, rows)
        return self._seen[key]


def remembered(stack, method, monkeypatch):
    """``stack`` for many draws of two tokens: drafts, trees and forwards are kept by anchor.

    Sampler, walk and loop run anew for every seed; what they are given depends on the prompt and
    the first token alone.
    """
    context, drafts, trees = SimpleNamespace(features=None), {}, {}
    context.absorb = lambda features: setattr(context, "features", features)
    whole, row = DFlashDrafter.new_cache, TABLE[method]
    draft_block = decode.draft_block

    def draft(pairing, _, anchor):
        if anchor not in drafts:
            real = whole(pairing.drafter)
            real.absorb(context.features)
            drafts[anchor] = draft_block(pairing, real, anchor)
        return drafts[anchor]

    def propose(block, *rest):
        if block.anchor not in trees:
            trees[block.anchor] = row.propose(block, *rest)
        return trees[block.anchor]

    monkeypatch.setattr(DFlashDrafter, "new_cache", lambda drafter: context)
    monkeypatch.setattr(decode, "draft_block", draft)
    monkeypatch.setitem(TABLE, method, replace(row, propose=propose))
    return replace(stack, main=replace(stack.main, target=Remembered(stack.target)))


def two_tokens(stack, ids, method, seed) -> tuple[int, ...]:
    out = dartree.generate(stack, ids, method=method, settings=SETTINGS, seed=seed,
                           max_new_tokens=2, temperature=1.0, stop=[])  # fmt: skip
    return tuple(out.token_ids)


@pytest.mark.parametrize("method", ["ar", "domino", "heap", "dartree"])
def test_remembered_draws_are_those_of_the_whole_loop(method, monkeypatch):
    for stack, ids in ((table_stack(), PROMPT), (random_stack(block_size=3), prompt(3))):
        want = [two_tokens(stack, ids, method, seed) for seed in range(40)]
        with monkeypatch.context() as patch:
            kept = remembered(stack, method, patch)
            assert [two_tokens(kept, ids, method, seed) for seed in range(40)] == want
        assert len(set(want)) > 3


def chi_square(stack, ids, law: dict[tuple, float], method: str, draws: int, bins: int) -> float:
    """Chi-square of ``draws`` seeded pairs of tokens against ``law``, cells pooled to ``bins``."""
    counts: dict[tuple, int] = {}
    for seed in range(draws):
        key = two_tokens(stack, ids, method, seed)
        counts[key] = counts.get(key, 0) + 1
    pools, mass, seen = [], 0.0, 0
    for key in sorted(law, key=law.get):  # rare cells first, pooled until a bin is full
        mass, seen = mass + law[key], seen + counts.get(key, 0)
        if mass >= 1 / bins or key == max(law, key=law.get):
            pools.append((mass, seen))
            mass, seen = 0.0, 0
    assert sum(p for p, _ in pools) == pytest.approx(1.0, abs=1e-5)
    assert sum(n for _, n in pools) == draws
    value = sum((n - draws * p) ** 2 / (draws * p) for p, n in pools)
    freedom = len(pools) - 1
    return (value - freedom) / (2 * freedom) ** 0.5  # standard deviations above its mean


@pytest.mark.long
@pytest.mark.parametrize("method", ["ar", "domino", "ddtree", "heap", "dartree"])
def test_50000_sampled_pairs_on_the_table(method, monkeypatch):
    stack, law = table_stack(), {}
    for tokens, p in target_law(stack, 1, {}).items():
        law[tokens[:2]] = law.get(tokens[:2], 0.0) + p
    stack = remembered(stack, method, monkeypatch)
    assert chi_square(stack, PROMPT, law, method, 50_000, bins=16) < 4


@pytest.mark.long
@pytest.mark.parametrize("method", ["ddtree", "dartree"])
def test_50000_sampled_pairs_on_a_random_model(method, monkeypatch):
    """The law comes from plain causal runs of transformers."""
    stack, ids = random_stack(dtype=torch.float32, block_size=3), prompt(3)
    model = stack.target.model
    first = causal_logits(model, ids)[-1].double().softmax(-1)
    law = {}
    for a, p in enumerate(first.tolist()):
        then = causal_logits(model, [*ids, a])[-1].double().softmax(-1)
        law |= {(a, b): p * q for b, q in enumerate(then.tolist())}
    stack = remembered(stack, method, monkeypatch)
    assert chi_square(stack, ids, law, method, 50_000, bins=24) < 4
