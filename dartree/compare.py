"""All methods on the same prompts in one process, interleaved; `ar` is always run."""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dartree.checks import file_path, instance, positive_int
from dartree.clock import STAGES
from dartree.decode import Decoding, Generation, generate
from dartree.settings import METHODS, TreeSettings, check_method
from dartree.stack import Stack

PROMPT_FIELDS = ("prompt", "messages", "ids")
LOSSLESS = {True: "yes", False: "NO", None: "-"}  # as tables show it


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
    **sampling: Any,
) -> dict[str, Any]:
    """Run ``methods`` on every prompt; return {methods, prompts, machine, versions, options}.

    ``settings``: for all methods, or by method (the stack's own for those that are not named).
    ``baselines``: name -> function (prompt, max_new_tokens=..., temperature=..., seed=...) for
    further rows, run in turn with the methods.

    Order: prompt by prompt, repeat by repeat, all methods in turn, so that a slow minute of the
    machine touches all alike. One short warm-up per method is not counted. ``lossless`` (at
    T = 0) says whether a method's ids equal those of `ar` on every prompt. Times of a method
    are sums over prompts of the median repeat. ``domains``: prompts, tau and tokens per second of
    the prompts of each domain alone.
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
    by_method = settings if isinstance(settings, Mapping) else dict.fromkeys(chosen, settings)
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
    for run in runners.values():
        run(prompt_of(prompts[0]), max_new_tokens=4, **options)
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
    entries = [_entry(method, runs[method], runs["ar"], prompts, temperature) for method in runners]
    for entry in entries:
        entry["differences"] = differences(stack, prompts, entry, entries[0]["token_ids"])
    return {
        "methods": entries,
        "prompts": [{"id": r["id"], "domain": r["domain"]} for r in prompts],
        "machine": machine(),
        "versions": versions(),
        "options": {"max_new_tokens": max_new_tokens, "temperature": temperature,
                    "repeats": repeats, "seed": seed, **sampling},
    }  # fmt: skip


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


def _median_run(runs: list[Generation]) -> Generation:
    return sorted(runs, key=lambda r: r.seconds["total"])[(len(runs) - 1) // 2]


def _entry(method, runs, reference, prompts, temperature) -> dict[str, Any]:
    """One method's entry: sums and pooled means over prompts, `ar` of the same run beside it."""
    first = [r[0] for r in runs]
    middle = [_median_run(r) for r in runs]
    rounds = sum(g.rounds for g in first)
    committed = sum(sum(g.accepted_per_round) for g in first)
    taus = [g.tau for g in first if g.tau is not None]
    speed = _speed(middle)
    ar_speed = _speed([_median_run(r) for r in reference])
    speeds = [_speed([r[i] for r in runs]) for i in range(len(runs[0]))]
    spread = [s for s in speeds if s]
    lossless = None
    if temperature == 0:
        lossless = all(
            g.token_ids == a[0].token_ids for r, a in zip(runs, reference, strict=True) for g in r
        )
    g = first[0]
    return {
        "method": method,
        "stack": g.stack,
        "drafter": g.drafter,
        "settings": g.settings,
        "token_ids": [x.token_ids for x in first],
        "text": [x.text for x in first],
        "prompt_tokens": [x.prompt_tokens for x in first],
        "new_tokens": sum(x.new_tokens for x in first),
        "rounds": rounds,
        "accepted_per_round": [x.accepted_per_round for x in first],
        "tau": committed / rounds if rounds else None,
        "tau_per_prompt": statistics.fmean(taus) if taus else None,
        "head_calls": sum(x.head_calls for x in first),
        "verified_nodes": sum(x.verified_nodes for x in first),
        "seconds": {k: sum(x.seconds[k] for x in middle) for k in ("prefill", *STAGES, "total")},
        "tokens_per_second": speed,
        "tokens_per_second_range": [min(spread), max(spread)] if spread else None,
        "domains": _by_domain(first, middle, prompts),
        "speedup": speed / ar_speed if speed and ar_speed else None,
        "lossless": lossless,
        "stop_reason": [x.stop_reason for x in first],
        "dtype": g.dtype,
        "device": g.device,
        "threads": g.threads,
        "seed": g.seed,
        "packed": g.packed,
        "lacks_head": g.lacks_head,
    }


