"""notebooks/method.md names code that exists."""

import importlib
import re

import dartree
from dartree.clock import STAGES
from dartree.reports import PROJECT
from tests.reference import random_stack

TEXT = (PROJECT / "notebooks" / "method.md").read_text(encoding="utf-8")
PLACES = {
    "Block": "dartree", "DraftTree": "dartree", "Generation": "dartree", "TreeSettings": "dartree",
    "Expansion": "dartree.supertree", "Chooser": "dartree.acceptance", "KVCache": "dartree.target",
    "Target": "dartree.target", "DrafterConfig": "dartree.drafter",
    "DrafterCache": "dartree.drafter", "HeadState": "dartree.heads",
}  # fmt: skip


def exists(name: str) -> bool:
    first, *rest = name.split(".")
    if first == "dartree":
        return all(hasattr(dartree, part) for part in rest)
    if first == "embed_proj":  # a tensor's name
        return f"{name}.weight" in random_stack("domino").head.state_dict()
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


def test_the_cost_has_a_term_for_every_stage():
    cost = TEXT.split("## What it costs")[1].split("$$")[1]
    terms = set(re.findall(r"T_\\text{(\w+)}", cost))
    assert terms == {"round", "head", *STAGES} - {"expand"}
