"""The corpus: right answers, the same text for the same seed, and nothing held out in training."""

from __future__ import annotations

import ast
import json
import random
import re
from pathlib import Path

import pytest

from dartree.cli import main
from dartree.training import (
    arithmetic,
    card,
    code,
    commands,
    corpus,
    library,
    listings,
    pipelines,
    prose,
)
from dartree.training.common import DOMAINS, read_jsonl
from dartree.training.evaluation import source_of

PROMPTS = Path(__file__).parents[2] / "data" / "prompts"
STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    assert commands.main(["corpus", "--out", str(folder)]) == 0
    return folder / "tiny"


def test_every_worked_step_is_right_and_starts_from_known_numbers():
    rng = random.Random(3)
    for _ in range(2000):
        question, answer = arithmetic.problem(rng)
        known = {int(n) for n in re.findall(r"\d+", question)} | {2, 3, 4}  # double, a third ...
        steps = STEP.findall(answer)
        assert 2 <= len(steps) <= 6, question
        for a, sign, b, result in steps:
            assert {int(a), int(b)} <= known, f"{question}\n{answer}"
            assert OPERATIONS[sign](int(a), int(b)) == int(result) > 0, answer
            known.add(int(result))
        assert answer.splitlines()[-1] == f"The answer is {steps[-1][3]}."


def test_the_answer_names_the_person_of_the_question():
    rng = random.Random(4)
    names = {name for group in arithmetic.STORIES["people"].values() for name in group}
    for _ in range(300):
        question, answer = arithmetic.problem(rng)
        asked = {word for word in re.findall(r"[A-Z][a-z]+", question) if word in names}
        told = {word for word in re.findall(r"[A-Z][a-z]+", answer) if word in names}
        assert len(asked) == 1 and told <= asked


def test_small_functions_compile_and_have_the_requested_signature():
    rng = random.Random(5)
    for _ in range(500):
        request, answer = code.function(rng)
        (node,) = ast.parse(source_of(answer)).body
        assert f"`{node.name}({ast.unparse(node.args)})`" in request
        assert ast.get_docstring(node) in answer and ast.get_docstring(node)[7:-1] in request


# Independent of the expressions in the generator: what each step says, done by hand.
STEPS = {
    r"keeps those that are even": lambda v: [x for x in v if x / 2 == int(x / 2)],
    r"keeps those that are divisible by (\d+)": lambda v, n: [x for x in v if not x % int(n)],
    r"keeps those that are above (\d+)": lambda v, n: [x for x in v if x - int(n) > 0],
    r"keeps those that are between (\d+) and (\d+)": lambda v, a, b: [
        x for x in v if x in range(int(a), int(b) + 1)],
    r"doubles them": lambda v: [x + x for x in v],
    r"negates them": lambda v: [0 - x for x in v],
    r"adds (\d+) to each": lambda v, n: [int(n) + x for x in v],
    r"caps each at (\d+)": lambda v, n: [sorted((x, int(n)))[0] for x in v],
    r"keeps those that are longer than (\d+) letters": lambda v, n: [x for x in v if x[int(n):]],
    r'keeps those that are free of "(.)"': lambda v, c: [x for x in v if x.count(c) == 0],
    r"reverses each": lambda v: ["".join(reversed(x)) for x in v],
    r"drops the first letter of each": lambda v: ["".join(list(x)[1:]) for x in v],
}  # fmt: skip
RETURNS = {
    "their sum": lambda v: sum(v), "how many remain": len, "them in a list": list,
    "them without repeats": set, "whether any remain": lambda v: len(v) > 0,
    "their total length": lambda v: len("".join(v)), "them as one text": "".join,
}  # fmt: skip


def by_hand(steps, items):
    """The steps done by STEPS, or None where one of them is not in that table."""
    for step in steps:
        for pattern, function in STEPS.items():
            if match := re.fullmatch(pattern, step):
                items = function(items, *match.groups())
                break
        else:
            return None
    return items


@pytest.mark.parametrize("style", ["loop", "lists"])
def test_pipelines_do_what_their_steps_say(style):
    rng, checked = random.Random(8), 0
    for _ in range(4000):
        made = pipelines.pipeline(rng, style)
        if made.argument in pipelines.NUMBERS:
            items = [rng.randint(-30, 99) for _ in range(9)]
        else:
            items = rng.sample(pipelines.SAMPLES, 9)
        want = by_hand(made.steps, items)
        scope: dict = {}
        exec(made.source, scope)
        got = scope[made.name](list(items))
        if want is not None and made.returns in RETURNS:
            assert got == RETURNS[made.returns](want), (made, items)
            checked += 1
    assert checked > 100


