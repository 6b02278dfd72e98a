"""``dartree paper --dry-run``: what a run would fetch, load and make, and what it lacks.

Nothing is fetched or written; the hub is asked only whether it answers.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dartree import hub, memory
from dartree.checkpoints import weight_files
from dartree.checks import counted, first_line
from dartree.configs import check_headless, parse_drafter_config
from dartree.datasets import DATASETS
from dartree.paper.grid import Grid, Model, doubts
from dartree.paper.prompts import rows_to_be
from dartree.paper.run import missing
from dartree.paper.store import read_records
from dartree.public import config_of, pair_configs
from dartree.settings import TreeSettings
from dartree.stack import bundled_sources, placement
from dartree.tensor_parallel import TENSOR_PARALLEL

CONTEXT = 4096  # tokens of the memory estimate
NEWEST = "its newest commit"
HALF = 2  # bytes of a value in the public files, which are in bf16


@dataclass(frozen=True)
class Part:
    """One checkpoint of a model: where it lies, or (``fetch``) how many bytes have to come."""

    model: str
    part: str
    place: str
    state: str
    fetch: int | None = None


def plan(grid: Grid, world: int) -> str:
    """What is run, in one line."""
    sets = ", ".join(f"{name} {len(rows)}" for name, rows in grid.rows.items())
    names = ", ".join(m.name for m in grid.models)
    return (
        f"{counted(len(grid), 'run')} in {counted(world, 'process')}: models {names}; T = "
        f"{', '.join(f'{t:g}' for t in grid.temperatures)}; {sets} prompts; methods "
        f"{', '.join(grid.methods)}; up to {grid.max_new_tokens} new tokens each."
    )


def dry_run(
    grid: Grid, args: argparse.Namespace, out: Path, world: int, placing: dict[str, Any]
) -> int:
    """Print the plan; 0 where everything is there or can be fetched, 1 where something is missing.

    ``placing``: dtype, device and device_map. Raises ValueError for data sets that a run would
    refuse.
    """
    rows, away = rows_to_be(args, out)
    grid = replace(grid, rows=rows)
    print(plan(grid, world))
    left = missing(grid, read_records(out))
    if left < len(grid):
        print(f"{len(grid) - left} of them have their records in {out} already.")
    problems: list[str] = []
    parts = [part for model in grid.models for part in _parts(model, problems)]
    print("\ncheckpoints")
    for part in parts:
        print(f"  {part.model} {part.part}: {part.place}, {part.state}")
    if any(map(_pinned, parts)) and any(part.place.endswith(NEWEST) for part in parts):
        print(
            "  A commit is given where public runs name one; else the newest is taken and recorded."
        )
    print("\ntree settings")
    for model in grid.models:
        print(f"  {settings_line(model, grid.settings)}")
    print("\nmemory")
    dtype, may_pack = placing["dtype"], False
    try:
        dtype, may_pack = layout(placing)
    except ValueError as error:
        problems.append(first_line(error))
    for model in grid.models:
        try:
            print(f"  {memory_line(model, grid.settings, dtype, may_pack)}")
        except ValueError as error:
            problems.append(f"{model.name}: {first_line(error)}")
    print(f"  device: {_device()}")
    print("\ndata sets")
    for name, found in rows.items():
        where = f"from the hub, {DATASETS[name].path}" if name in away else "here"
        print(f"  {name}: {counted(len(found), 'prompt')}, {where}")
    size = sum(part.fetch or 0 for part in {part.place: part for part in parts}.values())
    hub_needed = bool(away) or any(part.fetch is not None for part in parts)
    problems += _problems(args, out, size, away, hub_needed)
    problems = list(dict.fromkeys(problems))  # a checkpoint and its memory fail alike
    print()
    for doubt in (doubt for model in grid.models for doubt in _doubts(model, grid)):
        print(f"warning: {doubt}")
    print("\n".join(f"missing: {p}" for p in problems) or "Nothing is missing.")
    return 1 if problems else 0


def layout(placing: dict[str, Any]) -> tuple[torch.dtype, bool]:
    """The dtype that `load_stack` takes for ``placing``, and whether it may pack unasked."""
    dtype, device = placement(**placing)
    return dtype, device.type == "cpu" and not placing["device_map"]


def memory_line(
    model: Model, settings: TreeSettings, dtype: torch.dtype | None, may_pack: bool
) -> str:
    """The memory of a model by its configs (bf16 unless ``dtype`` is given).

    ``may_pack``: whether weights are packed where `load_stack` does so unasked. Raises ValueError
    where the configs are not at hand or refuse each other.
    """
    dtype = dtype or torch.bfloat16
    target, drafter, dflash = _places(model)
    raw, config = pair_configs(target, drafter, fetch=False)
    limit = raw.get("max_position_embeddings")
    context = min(CONTEXT, limit) if isinstance(limit, int) and limit > 0 else CONTEXT
    other = pair_configs(target, dflash, fetch=False)[1] if dflash else None
    need = memory.estimate(raw, config, settings, context, dtype.itemsize, may_pack, other)
    line = f"{model.name}, {str(dtype)[6:]}, {context} tokens: {memory.table(need)}"
    if other:
        check_headless(other, str(dflash))
        more = memory.gib(memory.drafter_bytes(other, dtype.itemsize, bool(need.packed)))
        line += f"; and {more} for the drafter of dflash and ddtree"
    return line


def settings_line(model: Model, settings: TreeSettings) -> str:
    """The settings that a model's trees are built with, in one line."""
    depth = "all draft positions" if settings.depth is None else settings.depth
    return (
        f"{model.name}: W {settings.width}, K {settings.candidates}, B {settings.budget}, depth "
        f"penalty {settings.depth_penalty:g}, depth {depth}, normalised over the "
        f"{settings.normalise}, score temperature {settings.score_temperature:g}"
    )


