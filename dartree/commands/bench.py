"""``dartree bench``: time all methods and three one-token baselines, or sweep a parameter."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dartree.arguments import (
    generate_options,
    load,
    option,
    sampling,
    sampling_arguments,
    stack_arguments,
    tree_arguments,
    tree_settings,
)
from dartree.commands.many_prompts import (
    check_timed,
    checked,
    prompt_arguments,
    prompts_name,
    with_progress,
    write_json,
)
from dartree.commands.tune import (
    tell_tuned_elsewhere,
    tuned_file,
    tuned_of,
    tuned_settings,
)

if TYPE_CHECKING:
    from dartree.stack import Stack


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``dartree bench``."""
    stack_arguments(parser)
    prompt_arguments(parser, limit=4, repeats=5)
    parser.add_argument("--tuned", nargs="?", const="", metavar="FILE", help="each method at the "
                        "settings that were fastest for it: those in the stack's card, or in a "
                        "FILE of `dartree tune --json`")  # fmt: skip
    parser.add_argument("--no-compile", action="store_true", help="leave ar-compiled out")
    parser.add_argument(
        "--memory", action="store_true", help="also peak resident memory, and memory by stage"
    )
    parser.add_argument(
        "--sweep", action="append", metavar="WHAT", help="budget, width, candidates, "
        "depth_penalty, prefix or threads, in place of the methods' table (repeatable); "
        "--methods: those swept",
    )  # fmt: skip
    tree_arguments(parser)
    sampling_arguments(parser, max_new_tokens=128)


def run(args: argparse.Namespace) -> int:
    """Time the methods, or sweep, and print the tables."""
    methods, repeats, prompts = checked(args)
    options = {"repeats": repeats, "prompts_file": prompts_name(args.prompts), **sampling(args)}
    check_timed(options["max_new_tokens"])
    _refuse_contradictions(args)
    tuned = tuned_file(args)
    stack = load(args)
    if args.sweep:
        chosen = None if args.methods is None else methods
        return _sweep(args, stack, prompts, chosen, options)
    settings: Any = tree_settings(args, stack.settings)
    if args.tuned is not None:
        settings = tuned_of(stack) if tuned is None else tuned_settings(tuned)
        _tell_not_tuned(methods, settings)
    return _bench(args, stack, prompts, methods, settings, options, tuned)


def _refuse_contradictions(args: argparse.Namespace) -> None:
    """ValueError for an unknown sweep, and for an option that another one would make void."""
    from dartree.bench import SWEEPS

    for name in args.sweep or ():
        if name not in SWEEPS:
            raise ValueError(f"sweep must be one of {', '.join(SWEEPS)}, got {name!r}.")
        if getattr(args, name, None) is not None:
            raise ValueError(f"sweep {name} cannot be combined with {option(name)}.")
    for name in ("tuned", "memory", "no_compile"):
        if args.sweep and getattr(args, name) not in (None, False):
            raise ValueError(f"sweep cannot be combined with {option(name)}.")
    if args.device_map and not (args.no_compile or args.sweep):
        raise ValueError("device_map needs --no-compile: a graph of the target has one device.")
    if args.memory and args.compile:
        raise ValueError("memory cannot be combined with --compile: a graph hides its tensors.")


def _tell_not_tuned(methods: list[str], settings: dict[str, Any]) -> None:
    from dartree.methods import TABLE

    if others := [m for m in methods if m not in settings and TABLE[m].uses]:
        print(f"[not tuned, at the stack's settings: {', '.join(others)}]", file=sys.stderr)


def _sweep(
    args: argparse.Namespace,
    stack: Stack,
    prompts: list[dict[str, Any]],
    methods: list[str] | None,
    options: dict[str, Any],
) -> int:
    from dartree.bench import format_sweep, sweep

    settings = tree_settings(args, stack.settings)
    results = [
        sweep(stack, prompts, name, methods=methods, settings=settings, **options)
        for name in dict.fromkeys(args.sweep)
    ]
    print("\n\n".join(format_sweep(r) for r in results))
    write_json(args.json, results)
    return 0


def _bench(
    args: argparse.Namespace,
    stack: Stack,
    prompts: list[dict[str, Any]],
    methods: list[str],
    settings: Any,
    options: dict[str, Any],
    tuned: dict[str, Any] | None,
) -> int:
    from dartree.bench import bench, format_bench, format_memory, memory, memory_by_stage
    from dartree.prompt_files import prompt_of

    baselines = 1 if args.no_compile else 2
    result = with_progress(
        len(prompts) * options["repeats"] * (len({"ar", *methods}) + baselines),
        lambda progress: bench(
            stack, prompts, methods, settings, compiled=not args.no_compile, progress=progress,
            **options,
        ),
    )  # fmt: skip
    print(format_bench(result), flush=True)
    if tuned is not None:
        tell_tuned_elsewhere(tuned, stack, result)
    write_json(args.json, result)
    if args.memory:  # last: a process that is killed while it is weighed takes no times with it
        ids = stack.encode(prompt_of(prompts[0]))
        own = settings.get("dartree") if isinstance(settings, dict) else settings
        result["memory"] = memory(stack, generate_options(args, ids, own or stack.settings))
        result["stage_memory"] = memory_by_stage(stack, ids, settings, options["max_new_tokens"])
        print(f"\n{format_memory(result)}")
        write_json(args.json, result)
    return 0