def _by_domain(first, middle, prompts) -> dict[str, dict[str, Any]]:
    """For each domain {prompts, tau, tokens_per_second}, pooled as those of all prompts are."""
    domains = {}
    for domain in dict.fromkeys(row["domain"] for row in prompts):
        chosen = [i for i, row in enumerate(prompts) if row["domain"] == domain]
        rounds = sum(first[i].rounds for i in chosen)
        committed = sum(sum(first[i].accepted_per_round) for i in chosen)
        domains[domain] = {
            "prompts": len(chosen),
            "tau": committed / rounds if rounds else None,
            "tokens_per_second": _speed([middle[i] for i in chosen]),
        }
    return domains


def _speed(runs: list[Generation]) -> float | None:
    """Tokens per second: total tokens over total time, first tokens and prefills left out."""
    busy = sum(r.seconds["total"] - r.seconds["prefill"] for r in runs)
    tokens = sum(r.new_tokens - 1 for r in runs)
    return tokens / busy if tokens and busy > 0 else None


def ms_per_round(entry: Mapping[str, Any]) -> float:
    """Milliseconds of a round of one method's entry, the prefill left out."""
    busy = entry["seconds"]["total"] - entry["seconds"]["prefill"]
    return 1000 * busy / max(1, entry["rounds"])


def domain_tau(
    entry: Mapping[str, Any], prompts: Sequence[Mapping[str, Any]], domain: str
) -> float | None:
    """Tau pooled over the prompts of one domain; None without rounds."""
    per_prompt = zip(entry["accepted_per_round"], prompts, strict=True)
    rounds = [count for counts, p in per_prompt if p["domain"] == domain for count in counts]
    return sum(rounds) / len(rounds) if rounds else None


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


def format_table(result: dict[str, Any]) -> str:
    """The comparison as a text table, its definitions below it."""
    rows = [("method", "tau", "head calls/round", "nodes/round", "ms/round", "tokens/s",
             "speedup", "lossless", "drafter")]  # fmt: skip
    for e in result["methods"]:
        n = e["rounds"] or 1
        rows.append((
            e["method"], number(e["tau"]), number(e["head_calls"] / n, 1),
            number(e["verified_nodes"] / n, 1), number(ms_per_round(e), 1),
            number(e["tokens_per_second"], 1), number(e["speedup"]),
            LOSSLESS[e["lossless"]], e["drafter"],
        ))  # fmt: skip
    lines = [text_table(rows)]
    first, options = result["methods"][0], result["options"]
    dartree_settings = next(
        (e["settings"] for e in reversed(result["methods"]) if e["settings"]["width"]), None
    )
    lines += [
        "",
        f"{run_on(first)}, {len(result['prompts'])} prompts, up to {options['max_new_tokens']} new "
        f"tokens, T = {options['temperature']:g}, {options['repeats']} repeat(s).",
        "tau: tokens committed per round (accepted drafts + 1), pooled over prompts. tokens/s: "
        "first tokens and prefills left out. speedup: "
        "tokens/s against `ar`, our one-token loop.",
    ]
    for e in result["methods"]:
        if e["differences"]:
            gaps = [d["gap"] for d in e["differences"]]
            lines.append(
                f"{e['method']}: {len(gaps)} of {len(result['prompts'])} texts differ from ar; "
                f"at the first difference the target's two best logits are {min(gaps):.3g} to "
                f"{max(gaps):.3g} apart ({first['dtype']})."
            )
    lines += headless_notes(result["methods"])
    if dartree_settings:
        lines.append(
            "dartree: W {width}, K {candidates}, B {budget}, depth penalty {depth_penalty:g}, "
            "depth {depth}.".format(**dartree_settings)
        )
    return "\n".join(lines)


def run_on(entry: Mapping[str, Any]) -> str:
    """What a method's numbers were made on: stack, dtype, device, layout of weights, threads."""
    packed = ", packed weights" if entry["packed"] else ""
    threads = "1 thread" if entry["threads"] == 1 else f"{entry['threads']} threads"
    return f"stack {entry['stack']}, {entry['dtype']} on {entry['device']}{packed}, {threads}"


def headless_notes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line on the methods that ran with the identity correction, for want of a head."""
    names = [e["method"] for e in entries if e["lacks_head"]]
    if not names:
        return []
    return [f"{', '.join(names)}: the drafter has no correction head; they run on its marginals."]


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in aligned columns under a ruled head; the last column is not padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if i in (0, len(row) - 1) else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def number(value: float | None, digits: int = 2) -> str:
    """A number as tables show it; "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}"
