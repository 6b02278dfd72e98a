"""Comparisons, benchmarks and sweeps as text tables, with their definitions below them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dartree.checks import counted
from dartree.clock import STAGES
from dartree.entries import ms_per_round
from dartree.methods import TABLE

LOSSLESS = {True: "yes", False: "NO", None: "-"}  # as tables show it
RANGE = " range: slowest and fastest repeat."


# What tau means at the end of a text, below every table.
TAU = (
    "tau: tokens committed per round (accepted drafts + the target's own; in the last round of a "
    "text only those up to its stop token or the length limit), pooled over prompts."
)


def format_table(result: Mapping[str, Any]) -> str:
    """The comparison as a text table, its definitions below it."""
    entries, options = result["methods"], result["options"]
    repeated = options["repeats"] > 1
    rows = [("method", "tau", "head calls/round", "nodes/round", "ms/round", "tokens/s",
             *["range"] * repeated, "speedup", "lossless", "drafter")]  # fmt: skip
    for e in entries:
        rows.append((
            e["method"], number(e["tau"]), number(_per_round(e, "head_calls"), 1),
            number(_per_round(e, "verified_nodes"), 1),
            number(ms_per_round(e) if e["rounds"] else None, 1),
            number(e["tokens_per_second"], 1), *[_range(e, 1)] * repeated, number(e["speedup"]),
            _lossless(e), e["drafter"],
        ))  # fmt: skip
    lines = [
        text_table(rows),
        "",
        f"{_ran(result)}; {measured_on(result)}.",
        f"{TAU} tokens/s: first tokens and prefills left out. speedup: tokens/s against `ar`, our "
        f"one-token loop.{RANGE * repeated}",
        *_sampling_notes(options),
    ]
    for e in entries:
        if e["differences"]:
            gaps = [d["gap"] for d in e["differences"]]
            lines.append(
                f"{e['method']}: {len(gaps)} of {len(result['prompts'])} texts differ from ar; "
                f"at the first difference the target's two best logits are {min(gaps):.3g} to "
                f"{max(gaps):.3g} apart ({e['dtype']})."
            )
    return "\n".join([*lines, *headless_notes(entries), *settings_lines(entries)])


def format_bench(result: Mapping[str, Any]) -> str:
    """The benchmark as a text table, with its definitions."""
    entries = result["methods"]
    rows = [("method", "tau", "tokens/s", "range", "vs fastest", "vs hf", "vs ar", "bound", "calls",
             "nodes", "ms/round", *STAGES, "stages", "lossless")]  # fmt: skip
    for e in entries:
        rows.append((
            e["method"], f"{e['tau']:.2f}", f"{e['tokens_per_second']:.0f}", _range(e, 0),
            f"{e['speedup_fastest']:.2f}", f"{e['speedup_hf']:.2f}", f"{e['speedup']:.2f}",
            f"{e['bound']:.2f}", number(_per_round(e, "head_calls"), 1),
            number(_per_round(e, "verified_nodes"), 1), f"{e['ms_per_round']:.2f}",
            *(f"{e['stage_ms'][s]:.2f}" for s in STAGES), f"{e['stage_share']:.0%}",
            _lossless(e),
        ))  # fmt: skip
    lines = [
        text_table(rows),
        "",
        f"{_ran(result)}, interleaved; {measured_on(result)}.",
        TAU,
        f"vs fastest: tokens/s against {result['fastest_baseline']}, the fastest one-token loop "
        "of this run; vs hf: against transformers' generate; vs ar: against `ar`, our one-token "
        f"loop.{RANGE}",
        "bound: the most that vs ar could be, if only drafter, head and target cost anything. "
        "calls, nodes: head calls and verified nodes a round. stages: their sum over the time of a "
        "round; the columns between are their milliseconds a round.",
        *_sampling_notes(result["options"]),
        *settings_lines(entries),
        *headless_notes(entries),
        *layout_notes(entries),
        f"ar-compiled: {result['compiled']}.",
    ]
    if result["compiled_methods"]:
        lines.append(f"the methods: {result['compiled_methods']}.")
    if len(entries[0]["domains"]) > 1:
        lines += ["", _domain_table(entries)]
    if weighed := format_memory(result):
        lines += ["", weighed]
    return "\n".join(lines)


def format_memory(result: Mapping[str, Any]) -> str:
    """What a benchmark has weighed, as text; empty where it has weighed nothing."""
    blocks = []
    if "memory" in result:
        blocks.append(_memory_line(result["memory"]))
    if "stage_memory" in result:
        blocks.append(_stage_memory_table(result["stage_memory"]))
    return "\n\n".join(blocks)


def _ran(result: Mapping[str, Any]) -> str:
    """What was run: stack, prompts, limits and repeats."""
    options = result["options"]
    return f"{run_on(result['methods'][0])}, {_prompts(result)}, {_decoded(options)}"


def _per_round(entry: Mapping[str, Any], name: str) -> float | None:
    """A method's count ``name`` by round; None where it had no round."""
    return entry[name] / entry["rounds"] if entry["rounds"] else None


