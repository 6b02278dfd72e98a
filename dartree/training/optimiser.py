"""The optimiser of all training runs, Muon and AdamW side by side, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

Lanes = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
TABLES = ("embed", "lm_head", "markov", "confidence")  # rows of tokens, not maps of hidden states


def learning_rate(
    peak: float, step: int, progress: float, warmup: int, floor: float = 0.02
) -> float:
    """Linear warm-up over `warmup` steps, then a cosine over `progress` 0..1 to `floor` * peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, progress))))
    return peak * min(1.0, (step + 1) / max(1, warmup)) * (floor + (1 - floor) * cosine)


class Optimiser:
    """Muon on matrices that map hidden states, AdamW on tables, recurrent weights and vectors.

    Muon (Jordan et al., 2024) makes each matrix's update orthogonal; with its steps scaled to
    AdamW's size, one learning rate serves both.  On the small target it reached in 150 steps what
    AdamW alone reached in more than 200.
    """

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], peak: float, weight_decay: float
    ) -> None:
        self.peak = peak
        matrices, tables, vectors = [], [], []
        for name, parameter in named:
            if parameter.dim() != 2:
                vectors.append(parameter)
            elif any(word in name for word in TABLES) or "gru" in name:
                tables.append(parameter)
            else:
                matrices.append(parameter)
        groups = [{"params": tables, "weight_decay": weight_decay},
                  {"params": vectors, "weight_decay": 0.0}]  # fmt: skip
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=True)
        ]
        for half in (matrices[::2], matrices[1::2]):  # for two lanes of equal work
            if half:
                self.parts.append(torch.optim.Muon(
                    half, lr=peak, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
                ))  # fmt: skip

    def step(self, step: int, progress: float, warmup: int = 100, lanes: Lanes = map) -> float:
        """One update at this place of the schedule; clears the gradients; the rate it used.

        ``lanes`` maps a function over the optimiser's independent parts.
        """
        rate = learning_rate(self.peak, step, progress, warmup)

        def update(part: torch.optim.Optimizer) -> None:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad()

        for _ in lanes(update, self.parts):
            pass
        return rate

    def state_dict(self) -> dict:
        """The states of the parts, by their numbers."""
        return {str(i): part.state_dict() for i, part in enumerate(self.parts)}

    def load_state_dict(self, state: dict) -> None:
        """Goes on from what :meth:`state_dict` gave for the same parameters."""
        for i, part in enumerate(self.parts):
            part.load_state_dict(state[str(i)])
