"""dartree doctor: what is there, and why something cannot work."""

from __future__ import annotations

from dartree import doctor
from dartree.machine import OtherJobs
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


def test_doctor_says_how_busy_the_machine_is(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(OtherJobs, "cores", lambda self: 0.25)
    assert doctor._other_jobs(2) == ["busy           other jobs keep 0.2 of 8 cores busy"]
    monkeypatch.setattr(OtherJobs, "cores", lambda self: 7.0)
    (line,) = doctor._other_jobs(2)
    assert (
        line.startswith("busy           other jobs keep 7.0 of 8 cores") and "--threads 1" in line
    )
    monkeypatch.setattr(OtherJobs, "cores", lambda self: None)
    assert doctor._other_jobs(2) == []