def measured_on(result: Mapping[str, Any]) -> str:
    """The processor, and how busy other jobs kept it where that is known."""
    facts, busy = result["machine"], result.get("other_jobs")
    if busy is None:
        return facts["processor"]
    return f"{facts['processor']}, other jobs kept {busy:.2f} of {facts['cores']} cores busy"


def _decoded(options: Mapping[str, Any]) -> str:
    """How long, how and how often it was decoded."""
    return (
        f"up to {counted(options['max_new_tokens'], 'new token')}, "
        f"T = {options['temperature']:g}{_filters(options)}, {of_repeats(options['repeats'])}"
    )


def of_repeats(count: int) -> str:
    """What times of several repeats are: their median, or what it is of an even number."""
    middle = "median" if count % 2 else "mean" if count == 2 else "mean of the middle two"
    return "1 repeat" if count == 1 else f"{middle} of {count} repeats"


def _filters(options: Mapping[str, Any]) -> str:
    """What the target's distribution was cut with; greedy decoding has none."""
    given = {name: options.get(name) for name in ("top_k", "top_p", "min_p")}
    told = [f", {name} {value:g}" for name, value in given.items() if value is not None]
    return "".join(told) if options["temperature"] else ""


def _prompts(result: Mapping[str, Any]) -> str:
    """How many prompts, and which: their files, or else how many of each domain."""
    domains = Counter(row["domain"] for row in result["prompts"])
    which = result["prompts_file"] or ", ".join(f"{n} {domain}" for domain, n in domains.items())
    return f"{counted(len(result['prompts']), 'prompt')} ({which})"


def _range(entry: Mapping[str, Any], digits: int) -> str:
    found = entry["tokens_per_second_range"]
    return "-".join(number(speed, digits) for speed in found) if found else "-"


def _lossless(entry: Mapping[str, Any]) -> str:
    """The cell of a table: of sampled text, whether it is that of `ar` with the same seed."""
    if entry["lossless"] is None:
        return "same ids" if entry["same_ids"] else "other ids"
    return LOSSLESS[entry["lossless"]]


def _sampling_notes(options: Mapping[str, Any]) -> list[str]:
    """What a reader of sampled results has to know."""
    if not options["temperature"]:
        return []
    notes = [
        f"lossless: all draw with seed {options['seed']}, once for each token, and should give the "
        "ids that `ar` gives."
    ]
    if options["repeats"] > 1:
        notes.append(
            "The repeats draw with the same seed: their range is that of the times, and tau has no "
            "spread of sampling; other seeds would show it."
        )
    return notes


def format_sweep(result: dict[str, Any]) -> str:
    """A sweep as a text table."""
    weighed = "peak_mib" in result["rows"][0] if result["rows"] else False
    rows = [(result["parameter"], "method", "tau", "nodes/round", "tokens/s", "ms/round", "range",
             *STAGES, *["peak MiB"] * weighed)]  # fmt: skip
    for r in result["rows"]:
        middle, low, high = r["ms_per_round"]
        rows.append((
            str(r["value"]), r["method"], f"{r['tau']:.2f}", f"{r['nodes_per_round']:.1f}",
            number(r["tokens_per_second"], 0), f"{middle:.2f}", f"{low:.2f}-{high:.2f}",
            *(f"{r['stage_ms'][s]:.2f}" for s in STAGES),
            *([f"{r['peak_mib']:.2f}"] if weighed else ()),
        ))  # fmt: skip
    settings = {k: v for k, v in result["settings"].items() if k != result["parameter"]}
    options = {"temperature": 0.0, **result["sampling"], **result}
    file = f" ({result['prompts_file']})" if result["prompts_file"] else ""
    lines = [
        text_table(rows),
        "",
        f"{result['on']}, {counted(result['prompts'], 'prompt')}{file}, {_decoded(options)}; "
        f"{measured_on(result)}.",
        f"The settings beside {result['parameter']}: {', '.join(settings_words(settings))}.",
        "range: of ms/round, the fastest and the slowest repeat. The columns after it are the "
        "milliseconds of the stages.",
    ]
    if compiled := result.get("compiled_methods"):
        lines.append(f"the methods: {compiled}.")
    if weighed:
        note = "peak MiB: both caches, and the tensors of verify at their most (first prompt)."
        lines.append(note)
    return "\n".join(lines)


