"""Python functions with the request that leads to them.

Two sources: small functions of our own, made from templates, and the functions of the standard
library of the interpreter that runs this (PSF licence), which are read at build time and not kept.
"""

from __future__ import annotations

import ast
import functools
import random
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

LISTS = "values numbers items scores prices sizes data ages marks weights rows amounts".split()
WORDS = "words names lines titles labels tags keys parts tokens".split()
STRINGS = "text word line name sentence message title phrase".split()
DICTS = "table counts mapping stock scores record prices index".split()
LIMITS = "limit bound threshold cutoff".split()
RESULTS = "result output found kept".split()
COMPARE = {">": ("greater than", "above"), "<": ("less than", "below"),
           ">=": ("at least", "from"), "<=": ("at most", "up to")}  # fmt: skip
KINDS = {
    "even": "{v} % 2 == 0", "odd": "{v} % 2 == 1", "positive": "{v} > 0", "negative": "{v} < 0",
    "zero": "{v} == 0", "not zero": "{v} != 0",
}  # fmt: skip
TESTS = {
    "upper case": "{v}.isupper()", "lower case": "{v}.islower()", "a digit": "{v}.isdigit()",
    "a letter": "{v}.isalpha()", "a space": "{v}.isspace()", "a vowel": '{v} in "aeiou"',
}  # fmt: skip
CHANGES = {
    "doubled": "{v} * 2", "squared": "{v} ** 2", "halved": "{v} / 2", "negated": "-{v}",
    "increased by one": "{v} + 1", "as a string": "str({v})", "rounded": "round({v})",
    "as an absolute value": "abs({v})",
}  # fmt: skip
STRING_CHANGES = {
    "in upper case": "{v}.upper()", "in lower case": "{v}.lower()", "stripped": "{v}.strip()",
    "with a capital first letter": "{v}.capitalize()", "reversed": "{v}[::-1]",
    "as a title": "{v}.title()",
}  # fmt: skip

SKIPPED = ("site-packages", "dist-packages", "test", "idlelib", "encodings", "lib2to3")

Sample = tuple[str, str, str, list[str]]  # name, arguments, what it returns, body lines


def _slug(words: str) -> str:
    return words.replace("a ", "").replace("an ", "").replace(" ", "_")


def _filter(r: random.Random) -> Sample:
    v, out = r.choice(LISTS), r.choice(RESULTS)
    kind, test = r.choice(list(KINDS.items()))
    x = r.choice(("value", "x", "item"))
    doc = f"the {kind} {v} of a list"
    name = r.choice((f"{_slug(kind)}_{v}", f"keep_{_slug(kind)}", f"only_{_slug(kind)}_{v}"))
    test = test.format(v=x)
    if r.random() < 0.5:
        return name, v, doc, [f"return [{x} for {x} in {v} if {test}]"]
    return name, v, doc, [
        f"{out} = []", f"for {x} in {v}:", f"    if {test}:", f"        {out}.append({x})",
        f"return {out}",
    ]  # fmt: skip


def _compare(r: random.Random) -> Sample:
    v, out, x, limit = r.choice(LISTS), r.choice(RESULTS), "value", r.choice(LIMITS)
    sign, (words, short) = r.choice(list(COMPARE.items()))
    if r.random() < 0.5:
        name, doc = f"count_{short.replace(' ', '_')}", f"how many {v} are {words} a {limit}"
        if r.random() < 0.5:
            body = [f"return sum(1 for {x} in {v} if {x} {sign} {limit})"]
        else:
            body = ["count = 0", f"for {x} in {v}:", f"    if {x} {sign} {limit}:",
                    "        count += 1", "return count"]  # fmt: skip
    else:
        name, doc = f"{v}_{short.replace(' ', '_')}", f"the {v} that are {words} a {limit}"
        if r.random() < 0.5:
            body = [f"return [{x} for {x} in {v} if {x} {sign} {limit}]"]
        else:
            body = [f"{out} = []", f"for {x} in {v}:", f"    if {x} {sign} {limit}:",
                    f"        {out}.append({x})", f"return {out}"]  # fmt: skip
    return name, f"{v}, {limit}", doc, body


def _change(r: random.Random) -> Sample:
    v, out, x = r.choice(LISTS), r.choice(RESULTS), "value"
    words, expression = r.choice(list(CHANGES.items()))
    name = r.choice((f"{_slug(words)}_{v}", f"all_{_slug(words)}"))
    return name, v, f"the {v} of a list, each {words}", _build(r, v, out, x, expression)


