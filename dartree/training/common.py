"""What the training commands share: places, arguments, atomic files, the log."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dartree.files import replace_with, write_atomically

DOMAINS = ("arithmetic", "code", "prose")
PRESETS = ("tiny",)


def preset_folder(preset: str, root: str | Path | None = None) -> Path:
    """`build/train/<preset>` under the current folder, or under `root`."""
    if preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}; allowed are: {', '.join(PRESETS)}")
    return Path(root) / preset if root else Path("build") / "train" / preset


def check_counts(args: argparse.Namespace, *names: str) -> None:
    """ValueError where one of these arguments is given and below 1."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")


def check_above_0(args: argparse.Namespace, *names: str) -> None:
    """ValueError where one of these arguments is given and not above 0."""
    for name in names:
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value}; it must be above 0")


def by_domain(rows: Iterable[dict]) -> dict[str, list[dict]]:
    """The rows of every domain, in order."""
    found: dict[str, list[dict]] = {domain: [] for domain in DOMAINS}
    for row in rows:
        found[row["domain"]].append(row)
    return found


def some_of_each(rows: Iterable[dict], part: slice) -> list[dict]:
    """This part of every domain's rows, one domain after the other."""
    return [row for mine in by_domain(rows).values() for row in mine[part]]


def replace_folder(path: Path, write: Callable[[Path], Any]) -> None:
    """Calls write(temporary folder), which then replaces `path`: a kill leaves old or new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        write(temporary)
        if path.exists():
            os.replace(path, old)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_json(path: Path, value: Any) -> None:
    """`value` as indented JSON; not atomic, for files in a folder that is."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """An .npz file, written atomically."""

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # savez given a name would add a suffix
            np.savez(file, **arrays)  # type: ignore[arg-type]  # none is named allow_pickle

    replace_with(path, write)


def write_jsonl(path: Path, rows: Iterable[dict]) -> None:
    """One JSON object a line, written atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_jsonl(path: str | Path) -> Iterator[dict]:
    """The objects of a JSON-lines file; a last line that a kill cut short is left out.

    ValueError where there is no such file.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"{path} does not exist; run the training command before this one first")
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


class Log:
    """A JSON-lines log.  `resume_at` drops rows of steps that a resumed run does again."""

    def __init__(self, path: Path, resume_at: int = 0) -> None:
        self.path = path
        rows = [r for r in read_jsonl(path) if r["step"] <= resume_at] if path.exists() else []
        write_jsonl(path, rows if resume_at else [])

    def write(self, **row: Any) -> None:
        """Adds a row at once, so that a kill loses none."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def lanes(threads: int | None, most: int | None = None) -> int:
    """Lanes of one thread each: as many as asked for, or a lane a core, at the most `most`.

    A lane is a Python thread whose matrix products run on that thread alone: small products do not
    gain from a second thread, and two that wait for each other stall beside other work.
    """
    torch.set_num_threads(1)
    cores = os.cpu_count() or 1
    return threads or min(most or cores, cores)


def bf16_on_cpu() -> bool:
    """Whether this CPU has bfloat16 matrix products; without them bf16 is slower than fp32."""
    onednn = torch.backends.mkldnn.is_available()
    return onednn and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
