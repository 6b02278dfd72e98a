"""Ctrl-C, two runs at once, an installation that must not be written to: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
import torch

import dartree
from dartree import reports
from tests.commands import STACK, write_prompts
from tests.conftest import DATA
from tests.test_reports import COMMON, HANGS, assert_ended, kernel_of, write_notebook
from tests.training.drafter_fixtures import small_corpus

DARTREE = [sys.executable, "-m", "dartree"]


def start(*arguments, **options) -> subprocess.Popen:
    """A command of its own, as a shell would start it; Ctrl-C reaches it as a signal.

    A test run in the background may have SIGINT ignored, which children would inherit.
    """
    return subprocess.Popen(
        [*DARTREE, *map(str, arguments)], cwd=reports.PROJECT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options,
    )  # fmt: skip


def wait_for(found, process: subprocess.Popen, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)


def leftovers(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.name.endswith((".tmp", ".old"))]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return small_corpus(tmp_path_factory.mktemp("train"), scale=0.003, held=4, entries=500)


def test_ctrl_c_in_training_leaves_a_state_that_goes_on(corpus):
    line = ["train", "target", "--out", corpus, "--batch", 1, "--length", 192, "--threads", 1,
            "--save-seconds", 0, "--log-every", 1]  # fmt: skip
    state = corpus / "tiny" / "target-state.pt"
    process = start(*line, "--tokens", 10**9)
    wait_for(state.exists, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.endswith("dartree: interrupted.\n")
    assert "Traceback" not in err and leftovers(corpus) == []
    left = torch.load(state, weights_only=True)
    done, minutes = left["step"], (left["seconds"] + 2) / 60
    assert done >= 1
    process = start(*line, "--tokens", 10**9, "--minutes", minutes, "--resume")
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert torch.load(state, weights_only=True)["step"] > done
    assert (corpus / "tiny" / "target" / "model.safetensors").exists()


def test_ctrl_c_in_figures_ends_the_kernel_and_leaves_no_half_copy(tmp_path):
    write_notebook(tmp_path / "nb", "00_hangs.ipynb", COMMON, HANGS)
    out = tmp_path / "out"
    process = start("figures", "--notebooks", tmp_path / "nb", "--out", out, start_new_session=True)
    wait_for(lambda: kernel_of(out), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: papermill gets it, too
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.endswith("dartree: interrupted.\n")
    assert "Traceback" not in err and "zmq" not in err
    assert list((out / "notebooks").iterdir()) == []
    assert_ended(kernel_of(out))


SLEEP = "pathlib.Path(__file__).with_name('started').touch()\n{}time.sleep(60)\n"
TORCH = {  # importing torch takes seconds: these never end
    "plain": SLEEP.format(""),
    "another error": "try:\n    " + SLEEP.format("    ")
    + "except BaseException as error:\n    raise ImportError('no torch') from error\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", TORCH)
@pytest.mark.parametrize("command", [["generate", "Hi."], ["compare"], ["generate", "--help"]])
def test_ctrl_c_while_a_command_starts(tmp_path, command, kind):
    (tmp_path / "torch.py").write_text("import pathlib, time\n" + TORCH[kind])
    path = os.pathsep.join([str(tmp_path), str(reports.PROJECT)])
    process = start(*command, env={**os.environ, "PYTHONPATH": path})
    wait_for((tmp_path / "started").exists, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "dartree: interrupted.\n")


def test_two_comparisons_into_one_file_leave_one_of_them_whole(tmp_path):
    where = tmp_path / "c.json"
    line = ["compare", *STACK, "--prompts", write_prompts(tmp_path), "--methods", "dartree",
            "--json", where]  # fmt: skip
    both = [start(*line, "--max-new-tokens", n) for n in (6, 9)]
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    told = json.loads(where.read_text())
    assert told["options"]["max_new_tokens"] in (6, 9)
    assert told["methods"][0]["new_tokens"] == told["options"]["max_new_tokens"]
    assert leftovers(tmp_path) == []


def test_two_runs_of_the_figures_into_one_folder_leave_whole_copies(tmp_path):
    common = COMMON + "\nseed: int = 0  # of sampling"
    write_notebook(tmp_path / "nb", "00_a.ipynb", common, "print(seed)")
    line = ["figures", "--notebooks", tmp_path / "nb", "--out", tmp_path / "out"]
    both = [start(*line, "-p", "seed", n) for n in (1, 2)]
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    copy = nbformat.read(tmp_path / "out/notebooks/00_a.ipynb", as_version=4)
    nbformat.validate(copy)
    assert copy.cells[-1].outputs[0]["text"] in ("1\n", "2\n")
    assert leftovers(tmp_path) == []


def test_commands_write_nothing_into_the_installation(tmp_path):
    """What a read-only installation needs: package and data are the same before and after."""
    roots = [Path(dartree.__file__).parent, DATA.parent.parent / "data"]

    def state() -> dict:
        return {
            p: (p.stat().st_mtime_ns, p.stat().st_size)
            for root in roots
            for p in root.rglob("*")
            if p.is_file() and "__pycache__" not in p.parts
        }

    before = state()
    for line in (
        ["generate", "Name the capital of Portugal.", "--max-new-tokens", "8"],
        ["compare", "--limit", "1", "--methods", "dartree", "--max-new-tokens", "4"],
        ["stacks"], ["doctor"],
    ):  # fmt: skip
        done = subprocess.run([*DARTREE, *line], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert state() == before and list(tmp_path.iterdir()) == []
