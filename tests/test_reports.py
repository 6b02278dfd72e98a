"""The papermill driver, on throwaway notebooks."""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from dartree import reports

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def write_notebook(folder: Path, name: str, parameters: str, *cells: str) -> Path:
    first = nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]})
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("# Title"), first]
        + [nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": KERNEL, "language_info": {"name": "python"}},
    )
    folder.mkdir(exist_ok=True)
    nbformat.write(book, folder / name)
    return folder / name


COMMON = 'out_dir: str = "unset"  # folder\nquick: bool = False  # less'
WRITE = "from pathlib import Path\nPath(out_dir, 'one.svg').write_text(f'{quick} {number}')"


def figures(notebooks: Path, out: Path, *options: str) -> int:
    parser = argparse.ArgumentParser()
    reports.add_arguments(parser)
    arguments = ["--notebooks", str(notebooks), "--out", str(out), *options]
    return reports.run(parser.parse_args(arguments))


def test_parameters_kernel_and_copy(tmp_path, monkeypatch, capfd):
    """Values arrive, the kernel is this interpreter, and nothing needs the home folder."""
    monkeypatch.setenv("HOME", "/dev/null/nowhere")  # cannot be written, by root either
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    monkeypatch.setenv("MPLBACKEND", "no-such-backend")
    monkeypatch.chdir(tmp_path)
    code = (
        "import sys, json, matplotlib\n"
        "facts = [sys.executable, sys.prefix, number, share, name, flag, quick]\n"
        "Path(out_dir, 'one.json').write_text(json.dumps(facts))"
    )
    parameters = COMMON + '\nnumber: int = 1\nshare: float = 0.5\nname: str = "a"\n'
    book = write_notebook(
        tmp_path / "nb", "00_a.ipynb", parameters + "flag: bool = False", WRITE, code
    )
    source = book.read_bytes()
    options = ["-p", "number", "7", "-p", "share", "2", "-p", "name", "5", "-p", "flag", "true"]
    assert figures(tmp_path / "nb", tmp_path / "out", *options, "--quick") == 0
    facts = json.loads((tmp_path / "out/one.json").read_text())
    assert facts == [sys.executable, sys.prefix, 7, 2.0, "5", True, True]
    printed = capfd.readouterr()
    assert "out/one.svg" in printed.out and "1 of 1 notebooks" in printed.out
    assert "[1/1] 00_a.ipynb" in printed.err and "100%" in printed.err
    executed = nbformat.read(tmp_path / "out/notebooks/00_a.ipynb", 4)
    injected = [c for c in executed.cells if "injected-parameters" in c.metadata.get("tags", [])]
    assert len(injected) == 1
    assert book.read_bytes() == source
    assert [p.name for p in (tmp_path / "out/notebooks").iterdir()] == ["00_a.ipynb"]


AWKWARD = (
    "\U0001f437 caf\u00e9 \u2028 \u0085 \x7f \ufeff \\ud83d \\U0001 'a' \"b\" \n\t #: {} \u4f60"
)


def test_any_text_arrives_as_it_was_given(tmp_path):
    """Papermill reads the parameters as YAML, which knows other escapes than JSON."""
    yaml = pytest.importorskip("yaml")  # papermill's own reader
    text = reports.parameters_text({"name": AWKWARD, "number": 0.5, "flag": True})
    assert text.isascii()
    assert yaml.safe_load(text) == {"name": AWKWARD, "number": 0.5, "flag": True}
    code = "from pathlib import Path\nPath(out_dir, 'name').write_text(name, 'utf-8')"
    write_notebook(tmp_path / "nb", "00_a.ipynb", COMMON + "\nname: str = 'a'", code)
    assert figures(tmp_path / "nb", tmp_path / "out", "-p", "name", "\U0001f437 \u4f60\u2028") == 0
    assert (tmp_path / "out/name").read_text("utf-8") == "\U0001f437 \u4f60\u2028"


def test_failing_and_dying_notebooks(tmp_path, capfd):
    """A raised error and a dead kernel keep their partial copies; the others still run."""
    parameters = COMMON + "\nnumber: int = 1"
    notebooks = tmp_path / "nb"
    write_notebook(notebooks, "00_raises.ipynb", parameters, "print('before')", "1 / 0", WRITE)
    write_notebook(notebooks, "01_dies.ipynb", parameters, "print('x')", "import os\nos._exit(1)")
    write_notebook(notebooks, "02_fine.ipynb", parameters, WRITE)
    assert figures(notebooks, tmp_path / "out", "--timeout", "120") == 1
    printed = capfd.readouterr().out
    assert "took longer" not in printed  # the death is noticed
    assert "00_raises.ipynb failed in cell 4: ZeroDivisionError: division by zero" in printed
    assert "01_dies.ipynb failed in cell 4" in printed and "1 of 3 notebooks" in printed
    assert "\n1 figure (" in "\n" + printed
    assert (tmp_path / "out/one.svg").read_text() == "False 1"
    copies = sorted(p.name for p in (tmp_path / "out/notebooks").iterdir())
    assert copies == ["00_raises.ipynb", "01_dies.ipynb", "02_fine.ipynb"]
    assert "before" in (tmp_path / "out/notebooks/00_raises.ipynb").read_text()


