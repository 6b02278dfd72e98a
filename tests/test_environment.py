"""The three lists of packages agree, and the code imports nothing that they don't name."""

import ast
import re
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CONDA_NAMES = {"pytorch": "torch"}
# Extras that `make setup` does not install: nothing of the tests or the notebooks needs them.
NOT_LOCKED = ("paper", "browser")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def ranges() -> dict[str, Requirement]:
    """Requirements of pyproject.toml by name, test tools and the build's setuptools included."""
    table = project()
    listed = table["project"]["dependencies"] + table["build-system"]["requires"]
    for extra, requirements in table["project"]["optional-dependencies"].items():
        if extra not in NOT_LOCKED:
            listed = listed + requirements
    return {canonicalize_name(Requirement(text).name): Requirement(text) for text in listed}


def lock(python: str = "3.11", system: str = "linux") -> dict[str, str]:
    """Exact version by name on one Python and system."""
    pins = {}
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line)
        environment = {"python_version": python, "sys_platform": system}
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (clause,) = requirement.specifier
            assert clause.operator == "==", line
            assert requirement.name not in pins, f"{requirement.name} twice on Python {python}"
            pins[requirement.name] = clause.version
    return pins


@pytest.mark.parametrize("python", PYTHONS)
def test_lock_satisfies_the_ranges(python):
    pins = lock(python)
    for name, requirement in ranges().items():
        assert name in pins, f"requirements.lock names no {name} for Python {python}"
        assert Version(pins[name]) in requirement.specifier, (name, pins[name])


def test_pinned_models_libraries():
    pins = lock()
    assert pins["torch"] == "2.13.0" and pins["transformers"] == "5.24.0"
    for version in pins.values():
        assert "+" not in version, "a local build cannot be installed elsewhere"


def test_platforms():
    """Unix-only packages stay away from Windows; the CUDA libraries are torch's own business."""
    assert "ptyprocess" in lock(system="darwin") and "ptyprocess" not in lock(system="win32")
    assert not [name for name in lock() if name.startswith(("nvidia-", "triton", "cuda-"))]


def test_conda_agrees_with_the_ranges():
    book = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    conda = {}
    for entry in book["dependencies"]:
        if isinstance(entry, str):
            requirement = Requirement(entry)
            name = CONDA_NAMES.get(requirement.name, requirement.name)
            conda[canonicalize_name(name)] = requirement.specifier
    assert str(conda.pop("python")) == project()["project"]["requires-python"]
    conda.pop("pip")
    assert conda == {name: requirement.specifier for name, requirement in ranges().items()}
    assert {"pip": ["-e ."]} in book["dependencies"]


def imported(folder: Path) -> set[str]:
    """Top-level names of everything that the Python files below ``folder`` import."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("folder", ["dartree", "tests"])
def test_imports_are_locked(folder):
    ours = {"dartree", "tests", *sys.stdlib_module_names}
    distributions = {"yaml": "pyyaml", "IPython": "ipython", "huggingface_hub": "huggingface-hub"}
    wanted = {distributions.get(name, name) for name in imported(ROOT / folder) - ours}
    extras = project()["project"]["optional-dependencies"]
    optional = {Requirement(text).name for name in NOT_LOCKED for text in extras[name]}
    known = set(lock("3.10")) | {"tomli"} | optional
    assert {canonicalize_name(name) for name in wanted} <= known


def test_console_script_and_supported_pythons():
    table = project()["project"]
    assert table["scripts"] == {"dartree": "dartree.cli:main"}
    assert table["requires-python"] == ">=3.10"
    head = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()[0]
    assert re.findall(r"3\.\d+", head) == [PYTHONS[0], PYTHONS[-1]]
