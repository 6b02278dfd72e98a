"""The target's own answers: the texts along which everything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dartree.analysis.kept import identity, keep
from dartree.decode import generate
from dartree.prompts import Prompt
from dartree.stack import Stack


def answers(
    stack: Stack,
    prompts: Sequence[Prompt],
    max_new_tokens: int = 96,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[tuple[list[int], list[int]]]:
    """(ids of the prompt, ids of the answer) for each of ``prompts``, decoded without a drafter.

    Greedy unless ``temperature`` is given. Kept between notebooks, see ``kept.py``.
    """
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed
    }  # fmt: skip
    of, found = identity(stack.pairing("ar")), []
    for prompt in prompts:
        ids = stack.encode(prompt)

        def decode(ids=ids) -> dict[str, torch.Tensor]:
            return {"ids": torch.tensor(generate(stack, ids, method="ar", **options).token_ids)}

        what = {"answer": ids, "stop": stack.stop_ids(), **options}
        found.append((ids, keep(of, what, decode)["ids"].tolist()))
    return found