def _change_strings(r: random.Random) -> Sample:
    v, out, x = r.choice(WORDS), r.choice(RESULTS), "word"
    words, expression = r.choice(list(STRING_CHANGES.items()))
    name = r.choice((f"{_slug(words)}_{v}", f"{v}_{_slug(words)}"))
    return name, v, f"the {v} of a list, each {words}", _build(r, v, out, x, expression)


def _build(r: random.Random, v: str, out: str, x: str, expression: str) -> list[str]:
    expression = expression.format(v=x)
    if r.random() < 0.5:
        return [f"return [{expression} for {x} in {v}]"]
    return [f"{out} = []", f"for {x} in {v}:", f"    {out}.append({expression})", f"return {out}"]


def _reduce(r: random.Random) -> Sample:
    v = r.choice(LISTS)
    what, start, step, short = r.choice((
        ("sum", "0", "total += value", "sum({v})"),
        ("product", "1", "total *= value", None),
        ("sum of the squares", "0", "total += value ** 2", "sum(value ** 2 for value in {v})"),
        ("sum of the absolute values", "0", "total += abs(value)", None),
        ("number", "0", "total += 1", "len({v})"),
    ))  # fmt: skip
    name = r.choice((f"{_slug(what)}_of_{v}", f"{v}_{_slug(what)}"))
    doc = f"the {what} of the {v}"
    if short and r.random() < 0.4:
        return name, v, doc, ["return " + short.format(v=v)]
    return name, v, doc, [f"total = {start}", f"for value in {v}:", f"    {step}", "return total"]


def _extreme(r: random.Random) -> Sample:
    v = r.choice(LISTS)
    what, sign, call = r.choice((("largest", ">", "max"), ("smallest", "<", "min")))
    doc = f"the {what} of the {v}, or None if there are none"
    if r.random() < 0.3:
        body = [f"if not {v}:", "    return None", f"return {call}({v})"]
    else:
        body = [f"if not {v}:", "    return None", f"best = {v}[0]", f"for value in {v}[1:]:",
                f"    if value {sign} best:", "        best = value", "return best"]  # fmt: skip
    return f"{what}_of_{v}", v, doc, body


def _mean(r: random.Random) -> Sample:
    v = r.choice(LISTS)
    name = r.choice((f"mean_of_{v}", f"average_{v}"))
    body = [f"if not {v}:", "    return 0.0"]
    if r.random() < 0.5:
        body += [f"return sum({v}) / len({v})"]
    else:
        body += ["total = 0", f"for value in {v}:", "    total += value",
                 f"return total / len({v})"]  # fmt: skip
    return name, v, f"the mean of the {v}, or 0.0 if there are none", body


def _count_characters(r: random.Random) -> Sample:
    v = r.choice(STRINGS)
    what, test = r.choice(list(TESTS.items()))
    test = test.format(v="char")
    noun = what.replace("a ", "") if what.startswith("a ") else f"{what} character"
    name, doc = f"count_{_slug(noun)}s", f"how many {noun}s are in a {v}"
    if r.random() < 0.5:
        return name, v, doc, [f"return sum(1 for char in {v} if {test})"]
    return name, v, doc, ["count = 0", f"for char in {v}:", f"    if {test}:",
                          "        count += 1", "return count"]  # fmt: skip


def _drop_characters(r: random.Random) -> Sample:
    v = r.choice(STRINGS)
    what, test = r.choice(list(TESTS.items()))
    noun = what.replace("a ", "") if what.startswith("a ") else f"{what} character"
    test = test.format(v="char")
    if r.random() < 0.5:
        name, doc, test = f"remove_{_slug(noun)}s", f"the {v} without its {noun}s", f"not ({test})"
    else:
        name, doc = f"keep_{_slug(noun)}s", f"only the {noun}s of a {v}"
    if r.random() < 0.5:
        return name, v, doc, [f'return "".join(char for char in {v} if {test})']
    return name, v, doc, ['result = ""', f"for char in {v}:", f"    if {test}:",
                          "        result += char", "return result"]  # fmt: skip


def _lengths(r: random.Random) -> Sample:
    v, n = r.choice(WORDS), r.randint(2, 12)
    sign, (words, short) = r.choice(list(COMPARE.items()))
    name = f"{v}_{short.replace(' ', '_')}_{n}"
    doc = f"the {v} whose length is {words} {n}"
    if r.random() < 0.5:
        return name, v, doc, [f"return [word for word in {v} if len(word) {sign} {n}]"]
    return name, v, doc, ["result = []", f"for word in {v}:", f"    if len(word) {sign} {n}:",
                          "        result.append(word)", "return result"]  # fmt: skip


