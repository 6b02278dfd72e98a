"""card.md from the measurements in card.json: fills `text/card.md`, with no number of its own.

The template has a section for each entry of card.json that a card shows; here is one function for
each, from the card to the values of the section's fields.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from pathlib import Path

from dartree.analysis.tuning import HEAD, trial_cells
from dartree.report_tables import LOSSLESS, number
from dartree.training.common import DOMAINS

TEMPLATE = Path(__file__).parent / "text" / "card.md"


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    return "\n".join(
        f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *rows]
    )


def _stack(card: dict) -> dict:
    rows = [[f"`{p['folder']}`", f"{p['parameters']:,}", f"{p['bytes'] / 2**20:.1f} MiB"]
            for p in card["stack"]["parts"]]  # fmt: skip
    return {**card["stack"], "parts": _table(["part", "parameters", "weights, bf16"], rows)}


def _best(run: dict) -> str:
    """What a run reached on held-out text."""
    last = run["held_out"][-1]
    if "held_out" in last:
        losses = ", ".join(f"{d} {last['held_out'][d]:.3f}" for d in DOMAINS)
        return f"loss of held-out answers: {losses}"
    best = max(run["held_out"], key=lambda r: sum(r["tau"].values()))
    chain = ", ".join(f"{best['tau'][d]:.2f}" for d in DOMAINS)
    base = ", ".join(f"{best['tau_base'][d]:.2f}" for d in DOMAINS)
    return f"tau of the chain {chain}; without the head {base} (step {best['step']})"


def _curve(name: str, run: dict) -> str:
    """The held-out measurements of a run, a few rows."""
    rows = run["held_out"]
    rows = rows[:: -max(1, len(rows) // 6)][::-1]
    key, what, digits = ("held_out", "loss", 3) if "held_out" in rows[-1] else ("tau", "tau", 2)
    head = ["step", "minutes", *(f"{what}, {d}" for d in DOMAINS)]
    lines = [[r["step"], f"{r['seconds'] / 60:.0f}", *(number(r[key][d], digits) for d in DOMAINS)]
             for r in rows]  # fmt: skip
    return f"`{name}`\n\n" + _table(head, lines)


def _training(card: dict) -> dict:
    runs = card["training"]
    rows = [[name, f"{run['steps']:,}", f"{run['tokens']:,}" if run["tokens"] else "-",
             f"{run['minutes']:.0f}", _best(run)] for name, run in runs.items()]  # fmt: skip
    head = ["run", "steps", "tokens", "minutes", "best on held-out text"]
    return {"domains": ", ".join(DOMAINS), "runs": _table(head, rows),
            "curves": "\n\n".join(_curve(name, run) for name, run in runs.items())}  # fmt: skip


def _quality(card: dict) -> dict:
    q, rows = card["quality"], []
    for d in DOMAINS:
        g, p = q["greedy"][d], q["perplexity"][d]
        rows.append([d, f"{p['perplexity']:.3f}", p["tokens"], g["answers"],
                     f"{g['mean_tokens']:.0f}", f"{g['stopped']:.0%}", f"{g['same_text']:.0%}",
                     f"{g['repeated_4_grams']:.3f}",
                     f"{g['reference_repeated_4_grams']:.3f}"])  # fmt: skip
    head = ["domain", "perplexity", "tokens", "answers", "tokens an answer", "stopped",
            "same text", "repeated 4-grams", "of the reference"]  # fmt: skip
    steps = [[n, f"{right} of {count}", f"{right / count:.0%}"]
             for n, (right, count) in q["arithmetic_by_steps"].items()]  # fmt: skip
    right, count = q["functions"]
    return {"answers": _table(head, rows), "right": right, "count": count,
            "steps": _table(["steps", "right final numbers", "share"], steps)}  # fmt: skip


def _tau(methods: dict) -> str:
    rows = [[f"`{method}`", *(number(e["tau"][d]) for d in (*DOMAINS, "mean")),
             number(e["head_calls_per_round"], 1), number(e["nodes_per_round"], 1),
             number(e["ms_per_round"], 1), number(e["tokens_per_second"], 0),
             number(e["speedup"]), LOSSLESS[e["lossless"]], e["drafter"]]
            for method, e in methods.items()]  # fmt: skip
    head = ["method", *DOMAINS, "mean", "head calls/round", "nodes/round", "ms/round", "tokens/s",
            "speedup", "lossless", "drafter"]  # fmt: skip
    return _table(head, rows)


def _ratios(budget: str, methods: dict, others: dict[str, int]) -> str:
    """tau of dartree over that of ``others``: method -> digits."""
    tau = {method: entry["tau"]["mean"] for method, entry in methods.items()}
    told = [f"over `{m}`: {tau['dartree'] / tau[m]:.{digits}f}" for m, digits in others.items()]
    return f"- `dartree` at B = {budget} " + "; ".join(told)


def _greedy(card: dict) -> dict:
    machine, versions, greedy = card["machine"], card["versions"], card["greedy"]
    older = (
        f"{machine['threads']} threads, float32, plain weights, steps in PyTorch (for speeds as "
        "they are now see `data/benchmarks/README.md`)"
    )
    on = greedy["64"].get("on", older)
    where = (f"{machine['processor']}, {on}, torch "
             f"{versions['torch']}, transformers {versions['transformers']}")  # fmt: skip
    chain = next(budget for budget in greedy if budget != "64")
    large, small = greedy["64"]["methods"], greedy[chain]["methods"]
    others = {"domino": 2, "dflash": 2, "ddtree": 2}
    ratios = [_ratios("64", large, {**others, "heap": 3}), _ratios(chain, small, others)]
    return {"machine": where, "max_new_tokens": card["max_new_tokens"], "chain": chain,
            "prompts": next(iter(greedy.values()))["prompts"] // len(DOMAINS),
            "large": _tau(large), "small": _tau(small), "ratios": "\n".join(ratios)}  # fmt: skip


def _sampled(card: dict) -> dict:
    runs, rows = card["sampled"], []
    for method in runs[0]["methods"]:
        entries = [run["methods"][method] for run in runs]
        cells = []
        for d in (*DOMAINS, "mean"):
            taus = [entry["tau"][d] for entry in entries]
            cells.append(f"{statistics.fmean(taus):.2f} ± {statistics.stdev(taus):.2f}")
        speed = statistics.fmean(entry["tokens_per_second"] for entry in entries)
        rows.append([f"`{method}`", *cells, f"{speed:.0f}"])
    return {"seeds": len(runs), "prompts": runs[0]["prompts"] // len(DOMAINS),
            "taus": _table(["method", *DOMAINS, "mean", "tokens/s"], rows)}  # fmt: skip


def _easy_kinds(card: dict) -> dict:
    methods = card["easy_kinds"]["methods"]
    kinds = [kind for kind in next(iter(methods.values()))["tau"] if kind != "mean"]
    rows = [[f"`{m}`", *(number(e["tau"][kind]) for kind in kinds)] for m, e in methods.items()]
    return {"taus": _table(["method", *kinds], rows)}


def _evaluation(card: dict) -> dict:
    rows = [[f"`{m}`", number(e["tau"]["mean"]), number(e["tokens_per_second"], 0),
             LOSSLESS[e["lossless"]]]
            for m, e in card["evaluation"]["methods"].items()]  # fmt: skip
    return {"prompts": card["evaluation"]["prompts"],
            "methods": _table(["method", "tau", "tokens/s", "lossless"], rows)}  # fmt: skip


def _tuned(card: dict) -> dict:
    tuned, rows = card["tuned"], []
    for method, trials in tuned["methods"].items():
        for place, trial in (("fastest", trials[0]), ("slowest", trials[-1])):
            rows.append(trial_cells(method, place, trial, len(trials)))
    return {"settings": _table(list(HEAD), rows), **tuned}


def _score_temperatures(card: dict) -> dict:
    rows = [[f"{r['temperature']:g}", f"{r['score_temperature']:g}", number(r["tau"]), r["rounds"]]
            for r in card["score_temperatures"]]  # fmt: skip
    return {"taus": _table(["T", "score temperature", "tau of `dartree`", "rounds"], rows)}


def _checksums(card: dict) -> dict:
    return {"sums": "\n".join(f"{digest}  {path}" for path, digest in card["checksums"].items())}


SECTIONS = {
    "stack": _stack, "training": _training, "quality": _quality, "greedy": _greedy,
    "sampled": _sampled, "easy_kinds": _easy_kinds, "evaluation": _evaluation, "tuned": _tuned,
    "score_temperatures": _score_temperatures, "checksums": _checksums,
}  # fmt: skip


def render(card: dict) -> str:
    """The whole card as Markdown; sections about what was not measured are left out."""
    _, *parts = re.split(r"<!-- (\w+) -->\n", TEMPLATE.read_text(encoding="utf-8"))
    sections = zip(parts[::2], parts[1::2], strict=True)
    texts = [
        text.strip().format_map(SECTIONS[name](card)) for name, text in sections if name in card
    ]
    return "\n\n".join(texts) + "\n"
