"""How far a drafter's guesses are from what the target would say, position by position.

Along the target's own greedy text, for anchors at regular distances: the drafter's marginals,
the head's conditionals given the true tokens before, and the target's own conditionals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dartree.analysis.replay import Replay
from dartree.api import corrected_logits, verify
from dartree.checks import positive_int
from dartree.drafter import Block
from dartree.prompts import Prompt
from dartree.proposers import greedy_chain
from dartree.stack import Stack
from dartree.tree import DraftTree


@dataclass
class Gap:
    """Measurements over A anchors and n positions; NaN where the text had ended.

    tv [A, n]
        Total variation between guess and target, 0 (the same) to 1 (nothing in common).
    agrees [A, n]
        1 where guess and target have the same most likely token.
    chain [A]
        log-probability that the target gives to the guess's own greedy chain of n tokens.
    """

    tv: np.ndarray
    agrees: np.ndarray
    chain: np.ndarray

    def by_position(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean total variation and mean top-1 disagreement [n] each."""
        return np.nanmean(self.tv, axis=0), 1 - np.nanmean(self.agrees, axis=0)

    def impossible(self, below: float = 1e-6) -> float:
        """Share of greedy chains to which the target gives less than ``below``."""
        return float(np.mean(self.chain < np.log(below)))


def measure(
    stack: Stack, prompts: Sequence[Prompt], every: int = 8, max_new_tokens: int = 96
) -> dict[str, Gap]:
    """Gaps of the drafter's marginals and of its corrected conditionals.

    Keys: ``marginals`` (of the head-less drafter where the stack has one, as `dflash` uses it) and
    ``corrected``. Anchors: every ``every``-th token of the target's greedy answers. Both are given
    the target's own tokens as the past, so errors do not pile up.
    """
    every, replay = positive_int("every", every), Replay(stack, prompts, max_new_tokens)
    rows: dict[str, list[tuple]] = {"marginals": [], "corrected": []}
    for number, text in enumerate(replay.texts):
        start, answer = text.prompt, text.answer
        target = _conditionals(stack, [*start, answer[0]], answer[1:])  # [T, V]
        for index in range(0, len(answer) - 1, every):
            ids, rest = [*start, *answer[: index + 1]], answer[index + 1 :]
            for name, values in rows.items():
                corrected = name == "corrected"
                pairing = stack.main if corrected else stack.pairing("dflash")
                block = replay.block(pairing, number, index)
                values.append(_row(stack, block, ids, rest, target[index:], corrected))
    return {name: _gap(values) for name, values in rows.items()}


def _conditionals(stack: Stack, ids: list[int], tokens: list[int]) -> torch.Tensor:
    """The target's distributions [1 + N, V] along ``tokens`` after ``ids``."""
    chain = DraftTree.chain(np.array(tokens, dtype=np.int64), np.zeros(len(tokens)))
    return verify(stack, ids, chain).float().softmax(-1)


def _row(
    stack: Stack,
    block: Block,
    ids: list[int],
    rest: list[int],
    target: torch.Tensor,
    corrected: bool,
) -> tuple[Any, Any, float]:
    """tv, agrees [n] and the chain's log-probability of one anchor, ``ids[-1]``."""
    count = min(len(rest), block.drafts)
    logits = block.base_logits.float()
    if corrected:
        path = [*rest, *[0] * block.drafts][: block.drafts]
        logits = corrected_logits(stack, block, path)
    guess = logits.float().softmax(-1)
    tv, agrees = np.full(block.drafts, np.nan), np.full(block.drafts, np.nan)
    tv[:count] = (0.5 * (guess[:count] - target[:count]).abs().sum(-1)).numpy()
    agrees[:count] = (guess[:count].argmax(-1) == target[:count].argmax(-1)).numpy()
    chain = greedy_chain(block, stack.head, block.drafts)[0] if corrected else logits.argmax(-1)
    own = chain.tolist()
    after = _conditionals(stack, ids, own)[: len(own)]
    picked = after.gather(1, torch.tensor(own)[:, None]).clamp_min(1e-30)
    return tv, agrees, float(picked.log().sum())


def _gap(values: list[tuple]) -> Gap:
    tv, agrees, chain = zip(*values, strict=True)
    return Gap(np.stack(tv), np.stack(agrees), np.array(chain))
