"""What the commands that run many prompts share: their options, the progress bar, the JSON file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dartree.arguments import check_early, integer


def prompt_arguments(parser: argparse.ArgumentParser, limit: int | None, repeats: int) -> None:
    """Which prompts and methods, how often, and the file; ``limit`` and ``repeats``: defaults."""
    most = "all" if limit is None else limit
    parser.add_argument(
        "--prompts", metavar="FILE.jsonl",
        help="a line is an object with id, domain and one of prompt, messages, ids; default: the "
        "bundled held-out prompts of the three domains",
    )  # fmt: skip
    parser.add_argument("--limit", metavar="N", help=f"prompts per domain (default {most})")
    parser.add_argument("--methods", metavar="a,b,...", help="default: all; ar is always run")
    parser.add_argument("--repeats", metavar="R", help=f"timed repeats (default {repeats})")
    parser.add_argument("--json", metavar="FILE", help="also write the result as JSON")
    parser.set_defaults(limit=None if limit is None else str(limit), repeats=str(repeats))


def checked(args: argparse.Namespace) -> tuple[list[str], int, list[dict[str, Any]]]:
    """Methods, repeats and prompts that the options ask for, before any model is loaded."""
    from dartree.checks import positive_int
    from dartree.files import check_output
    from dartree.methods import METHODS

    methods = list(METHODS) if args.methods is None else method_names(args.methods)
    check_early(args, methods)
    limit = None
    if args.limit is not None:
        limit = positive_int("limit", integer("limit", args.limit))
    repeats = positive_int("repeats", integer("repeats", args.repeats))
    prompts = prompt_rows(prompt_files(args.prompts), limit)
    check_output("json", args.json)
    return methods, repeats, prompts


def check_timed(max_new_tokens: int) -> None:
    """ValueError for a length of which nothing is timed: the first token has no round."""
    if max_new_tokens < 2:
        raise ValueError("max_new_tokens must be at least 2, got 1: the first is not timed.")


def method_names(text: str) -> list[str]:
    """Methods in a comma-separated list, each once."""
    from dartree.methods import METHODS, check_method

    names = list(dict.fromkeys(name.strip() for name in text.strip(" ,").split(",")))
    if names == [""]:
        raise ValueError(f"methods must name one or more of {', '.join(METHODS)}, got none.")
    return [check_method(name) for name in names]


def prompt_files(path: str | None) -> list[Path]:
    """The prompts file that was given, or the bundled ones."""
    from dartree.stack import data_dir

    return sorted((data_dir() / "prompts").glob("*.jsonl")) if path is None else [Path(path)]


def prompt_rows(files: list[Path], limit: int | None = None) -> list[dict[str, Any]]:
    """Rows of all ``files``; ``limit`` keeps the first of each domain of a file."""
    from dartree.prompt_files import load_prompts

    return [row for file in files for row in load_prompts(file, limit)]


def prompts_name(path: str | None) -> str:
    """How tables name the prompts: by files, without the folders of this machine."""
    names = ", ".join(file.name for file in prompt_files(path))
    return f"bundled: {names}" if path is None else names


def with_progress(total: int, work: Callable[[Callable[[str], None]], Any]) -> Any:
    """work(progress), with a bar of ``total`` calls of progress(text) on stderr."""
    from tqdm import tqdm

    # With a delay, so that a setting that is refused gets its sentence alone.
    with tqdm(total=total, unit="run", file=sys.stderr, delay=1) as bar:

        def progress(what: str) -> None:
            bar.set_description(what, refresh=False)
            bar.update()

        return work(progress)


def write_json(path: str | None, result: Any, indent: int | None = None) -> None:
    """Write ``result`` to ``path`` if one was given; an old file stays whole until then."""
    from dartree.files import write_atomically

    if path:
        text = json.dumps(result, ensure_ascii=False, indent=indent)
        write_atomically(Path(path), text + "\n")
