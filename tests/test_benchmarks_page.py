"""tools/make_benchmarks.py: what is kept stays whole, whenever it is stopped."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "make_benchmarks.py"


@pytest.fixture
def tool(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("make_benchmarks", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "RUNS", {"one": ("One", "dartree bench --limit 1")})
    return module


def benchmark(said, entries, processor="an abacus"):
    """What stands for the process of a benchmark, which writes its JSON before it ends."""
    place = {"machine": {"processor": processor, "cores": 3, "system": "Linux"},
             "versions": {"torch": "9"}}  # fmt: skip

    def run(line, **_):
        assert line[1:6] == ["-m", "dartree", "bench", "--limit", "1"]
        Path(line[line.index("--json") + 1]).write_text(json.dumps({"methods": entries} | place))
        if said is None:
            raise KeyboardInterrupt
        return subprocess.CompletedProcess(line, 0, stdout=said)

    return run


def test_a_page_can_be_made_after_a_benchmark_that_was_stopped(tool, monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", benchmark("a table\n", [{"tau": 2, "text": ["x"]}]))
    tool.main([])
    page, kept = tool.page(), (tmp_path / "one.json").read_bytes()
    assert "$ dartree bench --limit 1\n\na table\n" in page
    assert json.loads(kept)["result"]["methods"] == [{"tau": 2}]
    monkeypatch.setattr(subprocess, "run", benchmark(None, [{"tau": 3}]))
    with pytest.raises(KeyboardInterrupt):
        tool.main([])
    assert tool.page() == page
    assert {p.name: p.read_bytes() for p in tmp_path.glob("*.json")} == {"one.json": kept}


def test_a_page_says_where_each_table_was_made(tool, monkeypatch):
    monkeypatch.setitem(tool.RUNS, "two", ("Two", "dartree bench --limit 1 --repeats 3"))
    monkeypatch.setattr(subprocess, "run", benchmark("a table\n", []))
    tool.main([])
    everywhere = "idle machine: an abacus, 3 cores, Linux; torch 9.\n"
    assert everywhere in tool.page() and "Made on" not in tool.page()
    monkeypatch.setattr(subprocess, "run", benchmark("a table\n", [], "a slide rule"))
    tool.main(["two"])
    above, below = tool.page().split("## Two\n\n")
    assert everywhere in above and "slide rule" not in above
    assert below.startswith("Made on a slide rule, 3 cores, Linux; torch 9.\n")
