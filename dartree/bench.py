"""Timing: all methods and three one-token baselines interleaved, and how a round's cost grows.

Everything is measured by the loop that users run.  Medians are over repeats; the first, short run
of every method is not counted.
"""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dartree.baselines import AR_COMPILED, BASELINES, HF_GENERATE, ar_compiled, hf_generate
from dartree.clock import STAGES
from dartree.compare import (
    LOSSLESS,
    compare,
    machine,
    ms_per_round,
    number,
    prompt_of,
    text_table,
    versions,
)
from dartree.compiled import compiled_stack, why_not
from dartree.decode import Generation, generate
from dartree.settings import TreeSettings, check_method
from dartree.stack import Stack

SWEEPS = {
    "budget": (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192),
    "width": (1, 2, 4, 8, 12, 16, 24, 32),
    "candidates": (1, 4, 16, 64, 256),
    "depth_penalty": (0.0, 0.1, 0.2, 0.5, 1.0, 2.0),
    "prefix": (64, 128, 256, 512, 768, 960),
    "threads": (1, 2, 4, 8),
}
SWEPT = {"budget": ("heap", "dartree"), "depth_penalty": ("dartree",)}


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
    speedup over `ar` if only models cost anything.
    """
    baselines: dict[str, Callable[..., Generation]] = {
        HF_GENERATE: functools.partial(hf_generate, stack)
    }
    reason = why_not() if compiled else "not asked for"
    fast = None if reason else compiled_stack(stack)
    if fast:
        baselines[AR_COMPILED] = functools.partial(ar_compiled, fast)
    result = compare(
        stack, prompts, methods, settings, repeats=repeats, baselines=baselines, **options
    )
    entries = {e["method"]: e for e in result["methods"]}
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
    result["fastest_baseline"] = fastest
    result["compiled"] = fast.pairing("ar").target.report if fast else f"left out: {reason}"
    return result


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
    **sampling: Any,
) -> dict[str, Any]:
    """tau and stage times of some methods while one parameter changes.

    ``parameter``: budget, width, candidates, depth_penalty, threads, or prefix (tokens before the
    answer, filled up with earlier turns). ``methods``: `dartree` and, where the parameter is its
    matter, `heap` or `ar`. ``sampling``: as `generate` takes it. A row is {value, method, tau,
    nodes_per_round, head_calls_per_round, tokens_per_second, stage_ms, ms_per_round [median, min,
    max over repeats]}.
    """
    if parameter not in SWEEPS:
        raise ValueError(f"sweep must be one of {', '.join(SWEEPS)}, got {parameter!r}.")
    for method in methods or ():
        check_method(method)
    base, threads = settings or stack.settings, torch.get_num_threads()
    asked = [stack.encode(prompt_of(row)) for row in prompts]
    values = SWEEPS[parameter] if values is None else values
    if parameter == "threads":
        values = [v for v in values if v <= (machine()["cores"] or 1)]
    rows = []
    try:
        for value in values:
            used, ids = base, asked
            if parameter == "threads":
                torch.set_num_threads(value)
            elif parameter == "prefix":
                ids = [long_prompt(asked, i, value) for i in range(len(asked))]
            else:
                used = replace(base, **{parameter: value})
            for method in methods or SWEPT.get(parameter, ("ar", "dartree")):
                runs = [[generate(stack, one, method=method, settings=used,
                                  max_new_tokens=max_new_tokens, **sampling) for one in ids]
                        for _ in range(repeats + 1)][1:]  # fmt: skip
                rows.append({"value": value, **_swept(method, runs)})
    finally:
        torch.set_num_threads(threads)
    return {"parameter": parameter, "settings": base.to_dict(), "repeats": repeats, "rows": rows,
            "prompts": len(prompts), "max_new_tokens": max_new_tokens, "machine": machine(),
            "versions": versions(), "stack": stack.name, "sampling": sampling}  # fmt: skip


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


def peak_memory(arguments: Sequence[str]) -> int:
    """Peak resident bytes of `dartree generate` with ``arguments``, in a process of its own."""
    script = (
        "import resource, sys\nfrom dartree.cli import main\nstatus = main(sys.argv[1:])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
        "sys.exit(status)"
    )
    line = [sys.executable, "-c", script, "generate", "--json", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes there
    return int(done.stderr.split()[-1]) * unit


def format_bench(result: dict[str, Any]) -> str:
    """The benchmark as a text table, with its definitions."""
    rows = [("method", "tau", "tokens/s", "range", "vs fastest", "vs hf", "bound", "calls",
             "nodes", "ms/round", *STAGES, "stages", "lossless")]  # fmt: skip
    for e in result["methods"]:
        low, high = e["tokens_per_second_range"]
        rows.append((
            e["method"], f"{e['tau']:.2f}", f"{e['tokens_per_second']:.0f}",
            f"{low:.0f}-{high:.0f}", f"{e['speedup_fastest']:.2f}", f"{e['speedup_hf']:.2f}",
            f"{e['bound']:.2f}", f"{e['head_calls'] / max(1, e['rounds']):.1f}",
            f"{e['verified_nodes'] / max(1, e['rounds']):.1f}", f"{e['ms_per_round']:.2f}",
            *(f"{e['stage_ms'][s]:.2f}" for s in STAGES), f"{e['stage_share']:.0%}",
            LOSSLESS[e["lossless"]],
        ))  # fmt: skip
    first, options = result["methods"][0], result["options"]
    lines = [
        text_table(rows),
        "",
        f"stack {first['stack']}, {first['dtype']} on {first['device']}, {first['threads']} "
        f"threads, {len(result['prompts'])} prompts, up to {options['max_new_tokens']} new tokens, "
        f"T = {options['temperature']:g}, median of {options['repeats']} repeats, interleaved; "
        f"{result['machine']['processor']}.",
        f"vs fastest: tokens/s against {result['fastest_baseline']}, the fastest one-token loop "
        "of this run; vs hf: against transformers' generate. range: slowest and fastest repeat.",
        "bound: speedup over `ar` if only drafter, head and target cost anything. calls, nodes: "
        "head calls and verified nodes a round. stages: their sum over the time of a round; the "
        "columns between are their milliseconds a round.",
        *_settings_lines(result["methods"]),
    ]
    lines.append(f"ar-compiled: {result['compiled']}")
    if "memory" in result:
        lines.append(_memory_line(result["memory"]))
    return "\n".join(lines)


def memory(stack: Stack, arguments: Sequence[str]) -> dict[str, int]:
    """Bytes: peaks of ``ar`` and ``dartree`` (processes of their own), and the drafter's weights.

    ``arguments``: prompt and stack options, as `dartree generate` takes them.
    """
    modules = (stack.drafter, stack.head)
    weights = [p for m in modules if isinstance(m, torch.nn.Module) for p in m.parameters()]
    peaks = {m: peak_memory([*arguments, "--method", m]) for m in ("ar", "dartree")}
    return {**peaks, "drafter": sum(p.numel() * p.element_size() for p in weights)}


def _memory_line(found: Mapping[str, int]) -> str:
    share = found["dartree"] / (found["ar"] + found["drafter"])
    megabytes = {name: f"{size / 2**20:.0f} MiB" for name, size in found.items()}
    return (
        f"peak resident memory: ar {megabytes['ar']}, dartree {megabytes['dartree']}, drafter's "
        f"weights {megabytes['drafter']}: {share:.2f} times ar plus drafter."
    )


def _settings_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each set of settings, with the methods that used it."""
    names = {"width": "W", "candidates": "K", "budget": "B", "depth_penalty": "penalty",
             "depth": "depth"}  # fmt: skip
    users: dict[str, list[str]] = {}
    for e in entries:
        used = [f"{short} {e['settings'][key]:g}" for key, short in names.items()
                if e["settings"].get(key) is not None]  # fmt: skip
        if used:
            users.setdefault(", ".join(used), []).append(e["method"])
    return [f"{', '.join(methods)}: {text}." for text, methods in users.items()]


def format_sweep(result: dict[str, Any]) -> str:
    """A sweep as a text table."""
    rows = [(result["parameter"], "method", "tau", "nodes/round", "tokens/s", "ms/round", "range",
             *STAGES)]  # fmt: skip
    for r in result["rows"]:
        middle, low, high = r["ms_per_round"]
        rows.append((
            str(r["value"]), r["method"], f"{r['tau']:.2f}", f"{r['nodes_per_round']:.1f}",
            number(r["tokens_per_second"], 0), f"{middle:.2f}", f"{low:.2f}-{high:.2f}",
            *(f"{r['stage_ms'][s]:.2f}" for s in STAGES),
        ))  # fmt: skip
    return text_table(rows)
