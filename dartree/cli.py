"""The console script: one parser and one handler for each command."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dartree.arguments import (
    check_early,
    generate_options,
    integer,
    load,
    method_names,
    option,
    prompt_files,
    prompt_rows,
    sampling,
    sampling_arguments,
    stack_arguments,
    tree_arguments,
    tree_settings,
)


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0, 1 for failed work, 2 for bad input."""
    if hasattr(sys.stdout, "reconfigure"):  # a terminal may know fewer characters than a model
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        args = build_parser().parse_args(argv)
        return args.handler(args) or 0
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone: nothing left to tell it
        return 1
    except ValueError as error:
        print(f"dartree: {_one_line(error)}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"dartree: {_one_line(error)}", file=sys.stderr)
        return 1
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        reason = _one_line(error).partition(" GPU ")[0][:160].rstrip(". ")
        print(
            f"dartree: out of memory{f' ({reason})' if reason else ''}: --dtype bfloat16, a "
            "smaller --budget, --width or --max-new-tokens and shorter prompts need less, "
            "--device-map auto shares the target out over several GPUs; dartree stacks estimates "
            "what is needed.", file=sys.stderr,
        )  # fmt: skip
        return 1
    except (KeyboardInterrupt, ImportError) as error:
        if not _interrupted(error):
            raise
        print("dartree: interrupted.", file=sys.stderr)
        return 130


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is at the bottom of ``error``: transformers makes an ImportError of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _out_of_memory(error: Exception) -> bool:
    """Whether it is Python's, torch's on a GPU, or torch's on a CPU, which is a RuntimeError."""
    named = type(error).__name__ in ("MemoryError", "OutOfMemoryError")
    return named or "can't allocate memory" in str(error)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets ``handler`` to a function of the arguments."""
    parser = _Parser(
        prog="dartree", description="Learn, measure and extend tree-based speculative decoding."
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(
        parser_class=_Parser, dest="command", required=True, metavar="COMMAND"
    )

    from dartree.methods import METHODS

    generate = commands.add_parser("generate", help="generate text; streams while decoding")
    generate.add_argument("prompt", nargs="?", metavar="PROMPT", help="text; '-' reads stdin")
    generate.add_argument("--ids", metavar="1,2,3", help="the prompt as token ids")
    generate.add_argument("--raw", action="store_true", help="no chat template")
    generate.add_argument(
        "--method", default="dartree", metavar="NAME", help=f"{', '.join(METHODS)} (default)"
    )
    stack_arguments(generate)
    tree_arguments(generate)
    sampling_arguments(generate, max_new_tokens=256)
    generate.add_argument(
        "--stop", action="append", metavar="ID_OR_TEXT",
        help="stop at this id or text (repeatable); default: the stack's own stop ids",
    )  # fmt: skip
    generate.add_argument(
        "--json", action="store_true", help="print one JSON object, nothing else; its "
        "accepted_per_round counts what a round commits: accepted drafts and the bonus token",
    )  # fmt: skip
    generate.add_argument("--no-stream", action="store_true", help="print the text at the end")
    generate.add_argument("--records", metavar="FILE.jsonl", help="save one record per round")
    generate.set_defaults(handler=_generate)

    compare = commands.add_parser("compare", help="all methods on the same prompts")
    stack_arguments(compare)
    compare.add_argument(
        "--prompts", metavar="FILE.jsonl",
        help="default: the bundled held-out prompts of the three domains",
    )  # fmt: skip
    compare.add_argument("--limit", metavar="N", help="prompts per domain")
    compare.add_argument("--methods", metavar="a,b,...", help="default: all; ar is always run")
    compare.add_argument("--repeats", default="1", metavar="R")
    compare.add_argument("--json", metavar="FILE", help="also write the result as JSON")
    tree_arguments(compare)
    sampling_arguments(compare, max_new_tokens=128)
    compare.set_defaults(handler=_compare)

    bench = commands.add_parser("bench", help="time all methods and three one-token baselines")
    stack_arguments(bench)
    bench.add_argument("--prompts", metavar="FILE.jsonl", help="default: the bundled prompts")
    bench.add_argument("--limit", default="4", metavar="N", help="prompts per domain (default 4)")
    bench.add_argument("--methods", metavar="a,b,...", help="default: all; ar is always run")
    bench.add_argument("--repeats", default="5", metavar="R", help="timed repeats (default 5)")
    bench.add_argument("--tuned", nargs="?", const="", metavar="FILE", help="each method at the "
                       "settings that were fastest for it: those in the stack's card, or in a FILE "
                       "of `dartree tune --json`")  # fmt: skip
    bench.add_argument("--no-compile", action="store_true", help="leave ar-compiled out")
    bench.add_argument(
        "--memory", action="store_true", help="also peak resident memory, and memory by stage"
    )
    bench.add_argument(
        "--sweep", action="append", metavar="WHAT", help="budget, width, candidates, "
        "depth_penalty, prefix or threads, in place of the methods' table (repeatable); "
        "--methods: those swept",
    )  # fmt: skip
    bench.add_argument("--json", metavar="FILE", help="also write the result as JSON")
    tree_arguments(bench)
    sampling_arguments(bench, max_new_tokens=128)
    bench.set_defaults(handler=_bench)

    from dartree import tune as tuner

    tune = commands.add_parser("tune", help="find each method's fastest settings on this machine")
    tuner.add_arguments(tune)
    tune.set_defaults(handler=tuner.run)

    figures = commands.add_parser("figures", help="run the notebooks and write figures/")
    from dartree import reports

    reports.add_arguments(figures)
    figures.set_defaults(handler=reports.run)

    explore = commands.add_parser("explore", help="open the explorer's notebook in JupyterLab")
    from dartree import explore as explorer

    explorer.add_arguments(explore)
    explore.set_defaults(handler=explorer.run)

    from dartree.training import commands as training

    training.register(commands)

    from dartree.paper import commands as evaluation

    paper = commands.add_parser("paper", help="the paper's evaluation, resumable, and its tables")
    evaluation.add_arguments(paper)
    paper.set_defaults(handler=evaluation.run)

    from dartree import stacks as listing

    stacks = commands.add_parser("stacks", help="what is bundled, and the memory stacks need")
    listing.add_arguments(stacks)
    stacks.set_defaults(handler=listing.run)

    doctor = commands.add_parser("doctor", help="versions, threads, bf16, memory, what is missing")
    doctor.set_defaults(handler=_doctor)
    return parser


class _Parser(argparse.ArgumentParser):
    """No abbreviated options: they would change their meaning when another option is added."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})


class _Version(argparse.Action):
    def __init__(self, option_strings, dest, **_):
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser, *_):
        import dartree

        print(f"dartree {dartree.__version__}")
        parser.exit()


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


