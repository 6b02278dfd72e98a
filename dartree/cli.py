"""The console script: its commands, each in a module of its own, and what their errors become."""

from __future__ import annotations

import argparse
import os
import sys

from dartree.arguments import LazyParser

COMMANDS = {  # the module with a command's `add_arguments` and `run`, and its line in the help
    "generate": ("dartree.commands.generate", "generate text; streams while decoding"),
    "compare": ("dartree.commands.compare", "all methods on the same prompts"),
    "bench": ("dartree.commands.bench", "time all methods and three one-token baselines"),
    "tune": ("dartree.commands.tune", "find each method's fastest settings on this machine"),
    "figures": ("dartree.reports", "run the notebooks and write figures/"),
    "explore": ("dartree.explore", "open the explorer's notebook in JupyterLab"),
    "train": (
        "dartree.training.commands",
        "train a stack from nothing: corpus, tokenizer, target, drafter",
    ),
    "paper": ("dartree.paper.commands", "the paper's evaluation, resumable, and its tables"),
    "stacks": ("dartree.commands.stacks", "what is bundled, and the memory stacks need"),
    "doctor": ("dartree.doctor", "versions, threads, bf16, memory, what is missing"),
}


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0, 1 for failed work, 2 for bad input."""
    if hasattr(sys.stdout, "reconfigure"):  # a terminal may know fewer characters than a model
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        args = build_parser().parse_args(argv)
        status = args.handler(args) or 0
        sys.stdout.flush()  # a full disk is noticed here, where it becomes a sentence
        return status
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone: nothing left to tell it
        return 1
    except ValueError as error:
        print(f"dartree: {_one_line(error)}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"dartree: {_one_line(error)}", file=sys.stderr)
        _drop_output()
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


def _drop_output() -> None:
    """Let go of what cannot be written: Python would try it again at the end, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    parser = LazyParser(
        prog="dartree", description="Learn, measure and extend tree-based speculative decoding."
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(
        parser_class=LazyParser, dest="command", required=True, metavar="COMMAND"
    )
    for name, (module, text) in COMMANDS.items():
        commands.add_parser(name, help=text, description=text, module=module)
    return parser


class _Version(argparse.Action):
    def __init__(self, option_strings, dest, **_):
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser, *_):
        import dartree

        print(f"dartree {dartree.__version__}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
