"""Running the grid: what is not on disk yet is run and appended, prompt by prompt.

All methods take a prompt in turn, `ar` first, so that a slow minute of the machine touches all
alike and every prefix of a run is a fair comparison.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dartree.datasets import Row
from dartree.decode import Generation, generate
from dartree.hub import find_part, identity
from dartree.machine import machine, versions
from dartree.paper.grid import Grid, Key, Model, key, key_of, seed_of
from dartree.paper.store import RecordFile, read_records
from dartree.stack import Stack, bundled_sources, load_stack, placement


def place(environment: Mapping[str, str] = os.environ) -> tuple[int, int, int]:
    """(rank, world, local rank) as `accelerate launch` and `torchrun` set them; alone: 0, 1, 0."""
    found = []
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        text = environment.get(name, default)
        if not text.isdecimal():
            raise ValueError(f"{name} must be a number, got {text!r}.")
        found.append(int(text))
    rank, world, local = found
    if rank >= world:
        raise ValueError(f"RANK must be below WORLD_SIZE {world}, got {rank}.")
    return rank, world, local


def load_model(model: Model, **placing: Any) -> Stack:
    """The stack of a model of the grid, its settings left to the grid."""
    if model.stack is not None:
        return load_stack(model.stack, **placing)
    return load_stack(target=model.target, drafter=model.drafter, dflash=model.dflash, **placing)


def identify(
    model: Model, *, dtype: Any = None, device: Any = None, device_map: Any = None
) -> dict[str, Any]:
    """What the records of a model would hold of its checkpoints, without loading them.

    Hub ids are resolved to commits and not fetched; folders are read once.
    """
    kind, _ = placement(dtype, device, device_map)
    if model.stack is not None:
        _, sources = bundled_sources(model.stack)
        parts = {part: source.identity() for part, source in sources.items()}
    else:
        given = {"target": model.target, "drafter": model.drafter, "dflash": model.dflash}
        parts = {p: find_part(p, where, identity) for p, where in given.items() if where}
    return _facts(kind, parts)


def _facts(dtype: Any, sources: dict[str, str]) -> dict[str, Any]:
    return {"dtype": str(dtype).removeprefix("torch."), "sources": sources}


def run_grid(
    grid: Grid,
    folder: Path,
    *,
    rank: int = 0,
    world: int = 1,
    load: Callable[[Model], Stack] = load_model,
    identify: Callable[[Model], dict[str, Any]] = identify,
    progress: Callable[[str], None] | None = None,
    write: bool = True,
) -> None:
    """Run what ``folder`` does not hold yet of this rank's share, one record per run.

    Killed and called again, with the same or another number of processes, it goes on where it
    was; whole records are kept and never made twice. Raises ValueError where the folder holds
    records of the same runs made with other settings, prompts or checkpoints; where nothing is
    missing, ``identify`` says which checkpoints would have been loaded. ``progress`` is called
    after every run that is made. ``write``: False for the processes that only help another one to
    compute its runs (tensor parallel).
    """
    with RecordFile(folder / f"part-{rank:03d}.jsonl") if write else nullcontext() as file:
        done = {key_of(record): record for record in read_records(folder)}
        for model in grid.models:
            runs = list(_runs(grid, model, rank, world))
            if not runs:
                continue
            complete = all(name in done for name, *_ in runs)
            runner: Any = None if complete else _Runner(grid, model, load(model))
            facts = identify(model) if complete else runner.facts
            for name, temperature, row, turn, method in runs:
                if name in done:
                    _check(done[name], _asked(grid, row) | facts)
                    continue
                done[name] = runner.run(temperature, row, turn, method, done)
                if file:
                    file.append(done[name])
                if progress:
                    progress(f"{model.name} T={temperature:g} {row.id} {method}")


def _runs(grid: Grid, model: Model, rank: int = 0, world: int = 1) -> Iterator[tuple]:
    """(key, temperature, prompt, turn, method) of one rank's share, in running order."""
    for temperature, row in grid.prompts(rank, world):
        for turn in range(len(row.turns)):
            for method in grid.methods:
                yield (
                    key(model.name, temperature, row, turn, method),
                    temperature,
                    row,
                    turn,
                    method,
                )


