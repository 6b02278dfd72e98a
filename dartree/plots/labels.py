"""Token text as labels: visible blanks, broken bytes as hex, no character that the font lacks."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from matplotlib import font_manager, ft2font

# One token id -> its text, or its bytes where they are not text (a part of a longer character).
Decode = Callable[[int], "str | bytes"]

VISIBLE = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "\\r", "\u00a0": "⍽", "": "∅"}

_CODED = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs")  # Unicode categories

# The first one ships with matplotlib; the others are used where the machine has them.
_MONOSPACE = "DejaVu Sans Mono"
_WIDE = (
    "Noto Sans Mono CJK SC",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
)


def token_label(text: str | bytes) -> str:
    """One token as a label on one line: " the" becomes "␣the", a newline "↵", bytes "‹e4 b8›".

    Bytes that are valid UTF-8 count as text. What would be invisible or is no character (controls,
    other blanks, surrogates, private use, U+FFFE) becomes its code, "\\x1b"; an accent without a
    letter stands on "◌"; a lone U+FFFD (bytes that a tokenizer gave up on) is "‹?›", the empty
    string "∅".
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            return f"‹{error.object.hex(' ')}›"
    if text == "":
        return VISIBLE[""]
    alone = "◌" if unicodedata.category(text[0]).startswith("M") else ""
    return alone + "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in VISIBLE:
        return VISIBLE[character]
    if character == "\ufffd":
        return "‹?›"
    code = ord(character)
    # U+xxFFFE and U+xxFFFF are no characters, and two of them are forbidden in XML.
    if unicodedata.category(character) in _CODED or code & 0xFFFE == 0xFFFE:
        form = "\\x{:02x}" if code < 0x100 else "\\u{:04x}" if code < 0x10000 else "\\U{:08x}"
        return form.format(code)
    return character


def plot_label(text: str | bytes, longest: int = 12) -> str:
    """:func:`token_label` for matplotlib: cut to ``longest``, every character drawable.

    A character that no installed font has becomes its code in angle quotes, "‹4e2d›": better
    than a row of empty boxes, and no warning when the figure is drawn later.
    """
    label = token_label(text)
    drawable = "".join(c if ord(c) in _code_points() else f"‹{ord(c):x}›" for c in label)
    return drawable if len(drawable) <= longest else drawable[: longest - 1] + "…"


@lru_cache(maxsize=1)
def token_fonts() -> tuple[str, ...]:
    """Font families for token text, most wanted first; only ones that are installed."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return (_MONOSPACE, "DejaVu Sans", *[name for name in _WIDE if name in installed][:1])


@lru_cache(maxsize=1)
def _code_points() -> frozenset[int]:
    """Characters that can be drawn both in regular and in bold: the bold fonts have fewer."""
    found: list[set[int]] = []
    for weight in ("normal", "bold"):
        points: set[int] = set()
        for family in token_fonts():
            wanted = font_manager.FontProperties(family=family, weight=weight)
            points.update(ft2font.FT2Font(str(Path(font_manager.findfont(wanted)))).get_charmap())
        found.append(points)
    return frozenset(set.intersection(*found))


def token_decoder(tokenizer: Any) -> Decode:
    """A function from one token id to its text, or to its bytes where they are not text.

    ``tokenizer`` is a transformers tokenizer; None gives the ids as text. Byte-level tokenizers
    (Qwen's, GPT-2's) split characters such as emoji over several tokens: these come as bytes.
    """
    if tokenizer is None:
        return lambda token: str(int(token))
    to_byte = {character: byte for byte, character in _byte_characters().items()}

    @lru_cache(maxsize=65536)
    def decode(token: int) -> str | bytes:
        token = int(token)
        text = tokenizer.decode([token], clean_up_tokenization_spaces=False)
        if "\ufffd" not in text:
            return text
        piece = tokenizer.convert_ids_to_tokens(token)
        if piece and all(character in to_byte for character in piece):
            return bytes(to_byte[character] for character in piece)
        return text

    return decode


def _byte_characters() -> dict[int, str]:
    """The printable stand-in of every byte in byte-level BPE vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }
