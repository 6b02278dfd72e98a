"""`dartree paper` before and after its runs: dry runs, places, folders, what differs."""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest
import torch
import tqdm

import dartree
from dartree import hub, public
from dartree.cli import build_parser, main
from dartree.datasets import DATASETS
from dartree.memory import estimate
from dartree.paper.commands import _placing, make_grid
from dartree.paper.dry import plan
from dartree.paper.store import RecordFile, read_records
from tests.conftest import DATA
from tests.reference import headless

CASE = DATA / "domino-shift"
OWN = ["--target", str(CASE / "target"), "--drafter", str(CASE / "drafter")]
SMALL = ["--methods", "dartree", "--max-new-tokens", "4", "--temperatures", "0"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "ids.jsonl"
    path.write_text('{"id": "a", "ids": [3, 4, 5]}\n{"id": "b", "ids": [9, 8]}\n')
    return path


@pytest.fixture
def no_network(monkeypatch):
    """A hub without local copies that may be asked for its address and nothing else."""

    def download(name, local_files_only=False, **_):
        assert local_files_only, f"{name} was to be fetched"
        raise OSError("not here")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setattr("dartree.paper.dry._no_network", lambda _: "it does not answer")


def test_a_dry_run_of_the_papers_table(no_network, tmp_path, monkeypatch, capsys):
    """Runs, checkpoints with their sizes, memory, sets and what is missing; nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert main(["paper", "--dry-run"]) == 1
    out = capsys.readouterr().out
    assert "20784 runs" in out and not list(tmp_path.iterdir())
    for drafter, (target, _) in public.DRAFTERS.items():
        if "dspark" not in drafter:
            assert f"{target} @ its newest commit, to be fetched, about " in out
            assert f"{drafter} @ {hub.PINNED.get(drafter, 'its newest commit')}, to be f" in out
    # The files of the public descriptions, in bf16: 4.02 and 8.19 billion values.
    assert "4B target: Qwen/Qwen3-4B @ its newest commit, to be fetched, about 8.0 GB" in out
    assert "8B target: Qwen/Qwen3-8B @ its newest commit, to be fetched, about 16.4 GB" in out
    assert all(f"  {name}: " in out for name in DATASETS) and out.count("from the hub") == 7
    assert "missing: the package datasets" in out and "network: it does not answer" in out
    fetched = [float(n) for n in re.findall(r"about ([\d.]+) GB", out)]
    assert "A commit is given where public runs name one" in out
    assert f"disk: {sum(fetched):.0f}" in out.replace(".0 GB", " GB")


def test_a_dry_run_on_folders_has_all_and_one_prompt_less_to_do(
    no_network, tmp_path, capsys, prompts
):
    call = ["paper", *OWN, *SMALL, "--datasets", str(prompts), "--out", str(tmp_path / "out")]
    assert main([*call, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "4 runs in 1 process: " in out and "Nothing is missing." in out
    assert "ids: 2 prompts, here" in out and "0.0 MB to be fetched" in out
    assert not (tmp_path / "out").exists()
    assert main([*call, "--limit", "1"]) == 0
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    capsys.readouterr()
    assert main([*call, "--dry-run"]) == 0
    assert "2 of them have their records" in capsys.readouterr().out
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dflash", str(CASE / "drafter")], "without a correction head"),
        (["--dflash", str(CASE / "target")], "is a target's config"),
        (["--drafter", "/none"], "/none is neither a folder nor a hub id"),
        (["--target", str(dartree.data_dir() / "stacks/tiny/target")], "made for another target"),
        (["--target", str(DATA / "dspark-vanilla" / "drafter")], "is a drafter's config"),
        (["--device", "cuda:77"], "device must be one that torch can use"),
        (["--drafter", "me/unknown"], "config is not known"),
    ],
    ids=lambda v: str(v)[-40:],
)
def test_a_dry_run_names_what_would_be_refused(
    no_network, options, words, tmp_path, capsys, prompts
):
    call = ["paper", *OWN, *SMALL, "--datasets", str(prompts), "--out", str(tmp_path / "out")]
    assert main([*call, "--dry-run", *options]) == 1
    out = capsys.readouterr().out
    assert len([line for line in out.splitlines() if "missing: " in line and words in line]) == 1
    assert not (tmp_path / "out").exists()


def test_a_dry_run_in_a_rehearsal_and_with_its_own_drafter(no_network, tmp_path, capsys, prompts):
    assert main(["paper", "--rehearsal", "--dry-run", "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "tiny dflash: " in out and ("tiny, float32, " in out or torch.cuda.is_available())
    own = headless(tmp_path / "own")
    assert main(["paper", *OWN, "--dflash", str(own), "--datasets", str(prompts), "--dry-run"]) == 0
    assert "for the drafter of dflash and ddtree" in capsys.readouterr().out


def test_the_drafter_of_dflash_counts_for_the_limit_of_packing(
    no_network, tmp_path, capsys, prompts, monkeypatch
):
    raw, config = public.pair_configs(*OWN[1::2])
    both = estimate(raw, config, dartree.TreeSettings(), 64, 4).packed  # target and drafter alone
    monkeypatch.setattr("dartree.memory.MOST_BYTES", both)
    call = ["paper", *OWN, "--datasets", str(prompts), "--dry-run", "--device", "cpu"]
    for dflash in ([], ["--dflash", str(headless(tmp_path / "own"))]):
        assert main([*call, *dflash]) == 0
        assert ("packed copy" in memory_told(capsys.readouterr().out)) == (not dflash)


def test_more_threads_than_can_be_started_are_refused(no_network, tmp_path, capsys):
    call = ["paper", "--rehearsal", "--dry-run", "--out", str(tmp_path / "out")]
    assert main([*call, "--threads", "5000"]) == 2
    assert "threads must be at most 1024, got 5000" in capsys.readouterr().err


def test_every_process_has_a_gpu_of_its_own(monkeypatch):
    """Named without an index, or not named at all; an index is kept."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)

    def device(*options):
        return _placing(build_parser().parse_args(["paper", *options]), 3)["device"]

    assert device() == device("--device", "cuda") == "cuda:3"
    assert device("--device-map", "tensor-parallel", "--device", "cuda") == "cuda:3"
    assert device("--device", "cuda:1") == "cuda:1" and device("--device", "cpu") == "cpu"
    assert device("--device-map", "auto") is None


def test_a_run_that_cannot_begin_leaves_no_folder(no_network, tmp_path, capsys):
    out = tmp_path / "deep" / "out"
    assert main(["paper", *OWN, "--datasets", "gsm8k", "--out", str(out)]) == 2
    assert "needs the package datasets" in capsys.readouterr().err
    assert not (tmp_path / "deep").exists()


def test_other_threads_are_no_other_machine(tmp_path, capsys, prompts):
    """What differs between the records is named, with its values."""
    call = ["paper", *OWN, *SMALL, "--datasets", str(prompts), "--out", str(tmp_path / "out")]
    before = torch.get_num_threads()
    try:
        assert main([*call, "--threads", "1", "--limit", "1"]) == 0
        assert "were made with different" not in capsys.readouterr().err
        assert main([*call, "--threads", "2"]) == 0
    finally:
        torch.set_num_threads(before)
    assert "were made with different threads (1, 2): do not compare" in capsys.readouterr().err
    path = tmp_path / "out" / "part-000.jsonl"
    records = read_records(tmp_path / "out")
    records[0]["versions"]["torch"] = "0.1"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    assert main([*call, "--tables"]) == 0
    assert f"torch (0.1, {torch.__version__}); threads (1, 2)" in capsys.readouterr().err


def test_the_help_names_the_data_sets_and_their_format(capsys):
    with pytest.raises(SystemExit):
        main(["paper", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "tree (defaults: W 12, K 64, B 64, P 0.2)" in out
    assert f"of {', '.join(DATASETS)} (default: all)" in out
    assert "objects with id and turns" in out


@pytest.mark.parametrize(
    ("options", "dtype", "packed"),
    [
        (["--device", "cpu"], "float32", True),
        (["--device", "cpu", "--dtype", "bfloat16"], "bfloat16", False),
        (["--device-map", "cpu", "--dtype", "float32"], "float32", False),
    ],
    ids=str,
)
def test_a_dry_run_estimates_what_the_run_will_load(
    no_network, options, dtype, packed, tmp_path, capsys, prompts, not_loaded
):
    """And so does the run, before it loads."""
    call = ["paper", *OWN, *SMALL, "--datasets", str(prompts), "--out", str(tmp_path / "out")]
    main([*call, "--dry-run", *options])
    line = memory_told(capsys.readouterr().out)
    assert f", {dtype}, " in line and ("packed copy" in line) == packed
    assert main([*call, *options]) == 2
    assert memory_told(capsys.readouterr().err) == line


def test_the_memory_of_a_float32_run_on_a_gpu_has_no_packed_copy(
    no_network, tmp_path, capsys, prompts, not_loaded, monkeypatch
):
    gpu = torch.float32, torch.device("cuda:0")
    for module in ("dry", "run"):
        monkeypatch.setattr(f"dartree.paper.{module}.placement", lambda *_, **__: gpu)
    assert main(["paper", *OWN, *SMALL, "--datasets", str(prompts), "--out", str(tmp_path)]) == 2
    line = memory_told(capsys.readouterr().err)
    assert ", float32, " in line and "packed copy" not in line


@pytest.fixture
def not_loaded(monkeypatch):
    """Runs end where they would load a model."""

    def load_model(*_, **__):
        raise ValueError("not loaded")

    monkeypatch.setattr("dartree.paper.run.load_model", load_model)


def memory_told(text: str) -> str:
    """The line on memory, without what a progress bar leaves before it."""
    (line,) = re.findall(r"target \+ drafter, .* in all: weights .*", text)
    return line


def test_a_plan_counts_its_processes():
    grid = make_grid(build_parser().parse_args(["paper", "--rehearsal"]))
    assert "in 1 process: " in plan(grid, 1) and "in 2 processes: " in plan(grid, 2)


def test_a_dry_run_doubts_what_the_run_would_doubt(no_network, tmp_path, capsys, prompts):
    """A target that cannot be the named one, and answers that its context cuts."""
    target = tmp_path / "target"
    shutil.copytree(CASE / "target", target)
    config = json.loads((target / "config.json").read_text())
    config["max_position_embeddings"] = 32
    (target / "config.json").write_text(json.dumps(config))
    call = ["paper", *OWN, "--models", "4B", "--dflash", str(headless(tmp_path / "own")),
            "--datasets", str(prompts), "--methods", "dartree", "--temperatures", "0",
            "--out", str(tmp_path / "out"), "--limit", "1", "--target", str(target),
            "--max-new-tokens", "32"]  # fmt: skip
    want = [
        f"warning: {target} is not Qwen/Qwen3-4B: its hidden_size is {config['hidden_size']}, not "
        "2560; do not compare it with what was published for 4B.",
        "warning: 4B: its context of 32 tokens, the prompt counted, ends every answer before 32 "
        "new tokens.",
    ]
    assert main([*call, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert [line for line in told.splitlines() if line.startswith("warning")] == want
    assert main(call) == 0
    told = capsys.readouterr().err
    assert [line for line in told.splitlines() if line.startswith("warning")] == want
    assert main([*call, "--dry-run", "--max-new-tokens", "31"]) == 0
    assert "context of 32" not in capsys.readouterr().out


def test_a_dry_run_of_the_public_models_has_no_doubt(no_network, capsys):
    assert main(["paper", "--dry-run", "--models", "4B,8B,4B-dspark,8B-dspark"]) == 1
    assert "warning" not in capsys.readouterr().out


def test_a_dry_run_says_the_settings_of_every_model(no_network, capsys):
    main(["paper", "--dry-run", "--width", "3", "--budget", "17", "--depth-penalty", "0.5"])
    out = capsys.readouterr().out
    for name in ("4B", "8B"):
        assert f"  {name}: W 3, K 64, B 17, depth penalty 0.5, depth all draft positions" in out
    main(["paper", "--dry-run", "--models", "4B", "--depth", "4", "--normalise", "vocabulary"])
    assert "depth 4, normalised over the vocabulary" in capsys.readouterr().out


def test_ctrl_c_tells_what_is_kept_and_the_bar_goes_on_there(
    tmp_path, capsys, prompts, monkeypatch
):
    call = ["paper", *OWN, *SMALL, "--datasets", str(prompts), "--out", str(tmp_path / "out")]
    append, bars = RecordFile.append, []

    def stopping(self, record):
        append(self, record)
        if len(read_records(tmp_path / "out")) == 3:
            raise KeyboardInterrupt

    class Bar(tqdm.tqdm):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            bars.append((self, self.n))

    monkeypatch.setattr(RecordFile, "append", stopping)
    monkeypatch.setattr("tqdm.tqdm", Bar)
    assert main(call) == 130
    err = capsys.readouterr().err
    assert err.endswith("3 of 4 records kept; the same command goes on.\ndartree: interrupted.\n")
    assert main(call) == 0 and main(call) == 0
    assert [first for _, first in bars] == [0, 3, 4]
    assert [bar.n for bar, _ in bars][1:] == [4, 4] and {bar.total for bar, _ in bars} == {4}
