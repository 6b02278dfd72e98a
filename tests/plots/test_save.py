"""Figures on disk: stable bytes, provenance, nothing half written."""

import hashlib
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from dartree import plots
from dartree.plots import save
from tests.plots.records import decode, make_record, make_tree

matplotlib.use("agg")


def draw_and_save(folder, **options):
    record = make_record(make_tree(20, 6, 3))
    fig, ax = plt.subplots(figsize=plots.round_figsize(record, decode))
    plots.draw_round(ax, record, decode)
    path = plots.save_figure(fig, folder, "00_tree", **options)
    plt.close(fig)
    return path


def test_same_bytes_over_a_second_apart(tmp_path):
    parameters = {"seed": 3, "width": 12, "out_dir": "somewhere"}
    options = {"parameters": parameters, "data": {"x": np.arange(3)}, "notebook": "00_a.ipynb"}
    first = draw_and_save(tmp_path / "a", **options)
    time.sleep(1.1)
    options["parameters"] = parameters | {"out_dir": "elsewhere"}
    second = draw_and_save(tmp_path / "b", **options)
    assert first.read_bytes() == second.read_bytes()
    assert first.with_suffix(".png").read_bytes() == second.with_suffix(".png").read_bytes()
    one, two = (json.loads(p.with_suffix(".json").read_text()) for p in (first, second))
    assert one["volatile"] != two["volatile"]
    assert save.stable_part(one) == save.stable_part(two)
    assert one["parameters"] == {"seed": 3, "width": 12} and one["seed"] == 3
    assert one["data"] == {"x": [0, 1, 2]} and "matplotlib" in one["versions"]
    assert sorted(p.name for p in (tmp_path / "a" / "00_a").iterdir()) == [
        "00_tree.json", "00_tree.png", "00_tree.svg",
    ]  # fmt: skip


def test_files_and_measured_values(tmp_path):
    source = tmp_path / "prompts.jsonl"
    source.write_text("{}\n")
    path = draw_and_save(tmp_path, files=[source], measured={"tokens_per_second": 3.5})
    sidecar = json.loads(path.with_suffix(".json").read_text())
    digest = hashlib.sha256(b"{}\n").hexdigest()
    assert sidecar["files"] == [{"name": "prompts.jsonl", "sha256": digest}]
    assert sidecar["volatile"]["measured"] == {"tokens_per_second": 3.5}
    assert str(tmp_path) not in json.dumps(save.stable_part(sidecar))


def test_a_failing_write_leaves_the_old_figure(tmp_path, monkeypatch):
    path = draw_and_save(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full_disk(*_):
        raise OSError("no space left")

    monkeypatch.setattr("dartree.plots.save.os.replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        draw_and_save(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert path.exists()


def test_relative_folders_lie_in_the_checkout(tmp_path, monkeypatch):
    """Wherever one works: a notebook server, the command line and a test mean the same folder."""
    monkeypatch.chdir(tmp_path)
    assert plots.figure_folder("figures") == save.PROJECT / "figures"
    assert plots.figure_folder(tmp_path) == tmp_path
    assert plots.figure_folder(Path("made").absolute()) == tmp_path / "made"
    assert (save.PROJECT / "dartree" / "plots" / "save.py").exists()


def test_stack_facts(tmp_path, tiny_pair):
    path = draw_and_save(tmp_path, stack=tiny_pair)
    sidecar = json.loads(path.with_suffix(".json").read_text())
    assert (sidecar["dtype"], sidecar["device"]) == ("float64", "cpu")
    assert sidecar["stack"] == tiny_pair.name and sidecar["thinking"] is None
    chats = replace(tiny_pair, tokenizer=SimpleNamespace(chat_template="{{ messages }}"))
    path = draw_and_save(tmp_path, stack=chats)
    assert json.loads(path.with_suffix(".json").read_text())["thinking"] == "off"


@pytest.mark.parametrize("name", ["", "a/b", "..\\c"])
def test_bad_names(tmp_path, name):
    with pytest.raises(ValueError, match="name must be a file name"):
        plots.save_figure(plt.figure(), tmp_path, name)
    plt.close("all")


def test_figures_need_no_display(tmp_path):
    script = (
        "import sys, matplotlib.pyplot as plt\nfrom dartree import plots\n"
        "fig, ax = plt.subplots()\nax.plot([1, 2])\nplots.save_figure(fig, sys.argv[1], '00_a')"
    )
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")
    env = {k: v for k, v in os.environ.items() if k not in hidden}
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=env, cwd=save.PROJECT,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {p.suffix for p in tmp_path.iterdir()} == {".svg", ".png", ".json"}
