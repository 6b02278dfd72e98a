"""The loop: greedy equality across methods and corners, stops, limits, streams."""

from __future__ import annotations

import inspect
import itertools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dartree
from dartree import TreeSettings
from dartree.clock import STAGES
from tests.reference import causal_logits, greedy, prompt, random_model, random_stack

METHODS = dartree.METHODS


def same(stack, ids, got, want, what) -> None:
    """Ids must be equal; a mismatch tells the gap between the target's two best logits there."""
    if got == want:
        return
    place = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), None)
    if place is None:
        pytest.fail(f"{what}: {len(got)} tokens instead of {len(want)}")
    logits = causal_logits(stack.target.model, [*ids, *want[:place]])[-1]
    best, second = logits.topk(2).values.tolist()
    pytest.fail(
        f"{what}: token {place} is {got[place]}, not {want[place]}; top-2 gap {best - second:.3e}"
    )


@pytest.mark.parametrize("variant", [
    dict(head="domino"), dict(head="domino", shift_label=False, prefix=0), dict(head="none"),
    dict(head="markov", markov_kind="rnn"), dict(head="domino", attention="eager"),
    dict(head="domino", block_size=2), dict(head="domino", block_size=1),
    dict(head="domino", taps=(-1, 1, 3)),
], ids=lambda v: "-".join(map(str, v.values())))  # fmt: skip
def test_every_method_is_plain_greedy(variant):
    stack = random_stack(**variant)
    ids = prompt(7)
    want = greedy(stack.target.model, ids, 24)
    for method in METHODS:
        out = dartree.generate(stack, ids, method=method, max_new_tokens=24, stop=[])
        same(stack, ids, out.token_ids, want, method)


CORNERS = dict(
    method=st.sampled_from(METHODS), width=st.sampled_from([1, 3, 200]),
    candidates=st.sampled_from([1, 2, 1000]), budget=st.sampled_from([1, 6, 5000]),
    penalty=st.sampled_from([0.0, 0.2, 50.0]), depth=st.sampled_from([None, 1, 3, 99]),
    length=st.sampled_from([1, 2, 9, 121, 127]), new=st.integers(1, 13),
)  # fmt: skip


def check_corner(method, width, candidates, budget, penalty, depth, length, new):
    stack, ids = _shared_stack(), prompt(length, seed=length)
    tree = TreeSettings(width, candidates, budget, penalty, depth)
    out = dartree.generate(stack, ids, method=method, settings=tree, max_new_tokens=new, stop=[])
    want = greedy(stack.target.model, ids, min(new, 128 - length))
    same(stack, ids, out.token_ids, want, (method, tree))


@settings(derandomize=True, max_examples=40, deadline=None)
@given(**CORNERS)
def test_corner_settings_are_plain_greedy(**corner):
    check_corner(**corner)


@pytest.mark.long
@settings(derandomize=True, max_examples=3000, deadline=None)
@given(**CORNERS)
def test_many_corner_settings_are_plain_greedy(**corner):
    check_corner(**corner)


_STACKS: dict = {}


def _shared_stack():
    return _STACKS.setdefault("one", random_stack())


def test_fp32_is_plain_greedy_too():
    stack = random_stack(dtype=torch.float32)
    for seed in range(3):
        ids = prompt(8, seed)
        want = greedy(stack.target.model, ids, 20)
        for method in METHODS:
            out = dartree.generate(stack, ids, method=method, max_new_tokens=20, stop=[])
            same(stack, ids, out.token_ids, want, (method, seed))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_exact_ties_choose_the_same_id(dtype):
    """Every token has a twin with the same output row, so every argmax is a tie."""
    model = random_model(dtype=dtype, vocab_size=96)
    model.lm_head.weight.data[48:] = model.lm_head.weight.data[:48]
    stack = random_stack(model=model, dtype=dtype)
    ids = [i % 96 for i in prompt(7)]
    plain = dartree.generate(stack, ids, method="ar", max_new_tokens=30, stop=[]).token_ids
    same(stack, ids, plain, greedy(model, ids, 30), "ar")
    assert all(token < 48 for token in plain)  # the smaller id of each pair of twins
    for method in METHODS:
        out = dartree.generate(stack, ids, method=method, max_new_tokens=30, stop=[])
        same(stack, ids, out.token_ids, plain, method)


