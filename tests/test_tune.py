"""Tuning: which settings are tried, how they are ranked, where they are read again."""

from __future__ import annotations

import json

import pytest
import torch

import dartree
from dartree.analysis import tuning
from dartree.cli import main
from tests.commands import STACK as OWN
from tests.commands import write_prompts
from tests.reference import prompt, random_stack

ROWS = [{"id": f"{d}-{i}", "domain": d, "ids": prompt(4 + i)} for d in "ab" for i in range(3)]
STACK = ["--stack", "tiny", "--threads", "1"]


@pytest.fixture
def small(monkeypatch):
    for name, values in (("DEPTHS", (1, 3)), ("BUDGETS", (2, 5, 9)), ("SHAPES", ((2, 4),))):
        monkeypatch.setattr(tuning, name, values)


def test_the_prompts_are_the_last_of_each_domain():
    assert [row["id"] for row in tuning.split_off(ROWS, 1)] == ["a-2", "b-2"]
    assert tuning.split_off(ROWS, 9) == ROWS


def test_finalists_stand_first_and_both_parts_are_ranked(small):
    stack = random_stack()
    result = tuning.tune(stack, ROWS[::3], max_new_tokens=8, repeats=2)
    trials = result["methods"]
    assert {m: len(rows) for m, rows in trials.items()} == {
        "dflash": 2, "domino": 2, "ddtree": 3, "domino-ddtree": 3, "heap": 6, "dartree-fixed": 3,
        "dartree": 8,  # three budgets with two penalties, one shape at the two best
    }  # fmt: skip
    for method, rows in trials.items():
        first, rest = rows[: tuning.FINALISTS], rows[tuning.FINALISTS :]
        for part, repeats in ((first, 2), (rest, 1)):
            speeds = [row["speedup"] for row in part]
            assert speeds == sorted(speeds, reverse=True)
            assert {row["repeats"] for row in part} <= {repeats}
        assert tuning.winners(result)[method] == rows[0]["settings"]
        settings = [tuple(row["settings"].items()) for row in rows]
        assert len(set(settings)) == len(settings)
    text = tuning.format_tuning(result)
    assert "2 prompts, up to 8 new tokens" in text and ", mean of 2 repeats." in text


def test_tau_of_a_trial_is_that_of_decoding(small):
    stack = random_stack()
    rows = tuning.tune(stack, ROWS[:2], ["dartree"], max_new_tokens=8, repeats=1)["methods"]
    assert list(rows) == ["dartree"]
    for trial in rows["dartree"]:
        settings = dartree.TreeSettings(**trial["settings"])
        outs = [dartree.generate(stack, row["ids"], settings=settings, max_new_tokens=8)
                for row in ROWS[:2]]  # fmt: skip
        rounds = [count for out in outs for count in out.accepted_per_round]
        assert trial["tau"] == pytest.approx(sum(rounds) / len(rounds))


def test_no_setting_is_tried_twice(monkeypatch):
    """Depths below the last draft position, and shapes that the stack has itself, are no others."""
    stack = random_stack()
    own = stack.settings.width, stack.settings.candidates
    monkeypatch.setattr(tuning, "SHAPES", (own, (2, 4), (2, 4)))
    monkeypatch.setattr(tuning, "BUDGETS", (4,))
    methods = ["dflash", "domino", "dartree"]
    found = tuning.tune(stack, ROWS[:1], methods, max_new_tokens=6, repeats=1)["methods"]
    for method in methods[:2]:
        (trial,) = found[method]
        assert trial["settings"]["depth"] == stack.pairing(method).drafts < min(tuning.DEPTHS)
    shapes = [(t["settings"]["width"], t["settings"]["depth_penalty"]) for t in found["dartree"]]
    assert sorted(shapes) == [(2, 0.0), (2, 0.2), (own[0], 0.0), (own[0], 0.2)]


def test_a_penalty_is_shown_whole():
    settings = dartree.TreeSettings(depth_penalty=0.15).to_dict()
    trial = {"settings": settings, "tau": 2.0, "tokens_per_second": 90.0, "speedup": 1.5}
    cells = tuning.trial_cells("dartree", "1", trial, 7)
    assert dict(zip(tuning.HEAD, cells, strict=True)) == {
        "method": "dartree", "place": "1", "W": "12", "K": "64", "B": "64", "depth": "-",
        "penalty": "0.15", "tau": "2.00", "tokens/s": "90", "vs ar": "1.50", "tried": "7",
    }  # fmt: skip
    chain = tuning.trial_cells("domino", "1", trial, 7)
    assert chain[2:7] == ["-"] * 5


@pytest.mark.parametrize("parts", ["all", "head", None])
def test_what_was_compiled_is_said(small, eager_graphs, parts):
    stack = random_stack(dtype=torch.float32)
    stack = eager_graphs(stack, parts) if parts else stack
    result = tuning.tune(stack, ROWS[:1], ["domino"], max_new_tokens=6, repeats=1)
    text = tuning.format_tuning(result)
    assert f", torch.compile: {parts or 'nothing'}, 1 prompt, " in text and ", 1 repeat." in text


