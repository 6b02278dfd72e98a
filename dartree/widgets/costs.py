"""What a round is likely to take: a small curve, measured on this machine by the decode loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dartree.bench import sweep
from dartree.decode import generate
from dartree.stack import Prompt, Stack


@dataclass(frozen=True)
class Costs:
    """Milliseconds of a round's parts, measured with `dartree`; linear between the points.

    rest
        By verified nodes: all that is neither drafter nor head, the target's forward above all.
    call
        By width: one batched head call over the stack's K candidates.
    """

    draft: float
    nodes: tuple[float, ...]
    rest: tuple[float, ...]
    widths: tuple[float, ...]
    call: tuple[float, ...]

    def round_ms(self, method: str, nodes: float, head_calls: float, width: int) -> float:
        """Predicted milliseconds of a round with ``nodes`` verified and ``head_calls``.

        Measured for `dartree`, an estimate for others: chains and `heap` call the head for one
        row, and what a head call over the whole vocabulary costs more is not counted.
        """
        rows = width if method in ("dartree", "dartree-fixed") else 1
        ms = float(np.interp(nodes, self.nodes, self.rest))
        ms += head_calls * float(np.interp(rows, self.widths, self.call))
        return ms if method == "ar" else ms + self.draft


def measure_costs(
    stack: Stack,
    prompt: Prompt,
    *,
    budgets: Sequence[int] = (1, 16, 64, 192),
    widths: Sequence[int] = (1, 12, 32),
    max_new_tokens: int = 24,
    repeats: int = 2,
) -> Costs:
    """A cost curve from two short sweeps over one prompt; takes a few seconds."""
    kind = "prompt" if isinstance(prompt, str) else "ids"
    rows = [{"id": "costs", "domain": "costs", kind: prompt}]
    options: dict[str, Any] = {
        "methods": ["dartree"], "max_new_tokens": max_new_tokens, "repeats": repeats,
    }  # fmt: skip
    if not generate(stack, prompt, max_new_tokens=max_new_tokens).rounds:
        raise ValueError("the answer to this prompt has no round to measure; take another one.")
    by_budget = sweep(stack, rows, "budget", budgets, **options)["rows"]
    by_width = sweep(stack, rows, "width", widths, **options)["rows"]
    stages = [row["stage_ms"] for row in by_budget]
    return Costs(
        draft=float(np.median([stage["draft"] for stage in stages])),
        nodes=tuple(row["nodes_per_round"] for row in by_budget),
        rest=tuple(
            row["ms_per_round"][0] - stage["draft"] - stage["expand"]
            for row, stage in zip(by_budget, stages, strict=True)
        ),
        widths=tuple(row["value"] for row in by_width),
        call=tuple(row["stage_ms"]["expand"] / row["head_calls_per_round"] for row in by_width),
    )