def _multiples(r: random.Random) -> Sample:
    n, v = r.randint(2, 12), r.choice(LISTS)
    if r.random() < 0.5:
        doc, name = f"the {v} that can be divided by {n}", f"multiples_of_{n}"
        body = [f"return [value for value in {v} if value % {n} == 0]"]
        return name, v, doc, body
    name, doc = f"add_{n}", f"the {v}, each increased by {n}"
    return name, v, doc, _build(r, v, "result", "value", f"{{v}} + {n}")


def _formula(r: random.Random) -> Sample:
    return r.choice((
        ("rectangle_area", "width, height", "the area of a rectangle", ["return width * height"]),
        ("circle_area", "radius", "the area of a circle", ["return 3.14159 * radius ** 2"]),
        ("celsius_to_fahrenheit", "degrees", "a temperature in Fahrenheit",
         ["return degrees * 9 / 5 + 32"]),
        ("fahrenheit_to_celsius", "degrees", "a temperature in Celsius",
         ["return (degrees - 32) * 5 / 9"]),
        ("factorial", "n", "the factorial of n",
         ["result = 1", "for i in range(2, n + 1):", "    result *= i", "return result"]),
        ("fibonacci", "n", "the n-th Fibonacci number",
         ["a, b = 0, 1", "for _ in range(n):", "    a, b = b, a + b", "return a"]),
        ("gcd", "a, b", "the greatest common divisor of a and b",
         ["while b:", "    a, b = b, a % b", "return a"]),
        ("is_prime", "n", "whether n is a prime number",
         ["if n < 2:", "    return False", "for i in range(2, int(n ** 0.5) + 1):",
          "    if n % i == 0:", "        return False", "return True"]),
        ("is_palindrome", "text", "whether a text reads the same backwards",
         ["return text == text[::-1]"]),
        ("digit_sum", "n", "the sum of the digits of n",
         ["total = 0", "while n > 0:", "    total += n % 10", "    n //= 10", "return total"]),
        ("clamp", "value, low, high", "the value, kept between low and high",
         ["if value < low:", "    return low", "if value > high:", "    return high",
          "return value"]),
        ("swap_case", "text", "the text with upper and lower case swapped",
         ["return text.swapcase()"]),
        ("flatten", "lists", "the items of several lists in one list",
         ["result = []", "for items in lists:", "    for item in items:",
          "        result.append(item)", "return result"]),
        ("unique", "items", "the items without repeats, in their order",
         ["seen = set()", "result = []", "for item in items:", "    if item not in seen:",
          "        seen.add(item)", "        result.append(item)", "return result"]),
        ("binary_search", "values, target", "the position of a target in sorted values, or -1",
         ["low, high = 0, len(values) - 1", "while low <= high:",
          "    middle = (low + high) // 2", "    if values[middle] == target:",
          "        return middle", "    if values[middle] < target:",
          "        low = middle + 1", "    else:", "        high = middle - 1", "return -1"]),
    ))  # fmt: skip


def _dictionary(r: random.Random) -> Sample:
    d, limit = r.choice(DICTS), r.choice(LIMITS)
    sign, (words, short) = r.choice(list(COMPARE.items()))
    what = r.choice(("keys", "pairs", "sum", "invert", "best"))
    if what == "keys":
        return (f"keys_{short.replace(' ', '_')}", f"{d}, {limit}",
                f"the keys of a dictionary whose value is {words} a {limit}",
                [f"return [key for key, value in {d}.items() if value {sign} {limit}]"],
                )  # fmt: skip
    if what == "pairs":
        return (f"{d}_{short.replace(' ', '_')}", f"{d}, {limit}",
                f"a dictionary with the values that are {words} a {limit}",
                ["result = {}", f"for key, value in {d}.items():",
                 f"    if value {sign} {limit}:", "        result[key] = value",
                 "return result"])  # fmt: skip
    if what == "sum":
        return (f"total_of_{d}", d, "the sum of the values of a dictionary",
                ["total = 0", f"for value in {d}.values():", "    total += value",
                 "return total"])  # fmt: skip
    if what == "invert":
        return (f"invert_{d}", d, "a dictionary with keys and values swapped",
                [f"return {{value: key for key, value in {d}.items()}}"])  # fmt: skip
    return (f"best_key_of_{d}", d, "the key with the largest value, or None",
            ["best = None", f"for key in {d}:",
             f"    if best is None or {d}[key] > {d}[best]:", "        best = key",
             "return best"])  # fmt: skip


