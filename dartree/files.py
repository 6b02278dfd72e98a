"""Files written complete or not at all, and checked before the work that they are for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, complete or not at all."""
    replace_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def replace_with(path: Path, write: Callable[[Path], Any]) -> None:
    """Call ``write`` with a temporary name beside ``path``, then replace: never half a file.

    A link is followed, so that it stays one. An OSError about the temporary file names ``path``.
    Raises ValueError for a device or a pipe, which a file must not take the place of.
    """
    path = Path(path).resolve()
    if path.exists() and not path.is_file():
        raise ValueError(f"path must be a regular file, got {str(path)!r}.")
    temporary = _temporary(path)
    try:
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is None or str(error.filename) != str(temporary):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def check_output(name: str, value: str | Path | None, folder: bool = False) -> None:
    """ValueError unless a file can be written at ``value``, or with ``folder`` files inside it.

    For commands, before any work is done: permissions alone do not tell, so an empty file is
    written beside it and removed again. None is no output, and fine.
    """
    if value is None:
        return
    try:
        path = Path(value).resolve()
        if folder:
            path = next(p for p in (path, *path.parents) if p.exists())
            wrong = not path.is_dir()
            path = path / "dartree"
        else:
            wrong = path.is_dir() or not path.parent.is_dir()
            wrong = wrong or (path.exists() and not path.is_file())  # a device or a pipe
            # /dev/stdout leads to whatever the output is, and would lose its link or that file.
            wrong = wrong or Path(value).absolute().parent in (Path("/dev"), Path("/dev/fd"))
        if wrong or not str(value):
            what = "a folder" if folder else "a file in an existing folder"
            raise ValueError(f"{name} must be {what}, got {str(value)!r}.")
        try:
            _temporary(path).touch()
        finally:
            _temporary(path).unlink(missing_ok=True)
    except OSError as error:
        raise ValueError(
            f"{name} must be writable, got {str(value)!r}: {error.strerror}."
        ) from None
