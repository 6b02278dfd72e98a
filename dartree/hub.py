"""Where checkpoints come from: a local folder, or a hub id with a revision.

``owner/name@revision`` pins a commit, tag or branch. Nothing but JSON, tokenizer files and
safetensors is ever fetched, and no code that a repository holds is run.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dartree.checks import CheckpointError, first_line

# Commits that public runs name as good; an id that is not here resolves to its newest commit,
# which is recorded. Targets and Domino files: nobody has published a commit to hold on to.
PINNED = {
    "z-lab/Qwen3-4B-DFlash-b16": "b74e3a329c4d963783143b1e970d95b002be72bd",
    "deepseek-ai/dspark_qwen3_4b_block7": "3457dff1417cb84927f6098a5fcb7cee85c934b7",
}
PATTERNS = ("*.json", "*.safetensors", "merges.txt", "*.jinja")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Source:
    """One part of a stack: the name that the user gave, its local folder, its hub commit."""

    name: str
    folder: Path
    commit: str | None = None

    def identity(self) -> str:
        """What pins the content: the hub commit, or a hash over config and weights.

        Reads every weights file of a local folder once.
        """
        return self.commit or fingerprint(self.folder)


def find(source: str | Path) -> Source:
    """The local folder of ``source``: a folder, or a hub id ``owner/name[@revision]``.

    Raises CheckpointError for anything else, and where the hub cannot be reached.
    """
    text, path = str(source), Path(source).expanduser()
    if text and path.is_dir():
        return Source(text, path)
    name, revision = hub_id(text)
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(name, revision=revision, allow_patterns=list(PATTERNS))
    except Exception as error:  # the hub client raises many kinds; one sentence serves all
        raise _unreachable(text, error) from None
    return Source(name, Path(found), _commit_of(found))


def short_name(place: str | Path) -> str:
    """What labels call a folder or a hub id: the last part of it, without a revision."""
    text = str(place)
    folder = os.path.isdir(os.path.expanduser(text))
    return Path(text if folder else text.partition("@")[0]).name


def find_part(part: str, place: Any, look: Callable[[Any], Any] = find) -> Any:
    """Where a part of a stack lies; ValueError for what cannot be a folder or a hub id.

    ``look``: what is asked of the place in place of its Source.
    """
    try:
        if not str(place):
            raise TypeError("it is empty")
        return look(place)
    except (TypeError, RuntimeError, OSError) as error:  # no path, ~nobody, a name too long
        raise ValueError(
            f"{part} must be a folder or a hub id, got {place!r}: {first_line(error)}."
        ) from None


def hub_id(text: str) -> tuple[str, str | None]:
    """(owner/name, revision) of a hub id; CheckpointError for anything else.

    A revision that is not given is the pinned one; None where there is none.
    """
    name, _, revision = text.partition("@")
    if not _HUB_ID.fullmatch(name) or name.startswith(".") or ("@" in text and not revision):
        raise CheckpointError(f"{text} is neither a folder nor a hub id (owner/name[@revision]).")
    return name, revision or PINNED.get(name)


def identity(source: str | Path) -> str:
    """What ``find(source).identity()`` gives, without a download: the hub is asked for the commit.

    Where it does not answer, the commit is that of the local copy. Raises CheckpointError as
    :func:`find` does.
    """
    if str(source) and Path(source).expanduser().is_dir():
        return find(source).identity()
    name, revision = hub_id(str(source))
    if revision and _COMMIT.fullmatch(revision):
        return revision
    import huggingface_hub as client

    try:
        return str(client.HfApi().model_info(name, revision=revision).sha)
    except Exception as error:  # the hub client raises many kinds; one sentence serves all
        copy = local_copy(name, revision)
        if copy is None or copy.commit is None:
            raise _unreachable(str(source), error) from None
        return copy.commit


def local_copy(name: str, revision: str | None) -> Source | None:
    """A hub id's snapshot as far as it is on this machine; None without one."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            name, revision=revision, allow_patterns=list(PATTERNS), local_files_only=True
        )
    except Exception:  # as many kinds as above
        return None
    return Source(name, Path(found), _commit_of(found))


def fetch_config(source: str) -> Path:
    """config.json of a hub id, and nothing else of it."""
    name, revision = hub_id(source)
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json", revision=revision))
    except Exception as error:  # the hub client raises many kinds; one sentence serves all
        raise _unreachable(source, error) from None


def _commit_of(snapshot: str) -> str | None:
    name = Path(snapshot).name  # .../snapshots/<commit>
    return name if _COMMIT.fullmatch(name) else None


def _unreachable(text: str, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{text} is no folder and could not be fetched ({first_line(error).rstrip('.')}); "
        "without network give a folder."
    )


def fingerprint(folder: Path) -> str:
    """``sha256:...`` over the names and bytes of the config and the weights of a folder."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("config.json"), *folder.glob("*.safetensors")]):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while piece := file.read(2**24):
                digest.update(piece)
    return f"sha256:{digest.hexdigest()}"
