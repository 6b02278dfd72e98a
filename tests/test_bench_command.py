"""dartree bench: sweeps, and what the processes are given that --memory weighs."""

from __future__ import annotations

import json

import pytest

import dartree
from dartree.cli import main
from tests.commands import STACK, run, write_prompts


def test_a_sweep_takes_methods_and_sampling(capsys, tmp_path):
    status, out, _ = run(
        capsys, "bench", *STACK, "--prompts", write_prompts(tmp_path), "--repeats", 1,
        "--max-new-tokens", 4, "--methods", "dflash,dartree", "--sweep", "candidates",
        "--temperature", 1, "--seed", 5, "--json", tmp_path / "s.json",
    )  # fmt: skip
    assert status == 0
    (result,) = json.loads((tmp_path / "s.json").read_text())
    assert {row["method"] for row in result["rows"]} == {"dflash", "dartree"}
    assert result["sampling"] == {"temperature": 1.0, "seed": 5}


def test_the_help_of_bench_names_every_sweep(capsys):
    from dartree.bench import SWEEPS

    words = run(capsys, "bench", "--help")[1].replace("\n", " ").split()
    assert SWEEPS.keys() <= {word.strip(",;") for word in words}


def memory_run(monkeypatch, *options):
    """What a benchmark with --memory gives the processes that it weighs, as their parser reads it.

    Nothing is weighed.
    """
    from dartree.cli import build_parser

    seen = []

    def keep(stack, line):
        seen.extend(line)
        return {"ar": 1, "dartree": 1, "drafter": 1}

    monkeypatch.setattr("dartree.bench.memory", keep)
    common = ["--methods", "dartree", "--no-compile", "--repeats", "1", "--max-new-tokens", "3"]
    assert main(["bench", *STACK, *common, "--memory", *map(str, options)]) == 0
    return build_parser().parse_args(["generate", *seen])


def test_what_was_timed_outlives_a_process_that_is_killed_while_it_is_weighed(
    monkeypatch, tmp_path, capsys
):
    def killed(stack, line):
        raise ValueError("peak memory cannot be measured: it ended with status -9.")

    monkeypatch.setattr("dartree.bench.memory", killed)
    options = ["--methods", "dartree", "--no-compile", "--repeats", 1, "--max-new-tokens", 3]
    file, rows = tmp_path / "b.json", ["--prompts", write_prompts(tmp_path)]
    status, out, err = run(capsys, "bench", *STACK, *rows, *options, "--memory", "--json", file)
    assert status == 2 and "ended with status -9" in err
    assert "tokens/s" in out and "\ndartree " in out
    result = json.loads(file.read_text())
    assert "memory" not in result and [e["method"] for e in result["methods"]][1] == "dartree"


def test_a_weighed_benchmark_prints_what_its_result_says(monkeypatch, tmp_path, capsys):
    from dartree.bench import format_bench

    sizes = {"ar": 3 * 2**20, "dartree": 5 * 2**20, "drafter": 2**20}
    monkeypatch.setattr("dartree.bench.memory", lambda *_: sizes)
    options = ["--methods", "dartree", "--no-compile", "--repeats", 1, "--max-new-tokens", 3]
    file, rows = tmp_path / "b.json", ["--prompts", write_prompts(tmp_path)]
    status, out, _ = run(capsys, "bench", *STACK, *rows, *options, "--memory", "--json", file)
    result = json.loads(file.read_text())
    assert status == 0 and out == format_bench(result) + "\n"
    assert result["memory"] == sizes and "1.25 times ar plus drafter" in out
    assert "Memory of one round" in out


def test_the_memory_run_has_the_settings_of_the_benchmark(monkeypatch, tmp_path):
    asked = ["--budget", "9", "--depth-penalty", "0.5", "--temperature", "1", "--seed", "3",
             "--normalise", "vocabulary"]  # fmt: skip
    args = memory_run(monkeypatch, "--prompts", write_prompts(tmp_path), *asked)
    for name, value in zip(asked[::2], asked[1::2], strict=True):
        assert getattr(args, name[2:].replace("-", "_")) == value
    assert (args.target, args.drafter, args.ids) == (*STACK[1::2], "3,4")


def test_the_memory_run_has_the_tuned_settings(monkeypatch, tmp_path):
    from dartree.arguments import tree_settings

    tuned = dartree.TreeSettings(width=3, candidates=7, budget=5, depth_penalty=0.125, depth=2)
    file = tmp_path / "tuned.json"
    trials = {"dartree": [{"settings": tuned.to_dict()}]}
    file.write_text(json.dumps({"stack": "target + drafter", "methods": trials}))
    args = memory_run(monkeypatch, "--prompts", write_prompts(tmp_path), "--tuned", file)
    assert tree_settings(args, dartree.TreeSettings()) == tuned


@pytest.mark.parametrize(
    ("given", "pack"), [(["--pack"], True), (["--no-pack"], False), ([], None)], ids=str
)
def test_the_memory_run_has_the_layout_of_the_benchmark(monkeypatch, tmp_path, given, pack):
    args = memory_run(monkeypatch, "--prompts", write_prompts(tmp_path), *given)
    assert args.pack is pack
