"""`dartree train corpus | tokenizer | target | drafter | stack | card`."""

from __future__ import annotations

import argparse
import sys

from dartree.arguments import LazyParser
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the steps as sub-commands; each sets `handler` to a function of the arguments."""
    steps = parser.add_subparsers(
        dest="step", required=True, metavar="STEP", parser_class=LazyParser
    )
    for name, text in STEPS.items():
        module = f"dartree.training.{name}"
        step = steps.add_parser(name, help=text, description=text, module=module)
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
    add_arguments(parser)
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