def test_limits_and_sums():
    stack, ids = random_stack(), prompt(6)
    long = dartree.generate(stack, ids, max_new_tokens=14, stop=[]).token_ids
    for method, count in itertools.product(METHODS, range(1, 14)):
        out = dartree.generate(stack, ids, method=method, max_new_tokens=count, stop=[])
        assert out.token_ids == long[:count]
        assert out.stop_reason == "length"
        assert sum(out.accepted_per_round) + 1 == out.new_tokens
        assert len(out.accepted_per_round) == out.rounds


def test_the_context_is_never_passed():
    stack = random_stack()
    ids = prompt(125)
    out = dartree.generate(stack, ids, max_new_tokens=50, stop=[])
    assert out.new_tokens == 3 and out.stop_reason == "context"
    assert dartree.generate(stack, ids, max_new_tokens=3, stop=[]).stop_reason == "length"
    with pytest.raises(ValueError, match="context of 128 tokens, got 128"):
        dartree.generate(stack, prompt(128))


class Oracle:
    """A head that knows the target's continuation: every draft of every round is right."""

    name = "oracle"

    def __init__(self, text, start):
        self.text, self.start_at = text, start

    def start(self, block, candidates):
        first = block.position + 1 - self.start_at
        rows = block.base_logits.float() * 0
        for i in range(block.drafts):
            if first + i < len(self.text):
                rows[i, self.text[first + i]] = 50.0
        block.base_logits = rows.to(block.base_logits.dtype)
        from dartree.heads import NoCorrection

        self._inner = NoCorrection()
        return self._inner.start(block, None)

    def score(self, state, depth):
        return self._inner.score(state, depth)

    def advance(self, state, parents, tokens):
        return self._inner.advance(state, parents, tokens)


def oracle_stack(ids, count):
    stack = random_stack()
    text = greedy(stack.target.model, ids, count)
    stack.main.head = Oracle(text, len(ids))
    return stack, text


def test_an_oracle_reaches_the_ceiling_and_an_anti_draft_the_floor():
    ids = prompt(6)
    stack, text = oracle_stack(ids, 43)
    n = stack.drafter.config.drafts
    out = dartree.generate(stack, ids, method="domino", max_new_tokens=1 + 7 * 6, stop=[])
    assert out.token_ids == text and out.tau == n + 1
    assert {r.missing for r in out.records} == {"block end"}
    wrong = [(t + 1) % 97 for t in text]
    stack.main.head = Oracle(wrong, len(ids))
    out = dartree.generate(stack, ids, method="domino", max_new_tokens=20, stop=[])
    assert out.token_ids == text[:20] and out.tau == 1.0


def test_a_stop_at_every_offset_of_a_round():
    """The stop token is the last one kept, wherever in a round it falls."""
    ids = prompt(6)
    stack, text = oracle_stack(ids, 30)
    for position, token in enumerate(text):
        if token in text[:position]:
            continue
        out = dartree.generate(stack, ids, method="domino", max_new_tokens=30, stop=[token])
        assert out.token_ids == text[: position + 1]
        assert out.stop_reason == "stop"
        assert sum(out.accepted_per_round) + 1 == out.new_tokens


def test_stop_ids_of_the_generation_config():
    stack, ids = random_stack(), prompt(6)
    text = greedy(stack.target.model, ids, 20)
    for value in (text[3], [text[3], 0], [text[3], text[3]], torch.tensor(text[3])):
        stack.target.model.generation_config.eos_token_id = value
        out = dartree.generate(stack, ids, max_new_tokens=20)
        first = min(text.index(t) for t in (value if isinstance(value, list) else [value])
                    if t in text)  # fmt: skip
        assert out.token_ids == text[: first + 1]
    stack.target.model.generation_config.eos_token_id = None
    assert dartree.generate(stack, ids, max_new_tokens=20).token_ids == text


