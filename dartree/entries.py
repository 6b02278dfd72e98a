"""What a comparison keeps of each method: one entry of sums, pooled means and times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dartree.clock import STAGES
from dartree.decode import Generation


def method_entry(method, runs, reference, prompts, temperature) -> dict[str, Any]:
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


def _median_run(runs: list[Generation]) -> Generation:
    return sorted(runs, key=lambda r: r.seconds["total"])[(len(runs) - 1) // 2]


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
