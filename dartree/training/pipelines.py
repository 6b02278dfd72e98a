"""Python functions put together from steps, the request that leads to each, and what it returns.

A function goes through a list, keeps some items, changes them, in an order of its own, and returns
something about the rest.  Requests name the steps in words; where one asks for an example, the
function is run, so the answer is what Python gives.

`text/pipelines.json` holds, for each kind of item, tests and changes (how a step is told, and the
expression over {x}; {n} and {m} are numbers, {c} and {d} letters) and ends (what is returned, the
value of the empty start, the update in a loop, and the whole expression over {o}).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from dartree.training.templates import load

PARTS = load("pipelines")
NUMBERS, WORDS, SAMPLES = PARTS["numbers"], PARTS["words"], PARTS["samples"]  # names and items
OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}
STYLES = {
    "loop": ("Use one loop.", "Do it in a single loop.", "Write a plain loop."),
    "lists": ("Use comprehensions.", "Do it list by list.", "Avoid loops."),
}
REQUESTS = (
    "Write a Python function `{name}({argument})` that {told}.",
    "Please write `{name}({argument})` in Python: it {told}.",
    "I need a Python function that takes {argument}, {told}. Call it `{name}`.",
)


@dataclass(frozen=True)
class Pipeline:
    """One function: its name, argument, steps in words and its source."""

    name: str
    argument: str
    steps: tuple[str, ...]
    returns: str
    source: str


def _negated(test: str) -> str:
    """The opposite of a test, written as people write it."""
    parts = test.split(" ")
    if parts.count("<=") == 2:
        return f"not {test}"
    if " not in " in test:
        return test.replace(" not in ", " in ")
    if " in " in test:
        return test.replace(" in ", " not in ")
    for i, part in enumerate(parts):
        if part in OPPOSITE:
            return " ".join([*parts[:i], OPPOSITE[part], *parts[i + 1 :]])
    return f"not {test}"


def _item_name(rng: random.Random, kind: str, argument: str) -> str:
    """A name for one item of the argument: its singular where it has one."""
    one = argument[:-3] + "y" if argument.endswith("ies") else argument.rstrip("s")
    return rng.choice((one, one, "item", kind[:-1])) if one != argument else "item"


def _step(rng: random.Random, what: str, kind: str, x: str) -> tuple[str, str]:
    """A test or a change: in words, and as an expression over the item ``x``."""
    words, code = rng.choice(PARTS[what][kind])
    low, (c, d) = rng.randint(2, 9), rng.sample("aeiostrnlmdk", 2)
    slots = {"x": x, "n": rng.randint(low + 1, 99), "m": low, "c": c, "d": d}
    words, code = words.format_map(slots), code.format_map(slots)
    if what == "tests":
        words = f"keeps those that are {words}".replace("those that are with", "those with")
    return words, code


def pipeline(rng: random.Random, style: str) -> Pipeline:
    """A function of two to four steps; `style` is 'loop' or 'lists'."""
    kind = rng.choice(("numbers", "words"))
    argument = rng.choice(PARTS[kind])
    x = _item_name(rng, kind, argument)
    out = rng.choice(PARTS["results"])
    steps, lines, last = [], [], None
    for _ in range(rng.choice((2, 2, 3, 3, 4))):
        last = rng.choice([t for t in ("tests", "changes") if t != last or rng.random() < 0.3])
        words, code = _step(rng, last, kind, x)
        steps.append(words)
        if style == "loop" and last == "tests":
            lines += [f"    if {_negated(code)}:", "        continue"]
        elif style == "loop":
            lines.append(f"    {x} = {code}")
        elif last == "tests":
            lines.append(f"{out} = [{x} for {x} in {out} if {code}]")
        else:
            lines.append(f"{out} = [{code} for {x} in {out}]")
    returns, start, update, whole = rng.choice(PARTS["ends"][kind])
    if style == "loop":
        lines = [f"{out} = {start.format()}", f"for {x} in {argument}:", *lines,
                 "    " + update.format(x=x, o=out), f"return {out}"]  # fmt: skip
    else:
        lines[0] = lines[0].replace(f"in {out}", f"in {argument}", 1)
        lines.append("return " + whole.format(x=x, o=out))
    name = rng.choice((f"{rng.choice(PARTS['verbs'])}_{argument}", f"{out}_{argument}"))
    source = "\n".join([f"def {name}({argument}):", *("    " + line for line in lines)])
    for used, line in (("math.", "import math"), ("Counter", "from collections import Counter")):
        if used in source:
            source = f"{line}\n\n{source}"
    return Pipeline(name, argument, tuple(steps), returns, source)


def _example(rng: random.Random, made: Pipeline) -> tuple[str, str]:
    """A list for the function, and what the function returns for it, both as Python writes them."""
    if made.argument in NUMBERS:
        items: list = [rng.randint(-9, 60) for _ in range(rng.randint(3, 5))]
    else:
        items = rng.sample(SAMPLES, rng.randint(3, 4))
    space: dict = {}
    exec(made.source, space)  # our own text, made above
    value = space[made.name](list(items))
    if isinstance(value, set):
        value = sorted(value)
    return repr(items), repr(dict(value) if isinstance(value, dict) else value)


def request(rng: random.Random, examples: float = 0.45) -> tuple[str, str]:
    """(request, answer): write the function; `examples` is the share that asks for an example."""
    style = rng.choice(("loop", "lists"))
    made = pipeline(rng, style)
    told = ", ".join(made.steps) + f" and returns {made.returns}"
    prompt = rng.choice(REQUESTS).format(name=made.name, argument=made.argument, told=told)
    prompt += " " + {name: rng.choice(asks) for name, asks in STYLES.items()}[style]
    answer = f"```python\n{made.source}\n```"
    if rng.random() < examples:
        items, value = _example(rng, made)
        if len(value) <= 60:
            prompt += rng.choice((f" What does it give for {items}?", f" Try it on {items}."))
            answer += rng.choice((f"\nFor {items} it returns {value}.",
                                  f"\n`{made.name}({items})` gives {value}."))  # fmt: skip
    return prompt, answer


def explanation(rng: random.Random) -> tuple[str, str]:
    """(code, what it does): the same steps in the other direction."""
    made = pipeline(rng, rng.choice(("loop", "lists")))
    ask = rng.choice(("What does this function do?", "Explain this code.",
                      "Describe this function step by step."))  # fmt: skip
    opening = rng.choice((f"`{made.name}` goes through the {made.argument}.",
                          f"The function takes a list of {made.argument}."))  # fmt: skip
    told = [f"{'Then' if i else 'First'} it {step}." for i, step in enumerate(made.steps)]
    answer = " ".join([opening, *told, f"It returns {made.returns}."])
    return f"{ask}\n```python\n{made.source}\n```", answer
