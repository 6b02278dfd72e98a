"""card.md from the measurements in card.json: tables and definitions, no number of its own."""

from __future__ import annotations

import statistics

from dartree.analysis.tuning import CHAINS
from dartree.compare import LOSSLESS, number
from dartree.training.common import DOMAINS


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)


def _parts(card: dict) -> str:
    rows = [[f"`{p['folder']}`", f"{p['parameters']:,}", f"{p['bytes'] / 2**20:.1f} MiB"]
            for p in card["stack"]["parts"]]  # fmt: skip
    return _table(["part", "parameters", "weights, bf16"], rows)


def _training(card: dict) -> str:
    rows = []
    for name, run in card["training"].items():
        last = run["held_out"][-1]
        if "held_out" in last:
            told = ", ".join(f"{d} {last['held_out'][d]:.3f}" for d in DOMAINS)
            told = f"loss of held-out answers: {told}"
        else:
            best = max(run["held_out"], key=lambda r: sum(r["tau"].values()))
            chain = ", ".join(f"{best['tau'][d]:.2f}" for d in DOMAINS)
            base = ", ".join(f"{best['tau_base'][d]:.2f}" for d in DOMAINS)
            told = f"tau of the chain {chain}; without the head {base} (step {best['step']})"
        tokens = f"{run['tokens']:,}" if run["tokens"] else "-"
        rows.append([name, f"{run['steps']:,}", tokens, f"{run['minutes']:.0f}", told])
    return _table(["run", "steps", "tokens", "minutes", "best on held-out text"], rows)


