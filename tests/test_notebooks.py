"""Notebooks as files: stripped, one parameters cell, short cells; and 00 really runs."""

import argparse
import ast
import json
import re
from pathlib import Path

import nbformat
import pytest

from dartree import reports
from dartree.checkpoints import read_json
from dartree.plots.save import stable_part
from dartree.settings import TreeSettings
from dartree.stack import data_dir

NOTEBOOKS = sorted((reports.PROJECT / "notebooks").glob("*.ipynb"))
COMMON = {
    "stack": "str", "width": "int", "candidates": "int", "budget": "int",
    "depth_penalty": "float", "temperature": "float", "max_new_tokens": "int", "limit": "int",
    "seed": "int", "out_dir": "str", "quick": "bool",
}  # fmt: skip
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def parameters_cell(path: Path) -> nbformat.NotebookNode:
    tagged = [c for c in read(path).cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1, "exactly one cell is tagged `parameters`"
    return tagged[0]


def test_there_is_a_quickstart():
    assert NOTEBOOKS and NOTEBOOKS[0].name == "00_quickstart.ipynb"


@each
def test_stripped_and_valid(path):
    assert re.fullmatch(r"\d\d_[a-z0-9_]+\.ipynb", path.name)
    book = read(path)
    nbformat.validate(book)
    assert (book.nbformat, book.nbformat_minor >= 5) == (4, True)
    assert book.metadata.kernelspec.name == "python3"
    assert set(book.metadata) <= {"kernelspec", "language_info"}, "no widget state, no papermill"
    ids = [cell.id for cell in book.cells]
    assert len(set(ids)) == len(ids)
    for cell in code_cells(path):
        assert cell.outputs == [] and cell.execution_count is None, cell.id
        assert set(cell.metadata) <= {"tags"}, cell.id


@each
def test_parameters_are_typed_literals(path):
    """Papermill sees every name, knows every type, and an override reaches everything."""
    source = parameters_cell(path).source
    names = {}
    for statement in ast.parse(source).body:
        assert isinstance(statement, ast.AnnAssign), ast.unparse(statement)
        value = ast.literal_eval(statement.value)
        kind = ast.unparse(statement.annotation).split("[")[0]
        assert type(value).__name__ == kind, ast.unparse(statement)
        names[statement.target.id] = kind
    for line in source.splitlines():
        assert line.count("  # ") == 1 and "=" not in line.split("  # ")[1], line
    assert reports.declared_parameters(path) == names
    for name in names.keys() & COMMON.keys():
        assert names[name] == COMMON[name], name
    assert {"out_dir", "quick", "seed"} <= set(names)


def test_quickstart_uses_the_tuned_settings_of_its_stack():
    """Else its table and that of `dartree compare` would tell two stories."""
    source = parameters_cell(NOTEBOOKS[0]).source
    values = {s.target.id: ast.literal_eval(s.value) for s in ast.parse(source).body}
    tuned = read_json(data_dir() / "stacks" / values["stack"] / "stack.json").get("settings", {})
    expected = TreeSettings(**tuned)
    ours = {name: values[name] for name in ("width", "candidates", "budget", "depth_penalty")}
    assert TreeSettings(**ours) == expected


@each
def test_cells_are_short(path):
    for cell in code_cells(path):
        lines = cell.source.splitlines()
        assert len(lines) <= 25 and max(map(len, lines)) <= 88, cell.id
        for node in ast.walk(ast.parse(cell.source.replace("%matplotlib", "#"))):
            assert not isinstance(node, (ast.ClassDef, ast.While)), f"{cell.id}: an algorithm"


@each
def test_nothing_points_to_this_machine(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users)/|C:\\\\", text)
    default = ast.parse(parameters_cell(path).source)
    values = {s.target.id: ast.literal_eval(s.value) for s in default.body}
    assert not Path(values["out_dir"]).is_absolute() and ".." not in values["out_dir"]


@each
def test_figures_carry_the_number_of_their_notebook(path):
    names = re.findall(r"save_figure\(\s*\w+,\s*\w+,\s*f?\"(\w+)", "\n".join(
        cell.source for cell in code_cells(path)
    ))  # fmt: skip
    assert all(name.startswith(path.name[:3]) for name in names), names
    assert len(set(names)) == len(names)


def figures(out: Path, *options: str) -> None:
    parser = argparse.ArgumentParser()
    reports.add_arguments(parser)
    assert reports.run(parser.parse_args(["--quick", "--out", str(out), *options])) == 0


def check_figures(out: Path, number: str) -> list[Path]:
    pictures = sorted(out.glob(f"{number}_*.svg"))
    for picture in pictures:
        sidecar = json.loads(picture.with_suffix(".json").read_text(encoding="utf-8"))
        assert picture.with_suffix(".png").stat().st_size > 5000
        assert sidecar["notebook"].startswith(number) and sidecar["parameters"]["quick"] is True
    return pictures


def test_quickstart_runs(tmp_path, capfd):
    figures(tmp_path, "--only", "00", "-p", "limit", "1", "-p", "max_new_tokens", "16")
    names = [p.stem for p in check_figures(tmp_path, "00")]
    assert names == ["00_round_tree", "00_rounds", "00_speed", "00_tau", "00_tau_by_domain"]
    printed = capfd.readouterr().out
    assert "dartree-fixed" in printed and "1 of 1 notebooks ran" in printed
    result = json.loads((tmp_path / "00_comparison.json").read_text(encoding="utf-8"))
    assert all(entry["lossless"] for entry in result["methods"])
    executed = nbformat.read(tmp_path / "executed" / "00_quickstart.ipynb", 4)
    for cell in executed.cells:
        for output in cell.get("outputs", []):
            kinds = output.get("data", {})
            assert "application/vnd.jupyter.widget-view+json" not in kinds
            assert output.get("name") != "stderr", "a warning: " + output.get("text", "")


def test_marginal_and_joint_run(tmp_path):
    figures(tmp_path, "--only", "01")
    names = [p.stem for p in check_figures(tmp_path, "01")]
    assert names == ["01_gap", "01_three_sentences", "01_two_sentences"]


def test_pruning_runs(tmp_path):
    figures(tmp_path, "--only", "04", "-p", "max_new_tokens", "16")
    assert [p.stem for p in check_figures(tmp_path, "04")] == ["04_budget", "04_penalty"]


def test_latency_runs(tmp_path, capfd):
    figures(tmp_path, "--only", "07", "-p", "max_new_tokens", "12")
    names = [p.stem for p in check_figures(tmp_path, "07")]
    assert names == ["07_budget", "07_prefix", "07_stages", "07_width_candidates"]
    sidecar = json.loads((tmp_path / "07_stages.json").read_text(encoding="utf-8"))
    assert {"heap", "dartree", "hf-generate"} <= set(sidecar["volatile"]["measured"])
    assert "1 of 1 notebooks ran" in capfd.readouterr().out


@pytest.mark.long
@each
def test_quick_figures_are_the_same_twice(path, tmp_path):
    for run in ("a", "b"):
        figures(tmp_path / run, "--only", path.name[:2])
    for picture in check_figures(tmp_path / "a", path.name[:2]):
        twin = tmp_path / "b" / picture.name
        sidecars = [json.loads(p.with_suffix(".json").read_text()) for p in (picture, twin)]
        assert stable_part(sidecars[0]) == stable_part(sidecars[1]), picture.name
        if "measured" not in sidecars[0]["volatile"]:
            assert picture.read_bytes() == twin.read_bytes(), picture.name
            assert picture.with_suffix(".png").read_bytes() == twin.with_suffix(".png").read_bytes()
