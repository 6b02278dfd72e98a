"""The fastest settings of every method on this machine, found by timing them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dartree.checks import counted, file_path
from dartree.compare import NOTHING_TO_TIME, compare
from dartree.compiled import compiled_parts, uses_cuda_graphs
from dartree.configs import read_json
from dartree.machine import OtherJobs, machine, versions
from dartree.methods import TABLE, check_method
from dartree.report_tables import measured_on, number, of_repeats, run_on, text_table
from dartree.settings import TreeSettings
from dartree.stack import Stack

DEPTHS = (8, 12, 16)  # of chains: a shorter one costs fewer rows
BUDGETS = (8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96)
# (W, K) that trees of a width are tried with beside the stack's own, at their best budgets
SHAPES = ((4, 32), (6, 32), (8, 32), (8, 64), (12, 32), (16, 64))
BEST = 2  # fastest trials of a method whose settings are tried with the shapes
FINALISTS = 3  # settings of a method that are timed again

Trial = dict[str, Any]  # settings (as a dict), tau, tokens_per_second, speedup, repeats
Row = Mapping[str, Any]


def using(setting: str, methods: Iterable[str]) -> list[str]:
    """Those of ``methods`` whose trees depend on ``setting``."""
    return [method for method in methods if setting in TABLE[check_method(method)].uses]


def with_settings(methods: Iterable[str]) -> list[str]:
    """Those of ``methods`` that have settings, and so can be tuned; ValueError where none has."""
    given = list(methods)
    found = [method for method in given if TABLE[check_method(method)].uses]
    if not found:
        names = ", ".join(given) or "none"
        raise ValueError(f"methods must name one that has settings, got {names}.")
    return found


def split_off(prompts: Sequence[Row], limit: int) -> list[Row]:
    """The last ``limit`` prompts of each domain: `bench` takes its own from the beginning."""
    domains = dict.fromkeys(row["domain"] for row in prompts)
    return [row for d in domains for row in [r for r in prompts if r["domain"] == d][-limit:]]


def tune(
    stack: Stack,
    prompts: Sequence[Row],
    methods: Iterable[str] | None = None,
    *,
    max_new_tokens: int = 96,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Time many settings of ``methods`` (None: all that have any) on ``prompts``, greedily.

    Returns {methods: trials by method, fastest first, stack, on, compiled, cuda_graphs, prompts,
    max_new_tokens, repeats, machine, versions, other_jobs}. ``on``: stack, dtype, device, layout of
    weights and threads, as tables name them; ``compiled``: what torch.compile serves, "all", "head"
    or "nothing"; ``cuda_graphs``: whether it was asked for them; ``other_jobs`` as `compare` has
    it. Raises ValueError where no method has settings and where no prompt gives a second token.

    A trial: settings (as a dict), tau, tokens_per_second (mean over the domains), speedup (that
    over the one of `ar` in the same run; it orders the trials, since a machine's speed drifts
    between runs) and repeats. All settings are timed once, the methods that share one in turn; the
    FINALISTS fastest of each method are then timed again, ``repeats`` times, all methods in turn,
    and stand first. Give prompts that are not those on which the winners will be compared.
    """
    chosen = with_settings(TABLE if methods is None else methods)
    found: dict[str, list[Trial]] = {method: [] for method in chosen}
    trees = using("budget", found)
    facts: dict[str, Any] = {}
    jobs = OtherJobs()

    def run(by_method: Mapping[str, TreeSettings], times: int = 1) -> dict[str, Trial]:
        progress("; ".join(f"{m}: {_text(s)}" for m, s in by_method.items()))
        result = compare(
            stack, [dict(row) for row in prompts], list(by_method), dict(by_method),
            max_new_tokens=max_new_tokens, repeats=times,
        )  # fmt: skip
        plain, *others = result["methods"]
        facts.update(on=run_on(plain))
        return {
            e["method"]: {
                "settings": by_method[e["method"]].to_dict(), "tau": e["tau"],
                "tokens_per_second": _mean_speed(e), "speedup": _mean_speed(e) / _mean_speed(plain),
                "repeats": times,
            }
            for e in others
        }  # fmt: skip

    def scan(by_method: Mapping[str, TreeSettings]) -> None:
        new = {m: s for m, s in by_method.items()
               if s.to_dict() not in [trial["settings"] for trial in found[m]]}  # fmt: skip
        for method, trial in run(new).items() if new else ():
            found[method].append(trial)

    for depth in DEPTHS:
        scan({m: replace(stack.settings, depth=min(depth, stack.pairing(m).drafts))
              for m in found if m not in trees})  # fmt: skip
    for budget in BUDGETS:
        own = replace(stack.settings, budget=budget)
        scan(dict.fromkeys(trees, replace(own, depth_penalty=0.0)))
        scan(dict.fromkeys(using("depth_penalty", found), own))
    for method in using("width", found):
        for trial in _ranked(found[method])[:BEST]:
            for width, candidates in SHAPES:
                best = TreeSettings(**trial["settings"])
                scan({method: replace(best, width=width, candidates=candidates)})
    ranked = {method: _ranked(trials) for method, trials in found.items()}
    finals: dict[str, list[Trial]] = {method: [] for method in ranked}
    for place in range(FINALISTS):
        again = {m: TreeSettings(**t[place]["settings"]) for m, t in ranked.items() if t[place:]}
        for method, trial in run(again, repeats).items() if again else ():
            finals[method].append(trial)
    return {
        "methods": {m: _ranked(finals[m]) + t[FINALISTS:] for m, t in ranked.items()},
        "stack": stack.name, **facts, "compiled": compiled_parts(stack) or "nothing",
        "cuda_graphs": uses_cuda_graphs(stack),
        "prompts": len(prompts), "max_new_tokens": max_new_tokens, "repeats": repeats,
        "machine": machine(), "versions": versions(), "other_jobs": jobs.cores(),
    }  # fmt: skip