def _curves(card: dict) -> str:
    """The held-out measurements of each run, a few rows each."""
    blocks = []
    for name, run in card["training"].items():
        rows = run["held_out"]
        step = max(1, len(rows) // 6)
        rows = rows[::-1][::step][::-1]
        key = "held_out" if "held_out" in rows[-1] else "tau"
        what = "loss" if key == "held_out" else "tau"
        head = ["step", "minutes", *(f"{what}, {d}" for d in DOMAINS)]
        lines = [[str(r["step"]), f"{r['seconds'] / 60:.0f}",
                  *(number(r[key][d], 3 if what == "loss" else 2) for d in DOMAINS)]
                 for r in rows]  # fmt: skip
        blocks.append(f"`{name}`\n\n" + _table(head, lines))
    return "\n\n".join(blocks)


def _quality(card: dict) -> str:
    q = card["quality"]
    rows = []
    for d in DOMAINS:
        g, p = q["greedy"][d], q["perplexity"][d]
        rows.append([d, f"{p['perplexity']:.3f}", str(p["tokens"]), str(g["answers"]),
                     f"{g['mean_tokens']:.0f}", f"{g['stopped']:.0%}", f"{g['same_text']:.0%}",
                     f"{g['repeated_4_grams']:.3f}",
                     f"{g['reference_repeated_4_grams']:.3f}"])  # fmt: skip
    head = ["domain", "perplexity", "tokens", "answers", "tokens an answer", "stopped",
            "same text", "repeated 4-grams", "of the reference"]  # fmt: skip
    steps = [[n, f"{right} of {count}", f"{right / count:.0%}"]
             for n, (right, count) in q["arithmetic_by_steps"].items()]  # fmt: skip
    right, count = q["functions"]
    return "\n".join([
        _table(head, rows), "",
        "Perplexity: of the reference answers' tokens given the whole turn, stop token included, "
        "fp32. The rest is about greedy answers of at most 256 tokens: share that ends with the "
        "stop token, share equal to the reference to the letter, mean share of 4-grams of a text "
        "that stood in it before (and the same of the reference answers).", "",
        _table(["steps", "right final numbers", "share"], steps), "",
        f"Python functions over a list: {right} of {count} return what the reference returns on "
        "ten random lists.",
    ])  # fmt: skip


def _tau(card: dict, budget: str) -> str:
    rows = []
    for method, e in card["greedy"][budget]["methods"].items():
        lossless = LOSSLESS[e["lossless"]]
        rows.append([f"`{method}`", *(number(e["tau"][d]) for d in (*DOMAINS, "mean")),
                     number(e["head_calls_per_round"], 1), number(e["nodes_per_round"], 1),
                     number(e["ms_per_round"], 1), number(e["tokens_per_second"], 0),
                     number(e["speedup"]), lossless, e["drafter"]])  # fmt: skip
    head = ["method", *DOMAINS, "mean", "head calls/round", "nodes/round", "ms/round", "tokens/s",
            "speedup", "lossless", "drafter"]  # fmt: skip
    return _table(head, rows)


def _sampled(card: dict) -> str:
    runs, rows = card["sampled"], []
    for method in runs[0]["methods"]:
        cells = []
        for d in (*DOMAINS, "mean"):
            taus = [run["methods"][method]["tau"][d] for run in runs]
            cells.append(f"{statistics.fmean(taus):.2f} ± {statistics.stdev(taus):.2f}")
        speeds = [run["methods"][method]["tokens_per_second"] for run in runs]
        rows.append([f"`{method}`", *cells, f"{statistics.fmean(speeds):.0f}"])
    return _table(["method", *DOMAINS, "mean", "tokens/s"], rows)


def _ratios(card: dict) -> str:
    big = {m: e["tau"]["mean"] for m, e in card["greedy"]["64"]["methods"].items()}
    other = next(b for b in card["greedy"] if b != "64")
    small = {m: e["tau"]["mean"] for m, e in card["greedy"][other]["methods"].items()}
    lines = [
        f"- `dartree` at B = 64 over `domino`: {big['dartree'] / big['domino']:.2f}; over "
        f"`dflash`: {big['dartree'] / big['dflash']:.2f}; over `ddtree`: "
        f"{big['dartree'] / big['ddtree']:.2f}; over `heap`: {big['dartree'] / big['heap']:.3f}",
        f"- `dartree` at B = {other} over `domino`: {small['dartree'] / small['domino']:.2f}; over "
        f"`dflash`: {small['dartree'] / small['dflash']:.2f}; over `ddtree`: "
        f"{small['dartree'] / small['ddtree']:.2f}",
    ]
    return "\n".join(lines)


def _tuned(card: dict) -> str:
    rows = []
    for method, trials in card["tuned"].items():
        for trial in (trials[0], trials[-1]):
            s, chain = trial["settings"], method in CHAINS
            tree = [s["width"] if method == "dartree" else "-",
                    s["candidates"] if method in ("heap", "dartree", "dartree-fixed") else "-",
                    "-" if chain else s["budget"], s["depth"] if chain else "-",
                    f"{s['depth_penalty']:g}" if method in ("heap", "dartree")
                    else "-"]  # fmt: skip
            rows.append([f"`{method}`", "slowest" if trial is trials[-1] else "fastest",
                         *map(str, tree), number(trial["tau"]),
                         number(trial["tokens_per_second"], 0), str(len(trials))])  # fmt: skip
    head = ["method", "", "W", "K", "B", "depth", "depth penalty", "tau", "tokens/s", "tried"]
    return _table(head, rows)


def _evaluation(result: dict) -> str:
    rows = [[f"`{m}`", number(e["tau"]["mean"]), number(e["tokens_per_second"], 0),
             LOSSLESS[e["lossless"]]]
            for m, e in result["methods"].items()]  # fmt: skip
    return _table(["method", "tau", "tokens/s", "lossless"], rows)


def _easy_kinds(result: dict) -> str:
    kinds = [k for k in next(iter(result["methods"].values()))["tau"] if k != "mean"]
    rows = [[f"`{m}`", *(number(e["tau"][k]) for k in kinds)]
            for m, e in result["methods"].items()]  # fmt: skip
    return _table(["method", *kinds], rows)


def _score_temperatures(card: dict) -> str:
    rows = [[f"{r['temperature']:g}", f"{r['score_temperature']:g}", number(r["tau"]),
             str(r["rounds"])] for r in card["score_temperatures"]]  # fmt: skip
    return _table(["T", "score temperature", "tau of `dartree`", "rounds"], rows)


def render(card: dict) -> str:
    """The whole card as Markdown."""
    machine, versions = card["machine"], card["versions"]
    first = next(iter(card["greedy"].values()))
    where = (f"{machine['processor']}, {machine['threads']} threads, float32, torch "
             f"{versions['torch']}, transformers {versions['transformers']}")  # fmt: skip
    small = next(b for b in card["greedy"] if b != "64")
    parts = [f"# Stack `{card['stack']['name']}`", card["stack"]["description"] + ".",
             _parts(card)]  # fmt: skip
    if "training" in card:
        parts += [
            "## Training",
            "The recipe is in `data/stacks/README.md`, sources and licences of the text in "
            "`data/README.md`, the whole logs in `logs/`. Held-out tau is that of the greedy "
            "self-fed chain on the target's answers to held-out prompts that are not among the "
            "prompts below, for " + ", ".join(DOMAINS) + ".",
            _training(card), "### Curves", _curves(card),
            "## The target on held-out samples", _quality(card),
        ]  # fmt: skip
    parts += [
        "## tau",
        f"`dartree compare`, {first['prompts'] // len(DOMAINS)} held-out prompts a domain, up to "
        f"{card['max_new_tokens']} new tokens, W 12, K 64, depth penalty 0.2, one repeat; {where}. "
        "tau: tokens committed per round (accepted drafts and the target's own token), pooled over "
        "a domain's prompts; the mean is that of the domains. speedup: tokens/s against `ar`.",
        "### T = 0, B = 64", _tau(card, "64"),
        f"### T = 0, B = {small} (as many nodes as a chain verifies)", _tau(card, small),
        _ratios(card),
        f"### T = 1, B = 64, {len(card['sampled'])} seeds (mean ± standard deviation), "
        f"{card['sampled'][0]['prompts'] // len(DOMAINS)} prompts a domain",
        _sampled(card),
    ]  # fmt: skip
    if "easy_kinds" in card:
        parts += [
            "### Text that is too easy",
            "Kinds of the training text that the prompts leave out, since the answer follows from "
            "the request word by word; T = 0, B = 64, 8 held-out prompts each.",
            _easy_kinds(card["easy_kinds"]),
        ]  # fmt: skip
    if "evaluation" in card:
        parts += [
            "### HumanEval, T = 0, B = 64",
            f"The first {card['evaluation']['prompts']} requests. No template made this text and "
            "the target cannot solve it: its answers are those of a small model out of its depth.",
            _evaluation(card["evaluation"]),
        ]  # fmt: skip
    if "tuned" in card:
        parts += [
            "## Settings for this kind of machine",
            "The fastest and the slowest setting that was tried for each method, at T = 0 on 12 "
            "held-out prompts of their own, up to 96 new tokens, one repeat. The fastest are kept "
            "in `stack.json` and used by `dartree bench --tuned`. Settings were run one after the "
            "other, and this machine's speed moves by 20 % between minutes: smaller gaps are ties.",
            _tuned(card),
            "## Trees scored at the sampling temperature",
            "The same prompts, three seeds, W 12, K 64, B 64, depth penalty 0.2: a tree scored "
            "with the head's logits (score temperature 1) and with logits / T. Both sample exactly "
            "from the target.",
            _score_temperatures(card),
        ]  # fmt: skip
    sums = "\n".join(f"{digest}  {path}" for path, digest in card["checksums"].items())
    parts += ["## Checksums (SHA-256)", f"```\n{sums}\n```"]
    return "\n\n".join(parts) + "\n"
