"""Every command and every line of Python in README.md is run as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dartree.cli import build_parser, main
from dartree.datasets import DATASETS
from dartree.methods import METHODS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.M | re.S)
LINES = [line for kind, body in BLOCKS if kind == "" for line in body.splitlines() if line]
COMMANDS = [line for line in LINES if re.match(r"dartree [a-z]", line)]
PAPER = [line for line in LINES if ".venv/bin/dartree " in line]
LOCAL = [line for line in COMMANDS if "--target" not in line]


def test_there_is_something_to_run():
    assert len(LOCAL) >= 5 and any(kind == "python" for kind, _ in BLOCKS)


@pytest.mark.parametrize("line", LOCAL)
def test_commands(line, capsys):
    assert main(shlex.split(line, comments=True)[1:]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("line", [line for line in COMMANDS if "--target" in line])
def test_commands_that_need_a_download_are_understood(line):
    build_parser().parse_args(shlex.split(line)[1:])


INLINE = re.findall(r"`(dartree [a-z][^`]*)`", TEXT.replace("\n", " "))


@pytest.mark.parametrize("line", [line for line in INLINE if "..." not in line])
def test_commands_inside_sentences_are_understood(line):
    build_parser().parse_args(shlex.split(line)[1:])


@pytest.mark.parametrize("line", PAPER)
def test_the_paper_s_grid_is_understood(line):
    build_parser().parse_args(shlex.split(line)[1:])


@pytest.mark.parametrize("code", [body for kind, body in BLOCKS if kind == "python"])
def test_python(code, capsys):
    exec(compile(code, "README.md", "exec"), {})


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.findall(r"`make ([\w-]+)", TEXT) + [
        line.split()[1] for line in LINES if line.startswith("make ")
    ]
    assert named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_linked_files_exist():
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", TEXT) + re.findall(r"`(data/[\w./]+)`", TEXT):
        assert (ROOT / link).exists(), link


def test_every_data_set_is_named_with_its_place():
    for name, source in DATASETS.items():
        assert re.search(rf"`{name}`\s\({source.path}[,)]", TEXT), name


def test_every_method_has_its_row():
    for method in METHODS:
        assert re.search(rf"^\| `{method}` \|", TEXT, re.M), method


def test_no_placeholder_is_left():
    prose = re.sub(r"`[^`]*`", "", re.sub(r"^```.*?^```", "", TEXT, flags=re.M | re.S))
    assert not re.findall(r"\b[A-Z]{3,}_[A-Z]{3,}\b", prose)
