"""All commands: exit status and one sentence for bad input, memory that runs out, no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

import dartree
from dartree.cli import COMMANDS, main
from tests.commands import STACK, run
from tests.conftest import DATA
from tests.reference import headless


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
        (
            ["bench", *STACK, "--sweep", "width", "--width", "3"],
            "width cannot be combined with --w",
        ),
        (["bench", *STACK, "--sweep", "threads", "--threads", "1"], "combined with --threads"),
        (["generate", *STACK, "--pack", "--compile", "all", "hi"], "pack cannot be combined with"),
        (["bench", *STACK, "--device-map", "auto"], "device_map needs --no-compile"),
        (["bench", *STACK, "--memory", "--compile", "head"], "cannot be combined with --compile"),
        (
            ["generate", *STACK, "--compile", "tail", "hi"],
            "compile must be all or head, got 'tail'",
        ),
        (["generate", *STACK, "--compile", "hi"], "compile must be all or head, got 'hi'"),
        (["generate", *STACK, "--cuda-graphs", "hi"], "cuda_graphs needs --compile"),
        (
            ["generate", *STACK, "--compile=head", "--cuda-graphs", "--device=cpu", "--ids=1"],
            "cuda_graphs must be False for a stack on cpu, got True",
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
    status, _, err = run(capsys, "train", "corpus", "--pre", "tiny")
    assert status == 2 and "unrecognized arguments: --pre" in err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_help(capsys, command):
    status, out, _ = run(capsys, command, "--help")
    assert status == 0 and out.startswith(f"usage: dartree {command} [-h]")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_do_not_wait_for_torch(option):
    code = f"""
import sys
from dartree.cli import main
try:
    main([{option!r}])
except SystemExit as stop:
    print(stop.code, [name for name in ("torch", "transformers", "numpy") if name in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.endswith("0 []\n")


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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_at_the_end_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dartree", "stacks"], stdout=full, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "dartree: [Errno 28] No space left on device\n"