def _generate(args: argparse.Namespace) -> int:
    check_early(args, [args.method])
    prompt = _prompt(args)
    from dartree.checks import counted
    from dartree.decode import Decoding, stream_text
    from dartree.files import check_output
    from dartree.records import save_records

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
        if args.records:
            save_records(result.records, args.records)
        if args.json:
            print(json.dumps(result.to_dict(), ensure_ascii=False))
        else:
            print(result.text if args.no_stream else "", flush=True)
    if args.json:
        return 0
    tau = "-" if result.tau is None else f"{result.tau:.2f}"
    threads = counted(result.threads, "thread")
    print(
        f"[{result.method}: {counted(result.new_tokens, 'token')} in "
        f"{counted(result.rounds, 'round')}, tau {tau}, "
        f"{result.tokens_per_second or 0:.0f} tokens/s, ended by {result.stop_reason}; "
        f"{result.dtype}, {result.device}, {threads}]",
        file=sys.stderr,
    )
    return 0


def _many(args: argparse.Namespace) -> tuple[list[str], int, list[dict]]:
    """Methods, repeats and prompts of a command over many prompts, all checked."""
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


def _prompts_file(args: argparse.Namespace) -> str:
    """How tables name the prompts: by files, without the folders of this machine."""
    names = ", ".join(file.name for file in prompt_files(args.prompts))
    return names if args.prompts is not None else f"bundled: {names}"


