"""The grid on random stacks and on the bundled one: resumed, sharded, refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

import dartree
from dartree.cli import build_parser, main
from dartree.datasets import Row
from dartree.hub import Source
from dartree.paper.commands import make_grid
from dartree.paper.grid import Grid, Model, key_of
from dartree.paper.run import identify, missing, place, run_grid
from dartree.paper.store import read_records
from tests.conftest import DATA
from tests.reference import greedy, headless, random_stack

CASE = DATA / "domino-shift"
MODEL = Model("random")
ROWS = {
    name: [Row(f"{name}-{i}", name, ([7 * i + 3, k, i],)) for i in range(3)]
    for k, name in enumerate(("first", "second"))
}
REHEARSAL = ["paper", "--rehearsal", "--limit", "1", "--max-new-tokens", "6",
             "--temperatures", "0,1", "--methods", "dartree", "--threads", "1"]  # fmt: skip


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    stack = random_stack(head="domino")
    stack.sources = {"target": Source("random", tmp_path_factory.mktemp("random"))}
    return stack


def grid(**changes) -> Grid:
    options = dict(models=(MODEL,), rows=ROWS, methods=("ar", "dartree"), max_new_tokens=6)
    return Grid(**(options | changes))


def facts(stack) -> dict:
    """What records hold of a stack's checkpoints."""
    sources = {part: source.identity() for part, source in stack.sources.items()}
    return {"dtype": str(stack.target.dtype)[6:], "sources": sources}


def stable(records) -> dict:
    """Records by key, without what a clock or the process decides; no key may come twice."""
    found = {}
    for record in records:
        assert key_of(record) not in found
        drop = ("seconds", "tokens_per_second", "machine", "threads")
        found[key_of(record)] = {k: v for k, v in record.items() if k not in drop}
    return found


@pytest.fixture(scope="module")
def whole(stack, tmp_path_factory):
    """The records of an undisturbed run in one process."""
    out = tmp_path_factory.mktemp("whole")
    run_grid(grid(), out, load=lambda _: stack)
    return stable(read_records(out))


def test_every_run_has_one_record(whole):
    assert len(whole) == len(grid()) == 2 * 2 * 6  # temperatures, methods, prompts
    assert missing(grid(), [r for r in whole.values()]) == 0
    for record in whole.values():
        assert record["new_tokens"] == sum(record["accepted_per_round"]) + 1 == 6
        for name in ("token_ids", "settings", "versions", "asked", "source_names", "thinking"):
            assert name in record


def test_tokens_are_the_targets_own_and_alike_for_all_methods(whole, stack):
    for (_, temperature, _, _, _, method), record in whole.items():
        where = record["cell"]
        row = next(r for r in ROWS[where["dataset"]] if r.id == where["id"])
        if temperature == 0:
            assert record["token_ids"] == greedy(stack.target.model, row.turns[0], 6)
        if method == "ar":  # the same seed for every method: the same sampled text
            twin = whole["random", temperature, where["dataset"], where["id"], 0, "dartree"]
            assert twin["token_ids"] == record["token_ids"]
            assert twin["seed"] == record["seed"]
    assert len({r["seed"] for r in whole.values()}) == 6


@pytest.mark.parametrize("stop_after", [0, 1, 2, 5, 11, 23])
def test_interrupted_and_resumed(tmp_path, stack, whole, stop_after):
    """Stopped after any number of runs, with half a line behind them."""
    seen = []

    def interrupt(what):
        seen.append(what)
        if len(seen) > stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(grid(), tmp_path, load=lambda _: stack, progress=interrupt)
    assert len(read_records(tmp_path)) == stop_after + 1
    path = tmp_path / "part-000.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert len(read_records(tmp_path)) == stop_after
    run_grid(grid(), tmp_path, load=lambda _: stack)
    assert stable(read_records(tmp_path)) == whole


