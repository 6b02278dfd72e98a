"""Where checkpoints come from: folders, hub ids, revisions; nothing is downloaded here."""

from __future__ import annotations

import pytest

from dartree import hub
from dartree.checks import CheckpointError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Calls to the hub client, which answers with a snapshot folder of its own layout."""
    calls = []

    def download(name, revision=None, allow_patterns=None):
        calls.append((name, revision, allow_patterns))
        return str(tmp_path / "models--x" / "snapshots" / (revision or COMMIT))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return calls


def test_a_revision_is_asked_for_and_remembered(asked):
    found = hub.find(f"Qwen/Qwen3-4B@{COMMIT}")
    assert asked[0][:2] == ("Qwen/Qwen3-4B", COMMIT)
    assert (found.name, found.commit, found.identity()) == ("Qwen/Qwen3-4B", COMMIT, COMMIT)


def test_without_a_revision_the_commit_that_came_is_remembered(asked):
    assert hub.find("Qwen/Qwen3-4B").commit == COMMIT
    assert asked[0][1] is None


def test_known_good_commits_are_the_default(asked):
    name = "z-lab/Qwen3-4B-DFlash-b16"
    assert hub.find(name).commit == hub.PINNED[name] == asked[0][1]


def test_only_data_is_fetched(asked):
    hub.find("Qwen/Qwen3-4B")
    assert not any(p.endswith((".py", ".bin", ".pt", ".pth")) or p == "*" for p in asked[0][2])


@pytest.mark.parametrize("source", ["./a", "a", "a/b/c", "a/b@", "/no/where", "a b/c", "@x", ""])
def test_what_is_neither(asked, source):
    with pytest.raises(CheckpointError, match="neither a folder nor a hub id"):
        hub.find(source)
    assert not asked


def test_an_unreachable_hub_is_one_sentence(monkeypatch):
    def refuse(*_, **__):
        raise OSError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(CheckpointError, match="Qwen/Qwen3-4B is no folder and could not be"):
        hub.find("Qwen/Qwen3-4B")


def test_a_folder_is_known_by_its_content(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "notes.txt").write_text("one")
    first = hub.find(tmp_path).identity()
    assert first.startswith("sha256:")
    (tmp_path / "notes.txt").write_text("two")
    assert hub.find(tmp_path).identity() == first
    (tmp_path / "model.safetensors").write_bytes(b"weighty")
    assert hub.find(tmp_path).identity() != first


def test_without_the_hub_the_local_copy_tells_the_commit(monkeypatch, tmp_path):
    """As loading does; without a copy it is one sentence."""

    def refuse(*_, **__):
        raise OSError("no route")

    def copy(name, revision=None, allow_patterns=None, local_files_only=False):
        assert local_files_only
        return str(tmp_path / "snapshots" / COMMIT)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    monkeypatch.setattr("huggingface_hub.snapshot_download", copy)
    assert hub.identity("Qwen/Qwen3-4B") == COMMIT
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(CheckpointError, match="could not be fetched .no route.; without network"):
        hub.identity("Qwen/Qwen3-4B")
    with pytest.raises(CheckpointError, match="neither a folder nor a hub id"):
        hub.identity("./nothing")
