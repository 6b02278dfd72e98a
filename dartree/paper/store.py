"""Records on disk: one JSON object a line, appended so that a kill at any point loses none.

A line counts once its newline is there. Each process appends to a file of its own; whatever a
kill left behind the last newline is cut off before the next line is written.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # no such locks on this system: two runs in one folder are not noticed
    fcntl = None  # type: ignore[assignment]


class RecordFile:
    """Appends records to ``path``; a context manager that holds the file for one process.

    Raises ValueError where another process is writing to it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+")
        try:
            self._lock()
            self._file.truncate(_whole(path.read_bytes()))
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{self.path} is being written by another run.") from None

    def append(self, record: dict[str, Any]) -> None:
        """Add one record; on return it survives a kill and a loss of power."""
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()


def _whole(data: bytes) -> int:
    """Bytes of ``data`` up to its last line that is whole."""
    end = data.rfind(b"\n") + 1
    while end and not _is_record(data[data.rfind(b"\n", 0, end - 1) + 1 : end]):
        end = data.rfind(b"\n", 0, end - 1) + 1
    return end


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def read_records(folder: Path) -> list[dict[str, Any]]:
    """All whole records in ``part-*.jsonl`` of ``folder``; ValueError names a line that is none.

    Lines at the end of a file that a kill or a loss of power left torn are passed over.
    """
    records = []
    for path in sorted(folder.glob("part-*.jsonl")):
        data = path.read_bytes()  # once: another process may be appending
        lines = data[: _whole(data)].splitlines()
        for number, line in enumerate(lines, start=1):
            if not _is_record(line):
                raise ValueError(f"{path} line {number} is not a record.")
            records.append(json.loads(line))
    return records
