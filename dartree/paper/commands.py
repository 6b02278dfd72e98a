"""``dartree paper``: run the grid, or what is missing of it, and print the tables."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dartree.arguments import (
    checkpoint_arguments,
    integer,
    tree_arguments,
    tree_settings,
    use_threads,
)

if TYPE_CHECKING:
    from dartree.paper.grid import Grid, Model
    from dartree.stack import Stack

OWN = ("target", "drafter", "dflash")  # options that name checkpoints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    what = parser.add_argument_group(
        "what to run", "Checkpoints take the place of those of one of --models, which keeps its "
        "name; without --models they are a target and a drafter of your own.",
    )  # fmt: skip
    what.add_argument(
        "--models", metavar="a,b,...", help="of 4B, 8B, 4B-dspark, 8B-dspark (default 4B,8B)"
    )
    checkpoint_arguments(what)
    what.add_argument("--temperatures", default="0,1", metavar="T,T")
    what.add_argument(
        "--datasets", metavar="a,b,...", help="of gsm8k, math500, aime25, humaneval, mbpp, "
        "mt-bench, alpaca (default: all), or .jsonl files",
    )  # fmt: skip
    what.add_argument("--methods", metavar="a,b,...", help="default: those of the paper's Table 1")
    what.add_argument("--limit", metavar="N", help="prompts per data set (default: the paper's)")
    what.add_argument("--max-new-tokens", metavar="N", help="default 2048; 64 in a rehearsal")
    what.add_argument("--seed", default="0", metavar="S")
    what.add_argument(
        "--rehearsal", action="store_true",
        help="the whole grid on the bundled stack and prompts, without any download; --datasets "
        "then chooses among arithmetic, code, prose, two-turns and .jsonl files",
    )  # fmt: skip
    tree_arguments(parser, of_stack=False)
    where = parser.add_argument_group(
        "where", "Several GPUs, or processes on a CPU, each with a share of the prompts: torchrun "
        "--nproc_per_node N -m dartree paper ... (or accelerate launch; without --multi_gpu it "
        "starts one process on a machine without GPUs).",
    )  # fmt: skip
    where.add_argument("--out", default="build/paper", metavar="DIR", help="records and tables")
    where.add_argument(
        "--data", metavar="DIR", help="local copies of data sets, NAME.jsonl: rows of the public "
        "set, or objects with id and turns, a list of texts",
    )  # fmt: skip
    where.add_argument("--dtype", help="bfloat16 (default on a GPU), float32 (on a CPU), ...")
    where.add_argument("--device", help="cuda: this process's GPU (default), cuda:1, cpu, ...")
    where.add_argument(
        "--device-map", metavar="MAP", help="a target too large for one GPU: auto, ... puts layers "
        "on several; tensor-parallel splits every layer over the processes of torchrun",
    )  # fmt: skip
    where.add_argument("--threads", metavar="N", help="CPU threads")
    where.add_argument(
        "--dry-run", action="store_true", help="say what would be fetched, loaded and run, the "
        "memory it takes and what is missing; fetches and writes nothing",
    )  # fmt: skip
    where.add_argument("--tables", action="store_true", help="only the tables of what is there")


def run(args: argparse.Namespace) -> int:
    """Run the command's grid and print its tables."""
    from dartree.checks import counted
    from dartree.files import check_output
    from dartree.paper.dry import dry_run, plan
    from dartree.paper.prompts import rows_of
    from dartree.paper.run import identify, missing, place, run_grid
    from dartree.paper.store import read_records
    from dartree.tensor_parallel import TENSOR_PARALLEL, leave

    rank, world, local = place()
    out = Path(args.out)
    if not args.out or (out.exists() and not out.is_dir()):
        raise ValueError(f"out must be a folder, got {args.out!r}.")
    grid = make_grid(args)
    if args.tables:
        return _tables(out, read_records(out))
    placing = _placing(args, local)
    if args.dry_run:
        return 0 if rank else dry_run(grid, args, out, world, placing)
    check_output("out", out, folder=True)
    grid = replace(grid, rows=rows_of(args, out))  # last: it may have to fetch them
    out.mkdir(parents=True, exist_ok=True)
    together = args.device_map == TENSOR_PARALLEL  # all processes make the same round
    share = (0, 1) if together else (rank, world)
    if rank == 0:
        print(plan(grid, world), file=sys.stderr)
    silent = together and rank > 0
    total = _share(grid, *share)
    done = total - missing(grid, read_records(out), *share)
    try:
        _with_bar(total, done, rank, silent, lambda progress: run_grid(
            grid, out, rank=share[0], world=share[1], progress=progress, write=not silent,
            load=lambda model: _load(model, grid, placing),
            identify=lambda model: identify(model, **placing),
        ))  # fmt: skip
    except KeyboardInterrupt:
        if rank == 0:
            kept = len(grid) - missing(grid, read_records(out))
            print(f"{kept} of {counted(len(grid), 'record')} kept; the same command goes on.",
                  file=sys.stderr)  # fmt: skip
        raise
    leave()
    if silent:
        return 0
    records = read_records(out)
    left = missing(grid, records)
    if left:  # another process is still at work; the last one to end prints the tables
        print(f"process {rank} of {world} is done; {left} runs of others are not.", file=sys.stderr)
        return 0
    return _tables(out, records)


