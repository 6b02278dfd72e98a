"""Python code with the request that leads to it, all of our own.

Most of it is put together from steps (`pipelines`); small well-known functions, from the templates
in `text/functions.json`, and small classes are made here.
"""

from __future__ import annotations

import random

from dartree.training import pipelines
from dartree.training.templates import fill, load

FUNCTIONS = load("functions")
LISTS = {
    **{name: FUNCTIONS[name] for name in ("lists", "words", "dictionaries", "limits")},
    "lists and words": FUNCTIONS["lists"] + FUNCTIONS["words"],
}
CLASSES, FIELDS = FUNCTIONS["classes"], FUNCTIONS["fields"]


def function(rng: random.Random) -> tuple[str, str]:
    """One (request, answer) with a small function of our own."""
    known = dict(LISTS)
    part = fill(rng, rng.choice(FUNCTIONS["kinds"]), known)
    form = part["form"] if "form" in part else rng.choice(part["forms"])
    name, arguments, what, *body = (text.format_map(known) for text in form)
    request = rng.choice(FUNCTIONS["requests"]).format(name=name, arguments=arguments, what=what)
    lines = [f"def {name}({arguments}):", f'    """Return {what}."""']
    lines += ["    " + line for line in body]
    return request, "```python\n" + "\n".join(lines) + "\n```"


def _methods(rng: random.Random, fields: list[str]) -> list[tuple[str, str, str, str]]:
    """One to three methods: name, further arguments, body, and what is asked for."""
    numbers = [f for f in fields if FIELDS[f] != "str"]
    methods = []
    if len(numbers) >= 2:
        a, b = rng.sample(numbers, 2)
        what, sign = rng.choice((("product", "*"), ("sum", "+"), ("difference", "-")))
        verb = rng.choice(("total", "worth", "size", "rate", "measure"))
        wish = f"a method `{verb}` for the {what} of {a} and {b}"
        methods.append((verb, "", f"return self.{a} {sign} self.{b}", wish))
    if numbers and rng.random() < 0.6:
        a, (word, sign) = rng.choice(numbers), rng.choice((("above", ">"), ("below", "<")))
        wish = f"a method `is_{word}` that tells whether {a} is {word} a limit"
        methods.append((f"is_{word}", ", limit", f"return self.{a} {sign} limit", wish))
    if not methods or rng.random() < 0.4:
        a, b = rng.sample(fields, 2)
        wish = f"a method `describe` that shows {a} and {b}"
        methods.append(("describe", "", f'return f"{{self.{a}}}, {{self.{b}}}"', wish))
    return methods


def small_class(rng: random.Random) -> tuple[str, str]:
    """(request, answer): a class with fields and one to three methods that use them."""
    name, fields = rng.choice(CLASSES), rng.sample(list(FIELDS), rng.randint(2, 4))
    methods = _methods(rng, fields)
    wishes = " and ".join(wish for *_, wish in methods)
    told = ", ".join(fields[:-1]) + f" and {fields[-1]}"
    prompt = rng.choice((
        f"Write a Python class `{name}` with {told}, and {wishes}.",
        f"I need a class `{name}` in Python. It has {told}, and {wishes}.",
    ))  # fmt: skip
    arguments = fields
    if rng.random() < 0.5:
        prompt += " Add type hints."
        arguments = [f"{f}: {FIELDS[f]}" for f in fields]
    lines = [f"class {name}:", f"    def __init__(self, {', '.join(arguments)}):"]
    lines += [f"        self.{f} = {f}" for f in fields]
    for method, extra, body, _ in methods:
        lines += ["", f"    def {method}(self{extra}):", f"        {body}"]
    return prompt, "```python\n" + "\n".join(lines) + "\n```"


def sample(rng: random.Random) -> tuple[str, str]:
    """One (request, answer) of any kind: a pipeline, its explanation, a class, a small function."""
    kinds = (pipelines.request, pipelines.explanation, small_class, function)
    return rng.choices(kinds, weights=[10, 3, 4, 3])[0](rng)


def telling_sample(rng: random.Random) -> tuple[str, str]:
    """As `sample`, without classes, and with an example wherever one can be asked for.

    A class is a copy of its request, which any drafter guesses whole; what a function returns for
    an example is the hardest part of an answer.
    """
    if rng.random() < 0.6:
        return pipelines.request(rng, examples=1.0)
    return rng.choices((pipelines.explanation, function), weights=[1, 2])[0](rng)
