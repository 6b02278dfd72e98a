"""The prompts of the grid: found on this machine, fetched, or only counted."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from dartree.datasets import DATASETS, Row, load_dataset, save_rows
from dartree.paper.rehearsal import rehearsal_rows

Rows = dict[str, list[Row]]


def rows_of(args: argparse.Namespace, out: Path) -> Rows:
    """Prompts by data set; what was fetched is kept in ``out`` and not fetched again."""
    return _every_set(args, lambda name: _public_set(name, args.data, out))


def rows_to_be(args: argparse.Namespace, out: Path) -> tuple[Rows, list[str]]:
    """As :func:`rows_of` without fetching: rows without a text stand for prompts that are not here.

    Also the names of the data sets that would be fetched.
    """
    away: list[str] = []

    def find(name: str) -> list[Row]:
        place = _local_place(name, args.data, out)
        if name not in DATASETS or place is not None:
            return load_dataset(name, place)
        away.append(name)
        source = DATASETS[name]
        return [
            Row(f"{name}-{i:05d}", name, ("",) * source.turns_each) for i in range(source.samples)
        ]

    return _every_set(args, find), away


def _every_set(args: argparse.Namespace, find: Callable[[str], list[Row]]) -> Rows:
    limit = None if args.limit is None else int(args.limit)
    names = args.datasets
    if names is None:
        names = ",".join(rehearsal_rows() if args.rehearsal else DATASETS)
    rows: Rows = {}
    for name in dict.fromkeys(n.strip() for n in names.split(",")):
        found = _rehearsal_set(name) if args.rehearsal else find(name)
        if found[0].dataset in rows:
            raise ValueError(f"datasets has {found[0].dataset!r} twice.")
        rows[found[0].dataset] = found[:limit]
    return rows


def _rehearsal_set(name: str) -> list[Row]:
    bundled = rehearsal_rows()
    if name in bundled:
        return bundled[name]
    if not name.endswith(".jsonl"):
        raise ValueError(
            f"datasets of a rehearsal must be among {', '.join(bundled)}, or .jsonl files, got "
            f"{name!r}."
        )
    return load_dataset(name)


def _local_place(name: str, data: str | None, out: Path) -> Path | None:
    """The folder with a copy of a named data set: the user's, or what an earlier call kept."""
    places = [Path(data)] if data else []
    return next((p for p in (*places, out / "prompts") if (p / f"{name}.jsonl").is_file()), None)


def _public_set(name: str, data: str | None, out: Path) -> list[Row]:
    found = load_dataset(name, _local_place(name, data, out) or data)
    kept = out / "prompts" / f"{name}.jsonl"
    if name in DATASETS and not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_rows(found, kept)
    return found
