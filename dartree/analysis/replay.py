"""Replay: exact tau for any method and settings on fixed texts, without decoding again.

Speculative decoding is lossless, so the text is the same whatever tree proposed it, at T = 0 and,
with one seed, at T > 0. The block at every position of a text can then be drafted once and kept;
a (W, K) is an expansion of kept blocks, a (B, depth penalty) a ranking of kept scores, and the
rounds are walked again from anchor to anchor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from dartree.analysis.answers import answers
from dartree.analysis.kept import identity, keep
from dartree.clock import Clock
from dartree.drafter import Block, DFlashDrafter
from dartree.methods import check_method, proposal_of
from dartree.prompts import Prompt
from dartree.pruning import pruning_scores
from dartree.settings import TreeSettings
from dartree.stack import Pairing, Stack
from dartree.supertree import grow_supertree
from dartree.tree import DraftTree, Supertree

AT_ONCE = 32  # anchors of a text that go through the drafter together


@dataclass
class Text:
    """One answer of T tokens, and by drafter the hidden states [T - 1, n, H] of its blocks.

    The block of anchor ``answer[i]`` is row i; the last token is never an anchor.
    """

    prompt: list[int]
    answer: list[int]
    hidden: dict[DFlashDrafter, torch.Tensor] = field(default_factory=dict)


class Replay:
    """Fixed texts of one stack, replayed with other methods and settings.

    texts: the stack's answers to ``prompts``, greedy unless ``temperature`` is given. Memory: n * H
    floats a token and drafter, and four numbers a supertree node for each (W, K) asked for.
    """

    def __init__(
        self,
        stack: Stack,
        prompts: Sequence[Prompt],
        max_new_tokens: int = 96,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        found = answers(stack, prompts, max_new_tokens, temperature, seed)
        self.stack, self.texts = stack, [Text(ids, answer) for ids, answer in found]
        self._identities: dict[DFlashDrafter, str | None] = {}
        self._lengths: dict[tuple, int] = {}
        self._supertrees: dict[tuple, Supertree] = {}

    def block(self, pairing: Pairing, number: int, index: int) -> Block:
        """The Block that ``pairing``'s drafter gives for anchor ``index`` of text ``number``."""
        text = self.texts[number]
        if pairing.drafter not in text.hidden:
            text.hidden[pairing.drafter] = self._hidden(pairing, text)
        hidden = text.hidden[pairing.drafter][index]
        position = len(text.prompt) + index
        return Block(text.answer[index], position, hidden, pairing.target.lm_head(hidden))

    def _hidden(self, pairing: Pairing, text: Text) -> torch.Tensor:
        """:func:`_blocks` of a text, kept between notebooks (see ``kept.py``)."""
        if pairing.drafter not in self._identities:
            self._identities[pairing.drafter] = identity(pairing)
        what = {"blocks": text.answer, "prompt": text.prompt}
        found = keep(
            self._identities[pairing.drafter], what, lambda: {"hidden": _blocks(pairing, text)}
        )
        return found["hidden"].to(pairing.target.device)

    def accepted(
        self, method: str, settings: TreeSettings, only: Sequence[int] | None = None
    ) -> list[list[int]]:
        """``accepted_per_round`` of each text, as decoding with ``method`` would give it.

        ``only``: numbers of the texts that are wanted.
        """
        numbers = range(len(self.texts)) if only is None else only
        return [[n for _, n in self.rounds(number, method, settings)] for number in numbers]

    def rounds(self, number: int, method: str, settings: TreeSettings) -> list[tuple[int, int]]:
        """(index of the anchor in the answer, tokens committed) of each round of one text."""
        check_method(method)
        last, index, found = len(self.texts[number].answer) - 1, 0, []
        while index < last:
            drafts = 0 if method == "ar" else self._length(number, index, method, settings)
            count = min(drafts + 1, last - index)
            found.append((index, count))
            index += count
        return found

    def tau(
        self, method: str, settings: TreeSettings, only: Sequence[int] | None = None
    ) -> float | None:
        """Tokens committed per round, pooled over the texts; None without rounds."""
        counts = [n for counts in self.accepted(method, settings, only) for n in counts]
        return sum(counts) / len(counts) if counts else None

    def supertree(self, number: int, index: int, settings: TreeSettings) -> Supertree:
        """The supertree at an anchor; grown once for each W, K, depth and kind of score."""
        key = (number, index, *_expansion(settings))
        if key not in self._supertrees:
            block = self.block(self.stack.main, number, index)
            grown = grow_supertree(block, self.stack.head, settings)
            self._supertrees[key] = grown.supertree
        return self._supertrees[key]

    @torch.inference_mode()
    def _length(self, number: int, index: int, method: str, settings: TreeSettings) -> int:
        """Drafts that the text accepts from the tree of ``method`` at an anchor."""
        key = (number, index, method, *settings.to_dict().values())
        if key not in self._lengths:
            rest = self.texts[number].answer[index + 1 :]
            if method == "dartree":
                grown = self.supertree(number, index, settings)
                length = _surviving(grown, _matching(grown, rest), settings)
            else:
                pairing = self.stack.pairing(method)
                block = self.block(pairing, number, index)
                tree = proposal_of(method, block, pairing.head, settings, Clock()).tree
                length = len(_matching(tree, rest))
            self._lengths[key] = length
        return self._lengths[key]


