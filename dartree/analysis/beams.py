"""Inside a supertree: what each branch's correction changed, and what the beam never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dartree.analysis.replay import Replay
from dartree.clock import Clock
from dartree.drafter import Block
from dartree.heads import corrected_logits
from dartree.proposers import propose_heap
from dartree.settings import TreeSettings
from dartree.stack import Stack
from dartree.tree import Supertree


@dataclass(frozen=True)
class Branch:
    """One node of a supertree and the likeliest next tokens under it.

    path
        Tokens from the first draft to the node; empty for the marginals of that depth.
    tokens, probabilities [k]
        The k likeliest next tokens, over the whole vocabulary.
    """

    path: tuple[int, ...]
    tokens: list[int]
    probabilities: list[float]


def branches(
    stack: Stack, block: Block, supertree: Supertree, depth: int, count: int = 3, most: int = 3
) -> list[Branch]:
    """The marginals of draft ``depth`` + 1, and its conditionals below the ``count`` best nodes of
    ``depth``: what one shared row of guesses becomes once the path is known."""
    paths = supertree.path_tokens()
    nodes = np.flatnonzero(supertree.depths == depth)[:count]
    found = [_branch((), block.base_logits[depth].float(), most)]
    for node in nodes.tolist():
        path = paths[node]
        padded = torch.tensor([*path, *[0] * (block.drafts - len(path))])
        found.append(_branch(path, corrected_logits(stack.head, block, padded)[depth], most))
    return found


def _branch(path: tuple[int, ...], logits: torch.Tensor, most: int) -> Branch:
    best = torch.softmax(logits.float(), -1).topk(most)
    return Branch(path, best.indices.tolist(), best.values.tolist())


@dataclass(frozen=True)
class Missed:
    """Best-first trees against beams of width W, over R rounds.

    nodes [R]
        Nodes of the true best-first tree (all K children of every node open) that are not in the
        supertree of width W.
    mass [R]
        Expected accepted drafts under the head (sum of exp(score)) that go with them.
    budget
        Nodes of each best-first tree.
    """

    width: int
    nodes: np.ndarray
    mass: np.ndarray
    budget: int


def missed(
    replay: Replay, settings: TreeSettings, widths: Sequence[int], most: int = 100
) -> list[Missed]:
    """How much of the best-first tree the supertree never scored, for each width.

    Rounds are those of ``settings`` on the replay's texts, at most ``most`` of them.
    """
    rounds = [(number, index) for number in range(len(replay.texts))
              for index, _ in replay.rounds(number, "dartree", settings)]  # fmt: skip
    rounds = rounds[:: max(1, len(rounds) // most)]
    stack = replay.stack
    found: dict[int, list[tuple[int, float]]] = {width: [] for width in widths}
    for number, index in rounds:
        block = replay.block(stack.main, number, index)
        tree = propose_heap(block, stack.head, settings, Clock()).tree
        odds = dict(zip(tree.path_tokens(), np.exp(tree.scores.astype(float)), strict=True))
        for width in widths:
            beam = replay.supertree(number, index, replace(settings, width=width))
            absent = odds.keys() - set(beam.path_tokens())
            found[width].append((len(absent), sum(odds[path] for path in absent)))
    rows = {width: np.array(values).T for width, values in found.items()}
    return [Missed(w, nodes, mass, settings.budget) for w, (nodes, mass) in rows.items()]
