"""A language of a few sentences with an exact table of probabilities: what a block drafter sees.

A block drafter that guesses every position by itself can at best give the *marginals* of the
text. The table shows what that loses, without any training and without any sampling error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

# Two sentences for sampling: every word of a position is as likely as the other.
WEATHER = {"the weather is lovely": 0.5, "a storm is coming": 0.5}
# Three sentences for argmax: the likeliest word of every position forms a fourth one.
STORMS = {"the weather is lovely": 1 / 3, "the storm is coming": 1 / 3, "a storm is lovely": 1 / 3}


@dataclass(frozen=True)
class ToyLanguage:
    """Sentences of n words each, with probabilities that sum to 1.

    sentences
        Text -> probability; all of the same number of words. ValueError otherwise.
    """

    sentences: Mapping[str, float]

    def __post_init__(self) -> None:
        lengths = {len(text.split()) for text in self.sentences}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"sentences must have one length, got lengths {sorted(lengths)}.")
        total = math.fsum(self.sentences.values())
        if not math.isclose(total, 1.0) or min(self.sentences.values()) < 0:
            raise ValueError(f"probabilities must be at least 0 and sum to 1, got {total:g}.")

    @property
    def words(self) -> list[str]:
        """The vocabulary, in order of first appearance."""
        return list(dict.fromkeys(w for text in self.sentences for w in text.split()))

    @property
    def length(self) -> int:
        """Words in a sentence."""
        return len(next(iter(self.sentences)).split())

    def conditional(self, prefix: tuple[str, ...] = ()) -> np.ndarray:
        """P(next word | prefix) [V]; zeros after a prefix that no sentence has."""
        row = np.zeros(len(self.words))
        for text, p in self.sentences.items():
            words = tuple(text.split())
            if words[: len(prefix)] == tuple(prefix):
                row[self.words.index(words[len(prefix)])] += p
        return row / row.sum() if row.sum() else row

    def marginals(self) -> np.ndarray:
        """P(word at position i), whatever the other words are: [n, V]."""
        table = np.zeros((self.length, len(self.words)))
        for text, p in self.sentences.items():
            for i, word in enumerate(text.split()):
                table[i, self.words.index(word)] += p
        return table

    def probability(self, words: tuple[str, ...]) -> float:
        """P(the sentence of these words)."""
        return float(self.sentences.get(" ".join(words), 0.0))

    def argmax_of_marginals(self) -> tuple[str, ...]:
        """The likeliest word of every position, each by itself (what `dflash` drafts)."""
        return tuple(self.words[i] for i in self.marginals().argmax(1))

    def corrected_argmax(self) -> tuple[str, ...]:
        """The likeliest word after the words already chosen (what `domino` drafts)."""
        words: tuple[str, ...] = ()
        while len(words) < self.length:
            words += (self.words[int(self.conditional(words).argmax())],)
        return words

    def valid_share(self) -> float:
        """Probability that words drawn from the marginals, each by itself, form a sentence."""
        marginals = self.marginals()
        return math.fsum(
            math.prod(marginals[i, self.words.index(w)] for i, w in enumerate(text.split()))
            for text, p in self.sentences.items() if p > 0
        )  # fmt: skip
