"""The prompts of the paper's evaluation: seven data sets, any JSONL file, the bundled prompts.

Templates, sample counts and the shuffle are those of the DFlash, DDTree and DARTree evaluations:
where a set holds more than n rows, the first n of a shuffle with seed 0. Prompts are chat turns;
the chat template is applied with thinking off when they are encoded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dartree.checks import first_line
from dartree.files import write_atomically
from dartree.prompt_files import parse_json, read_lines

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
SHUFFLE_SEED = 0


@dataclass(frozen=True)
class Row:
    """One prompt of a data set.

    turns
        User turns of one conversation; each but the first continues the answer before it. A row
        with a single turn may hold a list of messages or token ids in place of a text.
    """

    id: str
    dataset: str
    turns: tuple[Any, ...]

    def digest(self) -> str:
        """Hash of the turns: what was asked, whatever the row is called."""
        return hashlib.sha256(json.dumps(self.turns).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class DataSet:
    """Where a public data set lies and how its rows become prompts.

    ``rows`` is how many rows the split has: the sample is drawn from all of them. ``samples`` is n
    of the evaluation; ``fields`` names what ``turns`` reads of a row, to make ``turns_each`` of it.
    """

    path: str
    config: str | None
    split: str
    rows: int
    samples: int
    fields: tuple[str, ...]
    turns: Callable[[Mapping[str, Any]], Iterable[str]]
    turns_each: int = 1


def _code(row: Mapping[str, Any]) -> list[str]:
    request = "Write a solution to the following problem and make sure that it passes the tests:"
    return [f"{request}\n```python\n{row['prompt'].strip()}\n```"]


def _instruction(row: Mapping[str, Any]) -> list[str]:
    more = row["input"].strip()
    return [row["instruction"] + (f"\n\nInput:\n{row['input']}" if more else "")]


DATASETS = {
    "gsm8k": DataSet("openai/gsm8k", "main", "test", 1319, 128, ("question",),
                     lambda row: [row["question"] + BOXED]),
    "math500": DataSet("HuggingFaceH4/MATH-500", None, "test", 500, 128, ("problem",),
                       lambda row: [row["problem"] + BOXED]),
    "aime25": DataSet("MathArena/aime_2025", None, "train", 30, 30, ("problem",),
                      lambda row: [row["problem"] + BOXED]),
    "humaneval": DataSet("openai/openai_humaneval", None, "test", 164, 164, ("prompt",), _code),
    "mbpp": DataSet("google-research-datasets/mbpp", "sanitized", "test", 257, 128,
                    ("prompt",),
                    lambda row: [row["prompt"]]),
    "mt-bench": DataSet("HuggingFaceH4/mt_bench_prompts", None, "train", 80, 80, ("prompt",),
                        lambda row: list(row["prompt"]), turns_each=2),
    "alpaca": DataSet("tatsu-lab/alpaca", None, "train", 52002, 128, ("instruction", "input"),
                      _instruction),
}  # fmt: skip


def load_dataset(name: str, folder: str | Path | None = None) -> list[Row]:
    """Rows of a named data set, or of a JSONL file named by its path.

    ``folder``: local copies, one NAME.jsonl each, either prompts (see :func:`read_rows`) or rows
    as the public data set has them; without one the set comes from the hub through the package
    `datasets`. Raises ValueError for an unknown name, a row that does not fit, a set that is not
    whole, and one that cannot be reached.
    """
    path = Path(name)
    if path.suffix == ".jsonl":
        return read_rows(path, path.stem)
    copy = None if folder is None else Path(folder) / f"{name}.jsonl"
    if copy is not None and copy.is_file():
        return read_rows(copy, name)
    if name not in DATASETS:
        known = ", ".join(DATASETS)
        raise ValueError(f"dataset must be one of {known}, or a .jsonl file, got {name!r}.")
    hint = "give a folder with a local copy" if folder is None else f"put a local copy in {folder}"
    fetched = list(_fetch(name, DATASETS[name], f"or {hint}, {name}.jsonl"))
    _check_whole(name, fetched, f"dataset {name}")
    return prompts(name, fetched)


def prompts(name: str, rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """The evaluation's prompts from the rows of a public data set, sampled and in its templates."""
    source = DATASETS[name]
    rows = list(rows)
    order: Sequence[int] | np.ndarray = range(len(rows))
    if len(rows) > source.samples:
        # What Dataset.shuffle(seed) of the package datasets does, on any list of rows.
        order = np.random.default_rng(SHUFFLE_SEED).permutation(len(rows))[: source.samples]
    return [_prompt(name, source, int(index), rows[int(index)]) for index in order]


