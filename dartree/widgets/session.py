"""What the explorer shows, without any widget: rounds at fixed anchors, and what each move costs.

The anchors are those of one reference run per prompt: `dartree` at the stack's own settings. At
T = 0 every method gives the same text, so any of them could have arrived at any of these anchors,
and what it drafts there is exact. The same holds at T > 0 for one seed: one draw is used per
committed token, whatever was drafted. So moving a control changes the tree, never the question.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from dartree import api
from dartree.acceptance import Chooser, Verdict, walk
from dartree.checks import positive_int
from dartree.clock import Clock
from dartree.decode import Generation, generate
from dartree.drafter import Block
from dartree.methods import TABLE, check_method, proposal_of
from dartree.plots.labels import token_decoder
from dartree.proposers import Proposal, possible
from dartree.pruning import pruning_scores, subtree, top_b_nodes
from dartree.records import RoundRecord, missing_reason
from dartree.settings import TreeSettings
from dartree.stack import Stack
from dartree.supertree import grow_supertree
from dartree.tree import DraftTree

PRUNED = "pruned"  # in the supertree, not in the draft tree: the target was never asked


@dataclass
class Calls:
    """Model calls so far. A target forward is a prefill or the verification of one tree."""

    drafter: int = 0
    head: int = 0
    target: int = 0

    def since(self, before: Calls) -> Calls:
        """What was added after ``before``."""
        return Calls(*(getattr(self, n) - getattr(before, n) for n in asdict(self)))


@dataclass(frozen=True)
class Choice:
    """What the controls say. ``prompt`` is a text or a tuple of ids."""

    prompt: str | tuple[int, ...]
    settings: TreeSettings
    round: int = 0
    method: str = "dartree"
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Text:
    """A reference run: prompt and answer as ids, and where its rounds begin."""

    ids: list[int]
    generation: Generation

    @property
    def anchors(self) -> list[int]:
        """Index into ``ids`` of every round's anchor."""
        return [record.position for record in self.generation.records]


@dataclass(frozen=True)
class Judged:
    """The target's view of a whole tree of N nodes.

    choices [1 + N]
        Its own token at every row, row 0 the anchor; -1 where sampling did not look.
    choice_logps [1 + N], node_logps [N]
        Log-probability (T = 1) of that choice, and of each node's token after its parent.
    """

    choices: np.ndarray
    choice_logps: np.ndarray
    node_logps: np.ndarray


@dataclass(frozen=True)
class View:
    """One round as drawn. ``nodes`` is the supertree where there is one, else the draft tree.

    outcomes [N]
        Per node of ``nodes``: accepted, walked past, unreached or pruned.
    ranks [N]
        1-based place of each node in the order in which Top-B takes them.
    """

    choice: Choice
    used: TreeSettings  # after clamping
    record: RoundRecord
    nodes: DraftTree
    outcomes: list[str]
    ranks: np.ndarray
    judged: Judged
    rounds: int

    @property
    def path(self) -> list[int]:
        """Accepted nodes, numbered as in ``nodes``."""
        kept = self.record.kept
        return [int(kept[n - 1]) if kept is not None else int(n) for n in self.record.path]

    @property
    def bonus(self) -> int:
        """The target's own token after the accepted path."""
        return int(self.judged.choices[self.path[-1] if self.path else 0])

    @property
    def missed(self) -> int:
        """Number of the bonus token in ``nodes`` where it was proposed but cut, else 0."""
        return self.nodes.child(self.path[-1] if self.path else 0, self.bonus)

    @cached_property
    def odds(self) -> np.ndarray:
        """Conditional probability of each node given its path, [N] float64."""
        return np.exp(np.minimum(self.nodes.conditionals().astype(float), 0.0))

    @property
    def normalise(self) -> str:
        """What the conditionals sum to one over: "candidates" or "vocabulary"."""
        on_vocabulary = "normalise" not in TABLE[self.choice.method].uses
        return "vocabulary" if on_vocabulary else self.used.normalise

    @property
    def expected(self) -> float:
        """Tokens a round would commit if the drafter's conditionals were the target's.

        A node is accepted with the probability of its path, exp(score); 1 more is the bonus.
        """
        return 1.0 + float(np.exp(self.record.tree.scores.astype(float)).sum())