def test_examples_are_what_python_gives_and_classes_hold_their_fields():
    rng, examples = random.Random(9), 0
    for _ in range(300):
        request, answer = pipelines.request(rng)
        scope: dict = {}
        exec(source_of(answer), scope)
        tail = answer.rsplit("```", 1)[1]
        found = re.search(r"(\[.*?\])\)?`? (?:it returns|gives) (.*)\.$", tail)
        if found:
            name = re.search(r"def (\w+)", answer).group(1)
            value = scope[name](ast.literal_eval(found.group(1)))
            value = sorted(value) if isinstance(value, set) else value
            assert ast.literal_eval(found.group(2)) == value and found.group(1) in request
            examples += 1
        request, answer = code.small_class(rng)
        (node,) = ast.parse(source_of(answer)).body
        fields = [a.arg for a in node.body[0].args.args[1:]]
        assert node.name in request and all(f in request for f in fields)
        assert all(f"`{method.name}`" in request for method in node.body[1:])
    assert examples > 80


def test_comparisons_sort_by_the_numbers_of_the_question():
    rng, ordered = random.Random(10), 0
    for _ in range(600):
        question, answer = listings.comparison(rng)
        given = question[: question.index(".")]
        rows = {
            name.strip().removeprefix("and "): int(number)
            for name, number in re.findall(
                r"([A-Za-z ]+?) (\d+)", given.split(":")[1].replace(" and ", ",")
            )
        }
        if "order" in question or "Sort" in question:
            numbers = [int(n) for n in re.findall(r"with (\d+)", answer)]
            assert sorted(rows.values()) in (numbers, numbers[::-1])
            first = answer.split(" is ")[0].replace("The ", "the ")
            assert rows[first] == numbers[0]
            gaps = [int(n) for n in re.findall(r", (\d+) (?:more|less)", answer)]
            assert gaps == [abs(a - b) for a, b in zip(numbers, numbers[1:], strict=False)]
            ordered += 1
        elif "Which of them" in question:
            limit = int(re.search(r"more than (\d+)", question).group(1))
            above = answer.split(". ")[0]
            assert {n for n, v in rows.items() if v > limit} == {n for n in rows if n in above}
    assert ordered > 200


def test_timetables_run_forward_and_letters_name_both_sides():
    rng = random.Random(11)
    for _ in range(300):
        question, answer = listings.timetable(rng)
        told = [int(n) for n in re.findall(r"\b[Aa]t (\d+)[, ]", answer)]
        given = [int(n) for n in re.findall(r"\b[Aa]t (\d+) ", question)]
        assert told == sorted(given) == sorted(told)
        question, answer = listings.letter(rng)
        opening, closing = answer.splitlines()[0], answer.splitlines()[-1]
        assert opening[5:-1] in question and closing in question and opening[5:-1] != closing


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [("gcd", (12, 18), 6), ("is_prime", (7,), True), ("digit_sum", (407,), 11),
     ("binary_search", ([1, 3, 5, 9], 5), 2), ("clamp", (9, 1, 4), 4), ("fibonacci", (10,), 55),
     ("unique", ([2, 1, 2],), [2, 1]), ("factorial", (5,), 120)],
)  # fmt: skip
def test_generated_functions_do_what_they_say(name, arguments, result):
    rng = random.Random(6)
    answer = next(a for _, a in iter(lambda: code.function(rng), None) if f"def {name}(" in a)
    scope: dict = {}
    exec(source_of(answer), scope)
    assert scope[name](*arguments) == result


def test_tables_are_complete_and_prose_fills_every_field():
    for table in prose.TABLES.values():
        assert all(len(row) == len(table["fields"]) for row in table["rows"])
        for aspect in table["aspects"].values():
            assert any("{name}" in sentence for sentence in aspect["say"])
    rng = random.Random(7)
    for _ in range(2000):
        question, answer = prose.passage(rng)
        assert not re.search(r"[{}]", question + answer)
        assert question[0].isupper() and answer[0].isupper()


