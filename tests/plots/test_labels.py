"""Token text as labels."""

import pytest

from dartree.plots.labels import plot_label, token_decoder, token_fonts, token_label

LABELS = {
    " the": "␣the",
    "a b": "a␣b",
    "\n\n": "↵↵",
    "\tx": "⇥x",
    "\r\n": "␍↵",
    "": "∅",
    "\x1b[0m": "\\x1b[0m",
    "\u200b": "\\u200b",
    "\u2028": "\\u2028",
    "\ufffd": "‹?›",
    "$x_1$": "$x_1$",
    b" ok": "␣ok",
    b"\xe4\xb8": "‹e4 b8›",
    "中文".encode(): "中文",
}


@pytest.mark.parametrize("text", LABELS)
def test_token_label(text):
    assert token_label(text) == LABELS[text]


def test_labels_fit_on_one_line_and_are_cut():
    assert plot_label("x" * 40) == "x" * 11 + "…"
    assert plot_label("x" * 12) == "x" * 12
    assert "\n" not in plot_label("a\nb\r\tc\x85\u2029")


def test_missing_glyphs_become_codes():
    """No installed font has a private-use character, and none may be drawn as an empty box."""
    assert plot_label("\U000f1234") == "‹f1234›"
    assert token_fonts()[0] == "DejaVu Sans Mono"


def test_decoder_gives_bytes_for_parts_of_characters():
    """A byte-level vocabulary splits an emoji; the parts come as its bytes, whole ones as text."""
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE({c: i for i, c in enumerate(alphabet)}, [])
    raw = tokenizers.Tokenizer(model)
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    decode = token_decoder(tokenizer)
    ids = tokenizer("é a\n\U0001f642", add_special_tokens=False)["input_ids"]
    pieces = [decode(token) for token in ids]
    assert pieces[:2] == [b"\xc3", b"\xa9"] and pieces[2:5] == [" ", "a", "\n"]
    assert b"".join(pieces[5:]) == "\U0001f642".encode()
    assert token_label(pieces[0]) == "‹c3›"


def test_decoder_without_tokenizer_gives_ids():
    assert token_decoder(None)(17) == "17"
