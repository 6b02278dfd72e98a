"""Comparisons, benchmarks and sweeps as text tables, with their definitions below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dartree.clock import STAGES
from dartree.entries import ms_per_round

LOSSLESS = {True: "yes", False: "NO", None: "-"}  # as tables show it


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
        f"{run_on(first)}, {len(result['prompts'])} prompts, up to {options['max_new_tokens']} new "
        f"tokens, T = {options['temperature']:g}, median of {options['repeats']} repeats, "
        f"interleaved; {result['machine']['processor']}.",
        f"vs fastest: tokens/s against {result['fastest_baseline']}, the fastest one-token loop "
        "of this run; vs hf: against transformers' generate. range: slowest and fastest repeat.",
        "bound: speedup over `ar` if only drafter, head and target cost anything. calls, nodes: "
        "head calls and verified nodes a round. stages: their sum over the time of a round; the "
        "columns between are their milliseconds a round.",
        *_settings_lines(result["methods"]),
        *headless_notes(result["methods"]),
    ]
    lines.append(f"ar-compiled: {result['compiled']}.")
    if result["compiled_methods"]:
        lines.append(f"the methods: {result['compiled_methods']}.")
    if "memory" in result:
        lines.append(_memory_line(result["memory"]))
    if len(first["domains"]) > 1:
        lines += ["", _domain_table(result["methods"])]
    if "stage_memory" in result:
        lines += ["", _stage_memory_table(result["stage_memory"])]
    return "\n".join(lines)


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
    note = "\n\npeak MiB: both caches, and the tensors of verify at their most (first prompt)."
    return text_table(rows) + note * weighed


def _domain_table(entries: Sequence[Mapping[str, Any]]) -> str:
    """tokens/s, speedup and tau of each method on each domain, and what was divided by."""
    domains = entries[0]["domains"]
    rows = [["method", *(f"{d}: {c}" if c == "tokens/s" else c for d in domains
                         for c in ("tokens/s", "vs fastest", "tau"))]]  # fmt: skip
    for e in entries:
        cells = [(number(r["tokens_per_second"], 0), number(r["speedup_fastest"]), number(r["tau"]))
                 for r in e["domains"].values()]  # fmt: skip
        rows.append([e["method"], *(cell for three in cells for cell in three)])
    used = [f"{d}: {r['fastest']} (prompts: {r['prompts']})" for d, r in domains.items()]
    return f"{text_table(rows)}\n\nThe fastest one-token loop on each domain: {', '.join(used)}."


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
        names = ("target", "drafter", "head", "head_tables", "cache", "round_peak")
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


def run_on(entry: Mapping[str, Any]) -> str:
    """What a method's numbers were made on: stack, dtype, device, layout of weights, threads."""
    packed = ", packed weights" if entry["packed"] else ""
    threads = "1 thread" if entry["threads"] == 1 else f"{entry['threads']} threads"
    return f"stack {entry['stack']}, {entry['dtype']} on {entry['device']}{packed}, {threads}"


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
