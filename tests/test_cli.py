"""The commands: one sentence and exit 2 for bad input, JSON alone with --json."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys

import pytest
import torch

import dartree
from dartree import cli, doctor
from dartree.cli import main
from dartree.records import load_records
from tests.conftest import DATA, load_case
from tests.reference import headless

CASE = DATA / "domino-shift"
STACK = ["--target", str(CASE / "target"), "--drafter", str(CASE / "drafter")]


def run(capsys, *arguments):
    """Exit status, stdout and stderr of one command."""
    try:
        status = main([str(a) for a in arguments])
    except SystemExit as stop:
        status = stop.code
    out = capsys.readouterr()
    return status, out.out, out.err


def test_generate_json_is_one_object_and_nothing_else(capsys):
    status, out, err = run(
        capsys, "generate", *STACK, "--ids", "3,4,5", "--max-new-tokens", 20, "--json",
        "--width", 500, "--candidates", 500, "--budget", 9, "--depth", 99,
    )  # fmt: skip
    assert status == 0 and err == ""
    data = json.loads(out)
    assert out.count("\n") == 1
    want = {
        "method", "stack", "drafter", "settings", "token_ids", "text", "prompt_tokens",
        "new_tokens", "rounds", "accepted_per_round", "tau", "tau_per_prompt", "head_calls",
        "verified_nodes", "seconds", "tokens_per_second", "stop_reason", "dtype", "device",
        "threads", "seed",
    }  # fmt: skip
    assert want <= data.keys()
    assert {k: data["settings"][k] for k in ("width", "candidates", "budget", "depth")} == {
        "width": 500, "candidates": 97, "budget": 9, "depth": 8
    }  # fmt: skip
    stack = load_case("domino-shift")[0]
    assert data["token_ids"] == dartree.generate(stack, [3, 4, 5], max_new_tokens=20).token_ids


def test_text_streams_and_equals_no_stream(capsys):
    arguments = ["generate", *STACK, "--ids", "3,4,5", "--max-new-tokens", 20]
    _, streamed, note = run(capsys, *arguments)
    _, whole, _ = run(capsys, *arguments, "--no-stream")
    assert streamed == whole and "rounds, tau" in note


def test_one_of_a_thing_has_no_plural(capsys, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    _, _, note = run(capsys, "generate", *STACK, "--ids", "3,4,5", "--max-new-tokens", 2)
    assert ": 2 tokens in 1 round, tau" in note and ", 1 thread]" in note
    _, _, note = run(capsys, "generate", *STACK, "--ids", "3,4,5", "--max-new-tokens", 1)
    assert ": 1 token in 0 rounds, tau -" in note


def test_help_names_methods_and_defaults(capsys):
    """The defaults are those that a run without options reports."""
    _, out, _ = run(capsys, "generate", "--help")
    text = " ".join(out.split())
    assert all(
        f" {method}," in text or f" {method} (default)" in text for method in dartree.METHODS
    )
    _, out, _ = run(capsys, "generate", "Hi.", "--max-new-tokens", 1, "--json")
    used = json.loads(out)["settings"]
    words = f"tiny has W {used['width']}, K {used['candidates']}, B {used['budget']}, P"
    assert f"{words} {used['depth_penalty']:g})" in text
    assert "length limit of a text (default 256)" in text and "the anchor not counted" in text


def test_records_file(capsys, tmp_path):
    path = tmp_path / "rounds.jsonl"
    status, out, _ = run(
        capsys, "generate", *STACK, "--ids", "3,4", "--max-new-tokens", 9, "--stop", 96,
        "--json", "--records", path,
    )  # fmt: skip
    assert status == 0
    committed = [len(r.committed) for r in load_records(path)]
    assert committed == json.loads(out)["accepted_per_round"]


BAD = [
    (["--method", "magic"], "method must be one of ar, dflash"),
    (["--width", "0"], "width must be an integer of at least 1, got 0"),
    (["--candidates", "-2"], "candidates must be"),
    (["--budget", "1.5"], "budget must be an integer, got '1.5'"),
    (["--max-new-tokens", "0"], "max_new_tokens must be"),
    (["--max-new-tokens", "ten"], "max_new_tokens must be an integer, got 'ten'"),
    (["--depth", "0"], "depth must be"),
    (["--depth-penalty", "-0.1"], "depth_penalty must be"),
    (["--depth-penalty", "nan"], "depth_penalty must be"),
    (["--temperature", "-1"], "temperature must be"),
    (["--temperature", "nan"], "temperature must be"),
    (["--top-p", "2"], "top_p must be"),
    (["--dtype", "int4"], "dtype must be one of"),
    (["--records", "/nowhere/x.jsonl"], "records must be a file in an existing folder"),
    (["--records", "/"], "records must be a file in an existing folder, got '/'"),
    (["--records", ""], "records must be a file"),
    (["--width", "9" * 30], "width must be at most 2147483647"),
    (["--width", "2147483647"], "width must be smaller, got 2147483647: with 64 candidates"),
    (["--depth-penalty", "1e308"], "depth_penalty must be at most 1e+09, got 1e+308"),
    (["--score-temperature", "1e-40"], "score_temperature must be at least"),
    (["--threads", "2147483647"], "threads must be at most 1024"),
    (["--records", "/proc/x.jsonl"], "records must be writable, got '/proc/x.jsonl'"),
    (["--target", "~nobody-of-this-name"], "target must be a folder or a hub id"),
    (["--device", "cuda:9"], "device must be one that torch can use here, got 'cuda:9'"),
    (["--device", "foo"], "device must be one that torch can use here"),
    (["--device", "meta"], "device must be one that torch can use here"),
    (["--device", ""], "device must be one that torch can use here"),
    (["--stop", "97"], "stop ids must lie in 0..96, got [97]"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=lambda v: str(v))
def test_bad_settings(capsys, arguments, words):
    status, out, err = run(capsys, "generate", *STACK, "--ids", "3,4", *arguments)
    assert status == 2 and out == ""
    assert words in err and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate"], "give a prompt"),
        (["generate", "hello", "--ids", "1"], "give a prompt"),
        (["generate", *STACK, "hello"], "no tokenizer"),
        (["generate", "hello", "--target", "", "--drafter", ""], "target must be a folder or a"),
        (["generate", *STACK, "--ids", "1,x"], "ids must be an integer, got 'x'"),
        (["generate", *STACK, "--ids", "1,97"], "prompt ids must lie in 0..96, got 97"),
        (["generate", *STACK, "--ids", ",".join(["1"] * 512)], "context of 512 tokens, got 512"),
        (["generate", "hello", "--target", "x"], "together"),
        (["generate", "hello", "--target", "./x", "--drafter", "./y"], "neither a folder"),
        (["compare", *STACK, "--methods", "ar,none"], "method must be one of"),
        (["compare", *STACK, "--methods", ""], "methods must name one or more of ar, "),
        (["compare", *STACK, "--methods", "ar,,heap"], "method must be one of"),
        (["compare", *STACK, "--json", "/proc/c.json"], "json must be writable, got '/proc/c"),
        (["bench", *STACK, "--sweep", "width", "--memory"], "cannot be combined with --memory"),
        (["bench", *STACK, "--sweep", "width", "--tuned"], "cannot be combined with --tuned"),
        (["bench", *STACK, "--sweep", "width", "--no-compile"], "combined with --no-compile"),
        (["bench", *STACK, "--device-map", "auto"], "device_map needs --no-compile"),
        (["bench", *STACK, "--memory", "--compile", "head"], "cannot be combined with --compile"),
        (
            ["generate", *STACK, "--compile", "tail", "hi"],
            "compile must be all or head, got 'tail'",
        ),
        (["bench", *STACK, "--max-new-tokens", "1"], "max_new_tokens must be at least 2, got 1"),
        (["compare", *STACK, "--limit", "0"], "limit must be"),
        (["compare", *STACK, "--repeats", "x"], "repeats must be an integer"),
        (["compare", *STACK, "--prompts", "/nowhere.jsonl"], "cannot be read"),
    ],
    ids=lambda v: str(v)[:60],
)
def test_bad_calls(capsys, arguments, words):
    status, out, err = run(capsys, *arguments)
    assert status == 2 and words in err and err.count("\n") == 1


def test_a_prompt_from_a_pipe_that_is_no_text(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff"), encoding="utf-8"))
    status, _, err = run(capsys, "generate", *STACK, "-")
    assert status == 2 and err.startswith("dartree: prompt must be valid Unicode: ")


def test_a_drafter_without_a_head_is_told_apart(capsys):
    case = DATA / "dflash"
    line = ["generate", "--target", case / "target", "--drafter", case / "drafter", "--ids", "3"]
    for method in ("heap", "dflash"):
        *_, err = run(capsys, *line, "--max-new-tokens", 3, "--method", method, "--json")
        note = "[heap runs on the marginals: drafter, without a correction head]\n"
        assert err == (note if method == "heap" else "")


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


def test_a_refused_setting_is_one_line_without_a_progress_bar(capsys, tmp_path):
    line = ["compare", *STACK, "--prompts", write_prompts(tmp_path)]
    status, out, err = run(capsys, *line, "--width", 2147483647)
    assert (status, out) == (2, "") and err.startswith("dartree: width must be smaller, got")


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
    file.write_text(json.dumps({"stack": "x", "methods": trials}))
    args = memory_run(monkeypatch, "--prompts", write_prompts(tmp_path), "--tuned", file)
    assert tree_settings(args, dartree.TreeSettings()) == tuned


@pytest.mark.parametrize(
    ("given", "pack"), [(["--pack"], True), (["--no-pack"], False), ([], None)], ids=str
)
def test_the_memory_run_has_the_layout_of_the_benchmark(monkeypatch, tmp_path, given, pack):
    args = memory_run(monkeypatch, "--prompts", write_prompts(tmp_path), *given)
    assert args.pack is pack


def test_dflash_is_the_drafter_of_the_marginals(capsys, tmp_path):
    """In every command that takes a stack; the memory run of a benchmark gets it too."""
    from dartree.arguments import generate_options
    from dartree.cli import build_parser

    own = headless(tmp_path / "own")
    stack = [*STACK, "--dflash", str(own)]
    status, out, _ = run(
        capsys, "generate", *stack, "--ids", "3,4", "--method", "ddtree", "--max-new-tokens", "4",
        "--json",
    )  # fmt: skip
    assert status == 0 and json.loads(out)["drafter"] == "own"
    status, out, err = run(capsys, "generate", "--dflash", str(own), "hello")
    assert status == 2 and "dflash is given together with target and drafter" in err
    for command in ("compare", "bench"):
        args = build_parser().parse_args([command, *stack, "--device-map", "cpu"])
        line = generate_options(args, [3, 4], dartree.TreeSettings())
        assert line[line.index("--dflash") + 1] == str(own)
        assert line[line.index("--device-map") + 1] == "cpu"


def test_a_device_map_goes_to_the_loader(capsys, monkeypatch):
    seen = {}

    def load(*_, **options):
        seen.update(options)
        return load_case("domino-shift")[0]

    monkeypatch.setattr("dartree.stack.load_stack", load)
    ids = ["--ids", "3,4", "--max-new-tokens", "2"]
    assert run(capsys, "generate", *STACK, *ids, "--device-map", "auto")[0] == 0
    assert seen["device_map"] == "auto" and seen["device"] is None
    for wrong, words in (
        (["--device-map", "auto", "--device", "cpu"], "either device or device_map"),
        (["--device-map", "auto", "--compile"], "combined with --compile head only"),
        (["--device-map", "tensor-parallel"], "is for dartree paper only"),
    ):
        status, _, err = run(capsys, "generate", *STACK, *ids, *wrong)
        assert status == 2 and words in err


@pytest.mark.parametrize("kind", ["gpu", "cpu", "python"])
def test_running_out_of_memory_is_one_sentence(capsys, monkeypatch, kind):
    def fill(*_, **__):
        if kind == "python":
            raise MemoryError
        if kind == "cpu":
            torch.empty(2**46)
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of\n1 GiB"
        )

    monkeypatch.setattr("dartree.stack.load_target_model", fill)
    status, out, err = run(capsys, "generate", *STACK, "--ids", "3")
    assert status == 1 and not out and err.count("\n") == 1 and "Traceback" not in err
    for words in ("out of memory", "--device-map", "--dtype", "--budget"):
        assert words in err


def test_other_errors_keep_their_traceback(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr("dartree.stack.load_target_model", broken)
    with pytest.raises(RuntimeError, match="shapes cannot"):
        main(["generate", *STACK, "--ids", "3"])


def test_options_are_not_abbreviated(capsys):
    status, _, err = run(capsys, "generate", *STACK, "--ids", "3", "--max", 4)
    assert status == 2 and "unrecognized arguments: --max" in err


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


def test_unknown_stack(capsys):
    status, _, err = run(capsys, "generate", "hello", "--stack", "giant")
    assert status == 2 and "stack must be one of" in err and "'giant'" in err


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
    args = argparse.Namespace(prompts=None)
    assert cli._prompts_file(args) == "bundled: arithmetic.jsonl, code.jsonl, prose.jsonl"


def test_compare_names_the_bad_line(capsys, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "a", "domain": "d", "ids": [3]}\nnope\n')
    status, _, err = run(capsys, "compare", *STACK, "--prompts", prompts)
    assert status == 2 and "line 2" in err


@pytest.mark.parametrize("option", ["--json", "--no-stream", None])
def test_an_interrupt_loses_nothing_that_was_committed(capsys, monkeypatch, tmp_path, option):
    """Ctrl-C in round 3: clean message, valid JSON or text, complete records file."""
    from dartree import decode

    original, calls = decode.walk, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(decode, "walk", interrupted)
    records = tmp_path / "r.jsonl"
    status, out, err = run(
        capsys, "generate", *STACK, "--ids", "3,4", "--max-new-tokens", 30, "--records", records,
        *([option] if option else []),
    )  # fmt: skip
    assert status == 130 and err == "dartree: interrupted.\n"
    assert len(load_records(records)) == 2
    if option == "--json":
        data = json.loads(out)
        assert data["stop_reason"] == "unfinished" and data["rounds"] == 2
        ids = data["token_ids"]
    else:
        ids = [int(word) for word in out.split()]
    assert len(ids) == 1 + sum(len(r.committed) for r in load_records(records))


def write_prompts(folder):
    path = folder / "p.jsonl"
    path.write_text('{"id": "a", "domain": "d", "ids": [3, 4]}\n')
    return path


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


def test_without_a_home_and_from_another_folder(tmp_path):
    """HOME that does not exist, an empty environment, another working directory."""
    import os

    out = subprocess.run(
        [sys.executable, "-m", "dartree", "generate", *STACK, "--ids", "3,4", "--json",
         "--max-new-tokens", "4"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "none"),
             "PYTHONPATH": str(DATA.parent.parent)},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout)["new_tokens"] == 4
    assert list(tmp_path.iterdir()) == []


def test_version_and_module_entry():
    out = subprocess.run(
        [sys.executable, "-m", "dartree", "--version"], capture_output=True, text=True, check=True
    )
    assert out.stdout == f"dartree {dartree.__version__}\n"


def test_doctor(capsys):
    status, out, _ = run(capsys, "doctor")
    assert status == 0 and "torch" in out and "bf16" in out and "MISSING" not in out
    assert "packed weights in float32 on the CPU" in out and "torch.compile  " in out


def test_doctor_says_why_something_cannot_work(monkeypatch, capsys):
    monkeypatch.setattr("dartree.compiled.why_not", lambda: "torch.compile needs a C++ compiler.")
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    status, out, _ = run(capsys, "doctor")
    assert status == 0 and "torch.compile  torch.compile needs a C++ compiler." in out
    assert "packed weights packing needs a torch built with oneDNN" in out
    assert "bf16 on CPU    emulated only" in out


@pytest.mark.parametrize(("load", "threads", "advice"), [
    (0.1, 2, False), (1.2, 2, True), (3.0, 1, False), (3.0, 2, True),
])  # fmt: skip
def test_doctor_says_that_the_machine_is_busy(monkeypatch, load, threads, advice):
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 2)
    (line,) = doctor._load(threads)
    assert f" {load} in the last minute" in line and ("--threads 1" in line) == advice
    monkeypatch.delattr(doctor.os, "getloadavg")
    assert doctor._load(threads) == []
