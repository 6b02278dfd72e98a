"""Papermill over the notebooks: what ``dartree figures`` and ``make run`` do.

Each notebook runs in a process of its own, so a dead or hanging kernel costs that notebook and
no other. The kernel is the interpreter that runs this, whatever kernels are installed elsewhere.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dartree import gallery
from dartree.checks import counted, non_negative, positive_int, seed_number
from dartree.files import check_output
from dartree.methods import check_method
from dartree.portable import make_portable
from dartree.settings import penalty
from dartree.stack import bundled_stacks

PROJECT = Path(__file__).resolve().parent.parent
FULL, QUICK = PROJECT / "figures", PROJECT / "build" / "quick"
EXECUTED = "notebooks"  # folder of the executed copies, inside the output folder
KEPT = PROJECT / "build" / "cache"  # what notebooks share, see analysis/kept.py
# nbformat's validator can check IRIs, with a grammar that takes a second to compile: not needed.
PAPERMILL = (
    "import signal, sys; sys.modules['rfc3987_syntax'] = None; "
    # Ctrl-C in a terminal reaches it as well; we end it, and it need not tell of it.
    "signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from papermill.cli import papermill; papermill()"
)
# What the parameters that notebooks share may be; checked before a kernel is started.
_RULES: dict[str, Callable[[str, Any], Any]] = dict.fromkeys(
    ("width", "candidates", "budget", "max_new_tokens", "limit"), positive_int
)
_RULES |= {"temperature": non_negative, "depth_penalty": lambda _, p: penalty(p),
           "seed": lambda _, s: seed_number(s)}  # fmt: skip
_SET_BY_OPTIONS = {"out_dir": "--out", "quick": "--quick"}


@dataclass(frozen=True)
class Job:
    """One notebook and the parameters that it is run with."""

    notebook: Path
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """Where and why a notebook stopped; ``cell`` counts all cells of the source from 1."""

    notebook: str
    cell: int | None
    reason: str

    def __str__(self) -> str:
        where = "before its first cell" if self.cell is None else f"in cell {self.cell}"
        return f"{self.notebook} failed {where}: {self.reason}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``dartree figures``."""
    parser.add_argument("--only", metavar="00,03", help="notebooks by number (default: all)")
    parser.add_argument(
        "-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="for every selected notebook that declares NAME (repeatable)",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="small limits, into build/quick/")
    parser.add_argument("--out", metavar="DIR", help="default: figures/ of the checkout")
    parser.add_argument("--timeout", default="3600", metavar="SECONDS", help="per notebook")
    parser.add_argument("--notebooks", metavar="DIR", help="default: notebooks/ of the checkout")


def run(args: argparse.Namespace) -> int:
    """Execute the selected notebooks; 0 if all ran, 1 if one failed.

    Raises ValueError, before anything runs, for unknown notebooks or parameters and for values
    of the wrong type.
    """
    timeout = _number("timeout", args.timeout)
    folder = Path(args.notebooks) if args.notebooks else PROJECT / "notebooks"
    default = QUICK if args.quick else FULL
    check_output("out", default if args.out is None else args.out, folder=True)
    out = default if args.out is None else Path(args.out).resolve()
    jobs = plan(find_notebooks(folder, args.only), args.parameter, out, args.quick)
    out.mkdir(parents=True, exist_ok=True)
    before = _times(out)
    failures = []
    for number, job in enumerate(jobs, start=1):
        print(f"[{number}/{len(jobs)}] {job.notebook.name}", file=sys.stderr, flush=True)
        failure = execute(job, out / EXECUTED, timeout)
        if failure:
            print(f"dartree: {failure}", file=sys.stderr, flush=True)
            failures.append(failure)
    written = sorted(p for p, t in _times(out).items() if before.get(p) != t)
    if out == FULL:
        gallery.update(PROJECT / "README.md", FULL)
    _report(out, written, failures, len(jobs))
    return 1 if failures else 0


def warn_if_quick(quick: bool, texts: int) -> None:
    """For notebooks, below numbers that a trial run of ``texts`` texts cannot carry."""
    if quick:
        print(
            f"QUICK, {texts} short texts: this shows that everything works. Do not read the "
            "numbers: another text may turn their order around."
        )


def find_notebooks(folder: Path, only: str | None = None) -> list[Path]:
    """``NN_*.ipynb`` in ``folder`` by number; ``only`` keeps some, "00,03"."""
    found = {int(p.name[:2]): p for p in sorted(folder.glob("[0-9][0-9]_*.ipynb"))}
    if not found:
        raise ValueError(f"{folder} holds no notebooks; they come with a checkout of dartree.")
    if only is None:
        return list(found.values())
    chosen = []
    for part in only.split(","):
        if not part.strip().isdecimal() or int(part) not in found:
            known = ", ".join(f"{number:02d}" for number in found)
            raise ValueError(f"only must name notebooks among {known}, got {part.strip()!r}.")
        chosen.append(int(part))
    return [found[number] for number in sorted(set(chosen))]


def plan(
    notebooks: Sequence[Path], given: Sequence[Sequence[str]], out: Path, quick: bool
) -> list[Job]:
    """A job per notebook. ``given`` holds (name, text) pairs from the command line.

    A parameter goes to the notebooks that declare it; ValueError where none does, or where its
    text does not fit the declared type.
    """
    declared = {path: declared_parameters(path) for path in notebooks}
    known = set().union(*declared.values())
    for name, _ in given:
        if name in _SET_BY_OPTIONS:
            raise ValueError(f"parameter {name} is set with {_SET_BY_OPTIONS[name]}.")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            names = ", ".join(sorted(known - set(_SET_BY_OPTIONS)))
            raise ValueError(
                f"parameter {name!r} is declared by none of the selected notebooks, which know "
                f"{names}.{hint}"
            )
    jobs = []
    for path, kinds in declared.items():
        values = {name: _convert(name, text, kinds[name]) for name, text in given if name in kinds}
        inside = out.is_relative_to(PROJECT)  # then relative, so that executed copies can move
        place = out.relative_to(PROJECT).as_posix() if inside else str(out)
        ours = {"out_dir": place, "quick": quick}
        jobs.append(Job(path, values | {k: v for k, v in ours.items() if k in kinds}))
    return jobs


def declared_parameters(notebook: Path) -> dict[str, str]:
    """Names and types in the cell tagged ``parameters``, as papermill reads them."""
    from papermill import inspect_notebook

    try:
        found = inspect_notebook(str(notebook))
    except Exception as error:  # papermill and nbformat raise many kinds for a broken file
        raise ValueError(f"{notebook} is not a notebook that papermill can read: {error}") from None
    kinds = {}
    for name, facts in found.items():
        kind = facts["inferred_type_name"]
        if kind in (None, "None"):
            kind = type(ast.literal_eval(facts["default"])).__name__
        kinds[name] = kind.split("[")[0].lower()
    return kinds


def _convert(name: str, text: str, kind: str) -> Any:
    """``text`` as a value of the declared type ``kind``, or ValueError."""
    if kind == "str":
        try:
            text.encode()
        except UnicodeEncodeError as error:  # bytes of the command line that are no UTF-8
            raise ValueError(f"parameter {name} must be valid Unicode: {error}.") from None
        if name == "method":
            check_method(text)
        if name == "stack" and text not in bundled_stacks():
            raise ValueError(f"stack must be one of {', '.join(bundled_stacks())}, got {text!r}.")
        return text
    if kind == "bool":
        value: Any = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    else:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            value = None
        if kind == "float" and type(value) is int:
            value = float(value)
        if type(value).__name__ != kind or (kind == "float" and not math.isfinite(value)):
            value = None
    if value is None:
        article = "an" if kind[:1] in "aeiou" else "a"
        raise ValueError(f"parameter {name} must be {article} {kind}, got {text!r}.")
    if name in _RULES and kind in ("int", "float"):
        _RULES[name](name, value)
    return value


def execute(job: Job, folder: Path, timeout: float) -> Failure | None:
    """Run one notebook; its executed copy, complete or not, is ``folder``/NAME.ipynb."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{job.notebook.stem}.{os.getpid()}.ipynb"
    with tempfile.TemporaryDirectory(prefix="dartree-", ignore_cleanup_errors=True) as scratch:
        values = Path(scratch) / "parameters.yaml"
        values.write_text(parameters_text(job.parameters), encoding="ascii")
        command = [
            sys.executable, "-c", PAPERMILL, str(job.notebook.resolve()), str(partial),
            "--parameters_file", str(values), "--kernel", "python3", "--progress-bar",
            "--cwd", str(job.notebook.resolve().parent), "--log-level", "ERROR",
        ]  # fmt: skip
        try:
            status = _run_worker(command, kernel_environment(Path(scratch)), timeout)
            if not partial.exists():
                return Failure(job.notebook.name, None, _status_text(status, timeout))
            failure = _read_failure(job.notebook.name, partial, status, timeout) if status else None
            make_portable(partial, PROJECT)
            os.replace(partial, folder / job.notebook.name)
        finally:
            partial.unlink(missing_ok=True)  # only where we were interrupted
    return failure


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """JSON that is YAML too, in printable ASCII.

    YAML would read JSON's two escapes of an emoji as two characters, and some characters as they
    are not at all or as line breaks; its own escape of eight digits holds any.
    """
    text = json.dumps(parameters, ensure_ascii=False)
    return "".join(c if " " <= c <= "~" else f"\\U{ord(c):08x}" for c in text)


def _run_worker(command: list[str], env: Mapping[str, str], timeout: float) -> int | str:
    """Exit status of ``command``, or "timeout"; never leaves it running behind."""
    # Its standard output goes to our stderr: ours carries the final lists alone.
    worker = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    with _terminate_with_us(worker):
        try:
            return worker.wait(timeout)
        except subprocess.TimeoutExpired:
            return "timeout"


@contextmanager
def _terminate_with_us(worker: subprocess.Popen) -> Iterator[None]:
    """End ``worker`` however the block ends, by a signal to us included."""

    def leave(signum, _frame):
        raise SystemExit(128 + signum)

    try:
        previous = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread
        previous = None
    try:
        yield
    finally:
        if worker.poll() is None:
            worker.terminate()  # papermill's client takes its kernel down with it
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def kernel_environment(scratch: Path) -> dict[str, str]:
    """Environment in which the kernel ``python3`` is this interpreter.

    Nothing is read from or written to the home folder: kernels, IPython's start-up files and
    history come from ``scratch``.
    """
    spec = scratch / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=40"]
    spec.write_text(
        json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}),
        encoding="utf-8",
    )
    env = {"DARTREE_CACHE": str(KEPT), **os.environ}
    # This package, also where it runs from a checkout that is not installed.
    env["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *filter(None, [env.get("PYTHONPATH")])])
    env["JUPYTER_PATH"] = os.pathsep.join([str(scratch), *filter(None, [env.get("JUPYTER_PATH")])])
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        env[name] = str(scratch / name.lower())
    if not os.access(Path.home(), os.W_OK):
        env.setdefault("MPLCONFIGDIR", str(scratch / "matplotlib"))
    env.pop("MPLBACKEND", None)  # a window's back end would leave the notebook without pictures
    env["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # else every kernel start warns on stderr
    return env


def _read_failure(name: str, partial: Path, status: int | str, timeout: float) -> Failure:
    """What the partial copy says about the cell that stopped."""
    reason, cell = _status_text(status, timeout), None
    try:
        cells = json.loads(partial.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError, OSError):
        return Failure(name, None, reason)
    number = 0
    for entry in cells:
        tags = entry["metadata"].get("tags", [])
        if "injected-parameters" in tags or any(t.startswith("papermill-error") for t in tags):
            continue  # not in the source
        number += 1
        state = entry["metadata"].get("papermill", {})
        for output in entry.get("outputs", []):
            if output["output_type"] == "error":
                last = str(output["evalue"]).strip().splitlines() or [""]
                return Failure(name, number, f"{output['ename']}: {last[0]}")
        if state.get("start_time"):
            cell = number  # the last cell that started, should none have an error
    return Failure(name, cell, reason)


def _status_text(status: int | str, timeout: float) -> str:
    if status == "timeout":
        return f"it took longer than {timeout:g} seconds"
    return f"papermill or its kernel ended with status {status}"


def _times(out: Path) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}


def _report(out: Path, written: list[Path], failures: list[Failure], total: int) -> None:
    """The closing lists on stdout: figures, comparison tables, failures."""
    from dartree.compare import format_table

    pictures = [p for p in written if p.suffix == ".svg"]
    if pictures:
        count = counted(len(pictures), "figure")
        print(f"{count} (.svg, .png and a .json that says how it was made):")
    else:
        print("no figures were made.")
    for picture in pictures:
        print(f"  {_shown(picture)}")
    print(f"executed notebooks: {_shown(out / EXECUTED)}")
    for path in written:
        if path.name == "comparison.json":
            table = format_table(json.loads(path.read_text(encoding="utf-8")))
            print(f"\n{path.parent.name}:\n\n{table}\n")
    for failure in failures:
        print(failure)
    print(f"{total - len(failures)} of {total} notebooks ran to their end.")


def _shown(path: Path) -> str:
    """A path as one would type it from here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise ValueError(f"{name} must be a positive number, got {text!r}.")
    return value
