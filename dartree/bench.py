"""Timing: all methods and three one-token baselines interleaved, and how a round's cost grows.

Everything is measured by the loop that users run.  Medians are over repeats; a warm-up of every
method is not counted.
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from dartree.baselines import AR_COMPILED, BASELINES, HF_GENERATE, ar_compiled, hf_generate
from dartree.checks import positive_int
from dartree.clock import STAGES
from dartree.compare import NOTHING_TO_TIME, compare, settings_by_method
from dartree.compiled import compiled_parts, compiled_stack, report, uses_cuda_graphs, why_not
from dartree.decode import Generation, generate
from dartree.entries import ms_per_round
from dartree.fused import plain_head
from dartree.machine import OtherJobs, machine, versions
from dartree.memory import estimate
from dartree.methods import check_method
from dartree.prompt_files import prompt_of
from dartree.report_tables import format_bench as format_bench
from dartree.report_tables import format_memory as format_memory
from dartree.report_tables import format_sweep as format_sweep
from dartree.report_tables import run_on
from dartree.settings import TreeSettings
from dartree.stack import Stack
from dartree.stage_memory import stage_memory

SWEEPS = {
    "budget": (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192),
    "width": (1, 2, 4, 8, 12, 16, 24, 32),
    "candidates": (1, 4, 16, 64, 256),
    "depth_penalty": (0.0, 0.1, 0.2, 0.5, 1.0, 2.0),
    "prefix": (64, 128, 256, 512, 768, 960),
    "threads": (1, 2, 4, 8),
}
SWEPT = {"budget": ("heap", "dartree"), "depth_penalty": ("dartree",)}
STAGE_MEMORY = ("ar", "dflash", "ddtree", "heap", "dartree")  # methods whose stages are weighed


def bench(
    stack: Stack,
    prompts: Sequence[dict[str, Any]],
    methods: Sequence[str] | None = None,
    settings: TreeSettings | Mapping[str, TreeSettings] | None = None,
    *,
    compiled: bool = True,
    repeats: int = 5,
    **options: Any,
) -> dict[str, Any]:
    """As :func:`dartree.compare.compare`, with the baselines and what timing needs.

    Each entry gains ``stage_ms`` (per round), ``stage_share`` (sum of the stages over the time of
    the rounds), ``speedup_hf``, ``speedup_fastest`` (against hf-generate and against the fastest
    one-token baseline of the run) and ``bound``: tau * T_ar / (T_draft + T_head + T_verify), the
    speedup over `ar` if only models cost anything. ``domains`` of an entry gain ``fastest`` and
    ``speedup_fastest``: the one-token baseline that is fastest on that domain, and against it.
    """
    baselines: dict[str, Callable[..., Generation]] = {
        HF_GENERATE: functools.partial(hf_generate, stack)
    }
    reason = why_not() if compiled else "not asked for"
    whole = compiled_parts(stack) == "all"
    fast = None if reason else stack if whole else _compiled_like(stack)
    if fast:
        baselines[AR_COMPILED] = functools.partial(ar_compiled, fast)
    result = compare(
        stack, prompts, methods, settings, repeats=repeats, baselines=baselines,
        compiled_baselines=[AR_COMPILED] if fast else [], **options,
    )  # fmt: skip
    entries = {e["method"]: e for e in result["methods"]}
    if not entries["ar"]["tokens_per_second"]:
        raise ValueError(NOTHING_TO_TIME)
    one_token = [name for name in BASELINES if name in entries]
    fastest = max(one_token, key=lambda n: entries[n]["tokens_per_second"] or 0)
    step = ms_per_round(entries["ar"])
    for e in result["methods"]:
        rounds = max(1, e["rounds"])
        e["stage_ms"] = {s: 1000 * e["seconds"][s] / rounds for s in STAGES}
        e["ms_per_round"] = ms_per_round(e)
        e["stage_share"] = sum(e["stage_ms"].values()) / e["ms_per_round"]
        for name, key in ((HF_GENERATE, "speedup_hf"), (fastest, "speedup_fastest")):
            e[key] = e["tokens_per_second"] / entries[name]["tokens_per_second"]
        models = e["stage_ms"]["draft"] + e["stage_ms"]["expand"] + e["stage_ms"]["verify"]
        e["bound"] = e["tau"] * step / models
    for domain in result["methods"][0]["domains"]:
        _against_fastest(domain, entries, one_token)
    result["fastest_baseline"] = fastest
    result["compiled"] = report(fast) if fast else f"left out: {reason}"
    result["compiled_methods"] = report(stack) if compiled_parts(stack) else None
    return result


def _compiled_like(stack: Stack) -> Stack:
    return compiled_stack(stack, cuda_graphs=uses_cuda_graphs(stack))


def _against_fastest(
    domain: str, entries: Mapping[str, dict[str, Any]], one_token: Sequence[str]
) -> None:
    """Divide the speeds on ``domain`` by that of its fastest one-token baseline, in place."""
    found = {name: e["domains"][domain] for name, e in entries.items()}
    fastest = max(one_token, key=lambda n: found[n]["tokens_per_second"] or 0)
    divisor = found[fastest]["tokens_per_second"]
    for row in found.values():
        speed = row["tokens_per_second"]
        row["fastest"] = fastest
        row["speedup_fastest"] = speed / divisor if speed and divisor else None


def sweep(
    stack: Stack,
    prompts: Sequence[dict[str, Any]],
    parameter: str,
    values: Sequence[float] | None = None,
    *,
    methods: Sequence[str] | None = None,
    settings: TreeSettings | None = None,
    max_new_tokens: int = 64,
    repeats: int = 3,
    prompts_file: str | None = None,
    **sampling: Any,
) -> dict[str, Any]:
    """tau and stage times of some methods while one parameter changes.

    ``parameter``: budget, width, candidates, depth_penalty, threads, or prefix (tokens before the
    answer, filled up with earlier turns). ``methods``: None for `dartree`, over budgets beside
    `heap`, else (but for penalties) beside `ar`. ``sampling``: as `generate` takes it. A row is
    {value, method, tau, nodes_per_round, head_calls_per_round, tokens_per_second, stage_ms,
    ms_per_round [median, min, max over repeats]}; for prefix also ``peak_mib``: both caches and the
    peak of the verify stage at the first prompt (:func:`dartree.stage_memory.stage_memory`; not
    for a stack of which anything is compiled).
    """
    if parameter not in SWEEPS:
        raise ValueError(f"sweep must be one of {', '.join(SWEEPS)}, got {parameter!r}.")
    for method in methods or ():
        check_method(method)
    base, threads = stack.chosen_settings(settings), torch.get_num_threads()
    asked = [stack.encode(prompt_of(row)) for row in prompts]
    values = SWEEPS[parameter] if values is None else values
    if parameter == "prefix":
        values = [v for v in values if v < stack.target.max_positions]
    if parameter == "threads":
        values = [v for v in values if v <= (machine()["cores"] or 1)]
    on = ""
    if not asked or not values:
        what = (
            f"values of {parameter} must hold one that fits" if asked else "prompts must hold one"
        )
        raise ValueError(f"{what}, got none.")
    points: dict[tuple[float, str], list[list[Generation]]] = {}
    peaks: dict[tuple[float, str], float] = {}
    jobs = OtherJobs()
    try:
        # Repeats outermost, a warm-up first: a slow minute touches all values alike.
        for repeat, value in itertools.product(range(repeats + 1), values):
            used, ids = base, asked
            if parameter == "threads":
                torch.set_num_threads(positive_int("threads", value))
            elif parameter == "prefix":
                length = positive_int("prefix", value)
                ids = [long_prompt(asked, i, length) for i in range(len(asked))]
            else:
                change: dict[str, Any] = {parameter: value}
                used = replace(base, **change)
            for method in methods or SWEPT.get(parameter, ("ar", "dartree")):
                run = [
                    generate(
                        stack,
                        one,
                        method=method,
                        settings=used,
                        max_new_tokens=max_new_tokens,
                        **sampling,
                    )
                    for one in ids
                ]
                on = run_on(vars(run[0]), threads=parameter != "threads")
                if repeat:
                    points.setdefault((value, method), []).append(run)
                elif parameter == "prefix" and not compiled_parts(stack):
                    peaks[value, method] = _peak_mib(stack, ids[0], method, used, max_new_tokens)
    finally:
        torch.set_num_threads(threads)
    rows = [{"value": value, **_swept(method, runs)} for (value, method), runs in points.items()]
    for row in rows:
        if peaks:
            row["peak_mib"] = peaks[row["value"], row["method"]]
    return {"parameter": parameter, "settings": base.to_dict(), "repeats": repeats, "rows": rows,
            "prompts": len(prompts), "prompts_file": prompts_file,
            "max_new_tokens": max_new_tokens, "machine": machine(), "versions": versions(),
            "compiled_methods": report(stack) if compiled_parts(stack) else None,
            "other_jobs": jobs.cores(), "stack": stack.name, "on": on,
            "sampling": sampling}  # fmt: skip


def _peak_mib(stack: Stack, ids: Sequence[int], method: str, settings, max_new_tokens) -> float:
    found = stage_memory(stack, ids, method, settings, max_new_tokens)
    caches = found["kept"]["kv_cache"] + found["kept"]["drafter_cache"]
    return (caches + found["stages"]["verify"]) / 2**20


def _swept(method: str, runs: list[list[Generation]]) -> dict[str, Any]:
    per_round = []
    for run in runs:
        rounds = sum(g.rounds for g in run) or 1
        per_round.append(
            [1000 * sum(g.seconds[s] for g in run) / rounds for s in STAGES]
            + [1000 * sum(g.seconds["total"] - g.seconds["prefill"] for g in run) / rounds]
        )
    middle = [statistics.median(column) for column in zip(*per_round, strict=True)]
    first, total = runs[0], [row[-1] for row in per_round]
    rounds = sum(g.rounds for g in first) or 1
    tokens = sum(sum(g.accepted_per_round) for g in first)
    return {
        "method": method, "tau": tokens / rounds,
        "nodes_per_round": sum(g.verified_nodes for g in first) / rounds,
        "head_calls_per_round": sum(g.head_calls for g in first) / rounds,
        "stage_ms": dict(zip(STAGES, middle, strict=False)),
        "ms_per_round": [middle[-1], min(total), max(total)],
        "tokens_per_second": 1000 * tokens / rounds / middle[-1] if middle[-1] else None,
    }  # fmt: skip


def long_prompt(prompts: Sequence[list[int]], index: int, length: int) -> list[int]:
    """Prompt ``index`` after as many others as fill ``length`` tokens; cut from the left."""
    ids, other = list(prompts[index]), index
    while len(ids) < length:
        other += 1
        ids = [*prompts[other % len(prompts)], *ids]
    return ids[-length:]


# Linux's own count of a process: getrusage would give the larger of its peak and that of the
# process that started it. Elsewhere getrusage, in bytes on macOS.
_PEAK = """
import json, sys
from dartree.cli import main
status = main(json.load(sys.stdin))  # a command line may be shorter than the ids of a long prompt
if status:
    sys.exit(status)  # what it said last is the reason
