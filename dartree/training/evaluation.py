"""What the target is worth on held-out samples: perplexity, right answers, repetition, stops."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional as F

from dartree.training.common import DOMAINS
from dartree.training.forward import BatchedTarget, answer
from dartree.training.packing import encode
from dartree.training.pipelines import NUMBERS, WORDS
from dartree.training.regenerate import encode_chat

MAX_NEW_TOKENS = 256
# Runs in its own interpreter with a time limit: what a model wrote is nobody's trusted code.
RUNNER = r"""
import json, random, sys
pairs = json.load(sys.stdin)
def results(source, name, items):
    space = {}
    exec(source, space)
    return [repr(space[name](list(item))) for item in items]
same = []
for reference, candidate, name, kind in pairs:
    rng = random.Random(name)
    if kind == "numbers":
        items = [[rng.randint(-20, 120) for _ in range(8)] for _ in range(10)]
    else:
        words = "Red blue lamp Oslo night tiger MOON kale east sand mode".split()
        items = [rng.sample(words, 6) for _ in range(10)]
    try:
        same.append(results(reference, name, items) == results(candidate, name, items))
    except Exception:
        same.append(False)
print(json.dumps(same))
"""


def repeated_4_grams(ids: list[int]) -> float:
    """Share of the 4-grams of a text that stood in it before: near 1 where it loops."""
    grams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def final_number(answer: str) -> str | None:
    """The number in the answer line of a worked problem."""
    found = re.search(r"The answer is (-?\d+)\.\s*$", answer)
    return found.group(1) if found else None


def source_of(answer: str) -> str | None:
    """The first Python block of an answer."""
    found = re.search(r"```python\n(.*?)\n```", answer, re.DOTALL)
    return found.group(1) if found else None


def functions_alike(pairs: list[tuple[str, str, str, str]], timeout: float = 60) -> list[bool]:
    """Whether candidate and reference return the same for ten lists each.

    pairs: (reference source, candidate source, function name, 'numbers' or 'words').  All count
    as different where one of them does not come back within `timeout` seconds.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", RUNNER], input=json.dumps(pairs), text=True,
            capture_output=True, timeout=timeout,
        )  # fmt: skip
        return json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return [False] * len(pairs)


def perplexity(model: Any, tokenizer: Any, rows: list[dict]) -> dict[str, dict]:
    """Per domain: perplexity of the reference answers' tokens, stop token included, and how many.

    The answer's tokens are conditioned on the whole turn before them; fp32.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    with torch.no_grad():
        for row, (ids, prompt) in zip(rows, encode(tokenizer, rows), strict=True):
            ids = ids[:-1]  # the line break after the stop token is never generated
            logits = model(torch.tensor([ids])).logits[0, prompt - 1 : -1].float()  # [T, V]
            loss = F.cross_entropy(logits, torch.tensor(ids[prompt:]), reduction="sum")
            sums[row["domain"]][0] += float(loss)
            sums[row["domain"]][1] += len(ids) - prompt
    return {d: {"perplexity": math.exp(s / n), "tokens": n} for d, (s, n) in sums.items()}


def greedy_answers(model: Any, tokenizer: Any, rows: list[dict]) -> list[list[int]]:
    """The target's greedy answers to the rows' prompts, in batches."""
    target, stop = BatchedTarget(model), tokenizer.convert_tokens_to_ids("<|im_end|>")
    prompts = [encode_chat(tokenizer, row["prompt"]) for row in rows]
    out: list[list[int]] = []
    for i in range(0, len(prompts), 32):
        out += answer(target, prompts[i : i + 32], max_new_tokens=MAX_NEW_TOKENS, stop_ids={stop})
    return out


def quality(model: Any, tokenizer: Any, rows: list[dict]) -> dict:
    """All of the above for held-out rows with domain, prompt and answer."""
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    answers = greedy_answers(model, tokenizer, rows)
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in answers]
    result: dict = {"perplexity": perplexity(model, tokenizer, rows), "greedy": {}}
    for domain in DOMAINS:
        mine = [i for i, row in enumerate(rows) if row["domain"] == domain]
        references = tokenizer([rows[i]["answer"] for i in mine])["input_ids"]
        result["greedy"][domain] = {
            "answers": len(mine),
            "mean_tokens": _mean(len(answers[i]) for i in mine),
            "stopped": _mean(answers[i][-1] == stop for i in mine),
            "repeated_4_grams": _mean(repeated_4_grams(answers[i]) for i in mine),
            "reference_repeated_4_grams": _mean(map(repeated_4_grams, references)),
            "same_text": _mean(texts[i].strip() == rows[i]["answer"].strip() for i in mine),
        }
    result["arithmetic_by_steps"] = _arithmetic(rows, texts)
    result["functions"] = _functions(rows, texts)
    return result


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)


def _arithmetic(rows: list[dict], texts: list[str]) -> dict[int, list[int]]:
    """Number of worked steps -> [right final numbers, problems]."""
    counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row, text in zip(rows, texts, strict=True):
        if row["domain"] == "arithmetic":
            entry = counts[row["answer"].count(" = ")]
            entry[0] += final_number(text) == final_number(row["answer"])
            entry[1] += 1
    return dict(sorted(counts.items()))


def _functions(rows: list[dict], texts: list[str]) -> list[int]:
    """[functions that return what the reference returns, functions], for list functions."""
    pairs = []
    for row, text in zip(rows, texts, strict=True):
        reference = source_of(row["answer"] if row["domain"] == "code" else "") or ""
        found = re.search(r"^def (\w+)\((\w+)\):", reference, re.MULTILINE)
        if found and found.group(2) in NUMBERS + WORDS:
            kind = "numbers" if found.group(2) in NUMBERS else "words"
            pairs.append((reference, source_of(text) or "", found.group(1), kind))
    return [sum(functions_alike(pairs)), len(pairs)]
