"""Free-running tau on held-out prompts: what a drafter is worth, measured during training.

Teacher-forced accuracy can look excellent while a drafter is useless, when labels leak into its
inputs. So the chain here is fed with its own tokens, as in decoding, and compared with the
target's greedy answer.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from dartree.drafter import DFlashDrafter
from dartree.heads import DominoHead, MarkovHead
from dartree.training.batched_heads import self_fed_chains
from dartree.training.blocks import block_forward, context_of, make_blocks
from dartree.training.forward import BatchedTarget, states_of
from dartree.training.regenerate import Text


@dataclass(frozen=True)
class Tau:
    """tau by domain and its mean over domains, for the base chain and the corrected chain."""

    base: dict[str, float]
    corrected: dict[str, float]

    @property
    def mean_base(self) -> float:
        """Mean of the base chain's tau over the domains."""
        return sum(self.base.values()) / len(self.base)

    @property
    def mean(self) -> float:
        """Mean of the corrected chain's tau over the domains; the base chain's without a head."""
        return sum(self.corrected.values()) / len(self.corrected)


def accepted_prefix(drafts: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Length [A] of the prefix of ``drafts`` [A, n] that equals ``truth`` [A, n]."""
    return (drafts == truth).long().cumprod(dim=1).sum(dim=1)


def rounds_from(accepted: list[int]) -> tuple[int, int]:
    """Committed tokens and rounds of a decoding loop over an answer.

    ``accepted[i]`` are the drafts accepted where answer token i is the anchor; the last token of
    the answer is never an anchor.
    """
    position, rounds = 0, 0
    last = len(accepted)  # index of the answer's last token
    while position < last:
        position = min(position + accepted[position] + 1, last)
        rounds += 1
    return position, rounds


@torch.no_grad()
def _lengths(drafter, head, target: BatchedTarget, features, text: Text) -> tuple:
    """Accepted drafts at every anchor of one text: base chain, corrected chain."""
    anchors = torch.arange(text.prompt, len(text.ids) - 1)
    blocks = make_blocks(drafter.config, text.ids, text.supervised, anchors, gamma=1.0)
    table = target.embedding.to(drafter.dtype)
    context, owners = context_of([features]), torch.zeros_like(anchors)
    hidden = block_forward(drafter, table[blocks.ids], context, anchors, owners)
    hidden = hidden[:, drafter.config.row_offset :]
    # Beyond the text there is nothing to accept: -1 equals no token.
    truth = blocks.labels.masked_fill(blocks.weights == 0, -1)
    chains = self_fed_chains(head, hidden, text.ids[anchors], table)
    return tuple(accepted_prefix(chain, truth).tolist() for chain in chains)


def free_running_tau(
    drafter: DFlashDrafter,
    head: DominoHead | MarkovHead | None,
    target: BatchedTarget,
    texts: list[Text],
    lanes: int = 1,
) -> Tau:
    """tau of the base chain and of the self-fed corrected chain over greedy answers ``texts``."""

    def work(text: Text) -> tuple:
        torch.set_num_threads(1)
        taps = drafter.config.target_layer_ids
        _, features = states_of(target, [text.ids.tolist()], taps)[0]
        return _lengths(drafter, head, target, features.float(), text)

    with ThreadPoolExecutor(lanes) as pool:
        lengths = list(pool.map(work, texts))
    sums: dict[str, list[list[int]]] = {}
    for text, pair in zip(texts, lengths, strict=True):
        entry = sums.setdefault(text.domain, [[0, 0], [0, 0]])
        for total, accepted in zip(entry, pair, strict=True):
            tokens, rounds = rounds_from(accepted)
            total[0] += tokens
            total[1] += rounds
    ratio = [{d: e[k][0] / max(1, e[k][1]) for d, e in sums.items()} for k in (0, 1)]
    return Tau(*ratio)
