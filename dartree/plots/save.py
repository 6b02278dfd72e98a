"""Writing a figure: SVG, PNG and a sidecar that says where it came from."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from dartree.files import write_atomically
from dartree.plots.style import RC

PROJECT = Path(__file__).resolve().parent.parent.parent
# Parameters that say where a figure goes, not what it shows.
_PLACES = ("out_dir",)
PNG_DPI = 200
_PACKAGES = ("dartree", "matplotlib", "numpy", "seaborn", "torch", "transformers")


def figure_folder(out_dir: str | os.PathLike) -> Path:
    """The folder that ``out_dir`` names: relative ones lie in the checkout, wherever one works."""
    return PROJECT / Path(out_dir).expanduser()


def save_figure(
    fig: Figure,
    out_dir: str | os.PathLike,
    name: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    notebook: str | None = None,
    stack: Any = None,
    data: Mapping[str, Any] | None = None,
    measured: Mapping[str, Any] | None = None,
    files: Iterable[str | os.PathLike] = (),
    alt: str | None = None,
) -> Path:
    """Write ``name``.svg, .png and .json (the sidecar) to ``out_dir``; return the SVG's path.

    A relative ``out_dir`` lies in the checkout, wherever one works, as notebooks need it; from a
    script ``Path("made").absolute()`` is in the current folder.

    With ``notebook`` they lie in a folder of its name: "04_pruning.ipynb" gives 04_pruning/.
    Each file is complete or absent. Pictures of the same data are the same bytes, and so is the
    sidecar without its key "volatile", which holds times, the machine, the commit and the output
    folder.

    parameters, notebook
        What the figure was made with; ``seed`` is taken from the parameters.
    stack
        A loaded stack: its name, drafter, dtype and device go into the sidecar.
    data
        Values shown in the figure that are the same in every run.
    measured
        Values shown that differ from run to run (seconds, tokens per second): volatile.
    files
        Data files that the figure was made from, listed with their SHA-256.
    alt
        One sentence for readers who cannot see it; goes into the SVG, the sidecar and galleries.
    """
    if not name or set(name) & set("/\\"):
        raise ValueError(f"name must be a file name without folders, got {name!r}.")
    folder = figure_folder(out_dir)
    if notebook:
        folder /= Path(notebook).stem
    folder.mkdir(parents=True, exist_ok=True)
    about = {"Date": None} | ({"Title": name, "Description": alt} if alt else {})
    with matplotlib.rc_context({"svg.hashsalt": RC["svg.hashsalt"]}):
        for kind, extra in (("svg", {"metadata": about}), ("png", {"dpi": PNG_DPI})):
            temporary = folder / f".{name}.{os.getpid()}.{kind}"
            try:
                fig.savefig(temporary, format=kind, bbox_inches="tight", **extra)
                os.replace(temporary, folder / f"{name}.{kind}")
            finally:
                temporary.unlink(missing_ok=True)
    files = [*files, *getattr(stack, "files", ())]
    sidecar = {"alt": alt}
    sidecar |= _sidecar(name, dict(parameters or {}), notebook, stack, data, measured, files)
    write_json(folder / f"{name}.json", sidecar)
    return folder / f"{name}.svg"


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, lists of numbers on one line, complete or not at all."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, default=_plain)
    text = re.sub(r"\[\s+([^][{}\"]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
    write_atomically(path, text + "\n")


def stable_part(sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """A sidecar without what differs from run to run: comparable byte for byte."""
    return {key: value for key, value in sidecar.items() if key != "volatile"}


def _sidecar(name, parameters, notebook, stack, data, measured, files) -> dict[str, Any]:
    places = {key: parameters.pop(key) for key in _PLACES if key in parameters}
    volatile = {
        "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "commit": _commit(),
        **places,
    }
    if measured:
        volatile["measured"] = dict(measured)
    return {
        "figure": name,
        "notebook": notebook,
        "parameters": parameters,
        "seed": parameters.get("seed"),
        **_stack_facts(stack),
        "data": dict(data) if data else None,
        "files": [{"name": _shown(f), "sha256": _sha256(f)} for f in files],
        "versions": _versions(),
        "volatile": volatile,
    }


def _stack_facts(stack: Any) -> dict[str, Any]:
    if stack is None:
        return dict.fromkeys(("stack", "drafter", "dtype", "device", "thinking"))
    target, template = stack.target, getattr(stack.tokenizer, "chat_template", None)
    return {
        "stack": stack.name,
        "drafter": stack.main.label,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "thinking": "off" if template else None,  # Stack.encode never turns it on
    }


def _shown(path: str | os.PathLike) -> str:
    """A data file's name inside the checkout, else its last part."""
    path = Path(path).resolve()
    return path.relative_to(PROJECT).as_posix() if path.is_relative_to(PROJECT) else path.name


def _sha256(path: str | os.PathLike) -> str:
    facts = os.stat(path)
    return _hash(os.fspath(path), facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=64)
def _hash(path: str, size: int, time_ns: int) -> str:
    """Weights are hashed once a notebook, not once a figure."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    versions = {"python": "{}.{}.{}".format(*sys.version_info[:3])}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    return versions


def _commit() -> str | None:
    """The commit that the checkout is on, with "+changes" where its code differs; None without."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", "dartree", "notebooks", "data")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changed else "")


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(PROJECT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _plain(value: Any) -> Any:
    """numpy and torch scalars and arrays for JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
