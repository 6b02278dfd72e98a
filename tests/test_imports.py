"""Imports go in one direction: the graph of the package's modules has no backward edge."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dartree

ROOT = Path(dartree.__file__).parent
FILES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
# From the bottom to the top; a module imports from its own layer and those below.
LAYERS = (
    ("checks", "files", "settings", "clock", "tree", "prompts", "prompt_files"),
    (
        "drafter",
        "heads",
        "acceptance",
        "pruning",
        "target",
        "checkpoints",
        "configs",
        "hub",
        "memory",
        "native",
        "packed",
        "public",
        "spread",
        "tensor_parallel",
    ),
    ("fused", "static_caches", "supertree"),
    ("proposers",),
    ("methods",),
    ("records", "stack"),
    ("stopping", "decode", "compiled"),
    ("api", "hf", "baselines", "stage_memory"),
    ("names",),
    ("",),  # the public names, on demand
    ("machine", "entries", "report_tables", "compare", "bench", "arguments"),
    ("analysis", "training", "paper", "datasets"),
    ("plots",),
    ("gallery", "explore", "portable", "widgets"),
    ("reports", "doctor", "commands"),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(module: str) -> set[str]:
    """Modules of this package that ``module`` imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(FILES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{module}: imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in FILES else node.module)
    return {name for name in found if name in FILES} - {module}


def layer(module: str) -> int:
    part = module.removeprefix("dartree").removeprefix(".").split(".")[0]
    assert part in LEVEL, f"{module} is in no layer of this test"
    return LEVEL[part]


@pytest.mark.parametrize("module", FILES)
def test_no_edge_points_up(module):
    for other in imports(module):
        assert layer(other) <= layer(module), f"{module} imports {other}"


def test_no_circles():
    """Not even inside a layer; the package's own name counts only where it is imported whole."""
    graph = {module: imports(module) - {"dartree"} for module in FILES}
    while graph:
        free = [module for module, edges in graph.items() if not edges & graph.keys()]
        assert free, f"a circle among {sorted(graph)}"
        for module in free:
            del graph[module]
