"""Samples as token windows of one length, with a weight for the loss at each token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dartree.training.common import read_jsonl, write_arrays
from dartree.training.tokenizer import chat

PROMPT_WEIGHT = 0.1  # what a question will be is mostly chance; a little of it keeps it readable
END_OF_TEXT = 0
WAITING = 32  # samples that are tried for what is left of a window


def encode(tokenizer: Any, rows: list[dict]) -> list[tuple[list[int], int]]:
    """(token ids of the whole turn, number of prompt ids) for each sample."""
    prompts = [chat(row["prompt"], system=row.get("system")) for row in rows]
    answers = [
        chat(row["prompt"], row["answer"], row.get("system"))[len(p) :]
        for p, row in zip(prompts, rows, strict=True)
    ]
    first, second = tokenizer(prompts)["input_ids"], tokenizer(answers)["input_ids"]
    return [(list(a) + list(b), len(a)) for a, b in zip(first, second, strict=True)]


def pack(samples: list[tuple[list[int], int]], length: int) -> tuple[np.ndarray, np.ndarray]:
    """ids [n, length] uint16 and loss weights [n, length] float16 of windows of whole samples.

    A sample that does not fit waits while a few others are tried, so that a window is almost full;
    what stays empty holds <|endoftext|> with weight 0.  Longer samples are cut at `length`.
    """
    ids, weights, at = [], [], 0
    waiting: list[tuple[list[int], int]] = []
    while at < len(samples) or waiting:
        row: list[int] = []
        weight: list[float] = []
        while True:
            while len(waiting) < WAITING and at < len(samples):
                waiting.append(samples[at])
                at += 1
            free = length - len(row)
            fits = next((i for i, s in enumerate(waiting) if min(len(s[0]), length) <= free), None)
            if fits is None:
                break
            tokens, prompt = waiting.pop(fits)
            tokens = tokens[:length]
            row += tokens
            weight += [PROMPT_WEIGHT] * min(prompt, len(tokens)) + [1.0] * (len(tokens) - prompt)
        ids.append(row + [END_OF_TEXT] * (length - len(row)))
        weights.append(weight + [0.0] * (length - len(weight)))
    return np.array(ids, dtype=np.uint16), np.array(weights, dtype=np.float16)


def windows(folder: Path, tokenizer: Any, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The windows of corpus/train.jsonl, kept in corpus/windows-<length>.npz for a resumed run."""
    source, kept = folder / "corpus" / "train.jsonl", folder / "corpus" / f"windows-{length}.npz"
    newest = max(source.stat().st_mtime, (folder / "tokenizer" / "tokenizer.json").stat().st_mtime)
    if kept.exists() and kept.stat().st_mtime > newest:
        with np.load(kept) as arrays:
            return arrays["ids"], arrays["weights"]
    ids, weights = pack(encode(tokenizer, list(read_jsonl(source))), length)
    write_arrays(kept, ids=ids, weights=weights)
    return ids, weights
