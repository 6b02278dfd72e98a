"""Files are written complete or not at all."""

from __future__ import annotations

import os

import pytest

from dartree.files import check_output, replace_with, write_atomically


@pytest.mark.parametrize(
    ("value", "folder", "words"),
    [
        ("", False, "json must be a file in an existing folder, got ''"),
        (".", False, "json must be a file in an existing folder"),
        ("none/x", False, "json must be a file in an existing folder"),
        ("/dev/null", False, "json must be a file in an existing folder, got '/dev/null'"),
        ("/dev/stdout", False, "json must be a file in an existing folder, got '/dev/stdout'"),
        ("/proc/x.json", False, "json must be writable, got '/proc/x.json'"),
        ("x" * 300, False, "json must be writable, got 'x"),
        ("old", True, "json must be a folder, got 'old'"),
        ("old/x", True, "json must be a folder"),
        ("", True, "json must be a folder, got ''"),
        ("/proc/x/y", True, "json must be writable, got '/proc/x/y'"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_outputs_are_tried_before_the_work(tmp_path, monkeypatch, value, folder, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").write_text("old")
    with pytest.raises(ValueError, match=words):
        check_output("json", value, folder)
    for fine in ("old", tmp_path / "new", None):
        check_output("json", fine)
    check_output("out", "a/b/c", folder=True)
    assert [p.name for p in tmp_path.iterdir()] == ["old"]


def test_links_are_followed_and_pipes_are_left_alone(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("file")
    write_atomically(link, "text")
    assert link.is_symlink() and (tmp_path / "file").read_text() == "text"
    with pytest.raises(ValueError, match="path must be a regular file"):
        write_atomically(pipe, "text")
    assert pipe.is_fifo() and len(list(tmp_path.iterdir())) == 3


def test_a_failed_write_names_what_was_asked_for(tmp_path):
    def full(temporary):
        raise OSError(28, "No space left on device", str(temporary))

    with pytest.raises(OSError) as caught:
        replace_with(tmp_path / "f.json", full)
    assert caught.value.filename == str(tmp_path / "f.json")


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "f.json"
    path.write_text("old")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["f.json"]