def test_requests_leave_nothing_behind():
    stack = random_stack()

    def run(seed):
        options = dict(max_new_tokens=15, stop=[])
        return dartree.generate(stack, prompt(9, seed), **options).token_ids

    first = run(1)
    run(2)
    assert run(1) == first
    # Two generations that take turns do not disturb each other.
    one = dartree.Decoding(stack, prompt(9, 1), max_new_tokens=15, stop=[])
    two = dartree.Decoding(stack, prompt(9, 2), max_new_tokens=15, stop=[])
    for _ in itertools.zip_longest(iter(one), iter(two)):
        pass
    assert one.result.token_ids == first and two.result.token_ids == run(2)


def test_a_second_loop_goes_on_where_the_first_stopped():
    stack = random_stack()
    want = dartree.generate(stack, prompt(9), max_new_tokens=15, stop=[])
    decoding = dartree.Decoding(stack, prompt(9), max_new_tokens=15, stop=[])
    first = next(iter(decoding))
    rest = list(decoding)
    assert first.index == 0 and len(rest) == want.rounds - 1
    assert decoding.result.token_ids == want.token_ids and list(decoding) == []


def test_ids_may_come_as_an_array():
    stack, ids = random_stack(), prompt(5)
    want = dartree.generate(stack, ids, max_new_tokens=8, stop=[]).token_ids
    for kind in (tuple, torch.tensor, np.array):
        assert dartree.generate(stack, kind(ids), max_new_tokens=8, stop=[]).token_ids == want


def test_a_list_of_prompts_gives_each_as_alone():
    stack = random_stack()
    prompts = [prompt(4, 1), prompt(9, 2)]
    both = dartree.generate(stack, prompts, max_new_tokens=10, stop=[])
    assert [g.token_ids for g in both] == [
        dartree.generate(stack, p, max_new_tokens=10, stop=[]).token_ids for p in prompts
    ]


def test_stage_times_fill_the_round():
    out = dartree.generate(random_stack(), prompt(9), max_new_tokens=30, stop=[])
    stages = sum(out.seconds[name] for name in STAGES)
    rounds = out.seconds["total"] - out.seconds["prefill"]
    assert set(out.seconds) == {"prefill", "total", *STAGES}
    assert stages <= rounds and all(out.seconds[name] > 0 for name in STAGES)
    assert out.tokens_per_second == pytest.approx(29 / rounds)


def test_head_calls_and_nodes():
    stack, n = random_stack(), 6
    for method, calls in (("ar", 0), ("dflash", 0), ("ddtree", 0), ("domino", n),
                          ("domino-ddtree", n), ("dartree", n)):  # fmt: skip
        tree = TreeSettings(width=5, candidates=8, budget=9)
        out = dartree.generate(
            stack, prompt(5), method=method, settings=tree, max_new_tokens=12, stop=[]
        )
        assert [r.head_calls for r in out.records] == [calls] * out.rounds
        nodes = {"ar": 0, "dflash": n, "domino": n}.get(method, 9)
        assert out.verified_nodes == nodes * out.rounds


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (lambda model: model.model.norm, "the target's logits are not finite in round 2, node"),
        (lambda model: model.lm_head, "round 2, method 'dartree': base_logits of the block must"),
    ],
)
def test_logits_that_are_not_finite_keep_the_text(part, words):
    stack = random_stack(model=random_model(seed=3))
    decoding = dartree.Decoding(stack, prompt(5), max_new_tokens=30, stop=[])
    with pytest.raises(dartree.GenerationError, match=words) as caught:
        for record in decoding:
            if record.index == 1:
                part(stack.target.model).weight.data[5] = float("nan")
    assert caught.value.partial.token_ids == decoding.result.token_ids
    assert caught.value.partial.rounds == 2


