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
    from dartree.settings import TreeSettings
    from dartree.stack import Stack

OWN = ("target", "drafter", "dflash")  # options that name checkpoints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--models", metavar="a,b,...", help="of 4B, 8B, 4B-dspark, 8B-dspark (default 4B,8B)"
    )
    what.add_argument(
        "--target", metavar="PATH_OR_ID", help="a folder or owner/name@revision: with one of "
        "--models its target, else a target of your own, and",
    )  # fmt: skip
    what.add_argument("--drafter", metavar="PATH_OR_ID", help="its drafter")
    what.add_argument(
        "--dflash", metavar="PATH_OR_ID", help="its drafter without a head, for dflash and ddtree"
    )
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
        help="the whole grid on the bundled stack and prompts, without any download; --datasets "
        "then chooses among arithmetic, code, prose, two-turns and .jsonl files",
    )  # fmt: skip
    tree_arguments(parser)
    where = parser.add_argument_group(
        "where", "Several GPUs, or processes on a CPU, each with a share of the prompts: torchrun "
        "--nproc_per_node N -m dartree paper ... (or accelerate launch; without --multi_gpu it "
        "starts one process on a machine without GPUs).",
    )  # fmt: skip
    where.add_argument("--out", default="build/paper", metavar="DIR", help="records and tables")
    where.add_argument("--data", metavar="DIR", help="local copies of data sets, NAME.jsonl")
    where.add_argument("--dtype", help="bfloat16 (default on a GPU), float32 (on a CPU), ...")
    where.add_argument("--device", help="default: this process's GPU, or the CPU")
    where.add_argument(
        "--device-map", metavar="MAP", help="a target too large for one GPU: auto, ... puts layers "
        "on several; tensor-parallel splits every layer over the processes of torchrun",
    )  # fmt: skip
    where.add_argument("--threads", metavar="N", help="CPU threads")
    where.add_argument("--tables", action="store_true", help="only the tables of what is there")


