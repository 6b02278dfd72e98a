"""notebooks/method.md names code that exists."""

import importlib
import re

import dartree
from dartree.reports import PROJECT

TEXT = (PROJECT / "notebooks" / "method.md").read_text(encoding="utf-8")
PLACES = {
    "Block": "dartree", "DraftTree": "dartree", "Generation": "dartree", "TreeSettings": "dartree",
    "Expansion": "dartree.supertree", "Chooser": "dartree.acceptance", "KVCache": "dartree.target",
    "Target": "dartree.target",
}  # fmt: skip


def exists(name: str) -> bool:
    first, *rest = name.split(".")
    if first in PLACES:
        owner = getattr(importlib.import_module(PLACES[first]), first)
        known = {*dir(owner), *getattr(owner, "__annotations__", {})}
        return all(part in known for part in rest)
    module = importlib.import_module(f"dartree.{first}")
    return all(hasattr(module, part) for part in rest)


def test_every_name_of_the_code_is_there():
    spans = re.findall(r"`([A-Za-z_][\w.]*)(?:\[i\])?`", TEXT)
    names = [s for s in spans if "." in s]
    assert len(names) >= 15
    for name in names:
        assert exists(name), name
    for name in ("top_b", "pure_draft_prefix_len"):
        assert name in spans
    assert hasattr(dartree, "top_b")
