"""The evaluation's data sets, on rows of the public schemas written for these tests."""

from __future__ import annotations

import json
import random

import pytest

from dartree.datasets import DATASETS, Row, load_dataset, prompts, save_rows

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."

# (a row as the public data set has it, the turns that the evaluation makes of it)
SCHEMAS = {
    "gsm8k": (
        {"question": "Two and two?", "answer": "It is 4.\n#### 4"},
        ["Two and two?" + BOXED],
    ),
    "math500": (
        {"problem": "Solve $x = 1$.", "solution": "$\\boxed{1}$", "answer": "1",
         "subject": "Algebra", "level": 1, "unique_id": "test/algebra/1.json"},
        ["Solve $x = 1$." + BOXED],
    ),
    "aime25": (
        {"problem_idx": 1, "problem": "Find it.", "answer": 70, "problem_type": ["Algebra"]},
        ["Find it." + BOXED],
    ),
    "humaneval": (
        {"task_id": "HumanEval/0", "prompt": "\ndef one():\n    \"\"\" One. \"\"\"\n",
         "canonical_solution": "    return 1\n", "test": "", "entry_point": "one"},
        ["Write a solution to the following problem and make sure that it passes the tests:\n"
         "```python\ndef one():\n    \"\"\" One. \"\"\"\n```"],
    ),
    "mbpp": (
        {"source_file": "x", "task_id": 2, "prompt": "Write a function.", "code": "def f(): ...",
         "test_imports": [], "test_list": ["assert f() is None"]},
        ["Write a function."],
    ),
    "mt-bench": (
        {"category": "writing", "prompt": ["Write a poem.", "Make it shorter."], "reference": [],
         "prompt_id": 81},
        ["Write a poem.", "Make it shorter."],
    ),
    "alpaca": (
        {"instruction": "Sort them.", "input": "3, 1, 2", "output": "1, 2, 3", "text": "..."},
        ["Sort them.\n\nInput:\n3, 1, 2"],
    ),
}  # fmt: skip
COUNTS = {"gsm8k": 128, "math500": 128, "aime25": 30, "humaneval": 164, "mbpp": 128,
          "mt-bench": 80, "alpaca": 128}  # fmt: skip
ROWS = {"gsm8k": 1319, "math500": 500, "aime25": 30, "humaneval": 164, "mbpp": 257,
        "mt-bench": 80, "alpaca": 52002}  # fmt: skip


def many(name: str, count: int) -> list[dict]:
    """``count`` rows of the schema, each with a text of its own."""
    row, _ = SCHEMAS[name]
    field = DATASETS[name].fields[0]
    texts = [[f"{i} a", f"{i} b"] if name == "mt-bench" else f"request {i}" for i in range(count)]
    return [row | {field: text} for text in texts]


@pytest.mark.parametrize("name", SCHEMAS)
def test_templates(name):
    row, turns = SCHEMAS[name]
    (made,) = prompts(name, [row])
    assert list(made.turns) == turns and made.dataset == name


def test_alpaca_without_an_input():
    row = SCHEMAS["alpaca"][0] | {"input": " "}
    assert prompts("alpaca", [row])[0].turns == ("Sort them.",)


def test_all_seven_with_the_papers_counts():
    assert {name: source.samples for name, source in DATASETS.items()} == COUNTS
    for name, count in COUNTS.items():
        assert len(prompts(name, many(name, count + 40))) == count
        small = prompts(name, many(name, 5))
        assert [row.turns[0].split("\n")[0] for row in small][-1].startswith(
            ("request 4", "4 a")
        ) or (name == "humaneval")


def test_the_sample_is_the_shuffle_of_the_library(tmp_path):
    """Through the loader of the package datasets, from a file in place of the hub."""
    datasets = pytest.importorskip("datasets")
    rows, path = many("gsm8k", 1319), tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = datasets.load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
    )
    theirs = whole.shuffle(seed=0).select(range(128))
    assert [r.turns[0] for r in prompts("gsm8k", whole)] == [q + BOXED for q in theirs["question"]]
    assert prompts("gsm8k", whole) == prompts("gsm8k", rows)


def test_the_sample_does_not_depend_on_other_randomness():
    rows = many("alpaca", 500)
    first = prompts("alpaca", rows)
    random.seed(5)
    assert prompts("alpaca", rows) == first != prompts("alpaca", rows[::-1])


