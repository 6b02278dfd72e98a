"""What the training commands share: places, atomic files, the log, the learning-rate schedule."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from dartree.records import replace_with

DOMAINS = ("arithmetic", "code", "prose")
PRESETS = ("tiny",)


def preset_folder(preset: str, root: str | Path | None = None) -> Path:
    """`build/train/<preset>` under the current folder, or under `root`."""
    if preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}; allowed are: {', '.join(PRESETS)}")
    return Path(root) / preset if root else Path("build") / "train" / preset


def write_atomically(path: str | Path, write: Callable[[Path], Any]) -> None:
    """Calls write(temporary path) and then gives the file its name: a kill leaves old or new."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_with(path, write)


def replace_folder(path: str | Path, write: Callable[[Path], Any]) -> None:
    """As `write_atomically`, for a folder; an older folder of that name is removed."""
    path = Path(path)
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


def write_jsonl(path: str | Path, rows: Iterable[dict]) -> None:
    """One JSON object a line, written atomically."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(lines)

    write_atomically(path, write)


def read_jsonl(path: str | Path) -> Iterator[dict]:
    """The objects of a JSON-lines file; a last line that a kill cut short is left out."""
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
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def learning_rate(
    peak: float, step: int, progress: float, warmup: int, floor: float = 0.02
) -> float:
    """Linear warm-up over `warmup` steps, then a cosine over `progress` 0..1 to `floor` * peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, progress))))
    return peak * min(1.0, (step + 1) / max(1, warmup)) * (floor + (1 - floor) * cosine)


def bf16_on_cpu() -> bool:
    """Whether this CPU has bfloat16 matrix products; without them bf16 is slower than fp32."""
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