@pytest.mark.parametrize(
    ("methods", "options", "words"),
    [
        (["ar"], {}, "methods must name one that has settings, got ar"),
        ([], {}, "methods must name one that has settings, got none"),
        (["dflash"], {"max_new_tokens": 1}, "there is nothing to time"),
    ],
)
def test_what_cannot_be_tuned_is_refused(small, methods, options, words):
    with pytest.raises(ValueError, match=words):
        tuning.tune(random_stack(), ROWS, methods, **options)


def test_methods_without_settings_are_left_out(small):
    result = tuning.tune(random_stack(), ROWS[:1], ["ar", "domino"], max_new_tokens=6, repeats=1)
    assert list(tuning.winners(result)) == ["domino"]


def test_from_tune_to_bench_by_a_file(small, tmp_path, capsys):
    file = tmp_path / "tuned.json"
    line = ["--limit", "1", "--repeats", "1", "--max-new-tokens", "6"]
    assert main(["tune", *STACK, *line, "--methods", "dflash,dartree", "--json", str(file)]) == 0
    assert "dartree" in capsys.readouterr().out
    own = tuning.winners(json.loads(file.read_text()))
    out = tmp_path / "bench.json"
    line += ["--no-compile", "--methods", "dartree", "--json", str(out)]
    assert main(["bench", *STACK, *line, "--tuned", str(file)]) == 0
    capsys.readouterr()
    line[line.index("dartree")] = "domino,dartree"
    assert main(["bench", *STACK, *line, "--tuned", str(file)]) == 0
    assert "[not tuned, at the stack's settings: domino]" in capsys.readouterr().err
    used = json.loads(out.read_text())["methods"][2]["settings"]
    assert (used["width"], used["budget"]) == (own["dartree"]["width"], own["dartree"]["budget"])


@pytest.mark.parametrize(
    ("fact", "other"),
    [("machine", {"processor": "an abacus"}), ("machine", 3), ("compiled", "head"), ("on", None)],
    ids=str,
)
def test_settings_that_were_found_elsewhere_are_told(fact, other, small, tmp_path, capsys):
    file = tmp_path / "tuned.json"
    line = [
        *OWN, "--threads", "1", "--prompts", str(write_prompts(tmp_path)), "--limit", "1",
        "--repeats", "1", "--max-new-tokens", "6", "--methods", "dartree",
    ]  # fmt: skip
    assert main(["tune", *line, "--json", str(file)]) == 0
    line = ["bench", *line, "--no-compile", "--tuned", str(file)]
    assert main(line) == 0
    assert "elsewhere" not in capsys.readouterr().err
    file.write_text(json.dumps({**json.loads(file.read_text()), fact: other}))
    assert main(line) == 0
    assert "[tuned elsewhere: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found_on", "asked", "name"),
    [
        ("tiny", ["--stack", "tiny-dspark"], "tiny-dspark"),
        ("tiny-dspark", [], "tiny"),
        ("tiny", OWN, "target + drafter"),
        ("target + other", OWN, "target + drafter"),
        ("target + drafter", OWN, None),
        ("a + b", ["--target", "me/a@1", "--drafter", "/none/b"], None),
    ],
    ids=str,
)
def test_a_file_is_for_the_stack_that_it_was_found_on(found_on, asked, name, tmp_path, capsys):
    """None: it is taken, and the next thing that is wrong is said."""
    file = tmp_path / "tuned.json"
    trial = {"settings": dartree.TreeSettings().to_dict()}
    file.write_text(json.dumps({"stack": found_on, "methods": {"dartree": [trial]}}))
    line = ["bench", *asked, "--tuned", str(file), "--limit", "1", "--device", "cuda:77"]
    assert main(line) == 2
    words = f"tuned is for the stack {found_on!r}, got {name!r}." if name else "device must be"
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (["tune", *STACK, "--methods", "ar"], "methods must name one that has settings"),
        (["tune", *STACK, "--max-new-tokens", "1"], "max_new_tokens must be at least 2"),
        (["tune", *STACK, "--limit", "0"], "limit must be"),
        (["bench", *STACK, "--limit", "1", "--tuned", "README.md"], "README.md"),
        (["bench", "--target", "./x", "--drafter", "./y", "--tuned", "no.json"], "no.json"),
        (["bench", *STACK, "--tuned", "--normalise", "vocabulary"], "leave out --normalise."),
        (["bench", *STACK, "--tuned", "--score-temperature", "2"], "out --score-temperature."),
        (["bench", *STACK, "--tuned", "x", "--depth-penalty", "0"], "leave out --depth-penalty."),
    ],
)
def test_bad_input_is_one_sentence(line, sentence, capsys):
    assert main(line) == 2
    assert sentence in capsys.readouterr().err


def test_a_file_that_is_no_tuning_is_refused(tmp_path):
    file = tmp_path / "x.json"
    for text in ("{}", '{"methods": {"dartree": []}}', '{"methods": {"dartree": [{}]}}'):
        file.write_text(text)
        with pytest.raises(ValueError, match="file of `dartree tune --json`"):
            tuning.read_tuning(file)
