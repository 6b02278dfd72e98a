"""What verification promises, measured: one forward for all paths, a compacted cache, exact laws.

Each function holds the package's own pieces against something independent: plain causal runs of
transformers without a cache, a fresh prefill, probabilities worked out by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dartree.acceptance import Chooser, walk
from dartree.checks import positive_int
from dartree.stack import Stack
from dartree.target import KVCache, tree_rows
from dartree.tree import DraftTree


@torch.no_grad()
def plain_logits(stack: Stack, ids: Sequence[int]) -> torch.Tensor:
    """Logits [T, V] of one causal run of transformers over ``ids``: no cache, no mask of ours."""
    rows = torch.tensor([list(ids)], device=stack.target.device)
    return stack.target.model(input_ids=rows, use_cache=False).logits[0]


def logits_by_path(stack: Stack, ids: Sequence[int], tree: DraftTree) -> torch.Tensor:
    """What `verify` must give, [1 + N, V], from 1 + N plain runs, one for each path of ``tree``."""
    paths = [[], *map(list, tree.path_tokens())]
    return torch.stack([plain_logits(stack, [*ids, *path])[-1] for path in paths])


def differences(stack: Stack, ids: Sequence[int], tree: DraftTree) -> dict[str, float]:
    """Largest difference of the tree's logits to plain runs: done right, and with two mistakes.

    The mistakes: nodes see everything before them in the cache, siblings included, and nodes get
    the position of their cache row. Raises ValueError for a tree without nodes.
    """
    if not len(tree):
        raise ValueError("tree must have a node that can be mistaken, got one without nodes.")
    target, past, plain = stack.target, len(ids) - 1, logits_by_path(stack, ids, tree)
    right = tree_rows(target, tree, ids[-1], past)
    mask: Any = right.mask  # only a tree without nodes has none
    causal = torch.full_like(mask, torch.finfo(mask.dtype).min).triu(past + 1)
    counted = past + torch.arange(1 + len(tree), device=target.device)
    kinds = {
        "ancestors only, position by depth": right,
        "everything before it": replace(right, mask=causal),
        "position by cache row": replace(right, positions=counted),
    }
    found = {}
    for name, rows in kinds.items():
        cache = _prefilled(stack, ids, len(tree))
        found[name] = float((target.verify(cache, rows).logits - plain).abs().max())
    return found


def _prefilled(stack: Stack, ids: Sequence[int], nodes: int) -> KVCache:
    """A cache that holds all of ``ids`` but the anchor."""
    cache = stack.target.new_cache(len(ids) + nodes)
    if len(ids) > 1:
        stack.target.prefill(cache, torch.tensor(ids[:-1], device=stack.target.device))
    return cache


@dataclass(frozen=True)
class Compaction:
    """The KV cache around one commit, at T = 0.

    past
        Committed rows before the round.
    rows [1 + a]
        Tree rows that were kept, the anchor's row 0 first.
    tokens [1 + a]
        Their tokens: the anchor and the accepted drafts.
    error, shuffled
        Largest difference of keys and values [layers, kv_heads, past + 1 + a, head_dim] to a
        fresh prefill of the same text: after compaction, and if the first 1 + a rows had simply
        been kept where they were.
    """

    past: int
    rows: list[int]
    tokens: list[int]
    error: float
    shuffled: float


def commit_round(stack: Stack, ids: Sequence[int], tree: DraftTree) -> Compaction:
    """Verify ``tree`` after ``ids``, walk it greedily, compact; compare with a fresh prefill."""
    target, past = stack.target, len(ids) - 1
    cache, careless = (_prefilled(stack, ids, len(tree)) for _ in range(2))
    for one in (cache, careless):
        output = target.verify(one, tree_rows(target, tree, ids[-1], past))
    path = walk(tree, output.logits, Chooser()).path
    rows = [0, *path.tolist()]
    tokens = [ids[-1], *tree.tokens[path - 1].tolist()]
    cache.commit(torch.tensor(rows, device=target.device))
    careless.commit(torch.arange(len(rows), device=target.device))
    fresh = _prefilled(stack, [*ids[:-1], *tokens, 0], 0)
    return Compaction(past, rows, tokens, _apart(cache, fresh), _apart(careless, fresh))


def _apart(one: KVCache, other: KVCache) -> float:
    pairs = zip(one.rows(), other.rows(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def sample_walks(
    tree: DraftTree, logits: torch.Tensor, draws: int, temperature: float = 1.0, seed: int = 0
) -> list[tuple[int, ...]]:
    """Tokens that ``draws`` rounds would commit from the same ``tree`` and logits [1 + N, V]."""
    chooser = Chooser(temperature, seed=seed, device=logits.device)
    committed = []
    for _ in range(positive_int("draws", draws)):
        verdict = walk(tree, logits, chooser)
        drafts = tree.tokens[verdict.path - 1].tolist()
        committed.append((*drafts, verdict.next_anchor))
    return committed


def next_counts(
    texts: Sequence[Sequence[int]], prefix: Sequence[int], vocabulary: int
) -> np.ndarray:
    """How often each token [V] follows ``prefix`` among ``texts`` that begin with it."""
    prefix, n = tuple(prefix), len(prefix)
    after = [text[n] for text in map(tuple, texts) if len(text) > n and text[:n] == prefix]
    return np.bincount(np.array(after, dtype=np.int64), minlength=vocabulary)


def telling_path(
    tree: DraftTree, logits: torch.Tensor, texts: Sequence[Sequence[int]], temperature: float = 1.0
) -> tuple[int, ...]:
    """The token path in ``tree`` below which ``texts`` tell most: visits times entropy.

    ``logits`` [1 + N, V] are those of the tree; ``texts`` come from :func:`sample_walks`.
    """
    log_p = (logits[1:].double() / temperature).log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1).cpu().numpy()  # [N]
    paths = tree.path_tokens()
    visits = [sum(text[: len(path)] == path for text in map(tuple, texts)) for path in paths]
    return paths[int(np.argmax(entropy * visits))]


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    """Half the summed difference of two distributions [V]: 0 the same, 1 nothing in common."""
    return float(0.5 * np.abs(np.asarray(p) - np.asarray(q)).sum())


@dataclass(frozen=True)
class LawTest:
    """Counts against an exact law ``p`` [V].

    distance
        Total variation between frequencies and ``p``.
    expected, limit
        Mean and 99 % quantile of that distance for true samples of the same number.
    deviations
        Pearson's chi-square, in standard deviations above its mean under ``p``.
    """

    draws: int
    distance: float
    expected: float
    limit: float
    deviations: float


def check_law(counts: np.ndarray, p: np.ndarray, repeats: int = 400, seed: int = 0) -> LawTest:
    """Compare ``counts`` [V] with ``p`` [V], and with ``repeats`` true samples of equal size.

    Chi-square pools the tokens that are expected fewer than five times. Raises ValueError for no
    counts at all.
    """
    counts, p = np.asarray(counts), np.asarray(p, dtype=np.float64)
    draws = int(counts.sum())
    if counts.shape != p.shape or not draws:
        raise ValueError(f"counts must be {len(p)} numbers with a sum above 0, got sum {draws}.")
    p = p / p.sum()
    samples = np.random.default_rng(seed).multinomial(draws, p, size=repeats)
    noise = [total_variation(sample / draws, p) for sample in samples]
    rare = draws * p < 5
    seen = np.append(counts[~rare], counts[rare].sum())
    mean = draws * np.append(p[~rare], p[rare].sum())
    seen, mean = seen[mean > 0], mean[mean > 0]
    freedom = max(len(mean) - 1, 1)
    chi_square = float(((seen - mean) ** 2 / mean).sum())
    return LawTest(
        draws, total_variation(counts / draws, p), float(np.mean(noise)),
        float(np.quantile(noise, 0.99)), (chi_square - freedom) / (2 * freedom) ** 0.5,
    )  # fmt: skip


def ratio_law(p: np.ndarray, q: np.ndarray, draft: int) -> tuple[np.ndarray, float]:
    """What the softmax-ratio rule makes of a draft that was CHOSEN, not drawn from ``q``.

    Accept ``draft`` with min(1, p / q), else draw from max(p - q, 0) normalised (Leviathan et
    al., arXiv 2211.17192, which proves it for a draft drawn from q). Returns the law [V] of the
    token that comes out, and how often the draft is accepted.
    """
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    accept = min(1.0, float(p[draft] / q[draft]))
    rest = np.maximum(p - q, 0)
    rest = rest / rest.sum() if rest.sum() else p
    law = (1 - accept) * rest
    law[draft] += accept
    return law, accept


def most_uncertain(
    stack: Stack, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> list[int]:
    """The text up to the place where the target's next token has the largest entropy (T = 1).

    ``prompts`` and ``answers`` are token ids; places lie inside the answers.
    """
    best, ids = -1.0, []
    for prompt, answer in zip(prompts, answers, strict=True):
        text = [*prompt, *answer]
        log_p = plain_logits(stack, text)[len(prompt) :].double().log_softmax(-1)  # [T, V]
        entropy = -(log_p.exp() * log_p).sum(-1)
        if float(entropy.max()) > best:
            best = float(entropy.max())
            ids = text[: len(prompt) + int(entropy.argmax()) + 1]
    return ids
