"""``dartree paper``: run the grid, or what is missing of it, and print the tables."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dartree.arguments import integer, tree_arguments, tree_settings

if TYPE_CHECKING:  # the parser is built for every command and must not load torch
    from dartree.paper.grid import Grid, Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--models", default="4B,8B", help="of 4B, 8B, 4B-dspark, 8B-dspark (default 4B,8B); or:"
    )
    what.add_argument("--target", metavar="PATH_OR_ID", help="a target of your own, and")
    what.add_argument("--drafter", metavar="PATH_OR_ID", help="its drafter (owner/name@revision)")
    what.add_argument("--dflash", metavar="PATH_OR_ID", help="a head-less one for dflash, ddtree")
    what.add_argument("--temperatures", default="0,1", metavar="T,T")
    what.add_argument(
        "--datasets", metavar="a,b,...", help="default: the paper's seven; names or .jsonl files"
    )
    what.add_argument("--methods", metavar="a,b,...", help="default: those of the paper's Table 1")
    what.add_argument("--limit", metavar="N", help="prompts per data set (default: the paper's)")
    what.add_argument("--max-new-tokens", metavar="N", help="default 2048; 64 in a rehearsal")
    what.add_argument("--seed", default="0", metavar="S")
    what.add_argument(
        "--rehearsal", action="store_true",
        help="the whole grid on the bundled stack and prompts, without any download",
    )  # fmt: skip
    tree_arguments(parser)
    where = parser.add_argument_group("where")
    where.add_argument("--out", default="build/paper", metavar="DIR", help="records and tables")
    where.add_argument("--data", metavar="DIR", help="local copies of data sets, NAME.jsonl")
    where.add_argument("--dtype", help="bfloat16 (default on a GPU), float32 (on a CPU), ...")
    where.add_argument("--device", help="default: this process's GPU, or the CPU")
    where.add_argument("--device-map", metavar="MAP", help="spread a big target: auto, ...")
    where.add_argument("--threads", metavar="N", help="CPU threads")
    where.add_argument("--tables", action="store_true", help="only the tables of what is there")


def run(args: argparse.Namespace) -> int:
    """Run the command's grid and print its tables."""
    from dartree.paper.run import missing, place, run_grid
    from dartree.paper.store import read_records

    rank, world, local = place()
    out = Path(args.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder, got {args.out!r}.")
    if args.tables:
        return _tables(out, read_records(out))
    grid = make_grid(args, out)
    placing = _placing(args, local)
    if rank == 0:
        print(_plan(grid, world), file=sys.stderr)
    _with_bar(_share(grid, rank, world), rank, lambda progress: run_grid(
        grid, out, rank=rank, world=world, progress=progress,
        load=lambda model: _load(model, placing),
    ))  # fmt: skip
    records = read_records(out)
    left = missing(grid, records)
    if left:  # another process is still at work; the last one to end prints the tables
        print(f"process {rank} of {world} is done; {left} runs of others are not.", file=sys.stderr)
        return 0
    return _tables(out, records)


def make_grid(args: argparse.Namespace, out: Path) -> Grid:
    """The grid that the options ask for; every prompt is read and checked."""
    from dartree.paper.grid import METHODS, Grid
    from dartree.settings import TreeSettings, check_method, non_negative, positive_int
    from dartree.stack import Stack

    methods = [m.strip() for m in (args.methods or ",".join(METHODS)).split(",")]
    temperatures = [non_negative("temperatures", _real(t)) for t in args.temperatures.split(",")]
    limit = None if args.limit is None else positive_int("limit", integer("limit", args.limit))
    length = args.max_new_tokens or ("64" if args.rehearsal else "2048")
    grid = Grid(
        models=_models(args),
        rows={},
        temperatures=tuple(dict.fromkeys(temperatures)),
        methods=tuple(dict.fromkeys(["ar", *map(check_method, methods)])),
        settings=tree_settings(args, Stack("", main=None, settings=TreeSettings())),
        max_new_tokens=positive_int("max_new_tokens", integer("max_new_tokens", length)),
        seed=integer("seed", args.seed),
    )
    return replace(grid, rows=_rows(args, out, limit))  # last: it may have to fetch them


def _real(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # refused, with its name, by the check that follows


def _models(args: argparse.Namespace) -> tuple[Model, ...]:
    from dartree.paper.grid import MODELS, Model, names_of

    own = (args.target, args.drafter)
    if args.rehearsal:
        return (Model("tiny", stack="tiny"),)
    if any(own) and not all(own):
        raise ValueError("target and drafter must be given together.")
    if all(own):
        name = f"{Path(args.target).name} + {Path(args.drafter).name}"
        return (Model(name, None, args.target, args.drafter, args.dflash),)
    names = names_of(args.models, list(MODELS), "models")
    return tuple(MODELS[name] for name in names)


def _rows(args: argparse.Namespace, out: Path, limit: int | None) -> dict[str, list]:
    """Prompts by data set; what was fetched is kept in ``out`` and not fetched again."""
    from dartree.datasets import DATASETS, load_dataset, save_rows
    from dartree.paper.rehearsal import rehearsal_rows

    if args.rehearsal:
        return rehearsal_rows(limit)
    rows, names = {}, args.datasets or ",".join(DATASETS)
    for name in dict.fromkeys(n.strip() for n in names.split(",")):
        kept = out / "prompts"
        found = load_dataset(name, args.data or kept)
        if name in DATASETS and not (kept / f"{name}.jsonl").exists():
            kept.mkdir(parents=True, exist_ok=True)
            save_rows(found, kept / f"{name}.jsonl")
        if found[0].dataset in rows:
            raise ValueError(f"datasets has {found[0].dataset!r} twice.")
        rows[found[0].dataset] = found[:limit]
    return rows


def _placing(args: argparse.Namespace, local: int) -> dict[str, Any]:
    import torch

    from dartree.settings import positive_int

    if args.threads is not None:
        torch.set_num_threads(positive_int("threads", integer("threads", args.threads)))
    device = args.device
    if device is None and args.device_map is None and torch.cuda.is_available():
        device = f"cuda:{local}"
    return {"device": device, "dtype": args.dtype, "device_map": args.device_map}


def _load(model: Model, placing: dict[str, Any]):
    from dartree import memory, public
    from dartree.checkpoints import parse_drafter_config
    from dartree.paper.run import load_model
    from dartree.settings import TreeSettings

    if model.drafter in public.DRAFTERS:  # said before anything is loaded
        target, raw = public.DRAFTERS[model.drafter]
        need = memory.estimate(
            public.target_config(target), parse_drafter_config(raw), TreeSettings(), 4096
        )
        print(f"{model.name}, bfloat16, 4096 tokens: {memory.table(need)}", file=sys.stderr)
    stack = load_model(model, **placing)
    for part, source in stack.sources.items():
        print(f"{model.name} {part}: {source.name} @ {source.identity()}", file=sys.stderr)
    return stack


def _plan(grid: Grid, world: int) -> str:
    sets = ", ".join(f"{name} {len(rows)}" for name, rows in grid.rows.items())
    names = ", ".join(m.name for m in grid.models)
    return (
        f"{len(grid)} runs in {world} process(es): models {names}; T = "
        f"{', '.join(f'{t:g}' for t in grid.temperatures)}; {sets} prompts; methods "
        f"{', '.join(grid.methods)}; up to {grid.max_new_tokens} new tokens each."
    )


def _share(grid: Grid, rank: int, world: int) -> int:
    turns = sum(len(row.turns) for _, row in grid.prompts(rank, world))
    return len(grid.models) * len(grid.methods) * turns


def _with_bar(total: int, rank: int, work) -> None:
    from tqdm import tqdm

    with tqdm(total=total, unit="run", file=sys.stderr, position=rank, mininterval=1) as bar:

        def progress(what: str) -> None:
            bar.set_description(what, refresh=False)
            bar.update()

        work(progress)


def _tables(out: Path, records: list[dict[str, Any]]) -> int:
    from dartree.paper import tables
    from dartree.records import write_atomically
    from dartree.stack import data_dir

    if not records:
        raise ValueError(f"out holds no records, got {str(out)!r}.")
    found = tables.cells(records)
    published = tables.read_published(data_dir() / "published" / "paper_table1.csv")
    text = tables.format_tables(found, published)
    write_atomically(out / "tables.csv", tables.to_csv(tables.rows(found, published)))
    write_atomically(out / "tables.txt", text + "\n")
    print(text)
    versions = {tuple(sorted(r["versions"].items())) for r in records}
    machines = {tuple(sorted(r["machine"].items())) for r in records}
    if len(versions) > 1 or len(machines) > 1:
        print(f"{len(versions)} sets of versions and {len(machines)} machines made these records: "
              "do not compare their times.", file=sys.stderr)  # fmt: skip
    return 0