def test_shares_of_any_number_of_processes(tmp_path, stack, whole):
    """Two of three shares, then one process for the rest: the same records."""
    for rank in (0, 2):
        run_grid(grid(), tmp_path, rank=rank, world=3, load=lambda _: stack)
    assert 0 < missing(grid(), read_records(tmp_path)) < len(grid())
    run_grid(grid(), tmp_path, load=lambda _: stack)
    assert stable(read_records(tmp_path)) == whole


def test_a_finished_grid_loads_nothing_and_a_larger_one_adds(tmp_path, stack, whole):
    small = grid(rows={"first": ROWS["first"][:1]}, temperatures=(0.0,))
    run_grid(small, tmp_path, load=lambda _: stack)
    run_grid(small, tmp_path, load=None, identify=lambda _: facts(stack))
    run_grid(grid(), tmp_path, load=lambda _: stack)
    assert stable(read_records(tmp_path)) == whole


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(max_new_tokens=7), "differs in its max_new_tokens .6, now 7."),
        (dict(seed=1), "differs in its seed"),
        (
            dict(settings=dartree.TreeSettings(budget=9)),
            "differs in its settings .budget 64, now budget 9.",
        ),
        (dict(rows={"first": [Row("first-0", "first", ([1, 2],))]}), "differs in its prompt"),
    ],
    ids=str,
)
def test_records_of_another_run_are_refused(tmp_path, stack, changes, words):
    run_grid(grid(rows={"first": ROWS["first"][:1]}), tmp_path, load=lambda _: stack)
    with pytest.raises(ValueError, match=words):
        run_grid(grid(**changes), tmp_path, load=lambda _: stack)


def test_other_weights_are_refused(tmp_path, stack):
    run_grid(grid(rows={"first": ROWS["first"][:1]}), tmp_path, load=lambda _: stack)
    other = random_stack(head="domino")
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    other.sources = {"target": Source("random", folder)}
    with pytest.raises(ValueError, match="differs in its sources"):
        run_grid(grid(), tmp_path, load=lambda _: other)


@pytest.fixture
def finished(tmp_path):
    """Copies of a small target and drafter, and the options of a run on them that is complete."""
    shutil.copytree(CASE, tmp_path / "a")
    prompts = tmp_path / "ids.jsonl"
    prompts.write_text('{"id": "a", "ids": [3, 4, 5]}\n')
    shared = ["--datasets", str(prompts), "--methods", "dartree", "--max-new-tokens", "4",
              "--temperatures", "0", "--threads", "1", "--out", str(tmp_path / "out")]  # fmt: skip

    def call(folder, *options):
        own = ["--target", str(folder / "target"), "--drafter", str(folder / "drafter")]
        return main(["paper", *own, *shared, *options])

    assert call(tmp_path / "a") == 0
    return call


def test_a_finished_run_still_checks_its_checkpoints(finished, tmp_path, capsys, monkeypatch):
    """Everything has its record, so nothing is loaded; what is named must be what was run."""
    monkeypatch.setattr("dartree.paper.run.load_model", None)
    assert finished(tmp_path / "a") == 0
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    weights = tmp_path / "b" / "drafter" / "model.safetensors"
    tensors = load_file(weights)
    save_file(tensors | {"fc.weight": tensors["fc.weight"] + 1}, weights)
    capsys.readouterr()
    for folder, options, words in (
        ("b", [], "differs in its sources (drafter sha256:"),
        ("a", ["--dtype", "bfloat16"], "differs in its dtype (float32, now bfloat16)"),
        (
            "a",
            ["--dflash", str(CASE.parent / "dflash" / "drafter")],
            "sources (dflash not given, now dflash ",
        ),
        ("none", [], "neither a folder nor a hub id"),
    ):
        assert finished(tmp_path / folder, *options) == 2
        out, err = capsys.readouterr()
        assert words in err and not out


