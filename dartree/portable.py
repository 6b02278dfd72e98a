"""Executed notebooks as they are committed and read elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def make_portable(partial: Path, project: Path) -> None:
    """An executed copy as it is committed and read elsewhere: without the folder of ``project``,
    times and widgets' state (their static pictures stay).

    Text that a cell printed piece by piece is joined, as JupyterLab does; GitHub would break the
    line after every piece.
    """

    def without_folders(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(f"{project}{os.sep}", "")
        if isinstance(value, list):
            return [without_folders(item) for item in value]
        if isinstance(value, dict):
            return {key: without_folders(item) for key, item in value.items()}
        return value

    try:
        book = json.loads(partial.read_text(encoding="utf-8"))
    except ValueError:
        return  # stopped while it was being written: better as it is than not at all
    for name in ("papermill", "widgets"):
        book["metadata"].pop(name, None)
    for cell in book["cells"]:
        for name in ("papermill", "execution"):
            cell["metadata"].pop(name, None)
        if "outputs" in cell:
            cell["outputs"] = _join_streams([o for o in cell["outputs"] if not _is_widget(o)])
    text = json.dumps(without_folders(book), indent=1, ensure_ascii=False)
    partial.write_text(text + "\n", encoding="utf-8")


def _is_widget(output: dict[str, Any]) -> bool:
    """Whether an output needs a running kernel to be seen."""
    return any(kind.startswith("application/vnd.jupyter.widget") for kind in output.get("data", {}))


def _join_streams(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring pieces of one stream as one output."""
    joined: list[dict[str, Any]] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output["output_type"] == "stream" and output["name"] == last.get("name"):
            last["text"] = [*last["text"], *output["text"]]
            last["text"] = "".join(last["text"]).splitlines(keepends=True)
        else:
            joined.append(output)
    return joined
