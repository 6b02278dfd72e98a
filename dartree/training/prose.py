"""Short explanatory questions and answers: from `text/facts.json`, and from `listings`."""

from __future__ import annotations

import random

from dartree.training import listings
from dartree.training.templates import load, sentence

FACTS = load("facts")
TABLES, QUESTIONS = FACTS["tables"], FACTS["questions"]
LISTED = 0.6  # share of samples whose content stands in the question
TELLING = 0.8  # the same for the held-out prompts: on facts the target itself is undecided
ORDER = (("First", "Then", "Next", "After that", "Finally"),
         ("To begin", "Then", "After that", "Now", "At the end"))  # fmt: skip


def _table(rng: random.Random) -> dict:
    tables = list(TABLES.values())
    return rng.choices(tables, weights=[table["weight"] for table in tables])[0]


def _row(table: dict, values: list[str]) -> dict[str, str]:
    """A row by the names of its fields, and "the": its name with the article it takes."""
    row = dict(zip(table["fields"], values, strict=True))
    return {**row, "the": table["article"] + row["name"]}


def _one(rng: random.Random) -> tuple[str, str]:
    """A question about one aspect; the answer adds one to three others."""
    table = _table(rng)
    row, aspects = _row(table, rng.choice(table["rows"])), table["aspects"]
    key = rng.choice(list(aspects))
    others = [other for other in aspects if other != key]
    more = rng.sample(others, rng.randint(1, min(3, len(others))))
    question = rng.choice(aspects[key]["ask"]).format_map(row)
    names = [key, *sorted(more, key=others.index)]
    text = [sentence(rng.choice(aspects[name]["say"]).format_map(row)) for name in names]
    return _articles(sentence(question)), _articles(" ".join(text))


def _all(rng: random.Random) -> tuple[str, str]:
    """A short text about everything that a row says."""
    table = _table(rng)
    row = _row(table, rng.choice(table["rows"]))
    question = rng.choice(QUESTIONS["whole"]).format_map(row)
    text = [sentence(rng.choice(aspect["say"]).format_map(row))
            for aspect in table["aspects"].values()]  # fmt: skip
    return _articles(question), _articles(" ".join(text))


def _two(rng: random.Random) -> tuple[str, str]:
    """A question about the same aspects of two rows."""
    table = _table(rng)
    rows = [_row(table, values) for values in rng.sample(table["rows"], 2)]
    key = rng.choice(list(table["aspects"]))
    form = rng.randrange(3)
    question = QUESTIONS["compare"][form].format(names=" and ".join(row["the"] for row in rows))
    text = []
    for name in [key] if form == 2 else list(table["aspects"])[:3]:
        # here the name must be in the sentence: "It" could be either of the two
        say = next(form for form in table["aspects"][name]["say"] if "{name}" in form)
        text += [sentence(say.format_map(row)) for row in rows]
    return _articles(question), _articles(" ".join(text))


def _how(rng: random.Random) -> tuple[str, str]:
    """The steps of a simple task, as a paragraph or as a list."""
    task, steps = rng.choice(list(FACTS["tasks"].items()))
    question = rng.choice(QUESTIONS["how"]).format(task=task)
    if "step" in question:
        lines = [f"{i}. {sentence(step)}." for i, step in enumerate(steps, 1)]
        return question, f"To {task}, do the following:\n" + "\n".join(lines)
    words = rng.choice(ORDER)
    text = " ".join(f"{word}, {step}." for word, step in zip(words, steps, strict=True))
    return question, rng.choice((f"It is easy to {task}. ", "", f"This is how to {task}. ")) + text


def _why(rng: random.Random) -> tuple[str, str]:
    """The reason for something everybody has seen."""
    subject, (first, second) = rng.choice(list(FACTS["reasons"].items()))
    question = rng.choice(QUESTIONS["why"]).format(it=subject)
    opening = rng.choice((f"{sentence(subject)} because {first}.", f"The reason is that {first}."))
    closing = rng.choice(("", "", f" That is why {subject}."))
    return question, f"{opening} {sentence(second)}.{closing}"


def _articles(text: str) -> str:
    for vowel in "aeioAEIO":
        text = text.replace(f" a {vowel}", f" an {vowel}").replace(f"A {vowel}", f"An {vowel}")
    return text.replace(" a hour", " an hour").replace("A hour", "An hour")


def passage(rng: random.Random, telling: bool = False) -> tuple[str, str]:
    """One (question, answer): from the tables of facts, or with its content in the question.

    ``telling``: without what any drafter guesses whole and with fewer questions for facts.
    """
    if rng.random() < (TELLING if telling else LISTED):
        return listings.passage(rng, telling)
    return rng.choices((_one, _all, _two, _how, _why), weights=[8, 5, 3, 3, 2])[0](rng)


def telling_passage(rng: random.Random) -> tuple[str, str]:
    """As `passage`, for the held-out prompts."""
    return passage(rng, telling=True)
