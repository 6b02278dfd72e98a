"""What a comparison keeps of each method: one entry of sums, pooled means and times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dartree.clock import STAGES
from dartree.decode import Generation

Runs = Sequence[Sequence[Generation]]  # by prompt, by repeat


def method_entry(
    method: str,
    runs: Runs,
    reference: Runs,
    prompts: Sequence[Mapping[str, Any]],
    temperature: float,
) -> dict[str, Any]:
    """One method's entry: sums and pooled means over prompts; ``reference``: the runs of `ar`.

    Tokens and rounds are those of the first repeat, times those of the :func:`middle_repeats`.
    """
    first, middle = [r[0] for r in runs], middle_repeats(runs)
    rounds = sum(g.rounds for g in first)
    committed = sum(sum(g.accepted_per_round) for g in first)
    taus = [g.tau for g in first if g.tau is not None]
    speed, ar_speed = _speed(runs, middle), _speed(reference, middle_repeats(reference))
    spread = [s for i in range(len(runs[0])) if (s := _speed(runs, [i]))]
    same_ids = all(
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
        "seconds": {k: _seconds(runs, middle, k) for k in ("prefill", *STAGES, "total")},
        "seconds_per_run": [[{k: x.seconds[k] for k in ("prefill", "total")} for x in r]
                            for r in runs],
        "tokens_per_second": speed,
        "tokens_per_second_range": [min(spread), max(spread)] if spread else None,
        "domains": _by_domain(runs, prompts),
        "speedup": speed / ar_speed if speed and ar_speed else None,
        "same_ids": same_ids,
        "lossless": same_ids if temperature == 0 else None,
        "stop_reason": [x.stop_reason for x in first],
        "dtype": g.dtype,
        "device": g.device,
        "threads": g.threads,
        "seed": g.seed,
        "packed": g.packed,
        "fused": g.fused,
        "lacks_head": g.lacks_head,
    }  # fmt: skip


def _by_domain(runs: Runs, prompts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each domain {prompts, tau, tokens_per_second}, pooled as those of all prompts are."""
    domains = {}
    for domain in dict.fromkeys(row["domain"] for row in prompts):
        chosen = [r for r, row in zip(runs, prompts, strict=True) if row["domain"] == domain]
        rounds = sum(r[0].rounds for r in chosen)
        committed = sum(sum(r[0].accepted_per_round) for r in chosen)
        domains[domain] = {
            "prompts": len(chosen),
            "tau": committed / rounds if rounds else None,
            "tokens_per_second": _speed(chosen, middle_repeats(chosen)),
        }
    return domains


def middle_repeats(runs: Runs) -> list[int]:
    """The repeat of median time over all prompts, prefills left out; the middle two of an even
    number."""
    busy = [_busy(runs, [i]) for i in range(len(runs[0]))]
    order = sorted(range(len(busy)), key=busy.__getitem__)
    return order[(len(order) - 1) // 2 : len(order) // 2 + 1]


def _seconds(runs: Runs, repeats: Sequence[int], key: str) -> float:
    """Seconds of ``key``, summed over prompts; the mean of ``repeats``."""
    return sum(r[i].seconds[key] for r in runs for i in repeats) / len(repeats)


def _busy(runs: Runs, repeats: Sequence[int]) -> float:
    return _seconds(runs, repeats, "total") - _seconds(runs, repeats, "prefill")


def _speed(runs: Runs, repeats: Sequence[int]) -> float | None:
    """Tokens per second: total tokens over total time, first tokens and prefills left out."""
    busy = _busy(runs, repeats)
    tokens = sum(r[i].new_tokens - 1 for r in runs for i in repeats) / len(repeats)
    return tokens / busy if tokens and busy > 0 else None


def ms_per_round(entry: Mapping[str, Any]) -> float:
    """Milliseconds of a round of one method's entry, the prefill left out."""
    busy = entry["seconds"]["total"] - entry["seconds"]["prefill"]
    return 1000 * busy / max(1, entry["rounds"])