def _group(r: random.Random) -> Sample:
    v = r.choice(WORDS)
    what, key = r.choice((("length", "len(word)"), ("first letter", "word[0]"),
                          ("last letter", "word[-1]"), ("word", "word")))  # fmt: skip
    if r.random() < 0.5:
        return (f"group_{v}_by_{_slug(what)}", v, f"the {v} in a dictionary by {what}",
                ["groups = {}", f"for word in {v}:", f"    key = {key}",
                 "    if key not in groups:", "        groups[key] = []",
                 "    groups[key].append(word)", "return groups"])  # fmt: skip
    return (f"count_{v}_by_{_slug(what)}", v, f"how often each {what} occurs in the {v}",
            ["counts = {}", f"for word in {v}:", f"    key = {key}",
             "    counts[key] = counts.get(key, 0) + 1", "return counts"])  # fmt: skip


def _slices(r: random.Random) -> Sample:
    v, n = r.choice(LISTS + WORDS), r.randint(2, 9)
    return r.choice((
        (f"first_{n}", v, f"the first {n} {v}", [f"return {v}[:{n}]"]),
        (f"last_{n}", v, f"the last {n} {v}", [f"return {v}[-{n}:]"]),
        (f"every_{n}", v, f"every {n}th of the {v}", [f"return {v}[::{n}]"]),
        (f"chunks_of_{n}", v, f"the {v} in chunks of {n}",
         [f"return [{v}[i:i + {n}] for i in range(0, len({v}), {n})]"]),
        (f"sorted_{v}", v, f"the {v} in sorted order", [f"return sorted({v})"]),
        (f"reversed_{v}", v, f"the {v} in reverse order", [f"return {v}[::-1]"]),
    ))  # fmt: skip


def _two_lists(r: random.Random) -> Sample:
    a, b = r.sample(LISTS, 2)
    what, sign = r.choice((("sums", "+"), ("differences", "-"), ("products", "*")))
    if r.random() < 0.4:
        what, word = r.choice((("common", "in"), ("missing", "not in")))
        doc = f"the {a} that are {'also' if word == 'in' else 'not'} among the {b}"
        return f"{what}_{a}", f"{a}, {b}", doc, [f"return [x for x in {a} if x {word} {b}]"]
    doc = f"the {what} of the {a} and the {b}, pair by pair"
    if r.random() < 0.5:
        return f"pair_{what}", f"{a}, {b}", doc, [f"return [x {sign} y for x, y in zip({a}, {b})]"]
    body = ["result = []", f"for x, y in zip({a}, {b}):", f"    result.append(x {sign} y)"]
    return f"pair_{what}", f"{a}, {b}", doc, [*body, "return result"]


TEMPLATES = (
    _filter, _compare, _change, _change_strings, _reduce, _extreme, _mean, _count_characters,
    _drop_characters, _lengths, _multiples, _formula, _dictionary, _group, _slices, _two_lists,
)  # fmt: skip


def function(rng: random.Random) -> tuple[str, str]:
    """One (request, answer) with a small function of our own."""
    name, arguments, what, body = rng.choice(TEMPLATES)(rng)
    request = rng.choice((
        f"Write a Python function `{name}({arguments})` that returns {what}.",
        f"Write a Python function `{name}({arguments})` that returns {what}.",
        f"Please write `{name}({arguments})` in Python. It returns {what}.",
        f"I need a Python function that returns {what}. Call it `{name}({arguments})`.",
    ))  # fmt: skip
    lines = [f"def {name}({arguments}):", f'    """Return {what}."""']
    lines += ["    " + line for line in body]
    return request, "```python\n" + "\n".join(lines) + "\n```"


# --- the standard library -------------------------------------------------------------------------


@functools.cache
def library_functions(longest: int = 25) -> tuple[tuple[str, str, str], ...]:
    """(module, request, answer) for documented functions of the standard library."""
    return tuple(_library(longest))


def _library(longest: int) -> Iterator[tuple[str, str, str]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(part in name for part in SKIPPED):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, ValueError, OSError):
            continue
        lines = source.split("\n")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                pair = _library_sample(node, lines, longest)
                if pair:
                    yield name, *pair


def _library_sample(
    node: ast.FunctionDef, source: list[str], longest: int
) -> tuple[str, str] | None:
    """The request and the answer for one function, or None where it does not suit."""
    lines = source[node.lineno - 1 : node.end_lineno]
    if not 3 <= len(lines) <= longest or node.name.startswith("__"):
        return None
    doc = ast.get_docstring(node)
    if not doc:
        return None
    sentence = " ".join(doc.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    lines[-1] = lines[-1].encode()[: node.end_col_offset].decode()  # no comment after the end
    code = textwrap.dedent("\n".join(lines)).rstrip()
    if not sentence.isascii() or not code.isascii() or len(sentence) > 120 or len(code) > 900:
        return None
    arguments = ast.unparse(node.args)
    request = f"Write a Python function `{node.name}({arguments})`: {sentence}."
    return request, "```python\n" + code + "\n```"