def test_checkpoints_of_the_hub_are_known_by_their_commit(monkeypatch, tmp_path):
    """Nothing is fetched; the bundled stack is known as when it is loaded."""
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    monkeypatch.setattr(
        "huggingface_hub.HfApi.model_info", lambda *_, **__: SimpleNamespace(sha="b" * 40)
    )
    model = Model("x", None, "owner/target", f"owner/drafter@{'a' * 40}", str(CASE / "drafter"))
    found = identify(model, dtype="bf16")
    assert found["dtype"] == "bfloat16"
    assert (found["sources"]["target"], found["sources"]["drafter"]) == ("b" * 40, "a" * 40)
    assert found["sources"]["dflash"].startswith("sha256:")
    assert identify(Model("tiny", stack="tiny")) == facts(dartree.load_stack("tiny"))


def test_a_model_keeps_its_name_on_checkpoints_of_ones_own(finished, tmp_path, capsys):
    """Folders or pinned ids in place of the newest ones: the published numbers stay beside."""
    folder = tmp_path / "a"
    shared = ["--models", "4B", "--dflash", str(headless(tmp_path / "own")),
              "--methods", "dflash,dartree"]  # fmt: skip
    args = build_parser().parse_args(["paper", "--models", "4B", "--drafter", "a/b@main"])
    (model,) = make_grid(args).models
    assert model == Model("4B", None, "Qwen/Qwen3-4B", "a/b@main", "z-lab/Qwen3-4B-DFlash-b16")
    assert finished(folder, *shared, "--out", str(tmp_path / "named")) == 0
    out, err = capsys.readouterr()
    assert "4B, T = 0" in out and f"{folder / 'target'} is not Qwen/Qwen3-4B" in err
    records = read_records(tmp_path / "named")
    assert {r["cell"]["model"] for r in records} == {"4B"}
    assert {r["drafter"] for r in records} == {"none", "own", "drafter"}


