"""All methods on the same prompts in one process, interleaved; `ar` is always run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from dartree.checks import instance, positive_int
from dartree.compiled import compiled_parts
from dartree.decode import Decoding, Generation, generate
from dartree.entries import method_entry
from dartree.machine import OtherJobs, machine, versions
from dartree.methods import METHODS, TABLE, check_method
from dartree.prompt_files import prompt_field, prompt_of
from dartree.report_tables import format_table as format_table
from dartree.settings import TreeSettings
from dartree.stack import Stack

NOTHING_TO_TIME = "no prompt gave a second token: there is nothing to time."


def compare(
    stack: Stack,
    prompts: Sequence[dict[str, Any]],
    methods: Iterable[str] | None = None,
    settings: TreeSettings | Mapping[str, TreeSettings] | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    repeats: int = 1,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
    baselines: Mapping[str, Callable[..., Generation]] | None = None,
    compiled_baselines: Collection[str] = (),
    prompts_file: str | None = None,
    **sampling: Any,
) -> dict[str, Any]:
    """Run ``methods`` on every prompt.

    Returns {methods: entries, prompts, prompts_file, machine, other_jobs, versions,
    options}. ``other_jobs``: the cores that other processes kept busy (None: not known).

    ``settings``: for all methods, or by method (the stack's own for those that are not named).
    ``baselines``: name -> function (prompt, max_new_tokens=..., temperature=..., seed=...) for
    further rows, run in turn with the methods; ``compiled_baselines``: those that torch.compile
    serves. ``prompts_file``: the prompts' name, for the table alone.

    Order: prompt by prompt, repeat by repeat, all methods in turn, so that a slow minute of the
    machine touches all alike. A warm-up of each method is not counted: a short one, or with a
    compiled target all prompts in full, so that nothing is compiled while it is timed.

    ``tau`` counts the last round of a text as it was cut, at a stop token or the length limit.
    ``same_ids`` says whether a method's ids equal those of `ar` on every prompt, and ``lossless``
    is the same at T = 0, else None. ``seconds`` of a method are sums over prompts of its middle
    repeat: the repeats are ordered by the time of their rounds, and of an even number the middle
    two are averaged. ``seconds_per_run``: by prompt, by repeat, {prefill, total}. ``domains``:
    prompts, tau and tokens per second of the prompts of each domain alone.
    """
    if isinstance(methods, str) or not isinstance(methods, Iterable | None):
        raise ValueError(f"methods must be a list of names, got {methods!r}.")
    chosen = list(dict.fromkeys(["ar", *(check_method(m) for m in methods or METHODS)]))
    instance("stack", stack, Stack)
    repeats = positive_int("repeats", repeats)
    if not isinstance(prompts, Sequence) or isinstance(prompts, str) or not prompts:
        raise ValueError("prompts must be a list of rows, and not empty.")
    for number, row in enumerate(prompts, start=1):
        prompt_field(row, f"prompt {number}")
    options = {"temperature": temperature, "seed": seed, **sampling}
    by_method = settings_by_method(settings, chosen)
    for row in prompts:  # a bad prompt is found before the first one is run
        try:
            Decoding(stack, prompt_of(row), max_new_tokens=max_new_tokens, **options)
        except ValueError as error:
            raise ValueError(f"prompt {row['id']!r}: {error}") from None
    for method in chosen:  # and so are settings that one of the methods cannot run with
        Decoding(stack, prompt_of(prompts[0]), method=method, settings=by_method.get(method))
    runners: dict[str, Callable[..., Generation]] = {
        m: functools.partial(generate, stack, method=m, settings=by_method.get(m)) for m in chosen
    }
    runners |= baselines or {}
    compiled = {*compiled_baselines, *(chosen if compiled_parts(stack) == "all" else ())}
    for name, run in runners.items():  # the warm-up
        # Graphs differ with the sizes of trees and caches, so that a few tokens would not do.
        rows, length = (prompts, max_new_tokens) if name in compiled else (prompts[:1], 4)
        for row in rows:
            run(prompt_of(row), max_new_tokens=length, **options)
    runs: dict[str, list[list[Generation]]] = {m: [] for m in runners}
    jobs = OtherJobs()
    for row in prompts:
        for repeat in range(repeats):
            for method, run in runners.items():
                out = run(prompt_of(row), max_new_tokens=max_new_tokens, **options)
                out.records = [_without_trees(r) for r in out.records]
                if repeat == 0:
                    runs[method].append([])
                runs[method][-1].append(out)
                if progress:
                    progress(f"{row['id']} {method}")
    busy = jobs.cores()
    entries = [
        method_entry(method, runs[method], runs["ar"], prompts, temperature) for method in runners
    ]
    for entry in entries:
        entry["differences"] = differences(
            stack, prompts, entry, entries[0]["token_ids"], sampling.get("raw", False)
        )
    return {
        "methods": entries,
        "prompts": [{"id": r["id"], "domain": r["domain"]} for r in prompts],
        "prompts_file": prompts_file,
        "machine": machine(),
        "other_jobs": busy,
        "versions": versions(),
        "options": {"max_new_tokens": max_new_tokens, "temperature": temperature,
                    "repeats": repeats, "seed": seed, **sampling},
    }  # fmt: skip


def settings_by_method(
    settings: TreeSettings | Mapping[str, TreeSettings] | None, methods: Iterable[str]
) -> Mapping[str, TreeSettings | None]:
    """``settings`` of each method; ValueError for a key that is no method's name."""
    if not isinstance(settings, Mapping):
        return dict.fromkeys(methods, settings)
    for name in settings:
        if name not in TABLE:
            raise ValueError(
                f"settings must be keyed by methods ({', '.join(TABLE)}), got {name!r}."
            )
    return settings


def differences(
    stack: Stack,
    prompts: Sequence[dict[str, Any]],
    entry: dict[str, Any],
    plain: list[list[int]],
    raw: bool = False,
) -> list[dict[str, Any]]:
    """Where the ids of ``entry`` leave those of plain decoding: {prompt, position, gap}.

    ``raw``: whether the prompts were run without the chat template.
    gap: the target's best logit less its second best after the common part, from a run over
    that part alone. In half precision a row's logits depend on how many rows are computed with
    it, and a small gap is a near-tie that may fall either way; in fp32 none is expected.
    """
    found: list[dict[str, Any]] = []
    if entry["lossless"] is not False:
        return found
    for row, ours, theirs in zip(prompts, entry["token_ids"], plain, strict=True):
        if ours == theirs:
            continue
        both = zip(ours, theirs, strict=False)
        at = next((i for i, (a, b) in enumerate(both) if a != b), min(len(ours), len(theirs)))
        ids = [*stack.encode(prompt_of(row), raw), *theirs[:at]]
        target = stack.target
        output = target.prefill(target.new_cache(len(ids)), torch.tensor(ids, device=target.device))
        best = output.logits[0].float().topk(2).values
        found.append({"prompt": row["id"], "position": at, "gap": float(best[0] - best[1])})
    return found


def _without_trees(record):
    """Keep what tables need of a record; trees of a long comparison would fill the memory."""
    record.supertree = record.kept = record.candidates = None
    return record
