"""dartree compare: its table, its file, and what stops it."""

from __future__ import annotations

import json

from dartree.commands.many_prompts import prompts_name
from tests.commands import STACK, run, write_prompts


def test_a_refused_setting_is_one_line_without_a_progress_bar(capsys, tmp_path):
    line = ["compare", *STACK, "--prompts", write_prompts(tmp_path)]
    status, out, err = run(capsys, *line, "--width", 2147483647)
    assert (status, out) == (2, "") and err.startswith("dartree: width must be smaller, got")


def test_a_method_named_twice_runs_once(capsys, tmp_path):
    status, out, _ = run(
        capsys, "compare", *STACK, "--prompts", write_prompts(tmp_path), "--max-new-tokens", 4,
        "--methods", "dartree, dartree,ar",
    )  # fmt: skip
    assert status == 0 and sum(line.startswith("dartree ") for line in out.splitlines()) == 1


def test_a_bad_prompt_is_found_before_any_is_run(capsys, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(
        '{"id": "a", "domain": "d", "ids": [3]}\n{"id": "b", "domain": "d", "ids": [97]}\n'
    )
    status, out, err = run(capsys, "compare", *STACK, "--prompts", prompts)
    assert status == 2 and out == "" and "prompt 'b': prompt ids must lie in 0..96" in err


def test_compare_writes_its_json(capsys, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "domain": "d", "ids": [3, 4]}\n')
    status, out, _ = run(
        capsys, "compare", *STACK, "--prompts", prompts, "--methods", "dartree",
        "--max-new-tokens", 9, "--json", tmp_path / "c.json",
    )  # fmt: skip
    assert status == 0 and "dartree" in out and "tokens/s" in out
    data = json.loads((tmp_path / "c.json").read_text())
    assert [e["method"] for e in data["methods"]] == ["ar", "dartree"]
    assert data["prompts_file"] == "p.jsonl" and "1 prompt (p.jsonl)" in out
    assert prompts_name(None) == "bundled: arithmetic.jsonl, code.jsonl, prose.jsonl"


def test_compare_names_the_bad_line(capsys, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "domain": "d", "ids": [3]}\nnope\n')
    status, _, err = run(capsys, "compare", *STACK, "--prompts", prompts)
    assert status == 2 and "line 2" in err


def test_an_interrupted_comparison_keeps_the_old_file(capsys, monkeypatch, tmp_path):
    from dartree import compare

    original, calls = compare.generate, []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(compare, "generate", interrupted)
    (tmp_path / "c.json").write_text("old")
    status, out, err = run(
        capsys, "compare", *STACK, "--prompts", write_prompts(tmp_path), "--methods", "dartree",
        "--max-new-tokens", 9, "--json", tmp_path / "c.json",
    )  # fmt: skip
    assert status == 130 and out == "" and err.endswith("dartree: interrupted.\n")
    assert (tmp_path / "c.json").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.json", "p.jsonl"]


def test_a_full_disk_is_one_sentence_and_keeps_the_old_file(capsys, monkeypatch, tmp_path):
    from pathlib import Path

    def full(self, *_, **__):
        raise OSError(28, "No space left on device", str(self))

    prompts = write_prompts(tmp_path)
    (tmp_path / "c.json").write_text("old")
    monkeypatch.setattr(Path, "write_text", full)
    status, out, err = run(
        capsys, "compare", *STACK, "--prompts", prompts, "--methods", "dartree",
        "--max-new-tokens", 4, "--json", tmp_path / "c.json",
    )  # fmt: skip
    assert status == 1 and "No space left on device" in err.splitlines()[-1]
    assert "tokens/s" in out  # the table was printed before the file failed
    assert (tmp_path / "c.json").read_text() == "old"
