"""`dartree train corpus | tokenizer | target | drafter | stack | card`."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

from dartree.checks import seed_number
from dartree.training import common

STEPS = {
    "corpus": "build the training text and the held-out prompts",
    "tokenizer": "train the tokenizer on the corpus",
    "target": "train the target model",
    "drafter": "train the block drafter and its causal head",
    "stack": "run all steps that are not done yet and put the stacks together",
    "card": "measure the stacks and write their cards",
}


class StepParser(argparse.ArgumentParser):
    """A parser that loads its step's module when it is asked to parse, and not before.

    So `dartree --version` and the other commands do not wait for what training imports.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if not self.get_default("handler"):
            module = importlib.import_module(f"dartree.training.{self.prog.split()[-1]}")
            module.add_arguments(self)
            self.set_defaults(handler=module.run)
        return super().parse_known_args(args, namespace)


def register(subparsers: argparse._SubParsersAction) -> None:
    """Adds `train` with its steps; each sets `handler` to a function of the arguments."""
    text = "train a stack from nothing: corpus, tokenizer, target, drafter"
    add_steps(subparsers.add_parser("train", help=text, description=text))


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Adds the steps as sub-commands of `parser`."""
    steps = parser.add_subparsers(
        dest="step", required=True, metavar="STEP", parser_class=StepParser
    )
    for name, text in STEPS.items():
        step = steps.add_parser(name, help=text, description=text)
        step.add_argument("--preset", default="tiny", choices=common.PRESETS)
        step.add_argument("--out", help="folder that holds the presets (default: build/train)")
        step.add_argument("--seed", type=_seed, default=0, metavar="S")


def _seed(text: str) -> int:
    try:
        return seed_number(int(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The arguments of one step; its function is `handler`."""
    parser = argparse.ArgumentParser(prog="dartree train")
    add_steps(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        args.handler(args)
    except ValueError as error:
        print(f"dartree train: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
