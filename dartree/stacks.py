"""``dartree stacks``: the bundled stacks, and the memory that they and the public ones need."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dartree.arguments import integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true")
    needs = parser.add_argument_group("memory estimate, from configurations alone")
    needs.add_argument("--target", metavar="FOLDER", help="the estimate for this target ...")
    needs.add_argument("--drafter", metavar="FOLDER", help="... with this drafter, nothing else")
    needs.add_argument(
        "--context", metavar="N", help="tokens (default: 4096, or the model's limit)"
    )
    for name, letter in (("width", "W"), ("candidates", "K"), ("budget", "B")):
        needs.add_argument(f"--{name}", metavar=letter)
    needs.add_argument("--dtype", default="bfloat16", help="bfloat16 (default), float32, ...")


def run(args: argparse.Namespace) -> int:
    """Print the bundled stacks and the estimates."""
    from dartree.stack import bundled_stacks, describe

    if (args.target is None) != (args.drafter is None):
        raise ValueError("target and drafter must be given together.")
    bundled = [] if args.target else [describe(name) for name in bundled_stacks()]
    needs = estimates(args)
    if args.json:
        by_name = {need["name"]: need for need in needs}
        for row in bundled:
            row["memory"] = by_name.pop(row["name"])
        print(json.dumps(bundled + [{"name": n, "memory": need} for n, need in by_name.items()]))
        return 0
    for row in bundled:
        print(f"{row['name']}: {row['description']}")
        for part in row["parts"]:
            print(f"  {part['name']:<8} {part['parameters']:>11,} parameters  "
                  f"{part['bytes'] / 2**20:6.1f} MiB  {part['folder']}")  # fmt: skip
    if bundled:
        print("\nMemory for one prompt at a time, from configurations alone (nothing is loaded):")
    for need in needs:
        print(f"{need['name']}, {need['dtype']}, {need['context']} tokens: {need['line']}")
    return 0


def estimates(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Estimates for the pair that was asked for, or else for the bundled and the public stacks.

    Each a dict: name, context, dtype, the parts of `memory.Estimate` in bytes, total and a line.
    """
    import torch

    from dartree.memory import estimate, table
    from dartree.settings import TreeSettings
    from dartree.stack import torch_dtype

    names = [n for n in ("width", "candidates", "budget") if getattr(args, n) is not None]
    given: dict[str, Any] = {n: integer(n, getattr(args, n)) for n in names}
    settings = TreeSettings(**given)
    dtype, rows = torch_dtype(args.dtype) or torch.bfloat16, []
    for name, target, drafter in _pairs(args):
        limit = target.get("max_position_embeddings", 4096)
        context = min(4096, limit) if args.context is None else integer("context", args.context)
        if args.target and context > limit:
            raise ValueError(f"context must be at most {limit}, got {context}.")
        need = estimate(target, drafter, settings, min(context, limit), dtype.itemsize)
        rows.append(
            {"name": name, "context": min(context, limit), "dtype": str(dtype)[6:]}
            | asdict(need)
            | {"total": need.total, "line": table(need)}
        )
    return rows


def _pairs(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """(name, target's config.json, drafter's config) of everything to be estimated."""
    from dartree import public
    from dartree.configs import parse_drafter_config, read_json
    from dartree.stack import bundled_stacks, data_dir

    if args.target is not None:
        folders = [(f"{args.target} + {args.drafter}", Path(args.target), Path(args.drafter))]
    else:
        places = {name: data_dir() / "stacks" / name for name in bundled_stacks()}
        cards = {name: read_json(folder / "stack.json") for name, folder in places.items()}
        folders = [(n, places[n] / c["target"], places[n] / c["drafter"]) for n, c in cards.items()]
    for name, target, drafter in folders:
        path = drafter / "config.json"
        config = parse_drafter_config(read_json(path), str(path))
        yield name, read_json(target / "config.json"), config
    if args.target is None:
        for name, (model, raw) in public.DRAFTERS.items():
            yield f"{model} + {name}", public.target_config(model), parse_drafter_config(raw)