def _prompt(name: str, source: DataSet, index: int, row: Mapping[str, Any]) -> Row:
    missing = [f for f in source.fields if f not in row]
    if missing:
        raise ValueError(f"{name} row {index} lacks {', '.join(missing)}; it has {', '.join(row)}.")
    try:
        turns = tuple(source.turns(row))
    except (AttributeError, TypeError):
        turns = ()
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ValueError(f"{name} row {index} has an unusable {' or '.join(source.fields)}.")
    return Row(f"{name}-{index:05d}", name, turns)


def _fetch(name: str, source: DataSet, hint: str) -> Iterable[Mapping[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"dataset {name} needs the package datasets (pip install 'dartree[paper]'), {hint}."
        ) from None
    try:
        return datasets.load_dataset(source.path, source.config, split=source.split)
    except Exception as error:  # the library raises many kinds; one sentence serves all
        raise ValueError(
            f"dataset {name} ({source.path}) could not be fetched: {first_line(error)}; "
            f"try again with a network, {hint}."
        ) from None


def read_rows(path: Path, name: str) -> list[Row]:
    """Rows of a JSONL file.

    A line is an object with ``id`` and one of ``prompt``, ``messages``, ``ids`` or ``turns`` (a
    list of user texts). For a name of DATASETS its lines may also be rows of that public set, in
    their own order; either way they must be complete.
    """
    objects = [
        _object(line, f"{path}, line {n}")
        for n, line in enumerate(read_lines(path), 1)
        if line.strip()
    ]
    if not objects:
        raise ValueError(f"prompts file {path} holds no prompts.")
    public = not ("domain" in objects[0] or "turns" in objects[0])
    if name in DATASETS:
        _check_whole(name, objects, str(path), public)
        if public:
            return prompts(name, objects)
    rows = [_ready(row, name, f"{path}, line {n}") for n, row in enumerate(objects, start=1)]
    ids = [row.id for row in rows]
    if len(set(ids)) < len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise ValueError(f"prompts file {path} has the id {twice!r} twice.")
    return rows


def _check_whole(name: str, rows: Sequence[Any], where: str, public: bool = True) -> None:
    """ValueError for a part of a set: other prompts than the published ones would be drawn."""
    source = DATASETS[name]
    if len(rows) != (source.rows if public else source.samples):
        split = f"{source.path}, {source.split}"
        raise ValueError(
            f"{where} must hold all {source.rows} rows of {name} ({split}), or the evaluation's "
            f"{source.samples} prompts with their turns, got {len(rows)} "
            f"{'rows' if public else 'prompts'}."
        )


def _object(line: str, where: str) -> dict[str, Any]:
    row = parse_json(line, where)
    if not isinstance(row, dict):
        raise ValueError(f"{where} must be a JSON object.")
    return row


def _ready(row: dict[str, Any], name: str, where: str) -> Row:
    kinds = {"prompt": str, "messages": list, "ids": list, "turns": list}
    given = [field for field in kinds if row.get(field)]
    if len(given) != 1 or not isinstance(row[given[0]], kinds[given[0]]):
        raise ValueError(f"{where} must hold exactly one of {', '.join(kinds)}.")
    value = row[given[0]]
    turns = tuple(value) if given[0] == "turns" else (value,)
    if given[0] == "turns" and not all(isinstance(t, str) and t.strip() for t in turns):
        raise ValueError(f"{where}: 'turns' must be a list of texts.")
    return Row(str(row.get("id", where.rpartition(" ")[2])), name, turns)


def save_rows(rows: Iterable[Row], path: Path) -> None:
    """Write rows with text turns as a local copy that :func:`load_dataset` reads again."""
    lines = [json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows]
    write_atomically(path, "".join(lines))
