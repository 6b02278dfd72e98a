"""``dartree compare``: all methods on the same prompts."""

from __future__ import annotations

import argparse

from dartree.arguments import (
    load,
    sampling,
    sampling_arguments,
    stack_arguments,
    tree_arguments,
    tree_settings,
)
from dartree.commands.many_prompts import (
    checked,
    prompt_arguments,
    prompts_name,
    with_progress,
    write_json,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``dartree compare``."""
    stack_arguments(parser)
    prompt_arguments(parser, limit=None, repeats=1)
    tree_arguments(parser)
    sampling_arguments(parser, max_new_tokens=128)


def run(args: argparse.Namespace) -> int:
    """Run the methods in turn and print their table."""
    from dartree.compare import compare, format_table

    methods, repeats, prompts = checked(args)
    stack = load(args)
    options = {"repeats": repeats, "prompts_file": prompts_name(args.prompts), **sampling(args)}
    settings = tree_settings(args, stack.settings)
    result = with_progress(
        len(prompts) * repeats * len({"ar", *methods}),
        lambda progress: compare(stack, prompts, methods, settings, progress=progress, **options),
    )
    print(format_table(result))
    write_json(args.json, result)
    return 0
