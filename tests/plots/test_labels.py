"""Token text as labels."""

import warnings

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dartree.plots.labels import plot_label, token_decoder, token_fonts, token_label

LABELS = {
    " the": "␣the",
    "a b": "a␣b",
    "\n\n": "↵↵",
    "\tx": "⇥x",
    "\r\n": "\\r↵",
    "\u3000": "\\u3000",
    "\u2003x": "\\u2003x",
    "\ue000": "\\ue000",
    "\uffff": "\\uffff",
    "\U000e0041": "\\U000e0041",
    "\u0301": "◌\u0301",
    "e\u0301": "e\u0301",
    "שלום": "שלום",
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


def test_a_lone_surrogate_is_a_code():
    assert token_label("\ud800") == "\\ud800"


def test_labels_fit_on_one_line_and_are_cut():
    assert plot_label("x" * 40) == "x" * 11 + "…"
    assert plot_label("x" * 12) == "x" * 12
    assert "\n" not in plot_label("a\nb\r\tc\x85\u2029")


def test_missing_glyphs_become_codes():
    """The fonts that ship with matplotlib have no cuneiform; an empty box would say nothing."""
    assert plot_label("\U00012000") == "‹12000›"
    assert token_fonts()[0] == "DejaVu Sans Mono"


def test_every_character_is_drawn_without_a_warning():
    """Also in bold, whose fonts lack characters that the regular ones have."""
    codes = (*range(0x1D5A0, 0x1D5A8), 0x4E2D, 0x5D0, 0x628, 0x1F642, 0x301, 0xFE0F)
    drawn = "".join(plot_label(chr(code)) for code in codes)
    figure = Figure()
    FigureCanvasAgg(figure)
    for weight in ("normal", "bold"):
        figure.text(0, 0.5, drawn, family=list(token_fonts()), weight=weight, parse_math=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.canvas.draw()


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
