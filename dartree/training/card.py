"""`dartree train card`: measures the stacks of a data folder and writes card.md and card.json.

It measures the target's quality on held-out samples and tau by domain and method at T = 0 and
T = 1; the curves of training come from their logs. The settings that were fastest come from
`dartree tune --json FILE`, and into the cards with `--tuned FILE`.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dartree.analysis.tuning import read_tuning, winners
from dartree.compare import compare
from dartree.configs import read_json
from dartree.entries import ms_per_round
from dartree.files import write_atomically
from dartree.machine import machine, versions
from dartree.prompt_files import load_prompts
from dartree.report_tables import run_on
from dartree.settings import TreeSettings
from dartree.stack import Stack, describe, load_stack
from dartree.training import card_text, code, common, listings
from dartree.training.corpus import held_out
from dartree.training.evaluation import quality

SETTINGS = TreeSettings(width=12, candidates=64, budget=64, depth_penalty=0.2)  # the paper's
SEEDS = (0, 1, 2)
AT_EQUAL_NODES = ("dflash", "domino", "ddtree", "heap", "dartree")
AT_T_1 = ("dflash", "domino", "ddtree", "dartree")
SAMPLED = 12  # prompts a domain at T = 1, for each seed
EVALUATED = 16  # prompts of a text that the target was not made for
HEATED = 4  # prompts a domain for the score temperatures


def tau_by_domain(result: dict) -> dict[str, dict[str, float]]:
    """method -> domain -> tau pooled over the domain's prompts, and 'mean' over the domains."""
    table = {}
    for entry in result["methods"]:
        pooled = {domain: found["tau"] for domain, found in entry["domains"].items()}
        taus = {domain: tau for domain, tau in pooled.items() if tau is not None}
        table[entry["method"]] = {**taus, "mean": sum(taus.values()) / len(taus)}
    return table


def summary(result: dict, prompts: list[dict]) -> dict:
    """What a card keeps of one comparison."""
    taus = tau_by_domain(result)
    rows = {
        e["method"]: {
            "tau": taus[e["method"]], "head_calls_per_round": e["head_calls"] / e["rounds"],
            "nodes_per_round": e["verified_nodes"] / e["rounds"], "ms_per_round": ms_per_round(e),
            "tokens_per_second": e["tokens_per_second"], "speedup": e["speedup"],
            "lossless": e["lossless"], "drafter": e["drafter"], "rounds": e["rounds"],
            "new_tokens": e["new_tokens"],
        }
        for e in result["methods"]
    }  # fmt: skip
    return {"methods": rows, "prompts": len(prompts), "options": result["options"],
            "on": run_on(result["methods"][0])}  # fmt: skip


def compared(
    stack: Stack,
    prompts: list[dict],
    budget: int,
    methods: Iterable[str] | None = None,
    **options: Any,
) -> dict:
    """One comparison with the paper's W, K and penalty, as a `summary`."""
    settings = replace(SETTINGS, budget=budget)
    print(f"card: {stack.name}, B {budget}, {options}", flush=True)
    return summary(compare(stack, prompts, methods, settings, **options), prompts)


def score_temperatures(stack: Stack, prompts: list[dict]) -> list[dict]:
    """tau of dartree at several temperatures, its tree scored with logits and with logits / T."""
    found = []
    for temperature in (0.5, 1.0, 1.5):
        for heat in dict.fromkeys((1.0, temperature)):
            settings = replace(SETTINGS, score_temperature=heat)
            rounds = tokens = 0
            for seed in SEEDS:
                entry = compare(stack, prompts, ["dartree"], settings, temperature=temperature,
                                seed=seed)["methods"][-1]  # fmt: skip
                rounds += entry["rounds"]
                tokens += sum(map(sum, entry["accepted_per_round"]))
            found.append({"temperature": temperature, "score_temperature": heat,
                          "tau": tokens / rounds, "rounds": rounds})  # fmt: skip
    return found


