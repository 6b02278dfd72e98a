"""The fastest settings of every method on this machine, found by timing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dartree.compare import compare
from dartree.settings import TreeSettings
from dartree.stack import Stack

CHAINS = ("dflash", "domino")
TREES = ("ddtree", "domino-ddtree", "heap", "dartree-fixed", "dartree")
DEPTHS = (4, 6, 8, 12, 16)  # of chains: a shorter one costs fewer rows
BUDGETS = (8, 12, 16, 24, 32, 48, 64)
# (W, K, depth penalty) that `dartree` is tried with beside the stack's own, at its best budgets
SHAPES = ((4, 64, 0.2), (8, 64, 0.2), (8, 16, 0.2), (12, 16, 0.2), (8, 64, 0.0), (12, 64, 0.0))
BEST = 2  # budgets with which the shapes are tried

Trial = dict[str, Any]  # settings, tau, tokens_per_second


def tune(
    stack: Stack,
    prompts: Sequence[dict[str, Any]],
    max_new_tokens: int = 96,
    repeats: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, list[Trial]]:
    """Trials of each method, fastest first: {settings (as a dict), tau, tokens_per_second}.

    Methods that share a setting are timed in turn in one run. Give prompts that are not those on
    which the winners will be compared.
    """
    found: dict[str, list[Trial]] = {}

    def run(settings: TreeSettings, methods: Sequence[str]) -> None:
        progress(f"{', '.join(methods)}: {settings}")
        result = compare(
            stack, prompts, methods, settings, max_new_tokens=max_new_tokens, repeats=repeats
        )
        for entry in result["methods"][1:]:
            found.setdefault(entry["method"], []).append({
                "settings": settings.to_dict(), "tau": entry["tau"],
                "tokens_per_second": entry["tokens_per_second"],
            })  # fmt: skip

    for depth in DEPTHS:
        run(replace(stack.settings, depth=depth), CHAINS)
    for budget in BUDGETS:
        run(replace(stack.settings, budget=budget), TREES)
    budgets = [trial["settings"]["budget"] for trial in _ranked(found["dartree"])[:BEST]]
    for width, candidates, penalty in SHAPES:
        for budget in budgets:
            run(TreeSettings(width, candidates, budget, penalty), ["dartree"])
    return {method: _ranked(trials) for method, trials in found.items()}


def _ranked(trials: list[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: -trial["tokens_per_second"])


def winners(trials: dict[str, list[Trial]]) -> dict[str, dict[str, Any]]:
    """Settings of each method's fastest trial, as ``stack.json`` keeps them under "tuned"."""
    return {method: rows[0]["settings"] for method, rows in trials.items()}
