"""Places along the target's own answers at which rounds are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dartree.analysis.answers import answers
from dartree.checks import positive_int
from dartree.prompts import Prompt
from dartree.stack import Stack


@dataclass(frozen=True)
class Anchor:
    """A place in a text.

    prompt
        Number of the prompt.
    ids, rest
        Tokens up to and including the anchor, and the answer's tokens after it.
    """

    prompt: int
    ids: list[int]
    rest: list[int]


def anchors(
    stack: Stack, prompts: Sequence[Prompt], every: int = 12, max_new_tokens: int = 96
) -> list[Anchor]:
    """Every ``every``-th token of the target's greedy answers, from the first one on."""
    every, found = positive_int("every", every), []
    for number, (start, answer) in enumerate(answers(stack, prompts, max_new_tokens)):
        for cut in range(1, len(answer), every):
            found.append(Anchor(number, [*start, *answer[:cut]], answer[cut:]))
    return found
