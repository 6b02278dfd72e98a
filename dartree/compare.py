"""All methods on the same prompts in one process, interleaved; `ar` is always run."""

from __future__ import annotations

import functools
import json
import os
import platform
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dartree.checks import file_path, instance, positive_int
from dartree.compiled import CompiledTarget
from dartree.decode import Decoding, Generation, generate
from dartree.entries import method_entry
from dartree.methods import METHODS, TABLE, check_method
from dartree.report_tables import format_table as format_table
from dartree.settings import TreeSettings
from dartree.stack import Stack

PROMPT_FIELDS = ("prompt", "messages", "ids")


def load_prompts(path: str | Path, limit: int | None = None) -> list[dict[str, Any]]:
    """Rows of a prompts file: JSON objects with id, domain and one of prompt, messages, ids.

    ``limit`` keeps the first rows of each domain. Raises ValueError that names the file and
    the line where a row is unusable or repeats an id.
    """
    path = file_path("path", path)
    limit = None if limit is None else positive_int("limit", limit)
    lines = read_lines(path)
    rows: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    places: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"prompts file {path}, line {number}"
        row = _prompt_row(line, where)
        first = places.setdefault(row["id"], number)
        if first != number:
            raise ValueError(f"{where} repeats the id {row['id']!r} of line {first}.")
        seen[row["domain"]] = seen.get(row["domain"], 0) + 1
        if limit is None or seen[row["domain"]] <= limit:
            rows.append(row)
    if not rows:
        raise ValueError(f"prompts file {path} holds no prompts.")
    return rows


def read_lines(path: Path) -> list[str]:
    """Lines of a prompts file; ValueError where it cannot be read."""
    try:
        # Not splitlines(): JSON may hold U+2028 and the like inside a text.
        return path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"prompts file {path} cannot be read: {error}.") from None


def parse_json(line: str, where: str) -> Any:
    """The value of one line; ValueError that begins with ``where`` if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: a number of very many digits, too
        raise ValueError(f"{where} is not JSON: {error}.") from None


def _prompt_row(line: str, where: str) -> dict[str, Any]:
    row = parse_json(line, where)
    name = _prompt_field(row, where)
    kind = str if name == "prompt" else list
    if not isinstance(row[name], kind):
        raise ValueError(f"{where}: {name!r} must be a {kind.__name__}.")
    if name == "ids" and not all(type(i) is int for i in row["ids"]):
        raise ValueError(f"{where}: 'ids' must be a list of integers.")
    return row


def _prompt_field(row: Any, where: str) -> str:
    """Which of PROMPT_FIELDS a row holds; ValueError unless it has id, domain and one of these."""
    texts = isinstance(row, dict) and all(isinstance(row.get(n), str) for n in ("id", "domain"))
    if not texts:
        raise ValueError(f"{where} must be an object with the texts 'id' and 'domain'.")
    given = [name for name in PROMPT_FIELDS if row.get(name)]
    if len(given) != 1:
        raise ValueError(f"{where} must hold exactly one of {', '.join(PROMPT_FIELDS)}.")
    return given[0]


def prompt_of(row: dict[str, Any]) -> Any:
    """The prompt of a row, as :func:`dartree.generate` takes it."""
    return next(row[name] for name in PROMPT_FIELDS if row.get(name))


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

    Returns {methods: entries, prompts, prompts_file, machine, versions, options}.

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
        _prompt_field(row, f"prompt {number}")
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
    compiled = {*compiled_baselines, *(chosen if isinstance(stack.target, CompiledTarget) else ())}
    for name, run in runners.items():  # the warm-up
        # Graphs differ with the sizes of trees and caches, so that a few tokens would not do.
        rows, length = (prompts, max_new_tokens) if name in compiled else (prompts[:1], 4)
        for row in rows:
            run(prompt_of(row), max_new_tokens=length, **options)
    runs: dict[str, list[list[Generation]]] = {m: [] for m in runners}
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
    entries = [
        method_entry(method, runs[method], runs["ar"], prompts, temperature) for method in runners
    ]
    for entry in entries:
        entry["differences"] = differences(stack, prompts, entry, entries[0]["token_ids"])
    return {
        "methods": entries,
        "prompts": [{"id": r["id"], "domain": r["domain"]} for r in prompts],
        "prompts_file": prompts_file,
        "machine": machine(),
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
    stack: Stack, prompts: Sequence[dict[str, Any]], entry: dict[str, Any], plain: list[list[int]]
) -> list[dict[str, Any]]:
    """Where the ids of ``entry`` leave those of plain decoding: {prompt, position, gap}.

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
        ids = [*stack.encode(prompt_of(row)), *theirs[:at]]
        target = stack.target
        output = target.prefill(target.new_cache(len(ids)), torch.tensor(ids, device=target.device))
        best = output.logits[0].float().topk(2).values
        found.append({"prompt": row["id"], "position": at, "gap": float(best[0] - best[1])})
    return found


def _without_trees(record):
    """Keep what tables need of a record; trees of a long comparison would fill the memory."""
    record.supertree = record.kept = record.candidates = None
    return record


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    info = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }
    if torch.cuda.is_available():
        info["gpu"] = torch.cuda.get_device_name()
    return info


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    import numpy
    import transformers

    import dartree

    return {
        "dartree": dartree.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
    }
