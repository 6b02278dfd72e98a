"""`custom_generate`: the ids of transformers' own generate, its options honoured or refused."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import (
    Qwen3ForCausalLM,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
)

import dartree
from tests.conftest import DATA

CASE = DATA / "domino-shift"
SETTINGS = dartree.TreeSettings(width=3, candidates=5, budget=9)


@pytest.fixture(scope="module")
def model():
    return Qwen3ForCausalLM.from_pretrained(CASE / "target", dtype=torch.float32).eval()


def ours(model, ids, *, factory=None, method="dartree", **options):
    function = dartree.custom_generate(CASE / "drafter", SETTINGS, method=method, streamer=factory)
    return model.generate(torch.tensor([ids]), custom_generate=function, **options)[0].tolist()


def theirs(model, ids, **options):
    return model.generate(torch.tensor([ids]), **options)[0].tolist()


@pytest.mark.parametrize("method", ["dartree", "domino", "ar"])
@pytest.mark.parametrize("length", [1, 7, 23])
def test_greedy_ids_are_those_of_generate(model, method, length):
    options = dict(max_new_tokens=length, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert ours(model, [3, 4, 5], method=method, **options) == theirs(model, [3, 4, 5], **options)


def test_eos_and_own_criteria_end_it_at_the_same_token(model):
    options = dict(max_new_tokens=30, do_sample=False, pad_token_id=0)
    free = theirs(model, [3, 4, 5], eos_token_id=None, **options)
    for stop in (free[6], [free[9], free[12]]):
        both = [f(model, [3, 4, 5], eos_token_id=stop, **options) for f in (ours, theirs)]
        assert both[0] == both[1]

    for never in (-1, [10**6]):
        both = [f(model, [3, 4, 5], eos_token_id=never, **options) for f in (ours, theirs)]
        assert both[0] == both[1] and len(both[0]) == 33

    class At(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((len(input_ids),), input_ids.shape[1] >= 14, dtype=torch.bool)

    rule = {"stopping_criteria": StoppingCriteriaList([At()]), "eos_token_id": None}
    both = [f(model, [3, 4, 5], **rule, **options) for f in (ours, theirs)]
    assert both[0] == both[1] and len(both[0]) == 14


@pytest.mark.parametrize("places", [["factory"], ["streamer"], ["factory", "streamer"]])
def test_the_streamer_gets_what_generate_gives_it(model, places):
    class Keep:
        def __init__(self):
            self.seen = []

        def put(self, value):
            self.seen.append(value.tolist())

        def end(self):
            self.seen.append("end")

    options = dict(max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    one, two = Keep(), Keep()
    ours(model, [3, 4, 5], **dict.fromkeys(places, one), **options)
    theirs(model, [3, 4, 5], streamer=two, **options)
    assert one.seen == two.seen and len(one.seen) == 14


def test_the_end_of_the_context_is_said(model):
    most = model.config.max_position_embeddings
    ids = [3 + i % 50 for i in range(most - 5)]
    options = dict(do_sample=False, eos_token_id=None, pad_token_id=0)
    with pytest.warns(UserWarning, match=f"ends at the model's {most} positions"):
        cut = ours(model, ids, max_new_tokens=30, **options)
    assert cut == theirs(model, ids, max_new_tokens=len(cut) - len(ids), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ours(model, ids, max_new_tokens=4, **options)


def test_an_iterator_of_transformers_ends(model):
    class Digits:
        def decode(self, ids, **kwargs):
            return "".join(f"{i} " for i in ids)

    options = dict(max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0)
    streamer = TextIteratorStreamer(Digits(), skip_prompt=True, timeout=60)
    ids = ours(model, [3, 4, 5], streamer=streamer, **options)
    assert [int(i) for i in "".join(streamer).split()] == ids[3:]


def test_sampling_follows_the_config_and_the_global_seed(model):
    options = dict(max_new_tokens=12, do_sample=True, eos_token_id=None, pad_token_id=0)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(ours(model, [3, 4, 5], **options))
    assert runs[0] == runs[1] != runs[2]
    one = ours(model, [3, 4, 5], top_k=1, **options)
    greedy = theirs(model, [3, 4, 5], **{**options, "do_sample": False})
    assert one == greedy


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(num_beams=2), "num_beams"),
        (dict(num_return_sequences=2, do_sample=True), "num_return_sequences"),
        (dict(return_dict_in_generate=True), "return_dict_in_generate"),
        (dict(repetition_penalty=1.3), "RepetitionPenaltyLogitsProcessor"),
        (dict(attention_mask=torch.tensor([[0, 1, 1]])), "padding"),
        (dict(position_ids=torch.tensor([[0, 7, 30]])), "position_ids"),
        (dict(penalty_alpha=0.6, top_k=4), "penalty_alpha"),
        (dict(dola_layers="low"), "dola_layers"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(model, options, words):
    with pytest.raises(ValueError, match=words):
        ours(model, [3, 4, 5], max_new_tokens=4, pad_token_id=0, **options)


def test_an_assistant_is_refused(model):
    with pytest.raises(ValueError, match="assistant_model"):
        ours(model, [3, 4, 5], max_new_tokens=4, pad_token_id=0, assistant_model=model)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("/nope",), "/nope is neither a folder nor a hub id"),
        ((None,), "drafter must be a folder or a hub id, got None"),
        (("~nobody-of-this-name/x",), "drafter must be a folder or a hub id"),
        (("x" * 5000,), "drafter must be a folder or a hub id"),
        ((CASE / "drafter", {}), "settings must be a TreeSettings, got dict"),
        ((CASE / "drafter", None, "magic"), "method must be one of"),
        ((CASE / "drafter", None, "dartree", 5), "streamer must have put and end, got int"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_bad_arguments_are_found_when_the_function_is_made(arguments, words):
    names = ("drafter", "settings", "method", "streamer")
    with pytest.raises(ValueError, match=words):
        dartree.custom_generate(**dict(zip(names, arguments, strict=False)))


def test_a_model_of_another_family(model):
    from transformers import LlamaConfig, LlamaForCausalLM

    small = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    other = LlamaForCausalLM(LlamaConfig(vocab_size=97, **small))
    with pytest.raises(dartree.CheckpointError, match="must be a Qwen3 model, got .* 'llama'"):
        ours(other, [3, 4], max_new_tokens=3, pad_token_id=0)


def test_two_prompts_at_once_are_refused(model):
    function = dartree.custom_generate(CASE / "drafter", SETTINGS)
    with pytest.raises(ValueError, match="one sequence"):
        model.generate(torch.tensor([[3, 4], [5, 6]]), custom_generate=function, max_new_tokens=3,
                       pad_token_id=0)  # fmt: skip


def test_a_prompt_of_embeddings_is_refused(model):
    function = dartree.custom_generate(CASE / "drafter", SETTINGS)
    ids = torch.tensor([[3, 4, 5]])
    embeddings = torch.zeros(1, 3, model.config.hidden_size)
    with pytest.raises(ValueError, match="inputs_embeds"):
        model.generate(input_ids=ids, inputs_embeds=embeddings, custom_generate=function,
                       max_new_tokens=3, pad_token_id=0)  # fmt: skip
