"""`dartree train stack` says what it lacks, and where it writes, before hours of training."""

from __future__ import annotations

import pytest

from dartree.training import commands, corpus
from dartree.training import stack as command


@pytest.fixture
def begun(monkeypatch):
    """Names of the steps that began; none of them does any work."""
    names = []
    monkeypatch.setattr(command, "assemble", lambda folder, preset: folder / "data")
    for step in ("corpus", "tokenizer", "target", "drafter"):
        run = f"dartree.training.{step}.run"
        monkeypatch.setattr(run, lambda args: names.append(args.step))
    return names


def test_where_it_writes_is_said_first(tmp_path, capsys, begun):
    assert commands.main(["stack", "--out", str(tmp_path)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"stack: 6 steps to do; all is written to {tmp_path / 'tiny'}"
    assert begun == ["corpus", "tokenizer", "target", "drafter", "drafter", "drafter"]


def test_what_is_lacking_is_said_before_any_step(tmp_path, capsys, begun, monkeypatch):
    line = ["stack", "--out", str(tmp_path / "out")]
    for place, words in ((tmp_path, "holds no stacks"), (tmp_path / "data", "lacks the folder")):
        (tmp_path / "data" / "stacks").mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("DARTREE_DATA", str(place))
        assert commands.main(line) == 2
        assert words in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(corpus, "run", lambda args: begun.append("corpus"))
    assert commands.main([*line[:2], "/dev/null"]) == 2
    assert "out must be a folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        commands.main([*line, "--drafter", "--no-such-option"])
    assert begun == [] and not (tmp_path / "out").exists()


def test_the_command_line_prints_one_sentence(capsys):
    from dartree.cli import main

    assert main(["train", "stack", "--out", "/proc/x"]) == 2
    assert capsys.readouterr().err.startswith("dartree: out must be writable, got '/proc/x/tiny'")
