"""Is the head right about the siblings that it never saw? Every node of a supertree is verified.

A head learns from chains and is asked about trees. Decoding sees the target's answer only along
the accepted path; here the target is asked about the whole supertree in one forward, so that no
node is unobserved.

Labels of a node, given its own path: at T = 0 whether its token is the target's argmax, at T = 1
the probability that the target gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from dartree.analysis import metrics
from dartree.analysis.anchors import Anchor
from dartree.analysis.anchors import anchors as anchors  # a part of what this module offers
from dartree.api import draft, verify
from dartree.checks import positive_int
from dartree.drafter import Block
from dartree.heads import Head, NoCorrection
from dartree.proposers import greedy_chain
from dartree.pruning import top_b_nodes
from dartree.settings import TreeSettings, penalty
from dartree.stack import Stack
from dartree.supertree import grow_supertree
from dartree.tree import DraftTree, Supertree

# What a per-level factor e^-penalty is searched among; below 0 it would raise the scores.
PENALTIES = np.round(np.arange(-0.20, 1.001, 0.01), 2)


@dataclass(frozen=True)
class VerifiedRound:
    """One supertree of N nodes and what the target says to each of them.

    prompt
        Index of the prompt.
    vocabulary, marginal [N]
        log-probability of each node's token given its path: of the head over the whole
        vocabulary, and of the drafter without a head. The tree's own scores are over K.
    target [N]
        log-probability of the token given its path under the target at T = 1.
    hit [N]
        The token is the target's argmax given its path.
    left_chain, ended [N]
        The path above the node has left the head's own greedy chain; holds a stop token, so that
        no text goes through the node.
    """

    prompt: int
    tree: Supertree
    vocabulary: np.ndarray
    marginal: np.ndarray
    target: np.ndarray
    hit: np.ndarray
    left_chain: np.ndarray
    ended: np.ndarray


@dataclass(frozen=True)
class Nodes:
    """M nodes of many rounds as columns [M]; ``nodes[mask]`` keeps some of them.

    prompt, round, family, depth, rank
        Numbers; nodes of one parent are a family, rank 1 is its child with the best score.
    candidates, vocabulary, marginal
        Predicted log-probability given the path: of the head over the K candidates or over the
        vocabulary, and of the drafter alone.
    target, hit
        The labels of T = 1 (log-probability) and of T = 0.
    left_chain, left_text
        The path ABOVE the node has left the head's greedy chain, or the target's own greedy
        continuation. Never the node itself: whether it belongs to the text is the label.
    path_score, path_target, path_hit
        The same along the whole path: the tree's score, the target's log-probability, and
        whether every node down to this one is a hit.
    """

    prompt: np.ndarray
    round: np.ndarray
    family: np.ndarray
    depth: np.ndarray
    rank: np.ndarray
    candidates: np.ndarray
    vocabulary: np.ndarray
    marginal: np.ndarray
    target: np.ndarray
    hit: np.ndarray
    left_chain: np.ndarray
    left_text: np.ndarray
    path_score: np.ndarray
    path_target: np.ndarray
    path_hit: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt)

    def __getitem__(self, chosen: np.ndarray) -> Nodes:
        return Nodes(*(getattr(self, f.name)[chosen] for f in fields(self)))

    def counts(self) -> str:
        """The denominators in words."""
        rounds, prompts = len(np.unique(self.round)), len(np.unique(self.prompt))
        return f"{len(self)} nodes, {rounds} rounds, {prompts} prompts"


def measure(
    stack: Stack, places: Sequence[Anchor], settings: TreeSettings | None = None
) -> list[VerifiedRound]:
    """A round at each of ``places``, every node of its supertree verified.

    Stacks with the same target can be measured at the same places. ``settings`` gives W, K and
    depth (None: the stack's); scores must be normalised over the candidates.
    """
    settings = stack.chosen_settings(settings)
    if settings.normalise != "candidates" or settings.score_temperature != 1:
        raise ValueError(
            "settings must have normalise 'candidates' and score_temperature 1, got "
            f"{settings.normalise!r} and {settings.score_temperature:g}."
        )
    return [verify_supertree(stack, place.ids, settings, place.prompt) for place in places]


def verify_supertree(
    stack: Stack, ids: Sequence[int], settings: TreeSettings, prompt: int = 0
) -> VerifiedRound:
    """Draft after ``ids``, grow the supertree, and ask the target about ALL of its nodes."""
    block = draft(stack, ids)
    tree = grow_supertree(block, stack.head, settings).supertree
    log_probs = verify(stack, ids, tree).float().log_softmax(-1)  # [1 + N, V]
    parents, tokens = torch.from_numpy(tree.parents), torch.from_numpy(tree.tokens)
    parents, tokens = parents.to(log_probs.device), tokens.to(log_probs.device)
    chain, _ = greedy_chain(block, stack.head, int(tree.depths.max()))
    return VerifiedRound(
        prompt=prompt,
        tree=tree,
        vocabulary=head_log_probs(stack.head, block, tree),
        marginal=head_log_probs(NoCorrection(), block, tree),
        target=log_probs[parents, tokens].cpu().numpy(),
        hit=(log_probs.argmax(-1)[parents] == tokens).cpu().numpy(),
        left_chain=count_above(tree, tree.tokens != chain.cpu().numpy()[tree.depths - 1]) > 0,
        ended=count_above(tree, np.isin(tree.tokens, stack.stop_ids())) > 0,
    )


@torch.no_grad()
def head_log_probs(head: Head, block: Block, tree: DraftTree) -> np.ndarray:
    """Log-probability [N] of every node given its path, over the vocabulary; one call a depth."""
    values = np.empty(len(tree))
    state, row_of = head.start(block, None), np.zeros(len(tree) + 1, dtype=np.int64)
    for depth in range(1, int(tree.depths.max(initial=0)) + 1):
        nodes = np.flatnonzero(tree.depths == depth)
        rows = torch.from_numpy(row_of[tree.parents[nodes]]).to(block.hidden.device)
        tokens = torch.from_numpy(tree.tokens[nodes]).to(block.hidden.device)
        logits, state = head.score(state, depth)  # [rows, V]
        values[nodes] = logits.log_softmax(-1)[rows, tokens].cpu().numpy()
        state = head.advance(state, rows, tokens)
        row_of[nodes + 1] = np.arange(len(nodes))
    return values


def path_sums(tree: DraftTree, values: np.ndarray) -> np.ndarray:
    """Sum [N] of ``values`` [N] along the path of every node, itself included."""
    total = [0.0]
    for value, parent in zip(values.tolist(), tree.parents.tolist(), strict=True):
        total.append(total[parent] + value)
    return np.array(total[1:])


def count_above(tree: DraftTree, flags: np.ndarray) -> np.ndarray:
    """How many proper ancestors [N] of every node have their flag [N] set."""
    return path_sums(tree, flags) - flags


def sibling_ranks(tree: DraftTree) -> np.ndarray:
    """Place [N] of every node among its siblings, 1 the best score, ties by node number."""
    order = np.lexsort((np.arange(len(tree)), -tree.scores, tree.parents))
    first = np.concatenate([[True], np.diff(tree.parents[order]) > 0])
    start = np.maximum.accumulate(np.where(first, np.arange(len(tree)), 0))
    rank = np.empty(len(tree), dtype=np.int64)
    rank[order] = np.arange(len(tree)) - start + 1
    return rank


def collect(rounds: Sequence[VerifiedRound]) -> Nodes:
    """All nodes of ``rounds`` that a text can go through (``ended`` ones are left out)."""
    if not rounds:
        raise ValueError("rounds must hold at least one round; give more or longer prompts.")
    columns = [_columns(number, one) for number, one in enumerate(rounds)]
    return Nodes(*(np.concatenate([c[f.name] for c in columns]) for f in fields(Nodes)))


def _columns(number: int, one: VerifiedRound) -> dict[str, np.ndarray]:
    tree, miss = one.tree, ~one.hit
    count = len(tree)
    columns = {
        "prompt": np.full(count, one.prompt),
        "round": np.full(count, number),
        "family": number * 2**32 + tree.parents,
        "depth": tree.depths,
        "rank": sibling_ranks(tree),
        "candidates": np.minimum(tree.conditionals().astype(np.float64), 0.0),
        "vocabulary": one.vocabulary,
        "marginal": one.marginal,
        "target": one.target.astype(np.float64),
        "hit": one.hit,
        "left_chain": one.left_chain,
        "left_text": count_above(tree, miss) > 0,
        "path_score": tree.scores.astype(np.float64),
        "path_target": path_sums(tree, one.target),
        "path_hit": path_sums(tree, miss) == 0,
    }
    return {name: values[~one.ended] for name, values in columns.items()}


LABELS = ("T = 0", "T = 1")


def labels(nodes: Nodes, label: str, path: bool = False) -> np.ndarray:
    """Labels [M] in 0..1 for ``label`` "T = 0" or "T = 1", of the tokens or of whole paths."""
    if label not in LABELS:
        raise ValueError(f"label must be one of {', '.join(LABELS)}, got {label!r}.")
    if label == "T = 0":
        return (nodes.path_hit if path else nodes.hit).astype(np.float64)
    return np.exp(nodes.path_target if path else nodes.target)


def summary(nodes: Nodes, scorer: str = "candidates") -> dict[str, float]:
    """Calibration and ranking of one ``scorer`` (a column of :class:`Nodes`), both labels.

    Calibration: overconfidence, ECE (ten equal bins) and Brier score for T = 0 and T = 1.
    Ranking: AUROC (T = 0) of all nodes and of first children (rank 1) alone, Spearman correlation
    with the target's probability, and the share of sibling pairs in the target's order.
    """
    scores = getattr(nodes, scorer)
    found: dict[str, float] = {"nodes": len(nodes)}
    for label in LABELS:
        q, y = np.exp(scores), labels(nodes, label)
        found[f"overconfidence {label}"] = metrics.overconfidence(q, y)
        found[f"ECE {label}"] = metrics.ece(q, y)
        found[f"Brier {label}"] = metrics.brier(q, y)
    first = nodes.rank == 1
    found["AUROC"] = metrics.auroc(scores, nodes.hit)
    found["AUROC, rank 1"] = metrics.auroc(scores[first], nodes.hit[first])
    found["Spearman"] = metrics.spearman(scores, nodes.target)
    found["siblings in order"], found["sibling pairs"] = metrics.concordance(
        nodes.family, scores, nodes.target
    )
    return found


def groups(nodes: Nodes) -> dict[str, np.ndarray]:
    """Masks [M] by the path above a node, in both senses of "off the chain"."""
    return {
        "on its chain": ~nodes.left_chain,
        "off its chain": nodes.left_chain,
        "on the text": ~nodes.left_text,
        "off the text": nodes.left_text,
    }


def table(nodes: Nodes, scorer: str = "candidates") -> str:
    """:func:`summary` of all nodes and of each of :func:`groups`, as lines of text."""
    everything = {"all": np.ones(len(nodes), dtype=bool)}
    rows = {
        name: summary(nodes[mask], scorer)
        for name, mask in (everything | groups(nodes)).items()
        if mask.any()
    }
    lines = [" " * 26 + "".join(f"{name:>15}" for name in rows)]
    for measure_name in next(iter(rows.values())):
        form = "d" if isinstance(rows["all"][measure_name], int) else ".3f"
        values = "".join(f"{row[measure_name]:>15{form}}" for row in rows.values())
        lines.append(f"{measure_name:<26}" + values)
    return "\n".join(lines)


def intervals(
    nodes: Nodes, statistic: Callable[[Nodes], float], draws: int = 100, seed: int = 0
) -> list[tuple[str, float, float, float]]:
    """(name, value, low, high) of ``statistic`` for each of :func:`groups`, prompts redrawn."""
    rows = []
    for name, mask in groups(nodes).items():
        some = nodes[mask]

        def redrawn(index: np.ndarray, some: Nodes = some) -> float:
            return statistic(some[index])

        low, high = metrics.bootstrap(some.prompt, redrawn, draws, seed)
        rows.append((name, statistic(some), low, high))
    return rows


def by_column(nodes: Nodes, column: str, label: str, most: int) -> dict[str, np.ndarray]:
    """Mean prediction (over K) and mean label for each value 1..``most`` of ``column``.

    Arrays ``value``, ``count``, ``predicted``, ``observed``; values without a node are left out.
    """
    of, y, q = getattr(nodes, column), labels(nodes, label), np.exp(nodes.candidates)
    values = np.intersect1d(of, np.arange(1, positive_int("most", most) + 1))
    here = of[:, None] == values  # [M, values]
    count = here.sum(0)
    return {
        "value": values,
        "count": count,
        "predicted": q @ here / count,
        "observed": y @ here / count,
    }


@dataclass(frozen=True)
class PenaltyFit:
    """Log loss of path scores after a penalty per level, and the penalty where it is least.

    penalties, loss [G]
        Mean log loss in nats per node.
    best, low, high
        The minimum, and the middle 90 % of minima over prompts drawn again.
    """

    penalties: np.ndarray
    loss: np.ndarray
    best: float
    low: float
    high: float


def fit_penalty(
    nodes: Nodes, label: str, penalties: np.ndarray = PENALTIES, draws: int = 200, seed: int = 0
) -> PenaltyFit:
    """The factor e^-penalty per level that best calibrates the path scores of ``nodes``.

    Every node predicts with exp(path score - penalty * depth) whether the text goes through it;
    the log loss is a proper scoring rule, so a calibrated head has its minimum at 0.
    """
    y = labels(nodes, label, path=True)
    names, group = np.unique(nodes.prompt, return_inverse=True)
    size = np.bincount(group)
    loss = np.empty((len(names), len(penalties)))  # summed over the nodes of a prompt
    for column, value in enumerate(penalties):
        log_q = np.minimum(nodes.path_score - value * nodes.depth, -1e-6)
        each = -(y * log_q + (1 - y) * np.log(-np.expm1(log_q)))
        loss[:, column] = np.bincount(group, each)
    generator = np.random.default_rng(seed)
    chosen = generator.integers(len(names), size=(positive_int("draws", draws), len(names)))
    again = penalties[loss[chosen].sum(1).argmin(1)]  # [draws]
    low, high = np.quantile(again, (0.05, 0.95))
    total = loss.sum(0)
    best = float(penalties[total.argmin()])
    return PenaltyFit(penalties, total / size.sum(), best, float(low), float(high))


def accepted(
    rounds: Sequence[VerifiedRound], budget: int, depth_penalty: float
) -> dict[str, float]:
    """Accepted drafts a round if the B best nodes were the draft tree: exact, no model call.

    At T = 0 the accepted path are the kept nodes on the target's continuation, at T = 1 the
    expectation is the target's probability of every kept path, summed. ``predicted`` is the sum
    of exp(score - penalty * depth): what the penalised head expects.
    """
    penalty(depth_penalty)
    found = {"T = 0": 0.0, "T = 1": 0.0, "predicted": 0.0}
    for one in rounds:
        kept = top_b_nodes(one.tree, budget, depth_penalty) - 1
        alive = kept[~one.ended[kept]]
        found["T = 0"] += (path_sums(one.tree, ~one.hit)[alive] == 0).sum()
        found["T = 1"] += np.exp(path_sums(one.tree, one.target)[alive]).sum()
        discounted = one.tree.scores[kept] - depth_penalty * one.tree.depths[kept]
        found["predicted"] += np.exp(discounted).sum()
    return {name: float(total) / len(rounds) for name, total in found.items()}
