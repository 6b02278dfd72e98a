"""Worked word problems, made from templates.

A problem is an opening (somebody comes to have a number of things, of money, of minutes ...) and
up to five changes to that number, two to six steps in all.  Every step is written out as
`expression = value`, and the last line is "The answer is N.", so a test can evaluate the text.
"""

from __future__ import annotations

import random

from dartree.training.stories import FRIENDS, OPENINGS, PEOPLE, THINGS, Problem

# --- changes: what happens to the number, each with the question it would end in -----------------


def _give(p: Problem) -> None:
    friend, n = p.pick(*FRIENDS), p.number(1, p.value - 1)
    p.tell(
        f"{p.He} gives {n} of them to {friend}.",
        f"Then {p.name} gives {friend} {n} {p.unit}.",
    )
    p.work(
        f"{p.value} - {n}",
        f"After giving {n} to {friend}, {p.name} has",
        f"{p.He} gives {n} away, so {p.pronoun} keeps",
    )
    p.goal = f"How many {p.unit} does {p.name} have left?"


def _lose(p: Problem) -> None:
    n = p.number(1, min(p.value - 1, 30))
    verb = p.pick("loses", "breaks", "sells", "throws away")
    p.tell(f"{p.He} {verb} {n} {p.unit}.", f"Later {p.name} {verb} {n} of the {p.unit}.")
    p.work(
        f"{p.value} - {n}",
        f"{p.He} {verb} {n}, so there are",
        f"Without the {n} {p.unit} {p.name} has",
    )
    p.goal = f"How many {p.unit} does {p.name} have now?"


def _gain(p: Problem) -> None:
    n = p.number(2, 40)
    verb = p.pick("buys", "finds", "gets", "makes")
    p.tell(f"{p.He} {verb} {n} more.", f"After that {p.name} {verb} {n} more {p.unit}.")
    p.work(
        f"{p.value} + {n}",
        f"With the {n} more {p.name} has",
        f"{p.He} {verb} {n} more, which makes",
    )
    p.goal = f"How many {p.unit} does {p.name} have now?"


def _double(p: Problem) -> None:
    n = p.number(2, 3)
    word = {2: "doubles", 3: "triples"}[n]
    p.tell(f"A month later {p.name} {word} the number.", f"Then the number of {p.unit} {word}.")
    p.work(f"{n} * {p.value}", f"The number {word}, so {p.name} has", "That makes")
    p.goal = f"How many {p.unit} does {p.name} have in the end?"


def _share(p: Problem) -> None:
    divisors = [d for d in range(2, 10) if p.value % d == 0 and p.value > d]
    if not divisors:
        return _gain(p)
    n = p.rng.choice(divisors)
    who = p.pick("friends", "children", "cousins", "neighbours")
    p.tell(
        f"{p.He} shares the {p.unit} equally among {n} {who}.",
        f"{n} {who} get the {p.unit} in equal parts.",
    )
    p.work(f"{p.value} / {n}", f"Each of the {n} {who} gets", f"Shared among {n} {who}, that is")
    p.goal = f"How many {p.unit} does each of the {who} get?"


def _price(p: Problem) -> None:
    price = p.number(2, 9)
    p.tell(f"{p.He} sells all of them for {price} dollars each.")
    p.work(
        f"{p.value} * {price}",
        f"At {price} dollars each {p.name} gets",
        f"Selling {p.value} {p.unit} for {price} dollars each brings",
        unit="dollars",
    )
    p.unit, p.goal = "dollars", f"How many dollars does {p.name} get?"


def _spend(p: Problem) -> None:
    n = p.number(1, p.value - 1)
    thing = p.pick("a hat", "a book", "lunch", "a present", "a lamp", "shoes", "a map")
    p.tell(f"{p.He} spends {n} dollars on {thing}.", f"Then {p.name} pays {n} dollars for {thing}.")
    p.work(
        f"{p.value} - {n}",
        f"After paying for {thing} {p.name} has",
        f"{thing} costs {n}, leaving",
    )
    p.goal = f"How many dollars does {p.name} have left?"


def _earn(p: Problem) -> None:
    n = p.number(3, 50)
    p.tell(f"{p.He} earns {n} dollars more.", f"Later {p.name} gets another {n} dollars.")
    p.work(f"{p.value} + {n}", f"With {n} dollars more {p.name} has", "Together that makes")
    p.goal = f"How many dollars does {p.name} have now?"


def _further(p: Problem) -> None:
    n = p.number(2, 60)
    p.tell(
        f"Later {p.pronoun} adds {n} more {p.unit}.",
        f"After a break {p.name} adds {n} {p.unit}.",
    )
    p.work(
        f"{p.value} + {n}",
        f"With the {n} {p.unit} more that is",
        f"{p.name} adds {n}, which makes",
    )
    p.goal = f"How many {p.unit} is that in all?"


def _remaining(p: Problem) -> None:
    target = p.value + p.number(5, 80)
    p.tell(f"The goal is {target} {p.unit}.", f"{p.name} wants to reach {target} {p.unit}.")
    p.work(f"{target} - {p.value}", "To the goal there remain", f"From {p.value} to {target} it is")
    p.goal = f"How many {p.unit} are missing?"


def _twice(p: Problem) -> None:
    p.tell(f"The next week {p.name} does all of it again.", f"{p.name} repeats all of this once.")
    p.work(f"2 * {p.value}", "Doing it twice makes", f"{p.name} does it 2 times, so that is")
    p.goal = f"How many {p.unit} is that in all?"


MIDDLE = {"items": (_give, _lose, _gain, _double), "dollars": (_spend, _earn, _spend),
          "other": (_further, _twice)}  # fmt: skip
LAST = {"items": (_give, _lose, _gain, _double, _share, _price), "dollars": (_spend, _earn, _share),
        "other": (_further, _remaining, _twice)}  # fmt: skip
MOST_STEPS = 6
INTRODUCTIONS = ("", "", "", "Let us work step by step. ", "We go step by step. ")


def problem(rng: random.Random) -> tuple[str, str]:
    """One (question, worked answer)."""
    pronoun = rng.choice(("she", "he"))
    kind = rng.choices(list(OPENINGS), weights=[10, 5, 3, 3, 3])[0]
    unit = rng.choice(THINGS) if kind == "things" else kind
    p = Problem(rng, name=rng.choice(PEOPLE[pronoun]), pronoun=pronoun, unit=unit)
    family = {"things": "items", "dollars": "dollars"}.get(kind, "other")
    rng.choice(OPENINGS[kind])(p)
    middle = rng.choice((0, 1, 1, 2, 2, 3, 4))
    for _ in range(middle):
        if 2 < p.value < 300 and len(p.steps) < MOST_STEPS - 1:
            rng.choice(MIDDLE[family])(p)
    last = LAST[family] if 2 < p.value < 300 else (_gain if family == "items" else _further,)
    rng.choice(last)(p)
    steps = [step[0].upper() + step[1:] for step in p.steps]
    answer = rng.choice(INTRODUCTIONS) + " ".join(steps) + f"\nThe answer is {p.value}."
    return " ".join([*p.question, p.goal]), answer
