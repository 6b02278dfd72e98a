"""dartree doctor: what is there, and why something cannot work."""

from __future__ import annotations

import pytest

from dartree import doctor
from tests.commands import run


def test_doctor(capsys):
    status, out, _ = run(capsys, "doctor")
    assert status == 0 and "torch" in out and "bf16" in out and "MISSING" not in out
    assert "packed weights in float32 on the CPU" in out and "torch.compile  " in out


def test_doctor_says_why_something_cannot_work(monkeypatch, capsys):
    monkeypatch.setattr("dartree.compiled.why_not", lambda: "torch.compile needs a C++ compiler.")
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    status, out, _ = run(capsys, "doctor")
    assert status == 0 and "torch.compile  torch.compile needs a C++ compiler." in out
    assert "packed weights packing needs a torch built with oneDNN" in out
    assert "bf16 on CPU    emulated only" in out


@pytest.mark.parametrize(("load", "threads", "advice"), [
    (0.1, 2, False), (1.2, 2, True), (3.0, 1, False), (3.0, 2, True),
])  # fmt: skip
def test_doctor_says_that_the_machine_is_busy(monkeypatch, load, threads, advice):
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 2)
    (line,) = doctor._load(threads)
    assert f" {load} in the last minute" in line and ("--threads 1" in line) == advice
    monkeypatch.delattr(doctor.os, "getloadavg")
    assert doctor._load(threads) == []
