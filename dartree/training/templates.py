"""Templates in `text/*.json`: what is drawn, and the sentences that the draws fill."""

from __future__ import annotations

import functools
import json
import operator
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


@functools.cache
def load(name: str) -> Any:
    """The object in `text/<name>.json`."""
    path = Path(__file__).parent / "text" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def calculate(expression: str) -> int:
    """The value of a number, or of two numbers with + - * or / between them."""
    left, *rest = expression.split()
    return OPERATORS[rest[0]](int(left), int(rest[1])) if rest else int(left)


def draw(rng: random.Random, choices: Mapping[str, Any], known: dict[str, Any]) -> None:
    """Adds one draw to `known` for every entry of `choices`, in order.

    An entry maps a name, or several with blanks between them, to what it may be:

    - [low, high ...]: a whole number up to the least of the highs, which may be expressions;
    - another list: one of its items, which holds a value for each of the names;
    - the name of a list in `known`: an item of it, or different ones for several names.
    """
    for names, options in choices.items():
        first, *others = names.split()
        if isinstance(options, str) and others:
            known |= zip(names.split(), rng.sample(known[options], len(others) + 1), strict=True)
            continue
        if isinstance(options, str):
            options = known[options]
        elif isinstance(options[0], int):
            low, *highs = options
            options = range(low, 1 + min(calculate(str(h).format_map(known)) for h in highs))
        drawn = rng.choice(options)
        known |= zip(names.split(), drawn, strict=True) if others else {first: drawn}


def fill(rng: random.Random, part: Mapping[str, Any], known: dict[str, Any]) -> Mapping[str, Any]:
    """Draws what `part` asks for into `known`; returns the part, or the branch that it takes.

    "let" maps names to expressions; "either" holds a share, the part that is taken with this
    probability, and the part that is taken otherwise.
    """
    draw(rng, part.get("draw", {}), known)
    known |= {name: calculate(e.format_map(known)) for name, e in part.get("let", {}).items()}
    if "either" not in part:
        return part
    share, first, second = part["either"]
    return fill(rng, first if rng.random() < share else second, known)


def sentence(text: str) -> str:
    """`text` with a capital."""
    return text[0].upper() + text[1:]
