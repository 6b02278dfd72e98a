"""dartree generate: JSON alone with --json, one sentence and exit 2 for bad settings."""

from __future__ import annotations

import io
import json

import pytest

import dartree
from dartree.records import load_records
from tests.commands import STACK, run
from tests.conftest import DATA, load_case


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
    assert ": 1 token in 0 rounds, tau -, - tokens/s, ended by length" in note


def test_records_that_cannot_be_written_do_not_take_the_result_with_them(
    capsys, tmp_path, monkeypatch
):
    def full(records, path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("dartree.records.save_records", full)
    line = ["generate", *STACK, "--ids", "3,4,5", "--max-new-tokens", 6]
    status, out, err = run(capsys, *line, "--records", tmp_path / "r.jsonl", "--json")
    assert status == 1 and "No space left on device" in err
    assert len(json.loads(out)["token_ids"]) == 6


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


def test_unknown_stack(capsys):
    status, _, err = run(capsys, "generate", "hello", "--stack", "giant")
    assert status == 2 and "stack must be one of" in err and "'giant'" in err


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