def _with_progress(total: int, work: Callable[[Callable[[str], None]], Any]) -> Any:
    """work(progress), with a bar of ``total`` calls of progress(text) on stderr."""
    from tqdm import tqdm

    # With a delay, so that a setting that is refused gets its sentence alone.
    with tqdm(total=total, unit="run", file=sys.stderr, delay=1) as bar:

        def progress(what: str) -> None:
            bar.set_description(what, refresh=False)
            bar.update()

        return work(progress)


def _write_json(path: str | None, result: Any) -> None:
    from dartree.files import write_atomically

    if path:
        write_atomically(Path(path), json.dumps(result, ensure_ascii=False) + "\n")


def _compare(args: argparse.Namespace) -> int:
    from dartree.compare import compare, format_table

    methods, repeats, prompts = _many(args)
    stack = load(args)
    options = {"repeats": repeats, "prompts_file": _prompts_file(args), **sampling(args)}
    result = _with_progress(
        len(prompts) * repeats * len({"ar", *methods}),
        lambda progress: compare(
            stack,
            prompts,
            methods,
            tree_settings(args, stack.settings),
            progress=progress,
            **options,
        ),
    )
    print(format_table(result))
    _write_json(args.json, result)
    return 0


def _bench(args: argparse.Namespace) -> int:
    from dartree.bench import (
        SWEEPS,
        bench,
        format_bench,
        format_sweep,
        memory,
        memory_by_stage,
        sweep,
    )
    from dartree.methods import TABLE
    from dartree.prompt_files import prompt_of
    from dartree.tune import tuned_file, tuned_of

    methods, repeats, prompts = _many(args)
    options = {"prompts_file": _prompts_file(args), **sampling(args)}
    if options["max_new_tokens"] < 2:
        raise ValueError("max_new_tokens must be at least 2, got 1: the first is not timed.")
    for name in args.sweep or ():
        if name not in SWEEPS:
            raise ValueError(f"sweep must be one of {', '.join(SWEEPS)}, got {name!r}.")
    for name in ("tuned", "memory", "no_compile"):
        if args.sweep and getattr(args, name) not in (None, False):
            raise ValueError(f"sweep cannot be combined with {option(name)}.")
    if args.device_map and not (args.no_compile or args.sweep):
        raise ValueError("device_map needs --no-compile: a graph of the target has one device.")
    if args.memory and args.compile:
        raise ValueError("memory cannot be combined with --compile: a graph hides its tensors.")
    tuned = tuned_file(args)
    stack = load(args)
    settings: Any = tree_settings(args, stack.settings)
    if args.tuned is not None:
        settings = tuned_of(stack) if tuned is None else tuned
        if others := [m for m in methods if m not in settings and TABLE[m].uses]:
            print(f"[not tuned, at the stack's settings: {', '.join(others)}]", file=sys.stderr)
    if args.sweep:
        chosen = None if args.methods is None else methods
        results = [
            sweep(
                stack, prompts, name, methods=chosen, settings=settings, repeats=repeats, **options
            )
            for name in dict.fromkeys(args.sweep)
        ]
        print("\n\n".join(format_sweep(r) for r in results))
        _write_json(args.json, results)
        return 0
    baselines = 1 if args.no_compile else 2
    result = _with_progress(
        len(prompts) * repeats * (len({"ar", *methods}) + baselines),
        lambda progress: bench(
            stack, prompts, methods, settings, compiled=not args.no_compile, repeats=repeats,
            progress=progress, **options,
        ),
    )  # fmt: skip
    if args.memory:
        ids = stack.encode(prompt_of(prompts[0]))
        own = settings.get("dartree") if isinstance(settings, dict) else settings
        result["memory"] = memory(stack, generate_options(args, ids, own or stack.settings))
        result["stage_memory"] = memory_by_stage(stack, ids, settings, options["max_new_tokens"])
    print(format_bench(result))
    _write_json(args.json, result)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from dartree.doctor import report

    text, healthy = report()
    print(text)
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
