"""``dartree stacks``: the bundled stacks, and the memory that they and the public ones need."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from dartree.arguments import integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true")
    needs = parser.add_argument_group("memory estimate, from configurations alone")
    needs.add_argument("--target", metavar="PATH_OR_ID", help="the estimate for this target ...")
    needs.add_argument("--drafter", metavar="PATH_OR_ID", help="... with this drafter, no other")
    needs.add_argument(
        "--context", metavar="N", help="tokens, at most the model's limit (default: 4096)"
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
        limit = " (the model's limit)" if need["at_limit"] else ""
        print(f"{need['name']}, {need['dtype']}, {need['context']} tokens{limit}: {need['line']}")
    return 0


def estimates(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Estimates for the pair that was asked for, or else for the bundled and the public stacks.

    Each a dict: name, context (at_limit: shorter than asked for, being the model's limit), dtype,
    the parts of `memory.Estimate` in bytes, total and a line.
    """
    import torch

    from dartree.memory import estimate, table
    from dartree.settings import TreeSettings
    from dartree.stack import torch_dtype

    names = [n for n in ("width", "candidates", "budget") if getattr(args, n) is not None]
    given: dict[str, Any] = {n: integer(n, getattr(args, n)) for n in names}
    settings = TreeSettings(**given)
    asked = 4096 if args.context is None else integer("context", args.context)
    dtype, rows = torch_dtype(args.dtype) or torch.bfloat16, []
    for name, target, drafter in _pairs(args):
        limit = target.get("max_position_embeddings")
        limit = limit if isinstance(limit, int) and limit > 0 else asked
        if args.target and args.context is not None and asked > limit:
            raise ValueError(f"context must be at most {limit}, got {asked}.")
        need = estimate(target, drafter, settings, min(asked, limit), dtype.itemsize)
        rows.append(
            {
                "name": name,
                "context": min(asked, limit),
                "at_limit": asked > limit,
                "dtype": str(dtype)[6:],
            }
            | asdict(need)
            | {"total": need.total, "line": table(need)}
        )
    return rows


def _pairs(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """(name, target's config.json, drafter's config) of everything to be estimated."""
    from dartree.public import DRAFTERS, pair_configs
    from dartree.stack import bundled_sources, bundled_stacks

    if args.target is not None:
        yield f"{args.target} + {args.drafter}", *pair_configs(args.target, args.drafter)
        return
    for name in bundled_stacks():
        _, sources = bundled_sources(name)
        yield name, *pair_configs(sources["target"].folder, sources["drafter"].folder)
    for drafter, (target, _) in DRAFTERS.items():
        yield f"{target} + {drafter}", *pair_configs(target, drafter)
