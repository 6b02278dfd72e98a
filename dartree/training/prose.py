"""Short explanatory questions and answers: from the tables in `facts`, and from `listings`."""

from __future__ import annotations

import random

from dartree.training import facts, listings

Row = dict[str, str]
LISTED = 0.6  # share of samples whose content stands in the question
TELLING = 0.8  # the same for the held-out prompts: on facts the target itself is undecided
# For each table: aspects, each with ways to ask, and sentences that answer it.
ASPECTS: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "country": {
        "capital": (
            ("What is the capital of {name}?", "Which city is the capital of {name}?",
             "Name the capital of {name}."),
            ("The capital of {name} is {capital}.", "{capital} is the capital of {name}.")),
        "continent": (
            ("On which continent is {name}?", "Where is {name}?"),
            ("{name} is a country in {continent}.", "{name} lies in {continent}.")),
        "language": (
            ("What do people speak in {name}?", "Which language is spoken in {name}?"),
            ("People in {name} speak {language}.", "The language of {name} is {language}.")),
        "money": (
            ("What is the currency of {name}?", "How do people pay in {name}?"),
            ("The currency of {name} is {money}.", "People in {name} pay with {money}.")),
    },
    "animal": {
        "kind": (
            ("What kind of animal is a {name}?",
             "To which group of animals does the {name} belong?"),
            ("A {name} is a {kind}.", "The {name} belongs to the {kind} group.")),
        "home": (
            ("Where does a {name} live?", "Where can I find a {name}?"),
            ("It lives {home}.", "The {name} lives {home}.")),
        "food": (
            ("What does a {name} eat?", "What is the food of a {name}?"),
            ("It eats {food}.", "A {name} eats {food}.")),
        "young": (
            ("What is a young {name} called?", "How do we call the young of a {name}?"),
            ("A young {name} is called a {young}.", "The young of a {name} is a {young}.")),
        "sound": (
            ("Which sound does a {name} make?",), ("A {name} {sound}.", "The {name} {sound}.")),
    },
    "element": {
        "symbol": (
            ("What is the symbol of {name}?", "How is {name} written in chemistry?"),
            ("The symbol of {name} is {symbol}.", "{name} is written as {symbol}.")),
        "number": (
            ("What is the atomic number of {name}?",),
            ("Its atomic number is {number}.", "The atomic number of {name} is {number}.")),
        "state": (
            ("Is {name} a gas or a metal?", "What does {name} look like at room temperature?"),
            ("At room temperature {name} is a {state}.", "{name} is a {state}.")),
        "use": (
            ("What is {name} used for?", "Where do we use {name}?"),
            ("{name} is used for {use}.", "People use {name} for {use}.")),
    },
    "tool": {
        "purpose": (
            ("What is a {name} for?", "What can I do with a {name}?",
             "Why do people use a {name}?"),
            ("A {name} is used to {purpose}.", "With a {name} you can {purpose}.")),
        "user": (
            ("Who uses a {name}?", "Which profession needs a {name}?"),
            ("The {user} uses a {name}.", "A {name} is a tool of the {user}.")),
        "parts": (
            ("What does a {name} consist of?", "How is a {name} built?"),
            ("It has {parts}.", "A {name} has {parts}.")),
    },
    "planet": {
        "place": (
            ("Which place does {name} have from the sun?", "How far out is {name}?"),
            ("{name} is the {place} planet from the sun.",)),
        "year": (
            ("How long is a year on {name}?",), ("One year on {name} takes about {year}.",)),
        "look": (
            ("What does {name} look like?", "Describe {name}."),
            ("{name} is {look}.", "The planet is {look}.")),
        "moons": (("Does {name} have moons?",), ("{name} has {moons}.", "It has {moons}.")),
    },
    "unit": {
        "measures": (
            ("What does a {name} measure?",), ("The {name} is a unit of {measures}.",)),
        "equals": (
            ("How much is a {name}?", "What does one {name} equal?"),
            ("One {name} equals {equals}.", "A {name} is the same as {equals}.")),
        "use": (("Where do we use the {name}?",), ("People use the {name} for {use}.",)),
    },
    "month": {
        "place": (
            ("Which month of the year is {name}?",), ("{name} is the {place} month of the year.",)),
        "length": (
            ("How many days does {name} have?", "How long is {name}?"),
            ("{name} has {length}.", "It has {length}.")),
        "season": (
            ("In which season is {name}?",),
            ("In the north {name} is in {season}.", "It belongs to {season} in the north.")),
        "after": (
            ("Which month comes after {name}?", "What follows {name}?"),
            ("After {name} comes {after}.", "{name} is followed by {after}.")),
        "before": (
            ("Which month comes before {name}?",),
            ("Before {name} comes {before}.", "{name} follows {before}.")),
    },
    "material": {
        "source": (
            ("What is {name} made from?", "Where does {name} come from?"),
            ("{name} comes from {source}.", "{name} is made from {source}.")),
        "use": (
            ("What is {name} used for?", "What do people make from {name}?"),
            ("People use {name} for {use}.", "{name} is used for {use}.")),
        "reason": (
            ("Why is {name} useful?", "What is special about {name}?"),
            ("{name} is useful because {reason}.",
             "The good thing about {name} is that {reason}.")),
    },
}  # fmt: skip
WHOLE = (
    "Tell me about {the}.", "Explain {the} in a few sentences.", "Write a short text about {the}.",
    "What should I know about {the}?", "Describe {the} to a child.",
)  # fmt: skip
ORDER = (("First", "Then", "Next", "After that", "Finally"),
         ("To begin", "Then", "After that", "Now", "At the end"))  # fmt: skip


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _the(table: str, row: Row) -> str:
    article = {"country": "", "planet": "the planet ", "month": "the month of ", "element": "",
               "material": ""}.get(table, "the ")  # fmt: skip
    return article + row["name"]


