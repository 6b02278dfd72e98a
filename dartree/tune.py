"""``dartree tune``: each method's fastest settings on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dartree.arguments import (
    integer,
    load,
    method_names,
    prompt_files,
    prompt_rows,
    stack_arguments,
)


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
    from dartree.files import check_output, write_atomically
    from dartree.methods import METHODS

    names = ("limit", "repeats", "max_new_tokens")
    limit, repeats, tokens = (positive_int(n, integer(n, getattr(args, n))) for n in names)
    if tokens < 2:
        raise ValueError("max_new_tokens must be at least 2, got 1: the first is not timed.")
    methods = with_settings(METHODS if args.methods is None else method_names(args.methods))
    prompts = split_off(prompt_rows(prompt_files(args.prompts)), limit)
    check_output("json", args.json)
    result = tune(
        load(args), prompts, methods, max_new_tokens=tokens, repeats=repeats,
        progress=lambda text: print(f"tune: {text}", file=sys.stderr, flush=True),
    )  # fmt: skip
    print(format_tuning(result))
    if args.json:
        write_atomically(Path(args.json), json.dumps(result, indent=1) + "\n")
    return 0