def test_mask_ids_in_prompt_and_output_survive():
    model = random_model()
    mask = 96
    model.lm_head.weight.data[mask] *= 6  # make the mask id a frequent choice
    stack = random_stack(model=model)
    ids = [mask, 3, mask, 4]
    want = greedy(model, ids, 30)
    assert mask in want
    for method in METHODS:
        out = dartree.generate(stack, ids, method=method, max_new_tokens=30, stop=[])
        assert out.token_ids == want and out.prompt_tokens == 4


@pytest.mark.parametrize(("options", "words"), [
    (dict(method="magic"), "method must be one of"), (dict(max_new_tokens=0), "max_new_tokens"),
    (dict(max_new_tokens=2.5), "max_new_tokens"), (dict(temperature=-1), "temperature"),
    (dict(seed="x"), "seed"),
    (dict(seed=None), "seed"), (dict(stop=[""]), "stop"), (dict(stop=[1.5]), "stop"),
    (dict(stop=["x"]), "tokenizer"), (dict(stop="is"), "stop must be a list"),
    (dict(stop=3), "stop must be a list"), (dict(stop=[97]), "stop ids must lie in 0..96"),
    (dict(settings={"width": 3}), "settings must be a TreeSettings, got dict"),
])  # fmt: skip
def test_bad_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        dartree.generate(random_stack(), prompt(4), **options)


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([], "empty"),
        ([97], "0..96, got 97"),
        ([-1], "got -1"),
        ("text", "no tokenizer"),
        (None, "got NoneType"),
        (7, "got int"),
        ([1.5], "ids"),
        ([1, "a"], "ids"),
        (torch.tensor([[1, 2]]), "got Tensor"),
        (b"hi", "got bytes"),
    ],  # fmt: skip
)
def test_bad_prompts(ids, words):
    with pytest.raises(ValueError, match=words):
        dartree.generate(random_stack(), ids)


def test_more_nodes_than_can_be_verified_are_refused_at_once():
    huge = dartree.TreeSettings(width=1, budget=2**31 - 1)
    with pytest.raises(ValueError, match="budget must be at most 8192"):
        dartree.generate(random_stack(), prompt(4), method="heap", settings=huge)
    assert dartree.generate(random_stack(), prompt(4), settings=huge, max_new_tokens=4).token_ids


@pytest.mark.parametrize("function", [dartree.generate, dartree.stream])
def test_the_options_are_seen_by_tools_and_each_is_explained(function):
    parameters = inspect.signature(function).parameters
    options = [n for n, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert options == [
        "method", "settings", "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "seed",
        "stop", "raw",
    ]  # fmt: skip
    assert parameters["max_new_tokens"].default == 256
    explained = re.findall(
        r"^    (\w+(?:, \w+)*)\n        ", dartree.Decoding.__doc__, re.MULTILINE
    )
    assert [n for line in explained for n in line.split(", ")] == options


def test_a_result_prints_as_one_short_line():
    stack = random_stack()
    result = dartree.generate(stack, prompt(6), max_new_tokens=40, stop=[])
    assert repr(result).startswith(f"Generation(dartree on {result.stack}: 40 tokens in ")
    assert f"tau {result.tau:.2f}, ended by length" in repr(result)
    result.text = "a\nb" * 1000
    assert len(repr(result)) < 250 and "\n" not in repr(result)
    assert "1 token in 0 rounds, tau -" in repr(
        dartree.generate(stack, prompt(6), max_new_tokens=1, stop=[])
    )


@pytest.mark.parametrize("method", dartree.METHODS)
def test_trees_that_are_built_unchecked_would_pass_all_checks(method):
    stack = random_stack()
    chosen = TreeSettings(width=4, candidates=6, budget=12)
    out = dartree.generate(stack, prompt(5), method=method, settings=chosen, max_new_tokens=12)
    trees = [r.tree for r in out.records] + [r.supertree for r in out.records if r.supertree]
    for tree in trees:
        again = type(tree)(tree.tokens, tree.parents, tree.depths, tree.scores)
        for name in ("tokens", "parents", "depths", "scores"):
            assert getattr(again, name) is getattr(tree, name), f"{name} is of another dtype"
