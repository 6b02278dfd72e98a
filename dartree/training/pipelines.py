"""Python functions put together from steps, the request that leads to each, and what it returns.

A function goes through a list, keeps some items, changes them, in an order of its own, and returns
something about the rest.  Requests name the steps in words; where one asks for an example, the
function is run, so the answer is what Python gives.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

NUMBERS = (
    "values numbers scores prices sizes ages marks weights amounts rows points costs heights "
    "lengths counts years grades limits levels speeds"
).split()
WORDS = (
    "words names lines titles labels tags keys parts tokens cities colours animals songs "
    "plants towns rivers phrases guests"
).split()
SAMPLES = (
    "red blue green apple stone river lamp cloud Anna Ben Oslo Rome tiger piano bread night Milk "
    "Sun paper winter gold Tree sea iron Leaf moon silver dog Cat bird horse road bridge tower"
).split()
RESULTS = "result output found kept chosen collected".split()
VERBS = "process collect handle scan check reduce gather sift treat digest".split()

# Per kind of item: how a step is told, and the expression over {x}.  {n} and {m} are numbers.
TESTS = {
    "numbers": (
        ("even", "{x} % 2 == 0"), ("odd", "{x} % 2 == 1"), ("positive", "{x} > 0"),
        ("negative", "{x} < 0"), ("above {n}", "{x} > {n}"), ("below {n}", "{x} < {n}"),
        ("at least {n}", "{x} >= {n}"), ("at most {n}", "{x} <= {n}"),
        ("different from {n}", "{x} != {n}"), ("divisible by {m}", "{x} % {m} == 0"),
        ("between {m} and {n}", "{m} <= {x} <= {n}"), ("not divisible by {m}", "{x} % {m} != 0"),
    ),
    "words": (
        ("longer than {m} letters", "len({x}) > {m}"),
        ("shorter than {m} letters", "len({x}) < {m}"),
        ("exactly {m} letters long", "len({x}) == {m}"), ("in upper case", "{x}.isupper()"),
        ("in lower case", "{x}.islower()"), ("not empty", '{x} != ""'),
        ('starting with "{c}"', '{x}.startswith("{c}")'),
        ('ending in "{c}"', '{x}.endswith("{c}")'), ('free of "{c}"', '"{c}" not in {x}'),
        ('with a "{c}" in them', '"{c}" in {x}'), ("of even length", "len({x}) % 2 == 0"),
    ),
}  # fmt: skip
CHANGES = {
    "numbers": (
        ("doubles them", "{x} * 2"), ("squares them", "{x} ** 2"), ("negates them", "-{x}"),
        ("adds {n} to each", "{x} + {n}"), ("subtracts {n} from each", "{x} - {n}"),
        ("multiplies each by {m}", "{x} * {m}"), ("takes absolute values", "abs({x})"),
        ("divides each by {m}, rounding down", "{x} // {m}"),
        ("takes the remainder of each by {m}", "{x} % {m}"),
        ("caps each at {n}", "min({x}, {n})"), ("raises each to at least {n}", "max({x}, {n})"),
    ),
    "words": (
        ("puts them in upper case", "{x}.upper()"), ("puts them in lower case", "{x}.lower()"),
        ("reverses each", "{x}[::-1]"), ("cuts each to {m} letters", "{x}[:{m}]"),
        ('adds "{c}" to each', '{x} + "{c}"'), ('puts "{c}" before each', '"{c}" + {x}'),
        ("drops the first letter of each", "{x}[1:]"), ("capitalises each", "{x}.capitalize()"),
        ('replaces "{c}" by "{d}" in each', '{x}.replace("{c}", "{d}")'),
        ("repeats each twice", "{x} * 2"), ("strips blanks from each", "{x}.strip()"),
    ),
}  # fmt: skip
# What is returned, the value of the empty start, the update in a loop, and the whole expression.
ENDS = {
    "numbers": (
        ("their sum", "0", "{o} += {x}", "sum({o})"),
        ("how many remain", "0", "{o} += 1", "len({o})"),
        ("their product", "1", "{o} *= {x}", "math.prod({o})"),
        ("them in a list", "[]", "{o}.append({x})", "{o}"),
        ("them without repeats", "set()", "{o}.add({x})", "set({o})"),
        ("the largest, at least 0", "0", "{o} = max({o}, {x})", "max({o}, default=0)"),
        ("how often each occurs", "{{}}", "{o}[{x}] = {o}.get({x}, 0) + 1", "Counter({o})"),
        ("whether any remain", "False", "{o} = True", "bool({o})"),
    ),
    "words": (
        ("them in a list", "[]", "{o}.append({x})", "{o}"),
        ("how many remain", "0", "{o} += 1", "len({o})"),
        ("their total length", "0", "{o} += len({x})", "sum(len({x}) for {x} in {o})"),
        ("them as one text", '""', "{o} += {x}", '"".join({o})'),
        ("them without repeats", "set()", "{o}.add({x})", "set({o})"),
        ("their lengths", "[]", "{o}.append(len({x}))", "[len({x}) for {x} in {o}]"),
        ("a dictionary of their lengths", "{{}}", "{o}[{x}] = len({x})",
         "{{{x}: len({x}) for {x} in {o}}}"),
        ("the longest length", "0", "{o} = max({o}, len({x}))",
         "max((len({x}) for {x} in {o}), default=0)"),
    ),
}  # fmt: skip
OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">": "<=", "<=": ">", ">=": "<"}


@dataclass(frozen=True)
class Pipeline:
    """One function: its name, argument, steps in words and its source."""

    name: str
    argument: str
    steps: tuple[str, ...]
    returns: str
    source: str

    def told(self) -> str:
        """The steps as the end of a sentence about the function."""
        return ", ".join(self.steps) + f" and returns {self.returns}"


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


def pipeline(rng: random.Random, style: str) -> Pipeline:
    """A function of two to four steps; `style` is 'loop' or 'lists'."""
    kind = rng.choice(("numbers", "words"))
    argument = rng.choice(NUMBERS if kind == "numbers" else WORDS)
    x = argument[:-3] + "y" if argument.endswith("ies") else argument.rstrip("s")
    x = rng.choice((x, x, "item", kind[:-1])) if x != argument else "item"
    out = rng.choice(RESULTS)
    steps, lines, last = [], [], None
    for _ in range(rng.choice((2, 2, 3, 3, 4))):
        table = rng.choice([t for t in (TESTS, CHANGES) if t is not last or rng.random() < 0.3])
        last = table
        words, code = rng.choice(table[kind])
        low, (c, d) = rng.randint(2, 9), rng.sample("aeiostrnlmdk", 2)
        slots = {"x": x, "n": rng.randint(low + 1, 99), "m": low, "c": c, "d": d}
        words, code = words.format(**slots), code.format(**slots)
        steps.append(f"keeps those that are {words}" if table is TESTS else words)
        steps[-1] = steps[-1].replace("those that are with", "those with")
        if style == "loop":
            lines += ([f"    if {_negated(code)}:", "        continue"] if table is TESTS
                      else [f"    {x} = {code}"])  # fmt: skip
        elif table is TESTS:
            lines.append(f"{out} = [{x} for {x} in {out} if {code}]")
        else:
            lines.append(f"{out} = [{code} for {x} in {out}]")
    returns, start, update, whole = rng.choice(ENDS[kind])
    slots = {"x": x, "o": out}
    if style == "loop":
        lines = [f"{out} = {start.format()}", f"for {x} in {argument}:", *lines,
                 "    " + update.format(**slots), f"return {out}"]  # fmt: skip
    else:
        lines[0] = lines[0].replace(f"in {out}", f"in {argument}", 1)
        lines.append("return " + whole.format(**slots))
    name = rng.choice((f"{rng.choice(VERBS)}_{argument}", f"{out}_{argument}"))
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
    exec(made.source, space)  # noqa: S102 - our own text, made above
    value = space[made.name](list(items))
    if isinstance(value, set):
        value = sorted(value)
    return repr(items), repr(dict(value) if isinstance(value, dict) else value)


def request(rng: random.Random, examples: float = 0.45) -> tuple[str, str]:
    """(request, answer): write the function; `examples` is the share that asks for an example."""
    style = rng.choice(("loop", "lists"))
    made = pipeline(rng, style)
    prompt = rng.choice((
        f"Write a Python function `{made.name}({made.argument})` that {made.told()}.",
        f"Please write `{made.name}({made.argument})` in Python: it {made.told()}.",
        f"I need a Python function that takes {made.argument}, {made.told()}. "
        f"Call it `{made.name}`.",
    ))  # fmt: skip
    prompt += (
        " "
        + {
            "loop": rng.choice(("Use one loop.", "Do it in a single loop.", "Write a plain loop.")),
            "lists": rng.choice(("Use comprehensions.", "Do it list by list.", "Avoid loops.")),
        }[style]
    )
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
    told = [f"{'First' if i == 0 else 'Then'} it {step}." for i, step in enumerate(made.steps)]
    answer = " ".join([opening, *told, f"It returns {made.returns}."])
    return f"{ask}\n```python\n{made.source}\n```", answer


FIELDS = {
    "name": "str", "title": "str", "city": "str", "owner": "str", "colour": "str", "code": "str",
    "price": "float", "weight": "float", "width": "float", "height": "float", "speed": "float",
    "count": "int", "age": "int", "year": "int", "pages": "int", "seats": "int", "level": "int",
}  # fmt: skip
CLASSES = (
    "Book Car House Lamp Ship Train Ticket Player Team Animal Tree Planet Recipe Song Film Shop "
    "Order Parcel Room Bridge Tower Machine Phone Garden Student Doctor Farm River Market Bottle"
).split()


def record(rng: random.Random) -> tuple[str, str]:
    """(request, answer): a small class with fields and one or two methods that use them."""
    name, fields = rng.choice(CLASSES), rng.sample(list(FIELDS), rng.randint(2, 4))
    numbers = [f for f in fields if FIELDS[f] != "str"]
    wishes, methods = [], []
    if len(numbers) >= 2:
        a, b = rng.sample(numbers, 2)
        what, sign = rng.choice((("product", "*"), ("sum", "+"), ("difference", "-")))
        verb = rng.choice(("total", "worth", "size", "rate", "measure"))
        wishes.append(f"a method `{verb}` for the {what} of {a} and {b}")
        methods.append((verb, "", f"return self.{a} {sign} self.{b}"))
    if numbers and rng.random() < 0.6:
        a, (word, sign) = rng.choice(numbers), rng.choice((("above", ">"), ("below", "<")))
        wishes.append(f"a method `is_{word}` that tells whether {a} is {word} a limit")
        methods.append((f"is_{word}", ", limit", f"return self.{a} {sign} limit"))
    if not methods or rng.random() < 0.4:
        a, b = rng.sample(fields, 2)
        wishes.append(f"a method `describe` that shows {a} and {b}")
        methods.append(("describe", "", f'return f"{{self.{a}}}, {{self.{b}}}"'))
    told = ", ".join(fields[:-1]) + f" and {fields[-1]}"
    prompt = rng.choice(("Write a Python class `{n}` with {f}, and {w}.",
                         "I need a class `{n}` in Python. It has {f}, and {w}."))  # fmt: skip
    if rng.random() < 0.5:
        prompt += " Add type hints."
        arguments = ", ".join(f"{f}: {FIELDS[f]}" for f in fields)
    else:
        arguments = ", ".join(fields)
    lines = [f"class {name}:", f"    def __init__(self, {arguments}):"]
    lines += [f"        self.{f} = {f}" for f in fields]
    for method, extra, body in methods:
        lines += ["", f"    def {method}(self{extra}):", f"        {body}"]
    prompt = prompt.format(n=name, f=told, w=" and ".join(wishes))
    return prompt, "```python\n" + "\n".join(lines) + "\n```"
