"""The worked examples of CONTRIBUTING.md, run as they are written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import dartree
from dartree.cli import main
from dartree.methods import TABLE
from dartree.plots import method_look, style

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.M | re.S)
METHOD, BESIDE, HEAD, NOTEBOOK = (code for kind, code in BLOCKS if kind == "python")
PROMPT = "Name the capital of Portugal."


@pytest.fixture
def no_added_methods(monkeypatch):
    monkeypatch.setattr(style, "_added", [])
    yield
    TABLE.pop("comb", None)


def run(code: str) -> dict:
    assert len([line for line in code.splitlines() if line.strip()]) < 30
    names: dict = {}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    return names


def test_a_method(capsys, no_added_methods):
    names = run(METHOD)
    out, stack = names["out"], names["stack"]
    plain = dartree.generate(stack, PROMPT, method="ar", max_new_tokens=32)
    chain = dartree.generate(stack, PROMPT, method="domino", max_new_tokens=32)
    assert out.token_ids == plain.token_ids and out.method == "comb"
    assert out.tau >= chain.tau, "the chain is a part of the comb"
    assert len(out.records[0].tree) == 64 and out.records[0].tree.depths.max() == 16
    assert method_look("comb").marker == "*"
    exec(compile(BESIDE, "CONTRIBUTING.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "comb" in printed and "ar " in printed and "2 prompts" in printed
    with pytest.raises(ValueError, match="name must be a new one"):
        dartree.add_method("dartree", names["propose_comb"])


def test_a_head(capsys):
    names = run(HEAD)
    plain = dartree.generate(names["stack"], PROMPT, method="ar", max_new_tokens=32)
    assert names["out"].token_ids == plain.token_ids
    tree = names["out"].records[0].supertree
    paths = [path for path in tree.path_tokens() if len(path) > 1 and path[-1] == path[-2]]
    assert not paths or tree.conditionals().min() < -4


def test_a_notebook_and_its_figure(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    run(NOTEBOOK)
    command = next(body for kind, body in BLOCKS if kind == "" and "figures" in body)
    assert main(shlex.split(command)[1:]) == 0
    sidecar = json.loads((tmp_path / "made/12_mine/line.json").read_text())
    assert sidecar["parameters"]["budget"] == 5 and sidecar["data"] == {"y": [0, 1, 2, 3, 4]}


def test_every_make_target_is_there():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([\w-]+)`", TEXT):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_every_file_it_names_is_there():
    for name in re.findall(r"`((?:dartree|tests|data)/[\w/]+(?:\.\w+)?)`", TEXT):
        assert (ROOT / name).exists(), name