def curves(logs: Path) -> dict[str, dict]:
    """Of each run's log: steps, minutes, tokens and the rows with held-out measurements."""
    found = {}
    for path in sorted(logs.glob("*.jsonl")):
        rows = list(common.read_jsonl(path))
        held = [row for row in rows if "held_out" in row or "tau" in row]
        found[path.stem] = {"steps": rows[-1]["step"], "minutes": rows[-1]["seconds"] / 60,
                            "tokens": rows[-1].get("tokens"), "held_out": held}  # fmt: skip
    return found


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every weights file below `folder`."""
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*.safetensors"))}  # fmt: skip


def easy_kinds(count: int = 8) -> list[dict]:
    """Held-out samples of the kinds that the prompts leave out, with the kind as their domain."""
    rows = []
    for kind, make in (("class", code.small_class), ("story", listings.story),
                       ("letter", listings.letter)):  # fmt: skip
        rng = random.Random(kind)
        prompts = (make(rng)[0] for _ in itertools.count())
        found = itertools.islice(filter(held_out, prompts), count)
        rows += [{"id": f"{kind}-{i}", "domain": kind, "prompt": p} for i, p in enumerate(found)]
    return rows


def measure(name: str, data: Path, held: list[dict], limit: int, main: bool) -> dict:
    """All measurements of one stack; the target's own only for the stack that brings it."""
    stack = load_stack(name)
    prompts = [row for domain in common.DOMAINS
               for row in load_prompts(data / "prompts" / f"{domain}.jsonl", limit)]  # fmt: skip
    drafts = stack.drafter.config.drafts
    card: dict = {"stack": describe(name), "machine": machine(), "versions": versions(),
                  "max_new_tokens": 128}  # fmt: skip
    for part in card["stack"]["parts"]:
        part["folder"] = os.path.relpath(part["folder"], data / "stacks" / name)
    if main:
        card["quality"] = quality(stack.target.model, stack.tokenizer, held)
        card["training"] = curves(data / "stacks" / name / "logs")
        mine = common.some_of_each(held, slice(-HEATED, None))
        card["easy_kinds"] = compared(stack, easy_kinds(), 64)
        card["score_temperatures"] = score_temperatures(stack, mine)
    card["greedy"] = {"64": compared(stack, prompts, 64),
                      str(drafts): compared(stack, prompts, drafts, AT_EQUAL_NODES)}  # fmt: skip
    fewer = common.some_of_each(prompts, slice(SAMPLED))
    card["sampled"] = [compared(stack, fewer, 64, AT_T_1, temperature=1.0, seed=s) for s in SEEDS]
    harder = data / "evaluation" / "humaneval.jsonl"
    if harder.exists():
        card["evaluation"] = compared(stack, load_prompts(harder, EVALUATED), 64)
    card["checksums"] = checksums(data / "stacks" / name)
    return card


def keep_tuned(stacks: Path, tuned: dict) -> Path:
    """Put what `dartree tune` found into a stack's card.json, and each method's fastest settings
    into its stack.json, where `bench --tuned` reads them; returns the stack's folder."""
    place = stacks / tuned["stack"]
    for name, indent, value in (("card", 1, tuned), ("stack", 2, winners(tuned))):
        path = place / f"{name}.json"
        about = json.loads(path.read_text(encoding="utf-8")) | {"tuned": value}
        write_atomically(path, json.dumps(about, indent=indent) + "\n")
    return place


def tuned_before(path: Path, sums: dict[str, str]) -> dict:
    """{tuned} of an earlier card at `path`, where that was measured on the same weights."""
    before = read_json(path) if path.exists() else {}
    same = "tuned" in before and before.get("checksums") == sums
    return {"tuned": before["tuned"]} if same else {}


def write_text(place: Path) -> None:
    """card.md from card.json."""
    card = json.loads((place / "card.json").read_text(encoding="utf-8"))
    write_atomically(place / "card.md", card_text.render(card))
    print(f"card: {place / 'card.md'}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=32, help="prompts a domain (default 32)")
    parser.add_argument("--only", metavar="STACK", help="one stack of the two")
    parser.add_argument("--data", type=Path, help="data folder (default: data/ beside the runs)")
    parser.add_argument("--tuned", type=Path, metavar="FILE", help="of `dartree tune --json`: only "
                        "put its settings into the cards")  # fmt: skip
    parser.add_argument("--text-only", action="store_true", help="card.md anew from card.json")


def run(args: argparse.Namespace) -> None:
    folder = common.preset_folder(args.preset, args.out)
    data = args.data or folder / "data"
    if not (data / "stacks").is_dir():
        raise ValueError(f"{data} holds no stacks; run `dartree train stack` first")
    os.environ["DARTREE_DATA"] = str(data)
    names = (args.preset, f"{args.preset}-dspark")
    if args.only not in (None, *names):
        raise ValueError(f"only is {args.only!r}; it must be one of {', '.join(names)}")
    if args.tuned:
        return write_text(keep_tuned(data / "stacks", read_tuning(args.tuned)))
    for name in [args.only] if args.only else names:
        place = data / "stacks" / name
        if not args.text_only:
            held = list(common.read_jsonl(folder / "corpus" / "held.jsonl"))
            card = measure(name, data, held, args.limit, name == args.preset)
            card |= tuned_before(place / "card.json", card["checksums"])
            write_atomically(place / "card.json", json.dumps(card, indent=1) + "\n")
        write_text(place)
