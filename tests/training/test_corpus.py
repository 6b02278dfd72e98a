"""The corpus: right answers, the same text for the same seed, and nothing held out in training."""

from __future__ import annotations

import ast
import json
import random
import re
from pathlib import Path

import pytest

from dartree.training import arithmetic, code, commands, corpus, facts, prose
from dartree.training.common import DOMAINS, read_jsonl

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
    line = ["corpus", "--out", str(folder), "--scale", "0.1", "--held", "40"]
    assert commands.main(line) == 0
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
    names = {name for group in arithmetic.PEOPLE.values() for name in group}
    for _ in range(300):
        question, answer = arithmetic.problem(rng)
        asked = {word for word in re.findall(r"[A-Z][a-z]+", question) if word in names}
        told = {word for word in re.findall(r"[A-Z][a-z]+", answer) if word in names}
        assert len(asked) == 1 and told <= asked


def test_generated_functions_compile_and_have_the_requested_signature():
    rng = random.Random(5)
    for _ in range(1000):
        request, answer = code.function(rng)
        source = answer.removeprefix("```python\n").removesuffix("\n```")
        (node,) = ast.parse(source).body
        assert f"`{node.name}({ast.unparse(node.args)})`" in request
        assert ast.get_docstring(node) in source and ast.get_docstring(node)[7:-1] in request


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
    exec(answer.removeprefix("```python\n").removesuffix("\n```"), scope)
    assert scope[name](*arguments) == result


def test_tables_are_complete_and_prose_fills_every_field():
    for table, (names, _) in facts.TABLES.items():
        assert all(len(row) == len(names.split()) for row in facts.rows(table))
        for _, sentences in prose.ASPECTS[table].values():
            assert any("{name}" in sentence for sentence in sentences)
    rng = random.Random(7)
    for _ in range(2000):
        question, answer = prose.passage(rng)
        assert not re.search(r"[{}]", question + answer)
        assert question[0].isupper() and answer[0].isupper()


def test_no_held_out_prompt_is_in_the_training_text(built):
    text = (built / "corpus" / "train.jsonl").read_text(encoding="utf-8")
    held = [row["prompt"] for row in read_jsonl(built / "corpus" / "held.jsonl")]
    held += [row["prompt"] for d in DOMAINS for row in read_jsonl(PROMPTS / f"{d}.jsonl")]
    assert len(held) == 3 * 40 + 3 * 32
    for prompt in held:
        assert json.dumps(prompt, ensure_ascii=False)[1:-1] not in text, prompt


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


def test_library_functions_are_left_out_by_module_and_may_be_missing(monkeypatch, capsys):
    rows = list(corpus.library_samples(20, seed=0))
    assert len(rows) == 20 and all("```python\n" in row["answer"] for row in rows)
    monkeypatch.setattr(code, "library_functions", tuple)
    assert list(corpus.library_samples(20, seed=0)) == []
    assert "left out" in capsys.readouterr().out
