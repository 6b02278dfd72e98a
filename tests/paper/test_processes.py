"""The grid in two processes that a launcher starts: shares of the prompts, or of every layer."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from dartree import CheckpointError
from dartree.checkpoints import load_target_model
from dartree.cli import main
from dartree.paper.store import read_records
from dartree.tensor_parallel import TENSOR_PARALLEL, SplitTarget, tensor_parallel_options
from tests.conftest import DATA
from tests.paper.test_run import REHEARSAL, stable

needs_accelerate = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed"
)
CASE = DATA / "domino-shift"
TORCHRUN = ["torch.distributed.run", "--nproc_per_node", "2"]
# Without --multi_gpu it starts one process, unless it sees several GPUs.
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
              "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
              "--main_process_port"]  # fmt: skip


@pytest.fixture
def small(tmp_path):
    """Arguments of a grid on a random target and drafter, and where its records go."""
    prompts = tmp_path / "ids.jsonl"
    prompts.write_text('{"id": "a", "ids": [3, 4, 5]}\n{"id": "b", "ids": [9, 8, 7, 6]}\n')
    return ["paper", "--target", str(CASE / "target"), "--drafter", str(CASE / "drafter"),
            "--datasets", str(prompts), "--methods", "dartree,ddtree", "--max-new-tokens", "12",
            "--threads", "1"]  # fmt: skip


def launch(launcher: list[str], arguments: list[str]) -> str:
    """Standard output of a launcher's processes; all of them must end well."""
    if launcher == TORCHRUN:
        launcher = [*launcher, "--master_port", free_port()]
    else:
        launcher = [*launcher, free_port()]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "dartree", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def test_torchrun_gives_the_records_of_one_process(tmp_path):
    """The bundled stack, its rehearsal; the last process to end prints the tables."""
    one, two = tmp_path / "one", tmp_path / "two"
    grid = [*REHEARSAL, "--datasets", "code,two-turns"]
    assert main([*grid, "--out", str(one)]) == 0
    printed = launch(TORCHRUN, [*grid, "--out", str(two)])
    assert stable(read_records(two)) == stable(read_records(one))
    assert len(list(two.glob("part-*.jsonl"))) == 2 and "tiny, T = 0" in printed


@pytest.mark.long
@needs_accelerate
def test_accelerate_launch_does_too(small, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*small, "--out", str(one)]) == 0
    launch(ACCELERATE, [*small, "--out", str(two)])
    assert stable(read_records(two)) == stable(read_records(one))
    assert len(list(two.glob("part-*.jsonl"))) == 2


def knows_tensor_parallel() -> bool:
    try:
        tensor_parallel_options(SimpleNamespace(num_attention_heads=4, num_key_value_heads=2), "x")
    except CheckpointError as error:
        return "transformers" not in str(error)
    return True


@pytest.mark.long
@needs_accelerate
@pytest.mark.skipif(not knows_tensor_parallel(), reason="transformers is too old for it")
def test_every_layer_in_two_processes(small, tmp_path):
    """Sums in another order, so other last digits, and the same tokens; one process writes."""
    one, two = tmp_path / "one", tmp_path / "two"
    assert main([*small, "--out", str(one)]) == 0
    printed = launch(TORCHRUN, [*small, "--device-map", TENSOR_PARALLEL, "--out", str(two)])
    want, got = (stable(read_records(folder)) for folder in (one, two))
    assert want.keys() == got.keys()
    for key, record in got.items():
        assert record["token_ids"] == want[key]["token_ids"]
        assert record["asked"] == want[key]["asked"]
    records = read_records(two)
    assert {r["machine"]["tensor_parallel"] for r in records} == {2}
    assert len(list(two.glob("part-*.jsonl"))) == 1 and "average" in printed


@pytest.mark.skipif(not knows_tensor_parallel(), reason="transformers is too old for it")
@pytest.mark.parametrize(("world", "words"), [("1", "torchrun"), ("3", "4 heads and 2 key-value")])
def test_what_cannot_be_split(world, words, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", world)
    with pytest.raises(CheckpointError, match=words):
        load_target_model(CASE / "target", torch.float32, "cpu", TENSOR_PARALLEL)


def test_processes_that_drafted_different_trees_stop(monkeypatch):
    """They would wait for each other's layers for ever, or add up what does not belong together."""
    target = SplitTarget(load_target_model(CASE / "target", torch.float32, "cpu"))
    rows = torch.tensor([3, 4, 5])

    def gather(found, mine):
        for place, other in zip(found, others, strict=True):
            place.copy_(mine + other)

    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.all_gather", gather)
    cache = super(SplitTarget, target).new_cache(8)
    others = (0, 0)
    assert target.prefill(cache, rows).logits.shape == (1, 97)
    others = (0, 1)
    with pytest.raises(RuntimeError, match="drafted different trees"):
        target.prefill(cache, rows)
