"""``dartree generate``: one text, streamed while it is decoded."""

from __future__ import annotations

import argparse
import json
import sys

from dartree.arguments import (
    check_compile,
    check_early,
    integer,
    load,
    sampling,
    sampling_arguments,
    stack_arguments,
    tree_arguments,
    tree_settings,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``dartree generate``."""
    from dartree.methods import METHODS

    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="text; '-' reads stdin")
    parser.add_argument("--ids", metavar="1,2,3", help="the prompt as token ids")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument(
        "--method", default="dartree", metavar="NAME", help=f"{', '.join(METHODS)} (default)"
    )
    stack_arguments(parser)
    tree_arguments(parser)
    sampling_arguments(parser, max_new_tokens=256)
    parser.add_argument(
        "--stop", action="append", metavar="ID_OR_TEXT",
        help="stop at this id or text (repeatable); default: the stack's own stop ids",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, nothing else; its "
        "accepted_per_round counts what a round commits: accepted drafts and the bonus token",
    )  # fmt: skip
    parser.add_argument("--no-stream", action="store_true", help="print the text at the end")
    parser.add_argument("--records", metavar="FILE.jsonl", help="save one record per round")


def run(args: argparse.Namespace) -> int:
    """Decode, and print text or JSON as it was asked for."""
    check_early(args, [args.method])
    check_compile(args)  # before the prompt, which --compile may have taken
    prompt = _prompt(args)
    from dartree.checks import counted
    from dartree.decode import Decoding, stream_text
    from dartree.files import check_output
    from dartree.records import save_records
    from dartree.report_tables import number

    check_output("records", args.records)
    stack = load(args)
    decoding = Decoding(
        stack, prompt, method=args.method, settings=tree_settings(args, stack.settings),
        stop=_stops(args.stop), raw=args.raw, **sampling(args),
    )  # fmt: skip
    result, quiet = decoding.result, args.json or args.no_stream
    if result.lacks_head:
        print(f"[{result.method} runs on the marginals: {result.drafter}]", file=sys.stderr)
    try:
        for piece in stream_text(decoding):
            if not quiet:
                print(piece, end="", flush=True)
    finally:  # an error or Ctrl-C loses nothing that was committed
        try:
            if args.records:
                save_records(result.records, args.records)
        finally:
            if args.json:
                print(json.dumps(result.to_dict(), ensure_ascii=False))
            else:
                print(result.text if args.no_stream else "", flush=True)
    if args.json:
        return 0
    threads = counted(result.threads, "thread")
    print(
        f"[{result.method}: {counted(result.new_tokens, 'token')} in "
        f"{counted(result.rounds, 'round')}, tau {number(result.tau)}, "
        f"{number(result.tokens_per_second, 0)} tokens/s, ended by {result.stop_reason}; "
        f"{result.dtype}, {result.device}, {threads}]",
        file=sys.stderr,
    )
    return 0


def _prompt(args: argparse.Namespace) -> str | list[int]:
    if (args.prompt is None) == (args.ids is None):
        raise ValueError("give a prompt: either PROMPT or --ids.")
    if args.ids is not None:
        return [integer("ids", part) for part in args.ids.split(",")]
    try:
        return sys.stdin.read() if args.prompt == "-" else args.prompt
    except UnicodeDecodeError as error:
        raise ValueError(f"prompt must be valid Unicode: {error}.") from None


def _stops(values: list[str] | None) -> list[int | str] | None:
    if values is None:
        return None
    return [int(v) if v.isdecimal() else v for v in values]
