"""Stop strings and streamed text, with a toy byte-level tokenizer."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import dartree
from dartree.stopping import StopRule
from tests.reference import prompt, random_model, random_stack


@pytest.fixture(scope="module")
def stack():
    """A random stack whose 259 ids are the 256 bytes and three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>")
    stack = random_stack(model=random_model(vocab_size=259))
    stack.tokenizer = tokenizer
    return stack


def ids_of(stack, text):
    return stack.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_pieces_add_up_and_never_break_a_character(stack):
    """Multi-byte characters arrive one byte a round; the stream waits for whole ones."""
    text = "naïve 你好 🙂 end"
    ids = ids_of(stack, text)
    decoding = dartree.Decoding(stack, prompt(5), max_new_tokens=80, stop=[])

    class Replay:
        result, text = decoding.result, staticmethod(decoding.text)

        def __iter__(self):
            for i in range(1, len(ids) + 1):
                decoding.result.token_ids[:] = ids[:i]
                yield None
            decoding.result.text = decoding.text()

    pieces = list(dartree.decode.stream_text(Replay()))
    assert "".join(pieces) == text and len(ids) > len(text)
    assert all("\ufffd" not in piece for piece in pieces)


def test_streamed_text_is_the_result(stack):
    decoding = dartree.Decoding(stack, prompt(5), max_new_tokens=60, stop=[])
    pieces = list(dartree.decode.stream_text(decoding))
    assert "".join(pieces) == decoding.result.text == stack.decode(decoding.result.token_ids)


@pytest.mark.parametrize("string", ["b", "bc", "c d", "é", "zz"])
def test_a_stop_string_ends_at_the_token_that_completes_it(stack, string):
    ids = ids_of(stack, "abc déf ghi")
    rule = StopRule(stack, [string], limit=100)
    text, found = "abc déf ghi", string in "abc déf ghi"
    # In one piece and token by token: the same place.
    for step in (1, 3, len(ids)):
        kept, reason, done = [], None, False
        for start in range(0, len(ids), step):
            part, reason = rule.cut(kept, ids[start : start + step])
            kept += part
            if reason:
                done = True
                break
        assert done == found
        if found:
            end = text.index(string) + len(string)
            assert kept == ids_of(stack, text[:end])
            assert rule.text(kept, reason) == text[:end]


def test_a_stop_wins_over_the_limit_and_both_end_there(stack):
    rule = StopRule(stack, [7], limit=3)
    assert rule.cut([1], [2, 7, 9]) == ([2, 7], "stop")
    assert rule.cut([1], [2, 3, 7]) == ([2, 3], "length")
    assert rule.cut([1, 2], [7, 7]) == ([7], "stop")
    assert rule.cut([], [4]) == ([4], None)
    assert StopRule(stack, [], 2, limit_is_context=True).cut([], [7, 7]) == ([7, 7], "context")


@pytest.mark.parametrize("stop", ["\n", 3, 1.5, [1.5], [True]], ids=str)
def test_what_is_no_list_of_ids_and_strings_is_refused(stack, stop):
    with pytest.raises(ValueError, match="^stop must"):
        StopRule(stack, stop, 20)


def test_generation_ends_at_a_stop_string(stack):
    free = dartree.generate(stack, prompt(5), max_new_tokens=40, stop=[])
    place = next(i for i in range(5, 40) if stack.decode(free.token_ids[i : i + 1]).isalnum())
    string = stack.decode(free.token_ids[place : place + 1])
    first = next(i for i in range(40) if string in stack.decode(free.token_ids[: i + 1]))
    for method in dartree.METHODS:
        out = dartree.generate(stack, prompt(5), method=method, max_new_tokens=40, stop=[string])
        assert out.token_ids == free.token_ids[: first + 1]
        assert out.text.endswith(string) and out.stop_reason == "stop"
