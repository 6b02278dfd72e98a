"""Every numeric argument is checked in one place."""

from __future__ import annotations

import pytest

from dartree.methods import METHODS, check_budget, check_method, used_settings
from dartree.settings import TreeSettings


@pytest.mark.parametrize("name", ["width", "candidates", "budget", "depth"])
@pytest.mark.parametrize("value", [0, -3, 1.5, "8", True, float("nan"), float("inf")])
def test_counts(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1"):
        TreeSettings(**{name: value})


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0.2", None, 1e308])
def test_penalty(value):
    with pytest.raises(ValueError, match="depth_penalty"):
        TreeSettings(depth_penalty=value)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "1"])
def test_score_temperature(value):
    with pytest.raises(ValueError, match="score_temperature must be a finite number above 0"):
        TreeSettings(score_temperature=value)


def test_a_score_temperature_that_overflows():
    with pytest.raises(ValueError, match="score_temperature must be at least 1e-06, got 1e-40"):
        TreeSettings(score_temperature=1e-40)


def test_normaliser_and_method():
    with pytest.raises(ValueError, match="normalise must be one of candidates, vocabulary"):
        TreeSettings(normalise="none")
    with pytest.raises(ValueError, match="got 'DARTree'"):
        check_method("DARTree")
    with pytest.raises(ValueError, match="method must be one of"):
        check_method(["ar"])
    assert [check_method(m) for m in METHODS] == list(METHODS)


def test_clamping():
    used = TreeSettings(width=500, candidates=500, budget=500).clamped(drafts=16, vocabulary=97)
    assert (used.width, used.candidates, used.budget, used.depth) == (500, 97, 500, 16)
    assert TreeSettings(depth=99).clamped(16, 97).depth == 16
    assert TreeSettings(depth=3).clamped(16, 97).depth == 3


HUGE = 2**31 - 1


def test_what_cannot_be_reached_is_legal_however_large():
    used = TreeSettings(HUGE, candidates=2, budget=HUGE, depth=4).clamped(16, 97)
    assert used.level_sizes() == [2, 4, 8, 16]
    for method in METHODS:
        if "ddtree" not in method:  # their K is B
            check_budget(method, used, 97)
    check_budget("dartree", TreeSettings(budget=HUGE).clamped(16, 97), 97)
    assert TreeSettings(candidates=HUGE).clamped(16, 97).candidates == 97


@pytest.mark.parametrize(
    "settings",
    [
        dict(width=HUGE),
        dict(width=200_000, candidates=HUGE),
        dict(width=20_000, candidates=5, normalise="vocabulary"),
    ],
)
def test_a_supertree_that_cannot_be_scored(settings):
    with pytest.raises(ValueError, match="width must be smaller, got .*at most"):
        TreeSettings(**settings).clamped(drafts=16, vocabulary=16_384)


@pytest.mark.parametrize("method", ["ddtree", "domino-ddtree", "heap", "dartree-fixed", "dartree"])
def test_a_tree_that_cannot_be_verified(method):
    used = TreeSettings(width=10_000, budget=8193).clamped(16, 16_384)
    with pytest.raises(ValueError, match=f"at most 8192, got 8193: {method} would verify 8193"):
        check_budget(method, used, 16_384)


def test_settings_that_play_no_part_are_none_or_what_the_method_takes_in_their_place():
    """By the definitions: W for `dartree` alone, ddtree's K is B, no penalty is the penalty 0."""
    given = TreeSettings(3, 5, 7, 0.3, score_temperature=2.0)
    used = {method: used_settings(method, given, 16, 97) for method in METHODS}
    assert {m for m, u in used.items() if u["width"] == 3} == {"dartree"}
    assert {m: u["candidates"] for m, u in used.items() if u["budget"] == 7} == {
        "ddtree": 7, "domino-ddtree": 7, "heap": 5, "dartree-fixed": 5, "dartree": 5
    }  # fmt: skip
    penalties = {m: u["depth_penalty"] for m, u in used.items()}
    assert penalties == {
        "ar": None, "dflash": None, "domino": None, "ddtree": 0, "domino-ddtree": 0, "heap": 0.3,
        "dartree-fixed": 0, "dartree": 0.3,
    }  # fmt: skip
    assert set(used["ar"].values()) == {None}
    assert {m for m, u in used.items() if u["normalise"] == "candidates"} == {
        "heap", "dartree-fixed", "dartree"
    }  # fmt: skip
    assert used_settings("ddtree", TreeSettings(budget=500), 16, 97)["candidates"] == 97
