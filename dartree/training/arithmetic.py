"""Worked word problems, made from the templates in `text/stories.json`.

A problem is an opening (somebody comes to have a number of things, of money, of minutes ...) and
up to five changes to that number, two to six steps in all.  Every step is written out as
`expression = value`, and the last line is "The answer is N.", so a test can evaluate the text.
"""

from __future__ import annotations

import random
from typing import Any

from dartree.training.templates import calculate, fill, load, sentence

STORIES = load("stories")
MIDDLE = {"things": ("give", "lose", "gain", "double"), "dollars": ("spend", "earn", "spend"),
          "other": ("further", "twice")}  # fmt: skip
LAST = {"things": ("give", "lose", "gain", "double", "share", "price"),
        "dollars": ("spend", "earn", "share"),
        "other": ("further", "remaining", "twice")}  # fmt: skip
MOST_STEPS = 6
INTRODUCTIONS = ("", "", "", "Let us work step by step. ", "We go step by step. ")


class Problem:
    """A problem under construction: the question, the worked steps, what its templates know."""

    def __init__(self, rng: random.Random, **known: Any) -> None:
        self.rng, self.known = rng, {"value": 0, "friends": STORIES["friends"], **known}
        self.question: list[str] = []
        self.steps: list[str] = []

    @property
    def value(self) -> int:
        """The number so far."""
        return self.known["value"]

    def add(self, part: dict[str, Any]) -> None:
        """Tells an opening or a change and works it out."""
        unit = part.get("unit", self.known["unit"])
        branch = fill(self.rng, part, self.known)
        self.question.append(sentence(self._one_of(branch["tell"])))
        for expression, *leads in branch["work"]:
            expression, lead = expression.format_map(self.known), self._one_of(leads)
            result = calculate(expression)
            self.steps.append(sentence(f"{lead} {expression} = {result} {unit}."))
            self.known |= {"before": self.value, "value": result}
        self.known["unit"] = unit

    def change(self, name: str) -> None:
        """Adds one of the changes; a number without divisors grows instead of being shared."""
        divisors = [d for d in range(2, 10) if self.value % d == 0 and self.value > d]
        self.known["divisors"] = divisors
        change = STORIES["changes"]["gain" if name == "share" and not divisors else name]
        self.add(change)
        self.known["goal"] = change["goal"].format_map(self.known)

    def _one_of(self, texts: list[str]) -> str:
        return self.rng.choice(texts).format_map(self.known)


def problem(rng: random.Random) -> tuple[str, str]:
    """One (question, worked answer)."""
    pronoun = rng.choice(("she", "he"))
    kind = rng.choices(list(STORIES["openings"]), weights=[10, 5, 3, 3, 3])[0]
    unit = rng.choice(STORIES["things"]) if kind == "things" else kind
    p = Problem(rng, name=rng.choice(STORIES["people"][pronoun]), pronoun=pronoun, unit=unit,
                his="her" if pronoun == "she" else "his", things=STORIES["things"])  # fmt: skip
    family = kind if kind in MIDDLE else "other"
    p.add(rng.choice(STORIES["openings"][kind]))
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        if 2 < p.value < 300 and len(p.steps) < MOST_STEPS - 1:
            p.change(rng.choice(MIDDLE[family]))
    last = LAST[family] if 2 < p.value < 300 else ("gain" if family == "things" else "further",)
    p.change(rng.choice(last))
    answer = rng.choice(INTRODUCTIONS) + " ".join(p.steps) + f"\nThe answer is {p.value}."
    return " ".join([*p.question, p.known["goal"]]), answer
