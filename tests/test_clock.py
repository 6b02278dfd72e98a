"""Stage times: the device is at rest at every boundary."""

from __future__ import annotations

import pytest

from dartree import clock
from dartree.clock import STAGES, Clock


class Device:
    """Work is queued at once and done only when somebody waits for it."""

    def __init__(self, monkeypatch) -> None:
        self.time, self.queued, self.waits = 0.0, 0.0, 0
        monkeypatch.setattr(clock, "synchroniser", lambda device: self.wait)
        monkeypatch.setattr(clock.time, "perf_counter", lambda: self.time)

    def wait(self) -> None:
        self.waits += 1
        self.time += self.queued
        self.queued = 0.0


def test_a_stage_is_charged_for_its_own_work(monkeypatch):
    device = Device(monkeypatch)
    timer = Clock()
    device.queued = 5.0  # somebody else's work, before the stage
    with timer.stage("draft"):
        device.queued = 2.0
    with timer.stage("verify"):
        device.queued = 3.0
    with timer.stage("draft"):
        device.queued = 1.0
    assert timer.seconds["draft"] == 3.0 and timer.seconds["verify"] == 3.0
    assert device.waits == 6 and set(timer.seconds) == set(STAGES)


def test_a_stage_that_fails_is_charged_too(monkeypatch):
    device = Device(monkeypatch)
    timer = Clock()
    with pytest.raises(KeyError), timer.stage("walk"):
        device.queued = 2.0
        raise KeyError
    assert timer.seconds["walk"] == 2.0


def test_a_stage_of_another_name_is_refused_before_its_work():
    with pytest.raises(ValueError, match="stage must be one of draft, expand, .*, got 'mine'"):
        with Clock().stage("mine"):
            pytest.fail("the work began")


def test_cpu_needs_no_waiting():
    assert clock.synchroniser("cpu")() is None
