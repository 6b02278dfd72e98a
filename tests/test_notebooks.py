"""Notebooks as files: stripped, one parameters cell, short cells; and 00 really runs."""

import argparse
import ast
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest

from dartree import reports
from dartree.configs import read_json
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


def figure_names(path: Path) -> list[str]:
    """Names in the notebook's calls of save_figure, which must be literals; each has an alt."""
    names = []
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(cell.source.replace("%matplotlib", "#"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "plots.save_figure":
                names.append(ast.literal_eval(node.args[2]))
                assert "alt" in {k.arg for k in node.keywords}, f"{cell.id}: no alt text"
    return names


@each
def test_figures_have_names_of_their_own(path):
    names = figure_names(path)
    assert names and len(set(names)) == len(names)


@each
def test_every_notebook_teaches(path):
    """What will be learned, a guess before the reveal, doubts, three exercises with checks."""
    text = "\n".join(c.source for c in read(path).cells if c.cell_type == "markdown").lower()
    assert "what you will learn" in text and "guess" in text and "## summary" in text
    assert "what would change my mind" in text
    exercises = text.split("## exercises")[1].split("\n## ")[0]
    assert len(re.findall(r"^\d\. ", exercises, re.M)) >= 3
    assert exercises.count("check") >= 3
    numbers = re.findall(r"^(\d)\. ", exercises, re.M)
    solved = re.findall(r"^<details><summary>solution of (\d)</summary>$", exercises, re.M)
    assert solved == numbers and exercises.count("</details>") == len(numbers)


@each
def test_a_trial_run_says_that_it_is_one(path):
    """Whatever measures texts also says, at the small limits, that its numbers say nothing."""
    source = "\n".join(cell.source for cell in code_cells(path))
    if "load_prompts" in source:
        assert source.count("warn_if_quick(quick, len(") >= 1


def figures(out: Path, *options: str) -> None:
    parser = argparse.ArgumentParser()
    reports.add_arguments(parser)
    assert reports.run(parser.parse_args(["--quick", "--out", str(out), *options])) == 0


def check_figures(out: Path, path: Path) -> list[Path]:
    """The pictures of a quick run: all that the source names, each with PNG and full sidecar."""
    pictures = sorted((out / path.stem).glob("*.svg"))
    assert [p.stem for p in pictures] == sorted(figure_names(path))
    for picture in pictures:
        sidecar = json.loads(picture.with_suffix(".json").read_text(encoding="utf-8"))
        assert picture.with_suffix(".png").stat().st_size > 5000
        ElementTree.parse(picture)
        assert sidecar["notebook"] == path.name and sidecar["parameters"]["quick"] is True
        assert sidecar["alt"].endswith(".") and sidecar["versions"]["dartree"]
        assert sidecar["seed"] is not None
        assert sidecar["data"] or sidecar["volatile"].get("measured"), "the plotted numbers"
        if sidecar["stack"]:
            assert sidecar["dtype"] and sidecar["device"]
            assert any(f["name"].endswith(".safetensors") for f in sidecar["files"])
    return pictures


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """Folder of a notebook's figures at its small limits; each notebook is run once."""
    done: dict[str, Path] = {}

    def run(path: Path) -> Path:
        if path.name not in done:
            done[path.name] = tmp_path_factory.mktemp(path.stem)
            figures(done[path.name], "--only", path.name[:2])
        return done[path.name]

    return run


@each
def test_runs(path, quick_run):
    """Every notebook at its small limits, without a warning."""
    out = quick_run(path)
    check_figures(out, path)
    executed = nbformat.read(out / "notebooks" / path.name, 4)
    assert not {"widgets", "papermill"} & set(executed.metadata)
    for cell in executed.cells:
        for output in cell.get("outputs", []):
            assert output.get("name") != "stderr", "a warning: " + output.get("text", "")


def test_the_comparison_of_the_quickstart_is_lossless(quick_run):
    path = quick_run(NOTEBOOKS[0]) / "00_quickstart" / "comparison.json"
    entries = json.loads(path.read_text(encoding="utf-8"))["methods"]
    assert len(entries) == 8 and all(entry["lossless"] for entry in entries)


def test_other_parameters_give_other_sidecars(quick_run, tmp_path, capfd):
    figures(tmp_path, "--only", "00", "-p", "limit", "1", "-p", "budget", "4")
    assert "dartree-fixed" in capfd.readouterr().out, "the comparison is printed"
    outs = (quick_run(NOTEBOOKS[0]), tmp_path)
    one, two = (json.loads((out / "00_quickstart/tau.json").read_text()) for out in outs)
    assert (one["parameters"]["budget"], two["parameters"]["budget"]) == (64, 4)
    assert one["data"] != two["data"]


@each
def test_the_committed_copy_is_not_stale(path):
    """The executed copy has the cells of the source, ran to its end, at the full settings."""
    copy = reports.FULL / reports.EXECUTED / path.name
    ran = [c for c in read(copy).cells if "injected-parameters" not in c.metadata.get("tags", [])]
    assert [c.source for c in ran] == [c.source for c in read(path).cells]
    assert all(c.execution_count for c in ran if c.cell_type == "code")
    assert copy.stat().st_size < 3_000_000 and "widget-view" not in copy.read_text()
    for picture in (reports.FULL / path.stem).glob("*.svg"):
        sidecar = json.loads(picture.with_suffix(".json").read_text(encoding="utf-8"))
        assert sidecar["parameters"]["quick"] is False, picture.name
    written = {p.stem for p in (reports.FULL / path.stem).glob("*.svg")}
    assert written == set(figure_names(path))


@pytest.mark.long
@each
def test_quick_figures_are_the_same_twice(path, tmp_path):
    for run in ("a", "b"):
        figures(tmp_path / run, "--only", path.name[:2])
    for picture in check_figures(tmp_path / "a", path):
        twin = tmp_path / "b" / path.stem / picture.name
        sidecars = [json.loads(p.with_suffix(".json").read_text()) for p in (picture, twin)]
        assert stable_part(sidecars[0]) == stable_part(sidecars[1]), picture.name
        if "measured" not in sidecars[0]["volatile"]:
            assert picture.read_bytes() == twin.read_bytes(), picture.name
            assert picture.with_suffix(".png").read_bytes() == twin.with_suffix(".png").read_bytes()