try:
    with open("/proc/self/status") as lines:
        peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
except (OSError, StopIteration):
    import resource
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
print(peak, file=sys.stderr)
"""


def peak_memory(arguments: Sequence[str]) -> int:
    """Peak resident bytes of `dartree generate` with ``arguments``, in a process of its own.

    Raises ValueError with what that process said last, or its status where it was killed.
    """
    line = json.dumps(["generate", "--json", *arguments])
    done = subprocess.run(
        [sys.executable, "-c", _PEAK], input=line, text=True, errors="replace", check=False,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}."]
        raise ValueError(f"peak memory cannot be measured: {said[-1]}")
    return int(done.stderr.split()[-1])


def memory(stack: Stack, arguments: Sequence[str]) -> dict[str, int]:
    """Bytes: peaks of ``ar`` and ``dartree`` (processes of their own), and the drafter's weights.

    ``arguments``: prompt and stack options, as `dartree generate` takes them.
    """
    modules = (stack.drafter, plain_head(stack.head))
    weights = [p for m in modules if isinstance(m, torch.nn.Module) for p in m.parameters()]
    peaks = {m: peak_memory([*arguments, "--method", m]) for m in ("ar", "dartree")}
    return {**peaks, "drafter": sum(p.numel() * p.element_size() for p in weights)}


def memory_by_stage(
    stack: Stack,
    ids: Sequence[int],
    settings: TreeSettings | Mapping[str, TreeSettings] | None = None,
    max_new_tokens: int = 128,
) -> dict[str, Any]:
    """Bytes: {methods: by method as `stage_memory` gives them, estimate: the same for `dartree`}.

    ``settings`` as :func:`bench` takes them. The estimate (:func:`dartree.memory.estimate`) is None
    where target and drafter are of different dtypes: it knows one.
    """
    by_method = settings_by_method(settings, STAGE_MEMORY)
    found = {m: stage_memory(stack, ids, m, by_method.get(m), max_new_tokens) for m in STAGE_MEMORY}
    need, target = None, stack.target
    second = None if stack.marginal is None else stack.marginal.drafter.config
    if stack.drafter.dtype == target.dtype:
        need = asdict(estimate(
            target.config.to_dict(), stack.drafter.config,
            stack.chosen_settings(by_method.get("dartree")), len(ids) + max_new_tokens,
            target.dtype.itemsize, beside=second, may_fuse=stack.fused,
        ))  # fmt: skip
    return {"methods": found, "estimate": need, "prompt_tokens": len(ids)}