def test_reruns_of_an_executed_copy_do_not_pile_up(tmp_path):
    write_notebook(tmp_path / "nb", "00_a.ipynb", COMMON + "\nnumber: int = 1", WRITE)
    assert figures(tmp_path / "nb", tmp_path / "out") == 0
    assert figures(tmp_path / "out/notebooks", tmp_path / "out2", "-p", "number", "2") == 0
    again = nbformat.read(tmp_path / "out2/notebooks/00_a.ipynb", 4)
    injected = [c for c in again.cells if "injected-parameters" in c.metadata.get("tags", [])]
    assert len(injected) == 1 and "number = 2" in injected[0].source
    assert (tmp_path / "out2/one.svg").read_text() == "False 2"


BAD = {
    "unknown": (["-p", "widht", "3"], "'widht' is declared by none .* Did you mean width"),
    "int": (["-p", "width", "3.5"], "width must be an int, got '3.5'"),
    "int text": (["-p", "width", "many"], "width must be an int, got 'many'"),
    "int bool": (["-p", "width", "True"], "width must be an int"),
    "float": (["-p", "penalty", "x"], "penalty must be a float, got 'x'"),
    "bool": (["-p", "flag", "maybe"], "flag must be a bool"),
    "list": (["-p", "sizes", "3"], "sizes must be a list"),
    "own option": (["-p", "quick", "true"], "quick is set with --quick"),
    "no such notebook": (["--only", "00,07"], "only must name notebooks among 00, 03, got '07'"),
    "not a number": (["--only", "first"], "only must name notebooks"),
    "not declared by those selected": (["--only", "03", "-p", "sizes", "[1]"], "none of the sel"),
    "timeout": (["--timeout", "0"], "timeout must be a positive number"),
    "int below 1": (["-p", "width", "-5"], "width must be an integer of at least 1, got -5"),
    "penalty below 0": (["-p", "depth_penalty", "-1"], "depth_penalty must be a finite number"),
    "temperature": (["-p", "temperature", "-1"], "temperature must be a finite number of at"),
    "stack": (["-p", "stack", "giant"], "stack must be one of .*, got 'giant'"),
    "method": (["-p", "method", "magic"], "method must be one of .*, got 'magic'"),
    "no Unicode": (["-p", "method", "\udcff"], "parameter method must be valid Unicode"),
    "deep": (["-p", "penalty", "[" * 100_000], "penalty must be a float"),
    "no place": (["--out", "/proc/figures"], "out must be writable, got '/proc/figures'"),
    "a device": (["--out", "/dev/null"], "out must be a folder, got '/dev/null'"),
    "no name": (["--out", ""], "out must be a folder, got ''"),
}