def _mean_speed(entry: Mapping[str, Any]) -> float:
    speeds = [d["tokens_per_second"] for d in entry["domains"].values()]
    timed = [speed for speed in speeds if speed is not None]
    if not timed:
        raise ValueError(NOTHING_TO_TIME)
    return statistics.fmean(timed)


def _ranked(trials: list[Trial]) -> list[Trial]:
    return sorted(trials, key=lambda trial: -trial["speedup"])


def _text(settings: TreeSettings) -> str:
    depth = "" if settings.depth is None else f", depth {settings.depth}"
    return (
        f"W {settings.width}, K {settings.candidates}, B {settings.budget}, "
        f"penalty {settings.depth_penalty:g}{depth}"
    )


def winners(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings of each method's fastest trial, as ``stack.json`` keeps them under "tuned"."""
    return {method: rows[0]["settings"] for method, rows in result["methods"].items()}


def read_tuning(path: str | Path) -> dict[str, Any]:
    """What `dartree tune --json` wrote; ValueError where a file is something else."""
    found = read_json(file_path("tuned", path))
    try:
        found["stack"], [TreeSettings(**settings) for settings in winners(found).values()]
    except (KeyError, TypeError, AttributeError, IndexError):
        raise ValueError(f"tuned must be a file of `dartree tune --json`, got {path}.") from None
    return found


HEAD = ("method", "place", "W", "K", "B", "depth", "penalty", "tau", "tokens/s", "vs ar", "tried")


def trial_cells(method: str, place: str, trial: Trial, tried: int) -> list[str]:
    """The cells of a trial below :data:`HEAD`; "-" for settings that the method does not have."""
    shown, uses = ("width", "candidates", "budget", "depth", "depth_penalty"), TABLE[method].uses
    settings = {name: trial["settings"][name] for name in shown if name in uses}
    used = ["-" if settings.get(name) is None else f"{settings[name]:g}" for name in shown]
    speed = number(trial["tokens_per_second"], 0), number(trial["speedup"])
    return [method, place, *used, number(trial["tau"]), *speed, str(tried)]


def format_tuning(result: Mapping[str, Any]) -> str:
    """The finalists of each method as a text table, with their definitions."""
    rows = [list(HEAD)]
    for method, trials in result["methods"].items():
        for place, trial in enumerate(trials[:FINALISTS], start=1):
            rows.append(trial_cells(method, str(place), trial, len(trials)))
    graphs = " with CUDA graphs" if result.get("cuda_graphs") else ""
    compiled = f"torch.compile: {result['compiled']}{graphs}"
    prompts = counted(result["prompts"], "prompt")
    return (
        f"{text_table(rows)}\n\n{result['on']}, {compiled}, {prompts}, up to "
        f"{result['max_new_tokens']} new tokens, T = 0; {measured_on(result)}.\n"
        "tokens/s: mean over the domains; vs ar: against `ar` in the same run. tried: settings "
        "that were timed once; the fastest of them, here, were timed again, all methods in turn, "
        f"{of_repeats(result['repeats'])}."
    )