def test_place():
    assert place({}) == (0, 1, 0)
    assert place({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == (3, 4, 1)
    for bad in ({"RANK": "x"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"WORLD_SIZE": "-1"}):
        with pytest.raises(ValueError, match="RANK|WORLD_SIZE"):
            place(bad)


def start(out, *options, **environment):
    """`dartree paper` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "dartree", *REHEARSAL, "--out", str(out), *options],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """The rehearsal in this process; its records and what it printed."""
    out = tmp_path_factory.mktemp("rehearsal")
    assert main([*REHEARSAL, "--out", str(out)]) == 0
    return stable(read_records(out)), (out / "tables.txt").read_text()


def test_the_rehearsal_runs_the_whole_grid(rehearsal):
    records, tables = rehearsal
    sets = {name for _, _, name, *_ in records}
    assert sets == {"arithmetic", "code", "prose", "two-turns"}
    assert len(records) == 2 * 2 * (3 + 2)
    assert "tiny, T = 0" in tables and "tiny, T = 1" in tables and "average" in tables
    second = records["tiny", 0.0, "two-turns", "two-turns-00", 1, "dartree"]
    first = records["tiny", 0.0, "two-turns", "two-turns-00", 0, "ar"]
    assert second["prompt_tokens"] > first["prompt_tokens"] + first["new_tokens"]


def test_killed_and_resumed(rehearsal, tmp_path):
    process = start(tmp_path)
    path = tmp_path / "part-000.jsonl"
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= 3:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert 3 <= len(read_records(tmp_path)) <= len(rehearsal[0])
    assert main([*REHEARSAL, "--out", str(tmp_path)]) == 0
    assert stable(read_records(tmp_path)) == rehearsal[0]


def test_a_rehearsal_on_chosen_data_sets(tmp_path):
    """Bundled ones by name, and files of one's own."""
    file = tmp_path / "mine.jsonl"
    file.write_text('{"id": "a", "prompt": "Hello"}\n')
    chosen = ["--datasets", f"two-turns,{file}", "--out", str(tmp_path / "out")]
    assert main([*REHEARSAL, *chosen]) == 0
    found = {(key[2], key[4]) for key in stable(read_records(tmp_path / "out"))}
    assert found == {("two-turns", 0), ("two-turns", 1), ("mine", 0)}


def test_checkpoints_of_ones_own_are_named_as_loading_names_them():
    from dartree.stack import pair_name

    pair = ("me/target@v1", "me/drafter@main")
    call = ["paper", "--target", pair[0], "--drafter", pair[1]]
    (model,) = make_grid(build_parser().parse_args(call)).models
    assert model.name == pair_name(*pair) == "target + drafter"
    assert (model.target, model.drafter) == pair


def test_tables_of_what_is_there(rehearsal, tmp_path, capsys):
    assert main(["paper", "--tables", "--out", str(tmp_path)]) == 2
    assert "out holds no records" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--models", "5B"], "models must be among 4B, 8B"),
        (["--temperatures", "0,x"], "temperatures must be"),
        (["--temperatures", "-1"], "temperatures must be"),
        (["--methods", "magic"], "methods must be among ar, dflash"),
        (["--limit", "0"], "limit must be"),
        (["--max-new-tokens", "0"], "max_new_tokens must be"),
        (["--datasets", "gsm9k"], "dataset must be one of"),
        (["--datasets", "none.jsonl"], "cannot be read"),
        (["--rehearsal", "--budget", "0"], "budget must be"),
        (
            ["--rehearsal", "--datasets", "gsm8k"],
            "datasets of a rehearsal must be among arithmetic",
        ),
        (["--rehearsal", "--datasets", ""], "datasets of a rehearsal must be among arithmetic"),
        (["--rehearsal", "--models", "4B"], "models cannot be given in a rehearsal"),
        (["--rehearsal", "--target", "x"], "target cannot be given in a rehearsal"),
        (["--rehearsal", "--drafter", "x"], "drafter cannot be given in a rehearsal"),
        (["--rehearsal", "--dflash", "x"], "dflash cannot be given in a rehearsal"),
        (["--rehearsal", "--data", "."], "data cannot be given in a rehearsal"),
        (["--data", "/nonexist"], "data must be a folder, got '/nonexist'"),
        (["--models", "4B,8B", "--target", "x"], "models must name one model where target is"),
        (["--models", "4B", "--target", "x", "--datasets", "{file}"], "neither a folder"),
        (["--dflash", "x"], "together"),
        (["--models", ""], "models must be among 4B, 8B"),
        (["--methods", ""], "methods must be among ar, dflash"),
        (["--temperatures", ""], "temperatures must be"),
        (["--temperatures", "nan"], "temperatures must be"),
        (["--max-new-tokens", ""], "max_new_tokens must be"),
        (["--seed", "x"], "seed must be"),
        (["--tables", "--models", "5B"], "models must be among 4B, 8B"),
        (["--rehearsal", "--dtype", "int4"], "dtype must be one of"),
        (["--rehearsal", "--threads", "0"], "threads must be"),
        (["--rehearsal", "--device", "cpu", "--device-map", "auto"], "either device or device_map"),
        (["--target", "x", "--datasets", "{file}"], "together"),
        (["--out", "{file}"], "out must be a folder"),
        (["--out", ""], "out must be a folder"),
        (["--rehearsal", "--out", "{file}/x"], "out must be a folder"),
        (["--tables", "--dry-run"], "either tables or dry_run"),
        (["--target", "./x", "--drafter", "./y", "--datasets", "{file}"], "neither a folder"),
    ],
    ids=lambda v: str(v)[:60],
)
def test_bad_calls(options, words, tmp_path, capsys):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"id": "a", "prompt": "Hello"}\n')
    options = [o.format(file=file) for o in options]
    out = [] if "--out" in options else ["--out", str(tmp_path / "out")]
    assert main(["paper", *options, *out]) == 2
    err = capsys.readouterr().err
    assert words in err and "Traceback" not in err
