"""What the tests of the commands share: a small stack as options, and how one is run."""

from __future__ import annotations

from dartree.cli import main
from tests.conftest import DATA

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


def write_prompts(folder):
    path = folder / "p.jsonl"
    path.write_text('{"id": "a", "domain": "d", "ids": [3, 4]}\n')
    return path