def _doubts(model: Model, grid: Grid) -> list[str]:
    try:
        config = config_of(_places(model)[0], fetch=False)
    except (OSError, RuntimeError, ValueError):  # among what is missing
        return []
    return doubts(model, config, grid.max_new_tokens)


def _pinned(part: Part) -> bool:
    name, _, revision = part.place.partition(" @ ")
    return bool(revision) and hub.PINNED.get(name) == revision


def _places(model: Model) -> tuple[Any, Any, Any]:
    """Target, drafter and dflash as folders or hub ids; the last may be None."""
    if model.stack is None:
        return model.target, model.drafter, model.dflash
    _, sources = bundled_sources(model.stack)
    dflash = sources.get("dflash")
    return sources["target"].folder, sources["drafter"].folder, dflash and dflash.folder


def _parts(model: Model, problems: list[str]) -> Iterator[Part]:
    target, drafter, dflash = _places(model)
    for part, place in (("target", target), ("drafter", drafter), ("dflash", dflash)):
        if place is None:
            continue
        try:
            yield hub.find_part(part, place, partial(_part, model, part))
        except ValueError as error:
            problems.append(f"{model.name}: {first_line(error)}")


def _part(model: Model, part: str, place: str | Path) -> Part:
    """Where one checkpoint lies; CheckpointError where it is a folder that is not in order."""
    folder = Path(place).expanduser()
    if str(place) and folder.is_dir():
        return Part(model.name, part, str(place), f"here, {_gigabytes(_weights(folder))}")
    name, revision = hub.hub_id(str(place))
    where = f"{name} @ {revision or NEWEST}"
    copy = hub.local_copy(name, revision)
    if copy is not None:
        try:
            return Part(model.name, part, where, f"here, {_gigabytes(_weights(copy.folder))}")
        except ValueError:
            pass  # begun and not finished: what is there already is not known
    try:
        size = _size(part, config_of(place, fetch=False))
    except ValueError:
        return Part(model.name, part, where, "to be fetched, of unknown size", 0)
    return Part(model.name, part, where, f"to be fetched, about {_gigabytes(size)}", size)


def _weights(folder: Path) -> int:
    """Bytes of a folder's weights; CheckpointError where a file is missing or broken."""
    return sum(file.stat().st_size for file in weight_files(folder))


def _size(part: str, raw: dict[str, Any]) -> int:
    """Bytes of a public checkpoint's weights, by its config."""
    if part == "target":
        return memory.target_bytes(raw, HALF)
    config = parse_drafter_config(raw)
    # DSpark files carry copies of the target's embedding and lm_head.
    copies = 2 * config.vocab_size * config.hidden_size if config.head == "markov" else 0
    return memory.drafter_bytes(config, HALF) + HALF * copies


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _device() -> str:
    if not torch.cuda.is_available():
        return "no GPU that this torch can use"
    free, total = torch.cuda.mem_get_info()
    return (
        f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, {memory.gib(free)} of "
        f"{memory.gib(total)} free on the first"
    )


def _problems(
    args: argparse.Namespace, out: Path, size: int, away: list[str], hub_needed: bool
) -> list[str]:
    """What a run would fail for, besides checkpoints; prints what the disk has."""
    from huggingface_hub import constants

    found = []
    if away and not importlib.util.find_spec("datasets"):
        found.append(
            "the package datasets (pip install 'dartree[paper]'), or copies of the data sets in "
            "--data"
        )
    if args.device_map not in (None, TENSOR_PARALLEL) and not importlib.util.find_spec(
        "accelerate"
    ):
        found.append(f"the package accelerate, for --device-map {args.device_map}")
    if hub_needed and (reason := _no_network(constants.ENDPOINT)):
        found.append(f"network: {reason}")
    cache = _existing(Path(constants.HF_HUB_CACHE))
    free = shutil.disk_usage(cache).free
    print(f"\ndisk: {_gigabytes(size)} to be fetched to {constants.HF_HUB_CACHE}, where "
          f"{_gigabytes(free)} are free.")  # fmt: skip
    if size > free:
        found.append(f"disk: {_gigabytes(size - free)} (HF_HOME names another place)")
    if not os.access(_existing(out), os.W_OK):
        found.append(f"the right to write in {_existing(out)}, for --out")
    return found


def _existing(path: Path) -> Path:
    path = path.resolve()
    return next(place for place in (path, *path.parents) if place.exists())


def _no_network(endpoint: str) -> str | None:
    """Why the hub cannot be reached, in a few words; None where it answers."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(endpoint, timeout=5)
    except Exception as error:  # the client raises many kinds; one sentence serves all
        return f"{endpoint} does not answer ({first_line(error)})"
    return None