def make_grid(args: argparse.Namespace) -> Grid:
    """The grid that the options ask for, its prompts left out."""
    from dartree.checks import non_negative, positive_int
    from dartree.methods import TABLE
    from dartree.paper.grid import METHODS, Grid, names_of
    from dartree.settings import TreeSettings

    _refuse_contradictions(args)
    methods = names_of(_given(args.methods, ",".join(METHODS)), list(TABLE), "methods")
    temperatures = [non_negative("temperatures", _real(t)) for t in args.temperatures.split(",")]
    if args.limit is not None:
        positive_int("limit", integer("limit", args.limit))
    length = _given(args.max_new_tokens, "64" if args.rehearsal else "2048")
    return Grid(
        models=_models(args),
        rows={},
        temperatures=tuple(dict.fromkeys(temperatures)),
        methods=tuple(dict.fromkeys(["ar", *methods])),
        settings=tree_settings(args, TreeSettings()),
        max_new_tokens=positive_int("max_new_tokens", integer("max_new_tokens", length)),
        seed=integer("seed", args.seed),
    )


def _given(value: str | None, default: str) -> str:
    return default if value is None else value


def _refuse_contradictions(args: argparse.Namespace) -> None:
    """ValueError for an option that another one would silently make void."""
    own = [name for name in OWN if getattr(args, name) is not None]
    if args.rehearsal:
        void = [name for name in ("models", *own, "data") if getattr(args, name) is not None]
        if void:
            raise ValueError(
                f"{void[0]} cannot be given in a rehearsal, which runs the bundled stack on local "
                f"prompts, got {getattr(args, void[0])!r}."
            )
    if args.tables and args.dry_run:
        raise ValueError("give either tables or dry_run, not both.")
    if own and args.models is None and (args.target is None or args.drafter is None):
        raise ValueError("target and drafter must be given together.")
    if args.device_map is not None and args.device is not None:
        raise ValueError("give either device or device_map, not both.")
    if args.data is not None and not Path(args.data).is_dir():
        raise ValueError(f"data must be a folder, got {args.data!r}.")


def _real(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text  # refused, with its name, by the check that follows


def _models(args: argparse.Namespace) -> tuple[Model, ...]:
    from dartree.paper.grid import MODELS, Model, names_of
    from dartree.stack import pair_name

    if args.rehearsal:
        return (Model("tiny", stack="tiny"),)
    if args.models is None and args.target is not None:
        name = pair_name(args.target, args.drafter)
        return (Model(name, None, args.target, args.drafter, args.dflash),)
    names = names_of(_given(args.models, "4B,8B"), list(MODELS), "models")
    own = {part: getattr(args, part) for part in OWN if getattr(args, part) is not None}
    if own and len(names) > 1:
        raise ValueError(
            f"models must name one model where {next(iter(own))} is given, got {args.models!r}."
        )
    return tuple(replace(MODELS[name], **own) for name in names)


def _placing(args: argparse.Namespace, local: int) -> dict[str, Any]:
    """What `load_stack` needs besides names; this process's own GPU where none is named."""
    import torch

    from dartree.stack import torch_dtype
    from dartree.tensor_parallel import TENSOR_PARALLEL

    use_threads(args.threads)
    device = args.device
    if device == "cuda":  # without an index: every process has its own
        device = f"cuda:{local}"
    alone = args.device_map in (None, TENSOR_PARALLEL)
    if device is None and alone and torch.cuda.is_available():
        device = f"cuda:{local}"
    return {"device": device, "dtype": torch_dtype(args.dtype), "device_map": args.device_map}


def _load(model: Model, grid: Grid, placing: dict[str, Any]) -> Stack:
    from dartree.paper.dry import layout, memory_line
    from dartree.paper.grid import doubts
    from dartree.paper.run import load_model

    try:  # said before anything is loaded
        print(memory_line(model, grid.settings, *layout(placing)), file=sys.stderr)
    except ValueError:  # its configs are not here yet, or not in order: loading says what is wrong
        pass
    stack = load_model(model, **placing)
    for doubt in doubts(model, stack.target.config.to_dict(), grid.max_new_tokens):
        print(f"warning: {doubt}", file=sys.stderr)
    for part, source in stack.sources.items():
        print(f"{model.name} {part}: {source.name} @ {source.identity()}", file=sys.stderr)
    return stack


def _share(grid: Grid, rank: int, world: int) -> int:
    turns = sum(len(row.turns) for _, row in grid.prompts(rank, world))
    return len(grid.models) * len(grid.methods) * turns


def _with_bar(total: int, done: int, rank: int, silent: bool, work) -> None:
    from tqdm import tqdm

    look = {"unit": "run", "file": sys.stderr, "mininterval": 1, "disable": silent}
    with tqdm(total=total, initial=done, position=rank, **look) as bar:

        def progress(what: str) -> None:
            bar.set_description(what, refresh=False)
            bar.update()

        work(progress)


def _tables(out: Path, records: list[dict[str, Any]]) -> int:
    from dartree.files import write_atomically
    from dartree.paper import tables
    from dartree.stack import data_dir

    if not records:
        raise ValueError(f"out holds no records, got {str(out)!r}.")
    found = tables.cells(records)
    published = tables.read_published(data_dir() / "published" / "paper_table1.csv")
    text = tables.format_tables(found, published)
    write_atomically(out / "tables.csv", tables.to_csv(tables.rows(found, published)))
    write_atomically(out / "tables.txt", text + "\n")
    print(text)
    if told := _what_differs(records):
        print(f"These records were made with different {told}: do not compare their times.",
              file=sys.stderr)  # fmt: skip
    return 0


def _what_differs(records: list[dict[str, Any]]) -> str:
    """ "name (value, value)" of every version and property of the machines that is not one."""
    values: dict[str, list[Any]] = {}
    for name, value in (
        pair for r in records for k in ("versions", "machine") for pair in r[k].items()
    ):
        seen = values.setdefault(name, [])
        if value not in seen:
            seen.append(value)
    return "; ".join(f"{n} ({', '.join(map(str, v))})" for n, v in values.items() if len(v) > 1)