def _expansion(settings: TreeSettings) -> tuple:
    """What a supertree depends on: all settings but the budget and the penalty."""
    return tuple(replace(settings, budget=1, depth_penalty=0.0).to_dict().values())


def _matching(tree: DraftTree, tokens: Sequence[int]) -> list[int]:
    """Nodes of ``tree`` along ``tokens``, from the root as far as they are in it."""
    node, path = 0, []
    for token in tokens:
        node = tree.child(node, int(token))
        if not node:
            break
        path.append(node)
    return path


def _surviving(tree: Supertree, path: list[int], settings: TreeSettings) -> int:
    """How many nodes of ``path`` are among the Top-B: their place in the order is below B.

    The order is (f descending, number ascending), so places are counted and nothing is sorted;
    Lemma 1 makes the survivors a prefix of the path.
    """
    f = pruning_scores(tree, settings.depth_penalty)
    nodes = np.asarray(path, dtype=np.int64) - 1
    own = f[nodes][:, None]
    before = (f > own) | ((f == own) & (np.arange(len(f)) < nodes[:, None]))  # [a, N]
    return int(((before.sum(1) < settings.budget) & (f[nodes] > -np.inf)).sum())


@torch.inference_mode()
def _blocks(pairing: Pairing, text: Text) -> torch.Tensor:
    """Drafter output [T - 1, n, H] for every anchor of a text, from one target prefill.

    Anchors share one context, of which each sees what lies before it, and go through the drafter
    ``AT_ONCE`` at a time: the same as drafting at each alone, up to rounding.
    """
    target, drafter = pairing.target, pairing.drafter
    ids = torch.tensor([*text.prompt, *text.answer[:-1]], device=target.device)
    features = target.prefill(target.new_cache(len(ids)), ids).features
    context, columns = drafter.fuse(features)[None], torch.arange(len(ids), device=target.device)
    steps, found = torch.arange(drafter.config.block_size, device=target.device), []
    for places in columns[len(text.prompt) :].split(AT_ONCE):  # [A], positions of anchors
        blocks = torch.cat([drafter.block_ids(int(ids[p]), target.device) for p in places])
        mask = context.new_zeros(len(places), 1, len(steps), len(columns) + len(steps))
        unseen = columns >= places[:, None]  # [A, T]
        mask[..., : len(columns)].masked_fill_(unseen[:, None, None], float("-inf"))
        embeddings = torch.nn.functional.embedding(blocks, target.embedding)  # [A, L, H]
        hidden = drafter(embeddings, context, places[:, None] + steps, columns, mask)
        found.append(hidden[:, drafter.config.row_offset :])
    return torch.cat(found)
