"""The walk through a verified tree: follow the child that the target itself would emit.

Lossless at any temperature: the tree is fixed before the target's tokens are drawn, every
visited row draws once from the target's own distribution, and the committed tokens are exactly
those draws. For a fixed set of children no rule can accept more often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dartree.checks import fraction, non_negative, positive_int, seed_number
from dartree.tree import DraftTree


class NonFiniteLogitsError(ValueError):
    """The target gave NaN or infinity as its best logit; ``row`` is the tree row."""

    def __init__(self, row: int) -> None:
        super().__init__(f"the target's logits are not finite at node {row}")
        self.row = row


@dataclass
class Verdict:
    """Outcome of a round's verification.

    path [a]
        Accepted nodes (1..N) from the first level down.
    next_anchor
        The target's own token after the path: the bonus token and the next round's anchor.
    target_tokens [1 + N]
        The target's choice at each row; -1 at rows that sampling did not visit.
    """

    path: np.ndarray
    next_anchor: int
    target_tokens: np.ndarray


class Chooser:
    """Chooses one token from a row of target logits: argmax at T = 0, else one fp32 draw.

    Top-k, top-p and min-p are transformers' own warpers, in transformers' order. The generator
    belongs to this object, so a seed fixes the text whatever ran before; since one draw is used
    per committed token, every method consumes the stream exactly as plain sampling does.
    """

    def __init__(
        self,
        temperature: float = 0.0,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.temperature = non_negative("temperature", temperature)
        self.greedy = self.temperature == 0
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(seed_number(seed))
        self._warpers = _warpers(top_k, top_p, min_p)

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """fp32 distribution [R, V] that rows of ``logits`` [R, V] are drawn from (T > 0)."""
        # Shifted and in fp64 before the division: a tiny temperature must not overflow the best.
        scores = logits.double() - logits.max(dim=-1, keepdim=True).values.double()
        scores = (scores / self.temperature).float()
        for warper in self._warpers:
            scores = warper(None, scores)
        return torch.softmax(scores, dim=-1)

    def best(self, logits: torch.Tensor) -> np.ndarray:
        """Argmax of every row of ``logits`` [R, V]; raises NonFiniteLogitsError on NaN or inf."""
        if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
            # numpy's argmax is ten times as fast as torch's here; for both, NaN is the largest.
            ids = torch.from_numpy(logits.detach().numpy().argmax(axis=-1))
        else:
            ids = logits.argmax(dim=-1)
        bad = torch.nonzero(~torch.isfinite(logits.gather(1, ids[:, None])[:, 0]))
        if len(bad):
            raise NonFiniteLogitsError(int(bad[0]))
        return ids.cpu().numpy()

    def draw(self, row_logits: torch.Tensor) -> int:
        """One token drawn from ``row_logits`` [V] (T > 0)."""
        p = self.probabilities(row_logits[None])
        return int(torch.multinomial(p, 1, generator=self._generator))

    def choose(self, row_logits: torch.Tensor) -> int:
        """One token for a single row of logits [V]: argmax, or a draw at T > 0."""
        best = int(self.best(row_logits[None])[0])
        return best if self.greedy else self.draw(row_logits)


def _warpers(top_k: int | None, top_p: float | None, min_p: float | None) -> list:
    from transformers.generation import logits_process as lp

    warpers: list[Any] = []
    if top_k is not None:
        warpers.append(lp.TopKLogitsWarper(positive_int("top_k", top_k)))
    if top_p is not None:
        if fraction("top_p", top_p) == 0:
            raise ValueError("top_p must be above 0 and at most 1, got 0.")
        if top_p < 1:
            warpers.append(lp.TopPLogitsWarper(float(top_p)))
    if min_p is not None:
        warpers.append(lp.MinPLogitsWarper(fraction("min_p", min_p)))
    return warpers


def walk(tree: DraftTree, logits: torch.Tensor, chooser: Chooser) -> Verdict:
    """Walk ``tree`` along the target's choices from logits [1 + N, V].

    Raises NonFiniteLogitsError where the target's best logit is NaN or infinite.
    """
    choices = chooser.best(logits)
    if not chooser.greedy:
        choices = np.full_like(choices, -1)
    node = 0
    path: list[int] = []
    while True:
        if not chooser.greedy:
            choices[node] = chooser.draw(logits[node])
        token = int(choices[node])
        child = tree.child(node, token)
        if not child:
            return Verdict(np.asarray(path, dtype=np.int64), token, choices)
        path.append(child)
        node = child