class Session:
    """Looks at rounds of one stack and keeps what models computed; counts every model call."""

    def __init__(self, stack: Stack, max_new_tokens: int = 64, keep: int = 64) -> None:
        self.stack = stack
        self.max_new_tokens = positive_int("max_new_tokens", max_new_tokens)
        self.calls = Calls()
        self.decode = token_decoder(stack.tokenizer)
        self._keep = keep
        self._kept: dict[str, OrderedDict[Hashable, Any]] = {}

    def look(self, choice: Choice) -> View:
        """The round that ``choice`` names; model calls only for what no earlier look computed.

        Raises ValueError for a bad prompt, method, round or setting.
        """
        check_method(choice.method)
        text = self.text(choice.prompt, choice.temperature, choice.seed)
        if not 0 <= choice.round < len(text.anchors):
            raise ValueError(
                f"round must lie in 0..{len(text.anchors) - 1} for this prompt, got {choice.round}."
                if text.anchors
                else "the answer to this prompt is a single token, so it has no round to look at."
            )
        used = self._limits(choice)
        proposal, judged = self._proposal(choice, used, text)
        whole = proposal.tree if proposal.supertree is None else proposal.supertree
        rows = slice(None) if proposal.kept is None else np.concatenate([[0], proposal.kept])
        verdict = follow(proposal.tree, judged.choices[rows])
        record = self._record(choice, used, text, proposal, verdict)
        outcomes, ranks = _outcomes(record, whole), _ranks(choice.method, used, whole)
        return View(choice, used, record, whole, outcomes, ranks, judged, len(text.anchors))

    def text(self, prompt: str | Sequence[int], temperature: float = 0.0, seed: int = 0) -> Text:
        """The reference run of ``prompt``, made once."""
        prompt = prompt if isinstance(prompt, str) else tuple(prompt)

        def make() -> Text:
            ids = self.stack.encode(prompt)
            done = self.run(ids, "dartree", self.stack.settings, temperature, seed)
            self.calls.drafter += done.rounds
            self.calls.head += done.head_calls
            self.calls.target += 1 + done.rounds
            return Text(ids + done.token_ids, done)

        return self._once("text", (prompt, temperature, seed), make)

    def run(
        self,
        prompt: str | Sequence[int],
        method: str,
        settings: TreeSettings,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Generation:
        """The whole text of ``prompt`` decoded with ``method``; made once."""
        prompt = prompt if isinstance(prompt, str) else tuple(prompt)
        options: dict[str, Any] = {
            "temperature": temperature, "seed": seed, "max_new_tokens": self.max_new_tokens
        }  # fmt: skip

        def make() -> Generation:
            ids = self.stack.encode(prompt)
            return generate(self.stack, ids, method=method, settings=settings, **options)

        return self._once("run", (prompt, method, settings, temperature, seed), make)

    def _limits(self, choice: Choice) -> TreeSettings:
        pairing = self.stack.pairing(choice.method)
        if pairing.drafter is None:
            return choice.settings
        return choice.settings.clamped(pairing.drafter.config.drafts, pairing.target.vocab_size)

    def _ids(self, choice: Choice, text: Text) -> list[int]:
        return text.ids[: text.anchors[choice.round] + 1]

    def _block(self, choice: Choice, text: Text) -> Block:
        def make() -> Block:
            self.calls.target += 1  # the features of the text so far
            self.calls.drafter += 1
            pairing = self.stack.pairing(choice.method)
            return api.draft(self.stack, self._ids(choice, text), pairing)

        return self._once("block", (*_place(choice), TABLE[choice.method].marginal), make)

    def _proposal(self, choice: Choice, used: TreeSettings, text: Text) -> tuple[Proposal, Judged]:
        """What the method proposes, and the target's view of all that it scored.

        `dartree` is expanded and verified once for all budgets and penalties: pruning is a sort,
        and a node's logits depend on its own path alone. The others draft anew.
        """
        free = choice.method == "dartree"
        shape = replace(used, budget=1, depth_penalty=0.0) if free else used

        def make() -> tuple[Proposal, Judged]:
            if choice.method == "ar":
                proposal = Proposal(DraftTree.empty())
            else:
                block, head = self._block(choice, text), self.stack.pairing(choice.method).head
                if free:
                    grown = grow_supertree(block, head, used)
                    every = np.arange(1, len(grown.supertree) + 1)
                    proposal = Proposal(
                        grown.supertree, grown.head_calls, grown.candidates, grown.supertree, every
                    )
                else:
                    clock = Clock(self.stack.target.device)
                    proposal = proposal_of(choice.method, block, head, used, clock)
            self.calls.head += proposal.head_calls
            whole = proposal.tree if proposal.supertree is None else proposal.supertree
            return proposal, self._judge(choice, text, whole)

        proposal, judged = self._once("tree", (*_place(choice), choice.method, shape), make)
        if free:
            kept = top_b_nodes(proposal.supertree, used.budget, used.depth_penalty)
            tree = subtree(proposal.supertree, kept)
            proposal = possible(replace(proposal, tree=tree, kept=kept))
        return proposal, judged

    def _judge(self, choice: Choice, text: Text, tree: DraftTree) -> Judged:
        ids = self._ids(choice, text)
        self.calls.target += 2  # the text so far, then the tree
        logits = api.verify(self.stack, ids, tree)  # [1 + N, V]
        chooser = Chooser(choice.temperature, seed=choice.seed, device=logits.device)
        for _ in range(len(ids) - text.generation.prompt_tokens) if not chooser.greedy else ():
            chooser.draw(logits[0])  # the draws that the text so far has used up
        choices = walk(tree, logits, chooser).target_tokens
        logps = torch.log_softmax(logits.float(), dim=-1)
        own = torch.as_tensor(choices, device=logps.device).clamp(min=0)
        rows = torch.as_tensor(tree.parents, device=logps.device)
        tokens = torch.as_tensor(tree.tokens, device=logps.device)
        return Judged(
            choices,
            logps.gather(1, own[:, None])[:, 0].cpu().numpy(),
            logps[rows, tokens].cpu().numpy(),
        )

    def _record(
        self, choice: Choice, used: TreeSettings, text: Text, proposal: Proposal, verdict: Verdict
    ) -> RoundRecord:
        position = text.anchors[choice.round]
        committed = [*proposal.tree.tokens[verdict.path - 1].tolist(), verdict.next_anchor]
        return RoundRecord(
            index=choice.round,
            method=choice.method,
            anchor=text.ids[position],
            position=position,
            tree=proposal.tree,
            target_tokens=verdict.target_tokens,
            path=verdict.path,
            committed=committed[: len(text.ids) - position - 1],  # the text may end inside a round
            missing=missing_reason(
                choice.method, proposal, verdict, 0 if choice.method == "ar" else used.depth
            ),
            head_calls=proposal.head_calls,
            candidates=proposal.candidates,
            supertree=proposal.supertree,
            kept=proposal.kept,
        )

    def _once(self, kind: str, key: Hashable, make: Callable[[], Any]) -> Any:
        """``make()`` the first time; the least recently used result goes when there are many."""
        kept = self._kept.setdefault(kind, OrderedDict())
        if key not in kept:
            kept[key] = make()
            if len(kept) > self._keep:
                kept.popitem(last=False)
        kept.move_to_end(key)
        return kept[key]


def follow(tree: DraftTree, choices: np.ndarray) -> Verdict:
    """The walk through ``tree`` along known ``choices`` [1 + N] of the target."""
    node, path = 0, []
    while child := tree.child(node, int(choices[node])):
        path.append(child)
        node = child
    return Verdict(np.asarray(path, dtype=np.int64), int(choices[node]), choices)


def _place(choice: Choice) -> tuple[Hashable, ...]:
    return choice.prompt, choice.temperature, choice.seed, choice.round


def _outcomes(record: RoundRecord, whole: DraftTree) -> list[str]:
    """The record's outcomes on the nodes of ``whole``; what it did not keep was pruned."""
    if record.kept is None:
        return record.outcomes()
    found = [PRUNED] * len(whole)
    for node, outcome in zip(record.kept.tolist(), record.outcomes(), strict=True):
        found[node - 1] = outcome
    return found


def _ranks(method: str, used: TreeSettings, tree: DraftTree) -> np.ndarray:
    penalised = "depth_penalty" in TABLE[method].uses
    order = np.argsort(-pruning_scores(tree, used.depth_penalty * penalised), kind="stable")
    ranks = np.empty(len(tree), dtype=np.int64)
    ranks[order] = np.arange(1, len(tree) + 1)
    return ranks