def run(args: argparse.Namespace) -> int:
    """Run the command's grid and print its tables."""
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
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out cannot be made, got {args.out!r}: {error.strerror}.") from None
    placing = _placing(args, local)
    grid = replace(grid, rows=_rows(args, out))  # last: it may have to fetch them
    together = args.device_map == TENSOR_PARALLEL  # all processes make the same round
    share = (0, 1) if together else (rank, world)
    if rank == 0:
        print(_plan(grid, world), file=sys.stderr)
    silent = together and rank > 0
    _with_bar(_share(grid, *share), rank, silent, lambda progress: run_grid(
        grid, out, rank=share[0], world=share[1], progress=progress, write=not silent,
        load=lambda model: _load(model, grid.settings, placing),
        identify=lambda model: identify(model, **placing),
    ))  # fmt: skip
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
    from dartree.methods import check_method
    from dartree.paper.grid import METHODS, Grid
    from dartree.settings import TreeSettings

    _refuse_contradictions(args)
    methods = [m.strip() for m in _given(args.methods, ",".join(METHODS)).split(",")]
    temperatures = [non_negative("temperatures", _real(t)) for t in args.temperatures.split(",")]
    if args.limit is not None:
        positive_int("limit", integer("limit", args.limit))
    length = _given(args.max_new_tokens, "64" if args.rehearsal else "2048")
    return Grid(
        models=_models(args),
        rows={},
        temperatures=tuple(dict.fromkeys(temperatures)),
        methods=tuple(dict.fromkeys(["ar", *map(check_method, methods)])),
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

    if args.rehearsal:
        return (Model("tiny", stack="tiny"),)
    if args.models is None and args.target is not None:
        name = f"{Path(args.target).name} + {Path(args.drafter).name}"
        return (Model(name, None, args.target, args.drafter, args.dflash),)
    names = names_of(_given(args.models, "4B,8B"), list(MODELS), "models")
    own = {part: getattr(args, part) for part in OWN if getattr(args, part) is not None}
    if own and len(names) > 1:
        raise ValueError(
            f"models must name one model where {next(iter(own))} is given, got {args.models!r}."
        )
    return tuple(replace(MODELS[name], **own) for name in names)


def _rows(args: argparse.Namespace, out: Path) -> dict[str, list]:
    """Prompts by data set; what was fetched is kept in ``out`` and not fetched again."""
    from dartree.datasets import DATASETS

    limit = None if args.limit is None else int(args.limit)
    find = _rehearsal_set if args.rehearsal else lambda name: _public_set(name, args.data, out)
    default = "arithmetic,code,prose,two-turns" if args.rehearsal else ",".join(DATASETS)
    rows: dict[str, list] = {}
    for name in dict.fromkeys(n.strip() for n in _given(args.datasets, default).split(",")):
        found = find(name)
        if found[0].dataset in rows:
            raise ValueError(f"datasets has {found[0].dataset!r} twice.")
        rows[found[0].dataset] = found[:limit]
    return rows


def _rehearsal_set(name: str) -> list:
    from dartree.datasets import load_dataset
    from dartree.paper.rehearsal import rehearsal_rows

    bundled = rehearsal_rows()
    if name in bundled:
        return bundled[name]
    if not name.endswith(".jsonl"):
        raise ValueError(
            f"datasets of a rehearsal must be among {', '.join(bundled)}, or .jsonl files, got "
            f"{name!r}."
        )
    return load_dataset(name)


def _public_set(name: str, data: str | None, out: Path) -> list:
    from dartree.datasets import DATASETS, load_dataset, save_rows

    kept = out / "prompts"
    places = [
        place for place in (data, kept) if place and (Path(place) / f"{name}.jsonl").is_file()
    ]
    found = load_dataset(name, places[0] if places else data)
    if name in DATASETS and not (kept / f"{name}.jsonl").exists():
        kept.mkdir(parents=True, exist_ok=True)
        save_rows(found, kept / f"{name}.jsonl")
    return found


def _placing(args: argparse.Namespace, local: int) -> dict[str, Any]:
    """What `load_stack` needs besides names; this process's own GPU where none is named."""
    import torch

    from dartree.checks import positive_int
    from dartree.stack import torch_dtype
    from dartree.tensor_parallel import TENSOR_PARALLEL

    if args.threads is not None:
        torch.set_num_threads(positive_int("threads", integer("threads", args.threads)))
    device = args.device
    alone = args.device_map in (None, TENSOR_PARALLEL)
    if device is None and alone and torch.cuda.is_available():
        device = f"cuda:{local}"
    return {"device": device, "dtype": torch_dtype(args.dtype), "device_map": args.device_map}


def _load(model: Model, settings: TreeSettings, placing: dict[str, Any]) -> Stack:
    from dartree import memory, public
    from dartree.configs import parse_drafter_config
    from dartree.paper.run import load_model

    for drafter in (model.drafter, model.dflash):  # said before anything is loaded
        if drafter in public.DRAFTERS:
            target, raw = public.DRAFTERS[drafter]
            need = memory.estimate(
                public.target_config(target), parse_drafter_config(raw), settings, 4096
            )
            line = memory.table(need) if drafter == model.drafter else memory.gib(need.drafter)
            what = model.name if drafter == model.drafter else "its drafter for dflash and ddtree"
            print(f"{what}, bfloat16, 4096 tokens: {line}", file=sys.stderr)
    stack = load_model(model, **placing)
    _warn_of_another_size(model, stack.target.config.hidden_size)
    for part, source in stack.sources.items():
        print(f"{model.name} {part}: {source.name} @ {source.identity()}", file=sys.stderr)
    return stack


def _warn_of_another_size(model: Model, hidden_size: int) -> None:
    """Say so where a model's name stands for a target that cannot be the public one."""
    from dartree import public
    from dartree.paper.grid import MODELS

    named = MODELS.get(model.name)
    if named is None or named.target is None:
        return
    want = public.target_config(named.target)["hidden_size"]
    if hidden_size != want:
        print(
            f"{model.target} is not {named.target}: its hidden_size is {hidden_size}, not {want}; "
            f"do not compare it with what was published for {model.name}.", file=sys.stderr,
        )  # fmt: skip


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


def _with_bar(total: int, rank: int, silent: bool, work) -> None:
    from tqdm import tqdm

    look = {"unit": "run", "file": sys.stderr, "mininterval": 1, "disable": silent}
    with tqdm(total=total, position=rank, **look) as bar:

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
    versions = {tuple(sorted(r["versions"].items())) for r in records}
    machines = {tuple(sorted(r["machine"].items())) for r in records}
    if len(versions) > 1 or len(machines) > 1:
        print(f"{len(versions)} sets of versions and {len(machines)} machines made these records: "
              "do not compare their times.", file=sys.stderr)  # fmt: skip
    return 0
