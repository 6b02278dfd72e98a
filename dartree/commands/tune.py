"""``dartree tune``: each method's fastest settings on this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dartree.arguments import integer, load, option, stack_arguments
from dartree.commands.many_prompts import (
    check_timed,
    method_names,
    prompt_files,
    prompt_rows,
    write_json,
)

if TYPE_CHECKING:
    from dartree.stack import Stack


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``dartree tune``."""
    stack_arguments(parser)
    parser.add_argument("--prompts", metavar="FILE.jsonl", help="default: the bundled prompts")
    parser.add_argument(
        "--limit", default="8", metavar="N",
        help="prompts per domain, the last ones: bench takes the first (default 8)",
    )  # fmt: skip
    parser.add_argument("--methods", metavar="a,b,...", help="default: all that have settings")
    parser.add_argument("--repeats", default="3", metavar="R", help="of the finalists (default 3)")
    parser.add_argument("--max-new-tokens", default="96", metavar="N")
    parser.add_argument("--json", metavar="FILE", help="also write all trials, for bench --tuned")


def run(args: argparse.Namespace) -> int:
    """Time all settings, print the fastest of each method."""
    from dartree.analysis.tuning import format_tuning, split_off, tune, with_settings
    from dartree.checks import positive_int
    from dartree.files import check_output
    from dartree.methods import METHODS

    names = ("limit", "repeats", "max_new_tokens")
    limit, repeats, tokens = (positive_int(n, integer(n, getattr(args, n))) for n in names)
    check_timed(tokens)
    methods = with_settings(METHODS if args.methods is None else method_names(args.methods))
    prompts = split_off(prompt_rows(prompt_files(args.prompts)), limit)
    check_output("json", args.json)
    result = tune(
        load(args), prompts, methods, max_new_tokens=tokens, repeats=repeats,
        progress=lambda text: print(f"tune: {text}", file=sys.stderr, flush=True),
    )  # fmt: skip
    print(format_tuning(result))
    write_json(args.json, result, indent=1)
    return 0


def tuned_file(args: argparse.Namespace) -> dict[str, Any] | None:
    """What the FILE of --tuned holds; None where there is none."""
    from dartree.settings import TreeSettings

    if args.tuned is None:
        return None
    for name in TreeSettings().to_dict():
        if getattr(args, name) is not None:
            raise ValueError(f"tuned gives the settings itself; leave out {option(name)}.")
    if not args.tuned:
        return None
    from dartree.analysis.tuning import read_tuning

    found = read_tuning(args.tuned)
    name = _stack_name(args)
    if name != found["stack"]:
        raise ValueError(f"tuned is for the stack {found['stack']!r}, got {name!r}.")
    return found


def tuned_settings(found: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by method of a file that :func:`tuned_file` read."""
    from dartree.analysis.tuning import winners
    from dartree.settings import TreeSettings

    return {m: TreeSettings(**s) for m, s in winners(found).items()}


def tell_tuned_elsewhere(found: Mapping[str, Any], stack: Stack, result: Mapping[str, Any]) -> None:
    """Say where the settings of a file were found, unless the benchmark ``result`` ran there."""
    from dartree.compiled import compiled_parts
    from dartree.report_tables import run_on

    compiled = compiled_parts(stack) or "nothing"
    there = _place(found.get("on"), found.get("compiled"), found.get("machine"))
    here = _place(run_on(result["methods"][0]), compiled, result["machine"])
    if there != here:
        print(f"[tuned elsewhere: {there}; this run: {here}]", file=sys.stderr)


def _place(on: Any, compiled: Any, machine: Any) -> str:
    known = machine if isinstance(machine, dict) else {}
    names = [str(known[name]) for name in ("processor", "gpu") if known.get(name)]
    cores = [f"cores: {known['cores']}"] if known.get("cores") else []
    return ", ".join([str(on), f"torch.compile: {compiled}", *names, *cores])


def _stack_name(args: argparse.Namespace) -> str:
    """The name that the stack of the options will have, before it is loaded."""
    from dartree.stack import DEFAULT_STACK, pair_name

    if args.target is None or args.drafter is None:
        return DEFAULT_STACK if args.stack is None else args.stack
    return pair_name(args.target, args.drafter)


def tuned_of(stack: Stack) -> dict[str, Any]:
    """The tuned settings of a stack's card; ValueError where it has none."""
    if not stack.tuned:
        raise ValueError(f"stack {stack.name!r} has no tuned settings; its card lists none.")
    return stack.tuned
