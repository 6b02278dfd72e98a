"""The grid's rehearsal: the bundled prompts as data sets, one of them with two turns."""

from __future__ import annotations

from dartree.datasets import Row, load_dataset
from dartree.stack import data_dir


def rehearsal_rows() -> dict[str, list[Row]]:
    """Rows of the three bundled domains, and conversations made of their prompts."""
    folder = data_dir() / "prompts"
    rows = {path.stem: load_dataset(str(path)) for path in sorted(folder.glob("*.jsonl"))}
    first, *_, last = rows.values()
    rows["two-turns"] = [
        Row(f"two-turns-{i:02d}", "two-turns", (a.turns[0], b.turns[0]))
        for i, (a, b) in enumerate(zip(first, last, strict=False))
    ]
    return rows
