"""What a round costs at settings that were not timed: from three short sweeps of real rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dartree.bench import sweep
from dartree.methods import TABLE
from dartree.prompts import Prompt
from dartree.settings import TreeSettings
from dartree.stack import Stack
from dartree.supertree import fixed_quotas

BUDGETS, WIDTHS, CANDIDATES = (1, 8, 16, 32, 64, 128, 192), (1, 6, 12, 24), (16, 64, 256)


@dataclass(frozen=True)
class RoundCost:
    """Milliseconds of the parts of a round, measured with `dartree` on one machine.

    drafts, vocabulary
        n and V of the stack, which bound the settings.
    draft_ms
        Drafter and lm_head; no setting changes it.
    call_fit [3]
        One batched head call over R rows: c0 + c1 R + c2 R K (least squares over the sweeps). R is
        the mean over the depths of the supertree, whose first call has one row.
    nodes, rest_ms
        All that is neither drafter nor head (the target's forward above all) over verified
        nodes; linear in between.
    residual
        Largest relative error of the fit.
    """

    drafts: int
    vocabulary: int
    draft_ms: float
    call_fit: tuple[float, ...]
    nodes: tuple[float, ...]
    rest_ms: tuple[float, ...]
    residual: float

    def ms(self, settings: TreeSettings) -> float:
        """Milliseconds of a `dartree` round whose tree is full."""
        used = settings.clamped(self.drafts, self.vocabulary)
        nodes = min(used.budget, sum(used.level_sizes()))
        return self.round_ms("dartree", nodes, used.depth, used)

    def round_ms(
        self, method: str, nodes: float, head_calls: float, settings: TreeSettings
    ) -> float:
        """Milliseconds of a round with ``nodes`` verified and ``head_calls``.

        Measured for `dartree`, an estimate for the others: chains and `heap` call the head for
        one row, added methods count as `dartree` does; what a call over the whole vocabulary costs
        more is left out.
        """
        used = settings.clamped(self.drafts, self.vocabulary)
        rows = _rows(used, method)
        call = max(0.0, float(np.dot(self.call_fit, (1.0, rows, rows * used.candidates))))
        ms = head_calls * call + float(np.interp(nodes, self.nodes, self.rest_ms))
        return ms if method == "ar" else ms + self.draft_ms


def measure(
    stack: Stack,
    prompts: Sequence[dict[str, Any]],
    settings: TreeSettings | None = None,
    *,
    budgets: Sequence[int] = BUDGETS,
    widths: Sequence[int] = WIDTHS,
    candidates: Sequence[int] = CANDIDATES,
    **options: Any,
) -> RoundCost:
    """Time `dartree` rounds on ``prompts`` over B, W and K; ``options`` go to ``bench.sweep``.

    ``prompts`` are rows of a prompts file, {"prompt": text} at least. ValueError where their
    answers have no round.
    """
    drafts, vocabulary = stack.drafter.config.drafts, stack.target.vocab_size
    base = stack.chosen_settings(settings).clamped(drafts, vocabulary)
    options = {"methods": ["dartree"], "settings": base, **options}
    by_budget = sweep(stack, prompts, "budget", sorted(budgets), **options)["rows"]
    if not all(row["nodes_per_round"] for row in by_budget):
        raise ValueError("prompts must have an answer with a round to measure; take other ones.")
    by_width = sweep(stack, prompts, "width", widths, **options)["rows"]
    by_candidates = sweep(stack, prompts, "candidates", candidates, **options)["rows"]
    tried = [replace(base, width=row["value"]) for row in by_width]
    tried += [replace(base, candidates=row["value"]) for row in by_candidates]
    tried = [s.clamped(drafts, vocabulary) for s in tried]
    fit, residual = _fit(tried, [*by_width, *by_candidates])
    rest = {row["nodes_per_round"]: row["ms_per_round"][0] - row["stage_ms"]["draft"]
            - row["stage_ms"]["expand"] for row in by_budget}  # fmt: skip
    drafting = [row["stage_ms"]["draft"] for row in [*by_budget, *by_width, *by_candidates]]
    return RoundCost(
        drafts, vocabulary, float(np.median(drafting)), fit, tuple(rest), tuple(rest.values()),
        residual,
    )  # fmt: skip


def measure_briefly(stack: Stack, prompt: Prompt, repeats: int = 2) -> RoundCost:
    """:func:`measure` with one prompt (a text or ids) and few points; takes seconds."""
    kind = "prompt" if isinstance(prompt, str) else "ids"
    return measure(
        stack, [{kind: prompt}], budgets=(1, 16, 64, 192), widths=(1, 12, 32), candidates=(8, 256),
        max_new_tokens=24, repeats=repeats,
    )  # fmt: skip


def _rows(used: TreeSettings, method: str = "dartree") -> float:
    """Mean rows of a head call of ``method``; ``used`` are clamped settings."""
    if method == "dartree-fixed":
        sizes = used.level_sizes(fixed_quotas(used.budget, used.depth))
    else:
        sizes = used.level_sizes() if "width" in TABLE[method].uses else [1]
    return float(np.mean([1, *sizes[:-1]]))


def _fit(
    tried: Sequence[TreeSettings], rows: Sequence[dict[str, Any]]
) -> tuple[tuple[float, ...], float]:
    """c0, c1, c2 of a head call from sweeps over ``tried``, and the largest relative error."""
    calls = np.array([row["stage_ms"]["expand"] / row["head_calls_per_round"] for row in rows])
    design = np.array([(1.0, _rows(s), _rows(s) * s.candidates) for s in tried])
    # Relative errors are squared: the cheap settings count as much as the dear ones.
    fit = np.linalg.lstsq(design / calls[:, None], np.ones(len(calls)), rcond=None)[0]
    return tuple(fit.tolist()), float(np.abs(design @ fit / calls - 1).max())
