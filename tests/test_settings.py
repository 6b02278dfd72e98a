"""Every numeric argument is checked in one place."""

from __future__ import annotations

import pytest

from dartree.settings import METHODS, TreeSettings, check_method


@pytest.mark.parametrize("name", ["width", "candidates", "budget", "depth"])
@pytest.mark.parametrize("value", [0, -3, 1.5, "8", True, float("nan"), float("inf")])
def test_counts(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1"):
        TreeSettings(**{name: value})


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0.2", None])
def test_penalty(value):
    with pytest.raises(ValueError, match="depth_penalty"):
        TreeSettings(depth_penalty=value)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "1"])
def test_score_temperature(value):
    with pytest.raises(ValueError, match="score_temperature must be a finite number above 0"):
        TreeSettings(score_temperature=value)


def test_normaliser_and_method():
    with pytest.raises(ValueError, match="normalise must be one of candidates, vocabulary"):
        TreeSettings(normalise="none")
    with pytest.raises(ValueError, match="got 'DARTree'"):
        check_method("DARTree")
    assert [check_method(m) for m in METHODS] == list(METHODS)


def test_clamping():
    used = TreeSettings(width=500, candidates=500, budget=500).clamped(drafts=16, vocabulary=97)
    assert (used.width, used.candidates, used.budget, used.depth) == (500, 97, 500, 16)
    assert TreeSettings(depth=99).clamped(16, 97).depth == 16
    assert TreeSettings(depth=3).clamped(16, 97).depth == 3