def _one(rng: random.Random) -> tuple[str, str]:
    """A question about one aspect; the answer adds one to three others."""
    table = rng.choices(list(ASPECTS), weights=[6, 4, 3, 4, 1, 1, 1, 2])[0]
    row, aspects = rng.choice(facts.rows(table)), ASPECTS[table]
    key = rng.choice(list(aspects))
    others = [other for other in aspects if other != key]
    more = rng.sample(others, rng.randint(1, min(3, len(others))))
    chosen = [key, *sorted(more, key=others.index)]
    question = rng.choice(aspects[key][0]).format(**row)
    text = [_sentence(rng.choice(aspects[name][1]).format(**row)) for name in chosen]
    return _articles(_sentence(question)), _articles(" ".join(text))


def _all(rng: random.Random) -> tuple[str, str]:
    """A short text about everything that a row says."""
    table = rng.choices(list(ASPECTS), weights=[6, 4, 3, 4, 1, 1, 1, 2])[0]
    row, aspects = rng.choice(facts.rows(table)), ASPECTS[table]
    question = rng.choice(WHOLE).format(the=_the(table, row))
    text = [_sentence(rng.choice(forms).format(**row)) for _, forms in aspects.values()]
    return _articles(question), _articles(" ".join(text))


def _two(rng: random.Random) -> tuple[str, str]:
    """A question about the same aspect of two rows."""
    table = rng.choices(list(ASPECTS), weights=[6, 4, 3, 4, 1, 1, 1, 2])[0]
    first, second = rng.sample(facts.rows(table), 2)
    key = rng.choice(list(ASPECTS[table]))
    names = f"{_the(table, first)} and {_the(table, second)}"
    form = rng.randrange(3)
    question = (f"Compare {names}.", f"What is the difference between {names}?",
                f"Say something about {names}.")[form]  # fmt: skip
    keys = list(ASPECTS[table])[:3] if form != 2 else [key]
    text = []
    for key in keys:
        for row in (first, second):
            # here the name must be in the sentence: "It" could be either of the two
            forms = [f for f in ASPECTS[table][key][1] if "{name}" in f]
            text.append(_sentence(forms[0].format(**row)))
    return _articles(question), _articles(" ".join(text))


def _how(rng: random.Random) -> tuple[str, str]:
    """The steps of a simple task, as a paragraph or as a list."""
    task, steps = rng.choice(facts.pairs(facts.PROCESSES))
    question = rng.choice((
        "How do I {t}?", "Explain how to {t}.", "How can I {t}?", "Tell me how to {t}.",
        "What do I have to do to {t}?", "Please describe how people {t}.",
        "I want to {t}. What now?",
        "Give me the steps to {t}.", "List the steps to {t}.", "Show me in steps how to {t}.",
    )).format(t=task)  # fmt: skip
    if "step" in question:
        lines = [f"{i}. {_sentence(step)}." for i, step in enumerate(steps, 1)]
        return question, f"To {task}, do the following:\n" + "\n".join(lines)
    words = rng.choice(ORDER)
    text = " ".join(f"{word}, {step}." for word, step in zip(words, steps, strict=True))
    return question, rng.choice((f"It is easy to {task}. ", "", f"This is how to {task}. ")) + text


def _why(rng: random.Random) -> tuple[str, str]:
    """The reason for something everybody has seen."""
    subject, (first, second) = rng.choice(facts.pairs(facts.REASONS))
    question = rng.choice((
        "Can you explain why {s}?", "Tell me why {s}.", "Why is it that {s}?", "I wonder why {s}.",
        "What is the reason that {s}?", "Please explain why {s}.", "How come {s}?",
    )).format(s=subject)  # fmt: skip
    opening = rng.choice((f"{_sentence(subject)} because {first}.", f"The reason is that {first}."))
    closing = rng.choice(("", "", f" That is why {subject}."))
    return question, f"{opening} {_sentence(second)}.{closing}"


def _articles(text: str) -> str:
    for vowel in "aeioAEIO":
        text = text.replace(f" a {vowel}", f" an {vowel}").replace(f"A {vowel}", f"An {vowel}")
    return text.replace(" a hour", " an hour").replace("A hour", "An hour")


def passage(rng: random.Random, telling: bool = False) -> tuple[str, str]:
    """One (question, answer): from the tables of facts, or with its content in the question."""
    if rng.random() < (TELLING if telling else LISTED):
        return listings.passage(rng, telling)
    return rng.choices((_one, _all, _two, _how, _why), weights=[8, 5, 3, 3, 2])[0](rng)


def telling_passage(rng: random.Random) -> tuple[str, str]:
    """As `passage`, without what any drafter guesses whole and with fewer questions for facts."""
    return passage(rng, telling=True)
