"""What a round costs at settings that were not timed: from three short sweeps of real rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dartree.bench import sweep
from dartree.settings import TreeSettings
from dartree.stack import Stack

BUDGETS, WIDTHS, CANDIDATES = (1, 8, 16, 32, 64, 128), (1, 6, 12, 24), (16, 64, 256)


@dataclass(frozen=True)
class RoundCost:
    """Milliseconds of a `dartree` round as a function of W, K and B.

    draft_ms
        Drafter and lm_head; no setting changes it.
    expand_fit [3]
        Expansion of all D depths: c0 + c1 W + c2 W K (least squares over the sweeps).
    budgets, verify_ms
        The rest of a round (prune, mask, verify, walk, commit) over nodes; linear in between.
    residual
        Largest relative error of the expansion's fit.
    """

    draft_ms: float
    expand_fit: tuple[float, ...]
    budgets: tuple[float, ...]
    verify_ms: tuple[float, ...]
    residual: float

    def ms(self, settings: TreeSettings, drafts: int = 16) -> float:
        """Milliseconds of one round; the tree has min(B, W * ``drafts``) nodes."""
        nodes = min(settings.budget, settings.width * drafts)
        width = settings.width
        expand = np.dot(self.expand_fit, (1.0, width, width * settings.candidates))
        return float(self.draft_ms + expand + np.interp(nodes, self.budgets, self.verify_ms))


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
    """Time `dartree` rounds on ``prompts`` over B, W and K; ``options`` go to ``bench.sweep``."""
    options = {"methods": ["dartree"], "settings": settings or stack.settings, **options}
    by_budget = sweep(stack, prompts, "budget", budgets, **options)["rows"]
    by_width = sweep(stack, prompts, "width", widths, **options)["rows"]
    by_candidates = sweep(stack, prompts, "candidates", candidates, **options)["rows"]
    base = options["settings"]
    sizes = [(row["value"], base.candidates) for row in by_width]
    sizes += [(base.width, row["value"]) for row in by_candidates]
    expand = np.array([row["stage_ms"]["expand"] for row in [*by_width, *by_candidates]])
    design = np.array([(1.0, w, w * k) for w, k in sizes])
    # Relative errors are squared: the cheap settings count as much as the dear ones.
    fit = np.linalg.lstsq(design / expand[:, None], np.ones(len(expand)), rcond=None)[0]
    drafts = [row["stage_ms"]["draft"] for row in [*by_budget, *by_width, *by_candidates]]
    rest = [sum(row["stage_ms"][s] for s in row["stage_ms"] if s not in ("draft", "expand"))
            for row in by_budget]  # fmt: skip
    return RoundCost(
        draft_ms=float(np.median(drafts)),
        expand_fit=tuple(fit.tolist()),
        budgets=tuple(row["nodes_per_round"] for row in by_budget),
        verify_ms=tuple(rest),
        residual=float(np.abs(design @ fit / expand - 1).max()),
    )