def test_held_out_prompts_leave_out_what_any_drafter_guesses_whole(built):
    rows = list(read_jsonl(built / "corpus" / "held.jsonl"))
    easy = ("class `", "story", "nvit")
    assert not [r["prompt"] for r in rows if any(word in r["prompt"] for word in easy)]
    text = (built / "corpus" / "train.jsonl").read_text(encoding="utf-8")
    assert all(word in text for word in easy)  # they are trained on all the same
    left_out = card.easy_kinds(4)
    assert {row["domain"] for row in left_out} == {"class", "story", "letter"}
    for row in left_out:
        assert json.dumps(row["prompt"], ensure_ascii=False)[1:-1] not in text


def test_no_held_out_prompt_is_in_the_training_text(built):
    text = (built / "corpus" / "train.jsonl").read_text(encoding="utf-8")
    held = [row["prompt"] for row in read_jsonl(built / "corpus" / "held.jsonl")]
    held += [row["prompt"] for d in DOMAINS for row in read_jsonl(PROMPTS / f"{d}.jsonl")]
    held += [row["prompt"] for row in read_jsonl(PROMPTS.parent / "evaluation/humaneval.jsonl")]
    assert len(held) == 3 * 128 + 3 * 32 + 164
    for prompt in held:
        assert json.dumps(prompt, ensure_ascii=False)[1:-1] not in text, prompt


def test_no_held_out_prompt_shares_a_long_run_of_words_with_the_training_text(built):
    length = 16  # words
    held = [row["prompt"] for row in read_jsonl(built / "corpus" / "held.jsonl")]
    held += [row["prompt"] for row in read_jsonl(PROMPTS.parent / "evaluation/humaneval.jsonl")]
    grams = {}
    for prompt in held:
        words = prompt.split()
        if prompt.startswith("Write a solution"):
            words = words[15:]  # the request is the same for all tasks
        for i in range(len(words) - length + 1):
            grams[tuple(words[i : i + length])] = prompt
    assert len(grams) > 2000
    for row in read_jsonl(built / "corpus" / "train.jsonl"):
        for text in (row["prompt"], row["answer"]):
            words = text.split()
            for i in range(len(words) - length + 1):
                assert tuple(words[i : i + length]) not in grams, grams[
                    tuple(words[i : i + length])
                ]


def test_the_same_seed_gives_the_same_corpus_and_the_committed_prompts(built, tmp_path):
    corpus.build(tmp_path, {d: 50 for d in DOMAINS}, library=0, held=8, seed=1)
    first = (tmp_path / "corpus" / "train.jsonl").read_bytes()
    corpus.build(tmp_path, {d: 50 for d in DOMAINS}, library=0, held=8, seed=1)
    assert (tmp_path / "corpus" / "train.jsonl").read_bytes() == first
    corpus.build(tmp_path, {d: 50 for d in DOMAINS}, library=0, held=8, seed=2)
    assert (tmp_path / "corpus" / "train.jsonl").read_bytes() != first
    for domain in DOMAINS:
        made = (built / "prompts" / f"{domain}.jsonl").read_text()
        assert made == (PROMPTS / f"{domain}.jsonl").read_text()
        rows = [json.loads(line) for line in made.splitlines()]
        assert len({row["prompt"] for row in rows}) == 32
        assert all(set(row) == {"id", "domain", "prompt"} for row in rows)


def test_library_samples_are_left_out_by_module_and_may_be_missing(monkeypatch, capsys):
    rows = list(corpus.library_samples(0.01, seed=0))
    kinds = [row["id"].split("-")[0] for row in rows]
    assert kinds.count("function") >= 20 and kinds.count("note") >= 20
    assert all("```python\n" in row["answer"] for row in rows if row["domain"] == "code")
    for module, prompt, _ in library.notes():
        assert (
            f"`{module.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}`" in prompt
        )
    monkeypatch.setattr(library, "modules", tuple)
    assert list(corpus.library_samples(1.0, seed=0)) == []
    assert "functions are left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options", [["--scale", "inf"], ["--scale", "nan"], ["--scale", "0"], ["--held", "-5"]], ids=str
)
def test_sizes_that_cannot_be_are_refused(tmp_path, capsys, options):
    assert main(["train", "corpus", "--out", str(tmp_path), *options]) == 2
    name = options[0].removeprefix("--")
    assert f"{name} must be " in capsys.readouterr().err and not list(tmp_path.iterdir())
