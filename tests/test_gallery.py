"""The README's gallery is what the driver writes from the sidecars."""

import json
import re
from pathlib import Path

from dartree import gallery, reports


def write_figures(folder: Path) -> None:
    for name, alt in (("02_chain/tau", "tau < 3 & more"), ("02_chain/depth", ""), ("00_a/x", "X")):
        path = folder / f"{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("<svg/>")
        path.with_suffix(".json").write_text(json.dumps({"alt": alt}))
    (folder / "notebooks").mkdir()


def test_every_figure_is_shown_once_with_its_text(tmp_path):
    write_figures(tmp_path / "figures")
    text = gallery.gallery(tmp_path / "figures")
    shown = re.findall(r'<img src="([^"]+)"', text)
    assert shown == ["figures/00_a/x.png", "figures/02_chain/depth.png", "figures/02_chain/tau.png"]
    assert text.count("tau &lt; 3 &amp; more") == 2 and "`dartree figures --only 02`" in text
    assert "notebooks" not in text


def test_only_the_marked_part_is_replaced(tmp_path):
    write_figures(tmp_path / "figures")
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{gallery.BEGIN}\nold\n{gallery.END}\nafter\n")
    gallery.update(readme, tmp_path / "figures")
    once = readme.read_text()
    assert once.startswith("before\n") and once.endswith("\nafter\n") and "old" not in once
    gallery.update(readme, tmp_path / "figures")
    assert readme.read_text() == once
    readme.write_text("no marks")
    gallery.update(readme, tmp_path / "figures")
    assert readme.read_text() == "no marks"


def test_the_readme_shows_the_committed_figures():
    text = (reports.PROJECT / "README.md").read_text(encoding="utf-8")
    assert gallery.BEGIN in text and gallery.with_gallery(text, reports.FULL) == text