@pytest.fixture
def two_notebooks(tmp_path):
    parameters = COMMON + "\nwidth: int = 3\npenalty: float = 0.2\ndepth_penalty: float = 0.2\n"
    parameters += "temperature: float = 0.0\nstack: str = 'tiny'\nmethod: str = 'ar'\n"
    write_notebook(
        tmp_path / "nb", "00_a.ipynb", parameters + "flag: bool = True\nsizes: list = [1, 2]"
    )
    write_notebook(tmp_path / "nb", "03_b.ipynb", parameters)
    return tmp_path / "nb"


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments(case, two_notebooks, tmp_path):
    options, message = BAD[case]
    with pytest.raises(ValueError, match=message) as caught:
        figures(two_notebooks, tmp_path / "out", *options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists(), "nothing may be written before all is checked"


def test_parameters_go_where_they_are_declared(two_notebooks, tmp_path):
    given = [("sizes", "[4]"), ("width", "5"), ("penalty", "1")]
    first, second = reports.plan(reports.find_notebooks(two_notebooks), given, tmp_path, True)
    place = {"out_dir": str(tmp_path), "quick": True}
    assert first.parameters == {"sizes": [4], "width": 5, "penalty": 1.0, **place}
    assert second.parameters == {"width": 5, "penalty": 1.0, **place}
    only = reports.find_notebooks(two_notebooks, "3")
    assert [p.name for p in only] == ["03_b.ipynb"]
    job = reports.plan(only, [], reports.FULL, False)[0]
    assert job.parameters["out_dir"] == "figures", "a folder of the checkout stays portable"


def test_text_printed_in_pieces_is_joined(tmp_path):
    """Pieces with a pause between them arrive as outputs of their own; stderr stays apart."""
    code = "import sys, time\nfor word in 'one two three'.split():\n"
    code += "    print(word, end='|', flush=True)\n    time.sleep(0.3)\n"
    write_notebook(tmp_path / "nb", "00_a.ipynb", COMMON, code + "print('!', file=sys.stderr)")
    assert figures(tmp_path / "nb", tmp_path / "out") == 0
    cell = nbformat.read(tmp_path / "out/notebooks/00_a.ipynb", 4).cells[-1]
    pieces = [(output.name, output.text) for output in cell.outputs]
    assert pieces == [("stdout", "one|two|three|"), ("stderr", "!\n")]


def test_a_trial_run_is_marked(capsys):
    reports.warn_if_quick(False, 24)
    assert capsys.readouterr().out == ""
    reports.warn_if_quick(True, 3)
    assert "QUICK, 3 short texts" in capsys.readouterr().out


def test_no_notebooks(tmp_path):
    with pytest.raises(ValueError, match="holds no notebooks"):
        figures(tmp_path, tmp_path / "out")


def test_comparison_table_is_printed(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("dartree.compare.format_table", lambda result: f"table {result['x']}")
    code = "from pathlib import Path\nPath(out_dir, 'comparison.json').write_text('{\"x\": 5}')"
    write_notebook(tmp_path / "nb", "00_a.ipynb", COMMON, code)
    assert figures(tmp_path / "nb", tmp_path / "out") == 0
    printed = capfd.readouterr().out
    assert "table 5" in printed
    assert printed.index("executed notebooks") < printed.index("table 5"), "lists must not hide it"


HANGS = (
    "import os, time\nfrom pathlib import Path\n"
    "Path(out_dir, 'pid').write_text(str(os.getpid()))\ntime.sleep(600)"
)


def kernel_of(out: Path) -> int | None:
    """Process id of the kernel that runs HANGS; None until it has begun."""
    noted = out / "pid"
    return int(noted.read_text() or 0) or None if noted.exists() else None


def assert_ended(kernel: int) -> None:
    for _ in range(100):
        try:
            os.kill(kernel, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the kernel outlived the driver")


def test_timeout_leaves_no_kernel(tmp_path, capfd, monkeypatch):
    class Until(subprocess.Popen):
        """A process whose time is over as soon as its kernel runs, however slow the machine."""

        def wait(self, timeout=None):
            if timeout == 2000:
                deadline = time.monotonic() + 120
                while not kernel_of(tmp_path / "out") and time.monotonic() < deadline:
                    time.sleep(0.05)
                timeout = 0
            return super().wait(timeout)

    monkeypatch.setattr(reports.subprocess, "Popen", Until)
    write_notebook(tmp_path / "nb", "00_hangs.ipynb", COMMON, HANGS)
    assert figures(tmp_path / "nb", tmp_path / "out", "--timeout", "2000") == 1
    printed = capfd.readouterr().out
    assert "00_hangs.ipynb failed in cell 3: it took longer than 2000 seconds" in printed
    assert "no figures were made." in printed
    assert_ended(kernel_of(tmp_path / "out"))


def test_ending_the_driver_ends_the_kernel(tmp_path):
    write_notebook(tmp_path / "nb", "00_hangs.ipynb", COMMON, HANGS)
    script = (
        "import argparse, sys\nfrom dartree import reports\n"
        "p = argparse.ArgumentParser()\nreports.add_arguments(p)\n"
        "sys.exit(reports.run(p.parse_args(sys.argv[1:])))"
    )
    command = [sys.executable, "-c", script, "--notebooks", str(tmp_path / "nb")]
    driver = subprocess.Popen([*command, "--out", str(tmp_path / "out")], cwd=reports.PROJECT)
    deadline = time.monotonic() + 60
    while not kernel_of(tmp_path / "out") and time.monotonic() < deadline:
        time.sleep(0.1)
    driver.terminate()
    assert driver.wait(30) == 143
    assert list((tmp_path / "out/notebooks").iterdir()) == [], "no half-written copy"
    assert_ended(kernel_of(tmp_path / "out"))


def test_notebooks_share_a_cache_in_the_checkout(monkeypatch, tmp_path):
    monkeypatch.delenv("DARTREE_CACHE", raising=False)
    assert reports.kernel_environment(tmp_path)["DARTREE_CACHE"] == str(reports.KEPT)
    monkeypatch.setenv("DARTREE_CACHE", str(tmp_path))
    assert reports.kernel_environment(tmp_path)["DARTREE_CACHE"] == str(tmp_path)
