"""Prompts as token ids: texts through the chat template, ids as they are."""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Sequence
from typing import Any

Prompt = str | Sequence[int] | Sequence[dict[str, str]]


def encode_prompt(tokenizer: Any, vocabulary: int, prompt: Prompt, raw: bool = False) -> list[int]:
    """Token ids of a prompt, each below ``vocabulary``; see :meth:`dartree.Stack.encode`.

    ``tokenizer`` is None for a stack without one, which takes ids alone.
    """
    if isinstance(prompt, str):
        ids = _text_ids(tokenizer, prompt, raw)
    else:
        try:
            if isinstance(prompt, bytes):
                raise TypeError
            parts: list[Any] = list(prompt)
            talk = bool(parts) and isinstance(parts[0], dict)
            ids = [] if talk else [operator.index(i) for i in parts]
        except TypeError:
            raise ValueError(
                f"prompt must be a text, token ids or messages, got {type(prompt).__name__}."
            ) from None
        ids = _text_ids(tokenizer, parts) if talk else ids
    if not ids:
        raise ValueError("prompt must not be empty.")
    bad = [i for i in ids if not 0 <= i < vocabulary]
    if bad:
        raise ValueError(f"prompt ids must lie in 0..{vocabulary - 1}, got {bad[0]}.")
    if tokenizer is not None and _thinks(tokenizer.decode(ids)):
        warnings.warn(
            "the prompt lets the model think, and public drafters are trained with thinking "
            "off: fewer drafts will be accepted.",
            stacklevel=4,
        )
    return ids


def _thinks(text: str) -> bool:
    """Whether a prompt ends inside <think>, or a user's /think comes after the last /no_think.

    Neither where it ends with a closed block, as Qwen3's template does with thinking off.
    """
    if text.rstrip().endswith("</think>"):
        return False
    on, off = (text.rfind(word) for word in ("<think>", "</think>"))
    switches = re.findall(r"(?<!\S)/(no_)?think\b", text)
    return on > off or bool(switches and not switches[-1])


def _text_ids(tokenizer: Any, prompt: str | list[Any], raw: bool = False) -> list[int]:
    if tokenizer is None:
        raise ValueError("this stack has no tokenizer: give the prompt as ids.")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    for message in messages:
        _check_message(message)
    text = prompt
    if not (raw and isinstance(prompt, str)):
        if tokenizer.chat_template:
            # Drafters of this family are trained with thinking off.
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        else:
            text = "\n".join(m["content"] for m in messages)
    # verbose=False: the length is checked where the context is known, in one sentence.
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _check_message(message: Any) -> None:
    if not isinstance(message, dict) or not all(
        isinstance(message.get(name), str) for name in ("role", "content")
    ):
        raise ValueError(f"prompt messages must hold the texts role and content, got {message!r}.")
    content = message["content"]
    if not content.strip():
        raise ValueError("prompt must not be empty.")
    try:
        content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"prompt must be valid Unicode, got a lone surrogate at character {error.start}."
        ) from None


def eos_ids(generation_config: Any) -> list[int]:
    """Stop ids of a generation config (None, an int, a list or a tensor), without duplicates."""
    ids: Any = getattr(generation_config, "eos_token_id", None)
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    if ids is None:
        return []
    return list(dict.fromkeys([ids] if isinstance(ids, int) else [int(i) for i in ids]))
