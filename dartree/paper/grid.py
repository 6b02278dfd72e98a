"""What is run: models, temperatures, data sets and methods, and the names of single runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dartree import public
from dartree.datasets import Row
from dartree.settings import TreeSettings

# The methods of the paper's Table 1; `ar` is what speedups are divided by.
METHODS = ("ar", "dflash", "ddtree", "domino", "dartree-fixed", "dartree")


@dataclass(frozen=True)
class Model:
    """A target with its drafters: a bundled ``stack``, or folders and hub ids."""

    name: str
    stack: str | None = None
    target: str | None = None
    drafter: str | None = None
    dflash: str | None = None


MODELS = {
    size: Model(
        size,
        target=f"Qwen/Qwen3-{size}",
        drafter=f"Huang2020/Qwen3-{size}-Domino-b16",
        dflash=f"z-lab/Qwen3-{size}-DFlash-b16",
    )
    for size in ("4B", "8B")
} | {
    f"{size}-dspark": Model(
        f"{size}-dspark",
        target=f"Qwen/Qwen3-{size}",
        drafter=f"deepseek-ai/dspark_qwen3_{size.lower()}_block7",
    )
    for size in ("4B", "8B")
}


def doubts(model: Model, config: Mapping[str, Any], max_new_tokens: int) -> list[str]:
    """Sentences on what a target's ``config`` does not give of what the run is named or asked for.

    Empty where nothing is to be doubted; what ``config`` leaves out is not.
    """
    found = []
    named = MODELS[model.name].target if model.name in MODELS else None
    for what in ("hidden_size", "num_hidden_layers") if named else ():
        want = public.target_config(str(named))[what]
        if config.get(what, want) != want:
            found.append(
                f"{model.target} is not {named}: its {what} is {config[what]}, not {want}; "
                f"do not compare it with what was published for {model.name}."
            )
            break
    context = config.get("max_position_embeddings")
    if isinstance(context, int) and 0 < context <= max_new_tokens:
        found.append(
            f"{model.name}: its context of {context} tokens, the prompt counted, ends every "
            f"answer before {max_new_tokens} new tokens."
        )
    return found


@dataclass(frozen=True)
class Grid:
    """The whole evaluation. ``rows``: the prompts of each data set, in their order."""

    models: tuple[Model, ...]
    rows: dict[str, list[Row]]
    temperatures: tuple[float, ...] = (0.0, 1.0)
    methods: tuple[str, ...] = METHODS
    settings: TreeSettings = field(default_factory=TreeSettings)
    max_new_tokens: int = 2048
    seed: int = 0

    def __len__(self) -> int:
        turns = sum(len(row.turns) for rows in self.rows.values() for row in rows)
        return len(self.models) * len(self.temperatures) * len(self.methods) * turns

    def prompts(self, rank: int = 0, world: int = 1) -> Iterator[tuple[float, Row]]:
        """(temperature, prompt) of one model in running order; each world-th from ``rank`` on."""
        every = (
            (temperature, row)
            for temperature in self.temperatures
            for rows in self.rows.values()
            for row in rows
        )
        return (pair for index, pair in enumerate(every) if index % world == rank)


Key = tuple[str, float, str, str, int, str]


def key(model: str, temperature: float, row: Row, turn: int, method: str) -> Key:
    """What names one run of the grid, and its record."""
    return model, float(temperature), row.dataset, row.id, turn, method


def key_of(record: dict[str, Any]) -> Key:
    """The key that a record was made for."""
    where = record["cell"]
    return (
        where["model"], float(where["temperature"]), where["dataset"], where["id"], where["turn"],
        record["method"],
    )  # fmt: skip


def seed_of(seed: int, row: Row, turn: int) -> int:
    """Seed of one prompt's generator: the same for every method, another for every prompt."""
    text = f"{seed}/{row.dataset}/{row.id}/{turn}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def names_of(text: str, known: Sequence[str], what: str) -> list[str]:
    """Comma-separated names, each in ``known``, in the order given and once each."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise ValueError(f"{what} must be among {', '.join(known)}, got {name!r}.")
    return names