def test_a_set_from_the_hub(monkeypatch):
    """Through the package datasets, which is asked for exactly the published names."""
    import sys
    import types

    asked = []

    def fetch(path, name=None, split=None):
        asked.append((path, name, split))
        return many("mbpp", count)

    count = 257
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=fetch))
    assert load_dataset("mbpp") == prompts("mbpp", many("mbpp", count))
    assert asked == [("google-research-datasets/mbpp", "sanitized", "test")]
    count = 256
    with pytest.raises(ValueError, match="dataset mbpp must hold all 257 rows .* got 256 rows"):
        load_dataset("mbpp")

    def refuse(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=refuse))
    with pytest.raises(ValueError, match=r"mbpp \(google.*\) could not be fetched: no route; try"):
        load_dataset("mbpp")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"needs the package datasets .* give a .* mbpp.jsonl"):
        load_dataset("mbpp")
    with pytest.raises(ValueError, match=r"put a local copy in /empty, mbpp.jsonl"):
        load_dataset("mbpp", "/empty")


@pytest.mark.parametrize("name", SCHEMAS)
def test_local_copies(name, tmp_path):
    """Rows of the public set, or prompts that were saved before: the same prompts."""
    rows = many(name, ROWS[name])
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    found = load_dataset(name, raw)
    assert found == prompts(name, rows)
    save_rows(found, tmp_path / f"{name}.jsonl")
    assert load_dataset(name, tmp_path) == found


@pytest.mark.parametrize("name", ["gsm8k", "alpaca", "mt-bench"])
def test_a_part_of_a_set_is_refused(name, tmp_path):
    """The sample is drawn from all rows: from fewer, or in other numbers, it is another one."""
    path = tmp_path / f"{name}.jsonl"

    def refused(lines, words):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for place in ((name, tmp_path), (str(path),)):
            with pytest.raises(ValueError, match=f"must hold all {ROWS[name]} rows.* got {words}"):
                load_dataset(*place)

    refused(many(name, 70), "70 rows")
    turns = [{"id": str(i), "turns": [f"request {i}"]} for i in range(200)]
    refused(turns, "200 prompts")
    refused(turns[:10], "10 prompts")
    path.rename(tmp_path / "mine.jsonl")
    assert len(load_dataset(str(tmp_path / "mine.jsonl"))) == 10


def test_any_file(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '{"id": "a", "domain": "x", "prompt": "Hello"}\n\n'
        '{"id": "b", "domain": "x", "messages": [{"role": "user", "content": "Hello"}]}\n'
        '{"id": "c", "domain": "x", "ids": [1, 2]}\n{"id": "d", "turns": ["One", "Two"]}\n'
    )
    rows = load_dataset(str(path))
    assert [r.id for r in rows] == ["a", "b", "c", "d"] and rows[0].dataset == "mine"
    assert rows[3] == Row("d", "mine", ("One", "Two"))
    assert len({r.digest() for r in rows}) == 4
    assert rows[0].digest() == Row("z", "other", ("Hello",)).digest()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no prompts"),
        ("{", "line 1 is not JSON"),
        ("[1]\n", "line 1 must be a JSON object"),
        ('{"id": "a"}\n', "line 1 must hold exactly one of prompt, messages, ids, turns"),
        ('{"id": "a", "prompt": "x", "ids": [1]}\n', "exactly one of"),
        ('{"id": "a", "prompt": ["x"]}\n', "exactly one of"),
        ('{"id": "a", "turns": ["x", 3]}\n', "'turns' must be a list of texts"),
        ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}\n', "the id 'a' twice"),
    ],
)
def test_bad_files(tmp_path, text, words):
    path = tmp_path / "mine.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        load_dataset(str(path))


def test_bad_rows_and_names(tmp_path):
    with pytest.raises(ValueError, match="gsm8k row 0 lacks question; it has problem"):
        prompts("gsm8k", [{"problem": "x"}])
    for value in (None, 3, "", " ", []):
        with pytest.raises(ValueError, match="mbpp row 0 has an unusable prompt"):
            prompts("mbpp", [{"prompt": value}])
    with pytest.raises(ValueError, match="dataset must be one of gsm8k.* got 'gsm'"):
        load_dataset("gsm")
    with pytest.raises(ValueError, match="cannot be read"):
        load_dataset(str(tmp_path / "none.jsonl"))
