"""How busy others keep the machine: what is counted, and what follows from it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from dartree import machine
from dartree.machine import OtherJobs, _processor_time
from dartree.report_tables import measured_on
from tests.commands import STACK, run


def clock(monkeypatch, *times):
    """The processor's clock shows ``times``, one at each look."""
    left = iter(times)
    monkeypatch.setattr(machine, "_processor_time", lambda: next(left))
    return OtherJobs()


@pytest.mark.parametrize(("later", "cores"), [
    ((12.0, 105.0, 4.0), 1.0),
    ((12.0, 103.0, 4.5), 0.0),  # clocks that go in other steps
    ((10.1, 105.0, 4.0), None),  # too soon
    ((12.0, 100.0, 4.0), None),  # a sandbox that shows zeros
    (None, None),
])  # fmt: skip
def test_what_others_take_is_all_but_our_own(monkeypatch, later, cores):
    assert clock(monkeypatch, (10.0, 100.0, 1.0), later).cores() == cores


@pytest.mark.parametrize(("busy", "threads", "cores", "told"), [
    (0.4, 2, 2, None), (1.0, 2, 2, 1), (2.0, 1, 2, None), (2.0, 2, 2, 1), (0.7, 16, 16, 15),
    (0.7, 8, 16, None),
])  # fmt: skip
def test_advice_is_for_threads_without_a_core(monkeypatch, busy, threads, cores, told):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    jobs = clock(monkeypatch, (0.0, 0.0, 0.0), (1.0, busy, 0.0))
    advice = jobs.advice(threads)
    if told is None:
        assert advice is None
    else:
        assert f"keep {busy} of {cores} cores" in advice and f"the {threads} threads" in advice
        assert advice.endswith(f"--threads {told} or OMP_NUM_THREADS={told}")


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's own count")
def test_the_times_are_those_that_another_library_reads():
    psutil = pytest.importorskip("psutil")
    before, ours, after = psutil.cpu_times(), _processor_time(), psutil.cpu_times()

    def busy(times):
        idle = times.idle + times.iowait + times.guest + times.guest_nice
        return sum(times) - idle

    assert busy(before) - 0.02 <= ours[1] <= busy(after) + 0.02
    assert ours[2] == pytest.approx(sum(psutil.Process().cpu_times()[:4]), abs=0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's own count")
def test_a_process_beside_this_one_is_seen(monkeypatch):
    monkeypatch.setattr(machine, "_processor_time", _processor_time)
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.2)
        jobs = OtherJobs()
        time.sleep(1.0)
        assert jobs.cores() > 0.2
    finally:
        other.kill()
        other.wait()


def test_commands_say_it_on_stderr_alone(monkeypatch, capsys):
    line = [*("generate", "--ids", "3,4", "--max-new-tokens", "2"), *STACK]
    monkeypatch.setattr(OtherJobs, "advice", lambda self, threads: f"all is taken from {threads}")
    status, out, err = run(capsys, *line)
    assert status == 0 and err.startswith("[all is taken from ") and "taken" not in out


def test_tables_say_how_quiet_it_was():
    result = {"machine": {"processor": "abacus", "cores": 2}, "other_jobs": 0.126}
    assert measured_on(result) == "abacus, other jobs kept 0.13 of 2 cores busy"
    assert measured_on(result | {"other_jobs": None}) == "abacus"