def _domain_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """tokens/s, speedup and tau of each method on each domain, and what was divided by."""
    domains = entries[0]["domains"]
    rows = [["method", *(f"{d}: {c}" if c == "tokens/s" else c for d in domains
                         for c in ("tokens/s", "vs fastest", "tau")), "mean tokens/s"]]  # fmt: skip
    for e in entries:
        cells = [(number(r["tokens_per_second"], 0), number(r["speedup_fastest"]), number(r["tau"]))
                 for r in e["domains"].values()]  # fmt: skip
        speeds = [r["tokens_per_second"] for r in e["domains"].values()]
        mean = None if None in speeds else statistics.fmean(speeds)
        rows.append([e["method"], *(cell for three in cells for cell in three), number(mean, 0)])
    used = [f"{d}: {r['fastest']} (prompts: {r['prompts']})" for d, r in domains.items()]
    return (
        f"{text_table(rows)}\n\nmean tokens/s: the mean of the domains' tokens/s. The fastest "
        f"one-token loop on each domain: {', '.join(used)}."
    )


def _stage_memory_table(result: Mapping[str, Any]) -> str:
    """Memory by stage, in MiB, and what stays beside it."""

    def mib(size: int) -> str:
        return f"{size / 2**20:.2f}"

    kept = tuple(next(iter(result["methods"].values()))["kept"])
    rows = [("MiB", *STAGES, "round", *(name.replace("_", " ") for name in kept))]
    for method, found in result["methods"].items():
        sizes = (*(found["stages"][s] for s in STAGES), found["round"], *found["kept"].values())
        rows.append((method, *map(mib, sizes)))
    lines = [
        text_table(rows),
        "",
        "Memory of one round, soon after the first prompt of "
        f"{result['prompt_tokens']} tokens: the peak of the tensors of each stage above what was "
        "alive when it began; round: of all stages together, where what a stage leaves counts too.",
        "The columns after it stay from round to round. Not counted: numpy arrays (trees, a few "
        "KiB), scratch space inside kernels, copies in oneDNN's layout.",
    ]
    if result["estimate"]:
        need = result["estimate"]
        names = ("target", "drafter", "head", "head_tables", "fused", "cache", "round_peak")
        said = (f"{name.replace('_', ' ')} {mib(need[name])}" for name in names)
        lines.append(f"`dartree stacks` estimates for dartree: {', '.join(said)} (cache: both, the "
                     "drafter's at its largest; round peak: meant as an upper bound).")  # fmt: skip
    return "\n".join(lines)


def _memory_line(found: Mapping[str, int]) -> str:
    share = found["dartree"] / (found["ar"] + found["drafter"])
    megabytes = {name: f"{size / 2**20:.0f} MiB" for name, size in found.items()}
    return (
        f"peak resident memory: ar {megabytes['ar']}, dartree {megabytes['dartree']}, drafter's "
        f"weights {megabytes['drafter']}: {share:.2f} times ar plus drafter."
    )


def run_on(entry: Mapping[str, Any], threads: bool = True) -> str:
    """What a method's numbers were made on: stack, dtype, device, layout of weights, threads."""
    layout = ", packed weights" * entry["packed"] + ", fused steps" * entry["fused"]
    where = f"stack {entry['stack']}, {entry['dtype']} on {entry['device']}{layout}"
    return f"{where}, {counted(entry['threads'], 'thread')}" if threads else where


def layout_notes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line on the rows whose weights are laid out otherwise than those of the first row."""
    names = [e["method"] for e in entries if e["packed"] != entries[0]["packed"]]
    if not names:
        return []
    plain = "plain weights, since compiled graphs do not take packed ones"
    return [f"{', '.join(names)}: {plain if entries[0]['packed'] else 'packed weights'}."]


def settings_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each set of settings, with the methods that used it.

    Score temperature and normaliser are said where a method has them and they are not the usual.
    """
    users: dict[str, list[str]] = {}
    for e in entries:
        row, settings = TABLE.get(e["method"]), dict(e["settings"])
        if row and "normalise" not in row.uses:
            settings.pop("normalise", None)  # it has no choice
        if used := settings_words(settings):
            users.setdefault(", ".join(used), []).append(e["method"])
    return [f"{', '.join(methods)}: {text}." for text, methods in users.items()]


def settings_words(settings: Mapping[str, Any]) -> list[str]:
    """Settings with their short names; temperature and normaliser only where they are not usual."""
    names = {"width": "W", "candidates": "K", "budget": "B", "depth_penalty": "depth penalty",
             "depth": "depth"}  # fmt: skip
    used = [f"{short} {settings[key]:g}" for key, short in names.items()
            if settings.get(key) is not None]  # fmt: skip
    if settings.get("score_temperature") not in (None, 1):
        used.append(f"score temperature {settings['score_temperature']:g}")
    if settings.get("normalise") == "vocabulary":
        used.append("scores over the vocabulary")
    return used


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
