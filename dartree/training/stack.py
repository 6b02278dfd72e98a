"""`dartree train stack`: all steps that are not done yet, and the result as a data folder.

The folder, `data/` beside the runs, has the layout of the project's own: prompts, and the stacks
`tiny` (Domino head, and a head-less drafter for the methods on marginals) and `tiny-dspark` (the
same target, DSpark's Markov head).  `DARTREE_DATA=build/train/tiny/data dartree compare` runs it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from dartree.files import check_output
from dartree.stack import data_dir
from dartree.training import common
from dartree.training.common import preset_folder
from dartree.training.drafter import NAMES

SETTINGS = {"width": 12, "candidates": 64, "budget": 64, "depth_penalty": 0.2}
LOGS = ("target", *NAMES.values())


def steps(args: argparse.Namespace, folder: Path) -> list[tuple[Path, list[str]]]:
    """(what the step leaves behind, its command line), in order."""
    shared = ["--preset", args.preset, "--seed", str(args.seed)]
    if args.out:
        shared += ["--out", str(args.out)]
    found = [
        (folder / "corpus" / "train.jsonl", ["corpus", *args.corpus]),
        (folder / "tokenizer", ["tokenizer"]),
        (folder / "target", ["target", "--resume", *args.target]),
    ]
    init = ["--init", str(folder / "drafter")]
    for head, more in (("domino", []), ("none", []), ("markov", init)):
        line = ["drafter", "--head", head, *more, "--resume", *args.drafter]
        found.append((folder / NAMES[head], line))
    return [(path, [*line, *shared]) for path, line in found]


def stack_files(preset: str) -> dict[str, dict]:
    """stack.json of each stack that a preset gives."""
    settings = {"settings": SETTINGS}
    return {
        preset: {
            "description": "Qwen3 target, Domino drafter and head (block 16, 16 drafts), head-less "
                           "DFlash drafter; arithmetic, Python, short prose",
            "target": "target", "drafter": "drafter", "dflash": "dflash", **settings,
        },
        f"{preset}-dspark": {
            "description": f"the target of {preset} with a DSpark drafter: Markov head and "
                           "confidence head (block 16, 16 drafts)",
            "target": f"../{preset}/target", "drafter": "drafter", "dflash": f"../{preset}/dflash",
            **settings,
        },
    }  # fmt: skip


def assemble(folder: Path, preset: str) -> Path:
    """The finished runs below `folder` as a data folder; an older one is replaced."""

    def write(data: Path) -> None:
        shutil.copytree(folder / "prompts", data / "prompts")
        shutil.copytree(data_dir() / "evaluation", data / "evaluation")
        main, other = data / "stacks" / preset, data / "stacks" / f"{preset}-dspark"
        for name in ("target", "drafter", "dflash"):
            shutil.copytree(folder / name, main / name)
        shutil.copytree(folder / "dspark", other / "drafter")
        for name, card in stack_files(preset).items():
            text = json.dumps(card, indent=2) + "\n"
            (data / "stacks" / name / "stack.json").write_text(text, encoding="utf-8")
        (main / "logs").mkdir()
        for name in LOGS:
            shutil.copy(folder / f"{name}.jsonl", main / "logs")

    common.replace_folder(folder / "data", write)
    return folder / "data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Argument lists for the steps; a run of the preset's own length needs none."""
    for step in ("corpus", "target", "drafter"):
        parser.add_argument(f"--{step}", default=[], type=str.split, metavar="ARGUMENTS",
                            help=f"further arguments of `dartree train {step}`")  # fmt: skip


def run(args: argparse.Namespace) -> None:
    from dartree.training.commands import parse

    folder = preset_folder(args.preset, args.out)
    check_output("out", folder, folder=True)
    if not (data_dir() / "evaluation").is_dir():  # copied at the end: better missed now
        raise ValueError(f"{data_dir()} lacks the folder evaluation, which a stack comes with.")
    todo = []
    for path, line in steps(args, folder):
        if path.exists():
            print(f"{line[0]}: {path} is there")
        else:  # parsed now: a wrong argument of the last step must not wait for the others
            todo.append(parse(line))
    print(f"stack: {len(todo)} steps to do; all is written to {folder.resolve()}", flush=True)
    for step in todo:
        step.handler(step)
    print(f"stack: {assemble(folder, args.preset)}")
