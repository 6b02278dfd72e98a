"""Prompts files: one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dartree.checks import file_path, positive_int

PROMPT_FIELDS = ("prompt", "messages", "ids")


def load_prompts(path: str | Path, limit: int | None = None) -> list[dict[str, Any]]:
    """Rows of a prompts file: JSON objects with id, domain and one of prompt, messages, ids.

    ``limit`` keeps the first rows of each domain. Raises ValueError that names the file and
    the line where a row is unusable or repeats an id.
    """
    path = file_path("path", path)
    limit = None if limit is None else positive_int("limit", limit)
    lines = read_lines(path)
    rows: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    places: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"prompts file {path}, line {number}"
        row = _prompt_row(line, where)
        first = places.setdefault(row["id"], number)
        if first != number:
            raise ValueError(f"{where} repeats the id {row['id']!r} of line {first}.")
        seen[row["domain"]] = seen.get(row["domain"], 0) + 1
        if limit is None or seen[row["domain"]] <= limit:
            rows.append(row)
    if not rows:
        raise ValueError(f"prompts file {path} holds no prompts.")
    return rows


def read_lines(path: Path) -> list[str]:
    """Lines of a prompts file; ValueError where it cannot be read."""
    try:
        # Not splitlines(): JSON may hold U+2028 and the like inside a text.
        return path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"prompts file {path} cannot be read: {error}.") from None


def parse_json(line: str, where: str) -> Any:
    """The value of one line; ValueError that begins with ``where`` if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: a number of very many digits, too
        raise ValueError(f"{where} is not JSON: {error}.") from None


def _prompt_row(line: str, where: str) -> dict[str, Any]:
    row = parse_json(line, where)
    name = prompt_field(row, where)
    kind = str if name == "prompt" else list
    if not isinstance(row[name], kind):
        raise ValueError(f"{where}: {name!r} must be a {kind.__name__}.")
    if name == "ids" and not all(type(i) is int for i in row["ids"]):
        raise ValueError(f"{where}: 'ids' must be a list of integers.")
    return row


def prompt_field(row: Any, where: str) -> str:
    """Which of PROMPT_FIELDS a row holds; ValueError unless it has id, domain and one of these."""
    texts = isinstance(row, dict) and all(isinstance(row.get(n), str) for n in ("id", "domain"))
    if not texts:
        raise ValueError(
            f"{where} must be an object with the texts 'id' and 'domain', and one of "
            f"{', '.join(PROMPT_FIELDS)}."
        )
    given = [name for name in PROMPT_FIELDS if row.get(name)]
    if len(given) != 1:
        raise ValueError(f"{where} must hold exactly one of {', '.join(PROMPT_FIELDS)}.")
    return given[0]


def prompt_of(row: dict[str, Any]) -> Any:
    """The prompt of a row, as :func:`dartree.generate` takes it."""
    return next(row[name] for name in PROMPT_FIELDS if row.get(name))
