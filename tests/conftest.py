"""Shared fixtures: conformance cases, random tiny stacks and independent references."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# As fast as more of them with models this small, and no slower beside another job.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from safetensors.torch import load_file

import dartree
from tests.reference import random_stack

DATA = Path(__file__).parent / "data"
CASES = ("dflash", "domino", "domino-shift", "dspark-vanilla")


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """What else the machine does at that moment changes no test."""
    monkeypatch.setattr("dartree.machine._processor_time", lambda: None)


@pytest.fixture(scope="session", params=CASES)
def case(request):
    """(stack, expected tensors, name) of one conformance case, fp32."""
    return load_case(request.param)


def load_case(name: str):
    folder = DATA / name
    stack = dartree.load_stack(target=folder / "target", drafter=folder / "drafter")
    return stack, load_file(folder / "expected.safetensors"), name


@pytest.fixture(scope="session")
def shift_stack():
    """The stack of the `domino-shift` case (16-position style, with a head)."""
    return load_case("domino-shift")[0]


@pytest.fixture(scope="session")
def tiny_pair():
    """A random Domino stack in fp64: no argmax can flip by rounding."""
    return random_stack(head="domino", dtype=torch.float64)


@pytest.fixture
def shift_folder(tmp_path):
    """A writable copy of the `domino-shift` case."""
    return shutil.copytree(DATA / "domino-shift", tmp_path / "case")


@pytest.fixture
def dspark_folder(tmp_path):
    """A writable copy of the `dspark-vanilla` case."""
    return shutil.copytree(DATA / "dspark-vanilla", tmp_path / "case")


@pytest.fixture
def eager_graphs(monkeypatch):
    """`compiled_stack` with static shapes and the count of graphs as ever, but nothing compiled."""
    from dartree import compiled, static_caches

    monkeypatch.setattr(compiled, "_compile", lambda function, cuda_graphs: function)
    monkeypatch.setattr(compiled, "why_not", lambda: None)
    monkeypatch.setattr(static_caches, "COLUMNS", 32)
    return compiled.compiled_stack
