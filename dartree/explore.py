"""``dartree explore``: the explorer's notebook in JupyterLab, with one command."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
NOTEBOOK = "11_explorer.ipynb"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``dartree explore``; whatever follows ``--`` goes to JupyterLab."""
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    parser.add_argument("--port", type=int, help="default: 8888; the next free one if it is taken")
    parser.add_argument("--allow-root", action="store_true", help="JupyterLab asks for it in a "
                        "container, where one often is root")  # fmt: skip
    parser.add_argument("lab", nargs="*", metavar="LAB_OPTION",
                        help="for JupyterLab, after '--': -- --ip 0.0.0.0")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Open a working copy of the notebook; this process becomes JupyterLab."""
    command = lab_command(working_copy(), args)
    os.execv(command[0], command)


def lab_command(notebook: Path, args: argparse.Namespace) -> list[str]:
    """JupyterLab in the folder of ``notebook``, whose printed address leads to ``notebook``."""
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={notebook.parent}",
               f"--LabApp.default_url=/lab/tree/{notebook.name}"]  # fmt: skip
    command += ["--no-browser"] if args.no_browser else []
    command += ["--allow-root"] if args.allow_root else []
    command += [] if args.port is None else [f"--port={args.port}"]
    return [*command, *args.lab]


def working_copy(project: Path = PROJECT) -> Path:
    """build/11_explorer.ipynb: a copy, so that outputs never get into the committed source.

    A copy is used again, with what was written into it. Where the source is newer, a fresh copy
    takes its place and the old one is kept beside it. Raises ValueError outside a checkout.
    """
    source, copy = project / "notebooks" / NOTEBOOK, project / "build" / NOTEBOOK
    if not source.is_file():
        raise ValueError(f"{source} is missing; the notebooks come with a checkout of dartree.")
    if copy.exists() and copy.stat().st_mtime < source.stat().st_mtime:
        os.replace(copy, copy.with_suffix(".old.ipynb"))
    if not copy.exists():
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, copy)
    return copy
