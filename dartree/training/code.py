"""Python code with the request that leads to it, all of our own.

Most of it is put together from steps (`pipelines`); small well-known functions are made here.
"""

from __future__ import annotations

import random

from dartree.training import pipelines

LISTS = "values numbers items scores prices sizes data ages marks weights rows amounts".split()
WORDS = "words names lines titles labels tags keys parts tokens".split()
DICTS = "table counts mapping stock scores record prices index".split()
LIMITS = "limit bound threshold cutoff".split()
COMPARE = {">": ("greater than", "above"), "<": ("less than", "below"),
           ">=": ("at least", "from"), "<=": ("at most", "up to")}  # fmt: skip

Sample = tuple[str, str, str, list[str]]  # name, arguments, what it returns, body lines


def _slug(words: str) -> str:
    return words.replace("a ", "").replace("an ", "").replace(" ", "_")


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


TEMPLATES = (_formula, _dictionary, _group, _slices, _two_lists)


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


def sample(rng: random.Random) -> tuple[str, str]:
    """One (request, answer) of any kind: a pipeline, its explanation, a class, a small function."""
    kinds = (pipelines.request, pipelines.explanation, pipelines.record, function)
    return rng.choices(kinds, weights=[10, 3, 4, 3])[0](rng)


def telling_sample(rng: random.Random) -> tuple[str, str]:
    """As `sample`, without classes, and with an example wherever one can be asked for.

    A class is a copy of its request, which any drafter guesses whole; what a function returns for
    an example is the hardest part of an answer.
    """
    if rng.random() < 0.6:
        return pipelines.request(rng, examples=1.0)
    return rng.choices((pipelines.explanation, function), weights=[1, 2])[0](rng)