def missing(grid: Grid, records: Sequence[dict[str, Any]], rank: int = 0, world: int = 1) -> int:
    """How many runs of the grid, or of one rank's share, have no record yet."""
    have = {key_of(record) for record in records}
    runs = (run for model in grid.models for run in _runs(grid, model, rank, world))
    return sum(name not in have for name, *_ in runs)


def _asked(grid: Grid, row: Row) -> dict[str, Any]:
    """What must agree between all records of a prompt, besides what a stack adds."""
    return {
        "prompt": row.digest(),
        "settings": grid.settings.to_dict(),
        "max_new_tokens": grid.max_new_tokens,
        "seed": grid.seed,
    }


def _check(record: dict[str, Any], asked: dict[str, Any]) -> None:
    """ValueError where ``record`` was made for something else than what is asked for now."""
    for name, value in asked.items():
        theirs = record["asked"].get(name)
        if theirs == value:
            continue
        if isinstance(theirs, dict) and isinstance(value, dict):  # what agrees is left out
            parts = [key for key in theirs | value if theirs.get(key) != value.get(key)]
            theirs, value = (
                ", ".join(f"{k} {d.get(k, 'not given')}" for k in parts) for d in (theirs, value)
            )
        where = record["cell"]
        raise ValueError(
            f"out holds a record of {where['model']}, {where['id']}, {record['method']} that "
            f"differs in its {name} ({theirs}, now {value}): give another out, or --tables for "
            "what is there."
        )


class _Runner:
    """Runs of one model: its stack, and what its records have in common."""

    def __init__(self, grid: Grid, model: Model, stack: Stack) -> None:
        self.grid, self.model, self.stack = grid, model, stack
        template = getattr(stack.tokenizer, "chat_template", None) or ""
        self.facts = _facts(
            stack.target.dtype, {part: s.identity() for part, s in stack.sources.items()}
        )
        self.common = {
            "source_names": {part: s.name for part, s in stack.sources.items()},
            "chat_template": hashlib.sha256(str(template).encode()).hexdigest()[:16],
            "thinking": False,
            "versions": versions(),
            "machine": machine() | {"tensor_parallel": getattr(stack.target, "processes", 1)},
        }
        self._warm: set[str] = set()

    def run(
        self, temperature: float, row: Row, turn: int, method: str, done: Mapping[Key, Any]
    ) -> dict[str, Any]:
        """One generation as a record."""
        prompt = self._conversation(temperature, row, turn, done)
        options: dict[str, Any] = {
            "method": method, "settings": self.grid.settings, "temperature": temperature,
            "seed": seed_of(self.grid.seed, row, turn),
        }  # fmt: skip
        try:
            if method not in self._warm:  # the first run of a method pays for what is kept
                generate(self.stack, prompt, max_new_tokens=4, **options)
                self._warm.add(method)
            out = generate(self.stack, prompt, max_new_tokens=self.grid.max_new_tokens, **options)
        except ValueError as error:
            raise ValueError(f"{row.dataset} prompt {row.id!r}, {method}: {error}") from None
        return self._record(out, temperature, row, turn)

    def _record(self, out: Generation, temperature: float, row: Row, turn: int) -> dict[str, Any]:
        cell = {
            "model": self.model.name, "temperature": temperature, "dataset": row.dataset,
            "id": row.id, "turn": turn,
        }  # fmt: skip
        asked = _asked(self.grid, row) | self.facts
        return {"cell": cell, **out.to_dict(), "asked": asked, **self.common}

    def _conversation(
        self, temperature: float, row: Row, turn: int, done: Mapping[Key, Any]
    ) -> Any:
        """The prompt of a turn. Answers before it are those of `ar`, the same for all methods."""
        if turn == 0:
            return row.turns[0]
        messages: list[dict[str, str]] = []
        for index in range(turn):
            answer = done[key(self.model.name, temperature, row, index, "ar")]["text"]
            messages.append({"role": "user", "content": row.turns[index]})
            # A conversation goes on after an empty answer too; the template takes no empty turn.
            messages.append({"role": "assistant", "content": answer if answer.strip() else "-"})
        return [*messages, {"role": "user", "content": row.turns[turn]}]
