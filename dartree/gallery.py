"""The gallery of figures in the README, made from their sidecars."""

from __future__ import annotations

import html
import json
from pathlib import Path

from dartree.files import write_atomically

BEGIN, END = "<!-- figures: made by `dartree figures` -->", "<!-- end of the figures -->"
COLUMNS, WIDTH = 3, 260  # pictures a row, pixels each


def gallery(figures: Path) -> str:
    """HTML of all figures below ``figures``, by notebook, with alt text as the caption."""
    parts = []
    for folder in sorted(p for p in figures.iterdir() if p.name[:2].isdigit()):
        cells = [_cell(figures, path) for path in sorted(folder.glob("*.svg"))]
        rows = [cells[i : i + COLUMNS] for i in range(0, len(cells), COLUMNS)]
        body = "\n".join("<tr>\n" + "\n".join(row) + "\n</tr>" for row in rows)
        number = folder.name[:2]
        parts.append(
            f"**{number} {folder.name[3:].replace('_', ' ')}**: `dartree figures --only {number}`\n"
            f"\n<table>\n{body}\n</table>"
        )
    return "\n\n".join(parts)


def _cell(figures: Path, picture: Path) -> str:
    alt = json.loads(picture.with_suffix(".json").read_text(encoding="utf-8")).get("alt") or ""
    alt, path = html.escape(alt), f"{figures.name}/{picture.parent.name}/{picture.stem}.png"
    image = f'<a href="{path}"><img src="{path}" width="{WIDTH}" alt="{alt}"></a>'
    return f'<td valign="top">{image}<br><sub>{alt}</sub></td>'


def with_gallery(text: str, figures: Path) -> str:
    """``text`` with the part between its two marks replaced; unchanged where there are none."""
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (mark and end):
        return text
    return f"{before}{BEGIN}\n\n{gallery(figures)}\n\n{END}{after}"


def update(readme: Path, figures: Path) -> None:
    """Write the gallery of ``figures`` into ``readme``, complete or not at all."""
    old = readme.read_text(encoding="utf-8")
    new = with_gallery(old, figures)
    if new != old:
        write_atomically(readme, new)
