"""From a scored supertree to the draft tree: global Top-B, and the heap it must agree with.

Lemma 1 (paper): where f does not increase along edges and ties go to the smaller node number,
the B best nodes are closed under taking parents, and they are the first B pops of a best-first
heap. So one sort replaces the heap.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dartree.checks import finite, instance, positive_int
from dartree.settings import penalty
from dartree.tree import DraftTree, Supertree


def pruning_scores(tree: DraftTree, depth_penalty: float) -> np.ndarray:
    """f(u) = score(u) - depth_penalty * depth(u), [N] float64."""
    return tree.scores.astype(np.float64) - depth_penalty * tree.depths


def top_b_nodes(supertree: Supertree, budget: int, depth_penalty: float) -> np.ndarray:
    """Numbers (1..N, ascending) of the ``budget`` best nodes by (f descending, number ascending).

    Raises ValueError for a negative penalty: f could then increase along an edge, and the B
    best nodes need not contain their own parents.
    """
    budget = positive_int("budget", budget)
    f = pruning_scores(instance("supertree", supertree, DraftTree), penalty(depth_penalty))
    order = np.argsort(-f, kind="stable")
    return np.sort(order[:budget]) + 1


def subtree(tree: DraftTree, nodes: np.ndarray) -> DraftTree:
    """The tree of ``nodes`` (numbers, ascending, with all their ancestors), renumbered 1..N."""
    number = np.zeros(len(tree) + 1, dtype=np.int64)
    number[nodes] = np.arange(1, len(nodes) + 1)
    old = nodes - 1
    parents = number[tree.parents[old]]
    if np.any((parents == 0) & (tree.parents[old] != 0)):
        raise ValueError("nodes must contain the parent of every chosen node.")
    return DraftTree.built(tree.tokens[old], parents, tree.depths[old], tree.scores[old])


def top_b(supertree: Supertree, budget: int, depth_penalty: float = 0.0) -> DraftTree:
    """The ``budget`` best nodes of ``supertree`` as a draft tree; no model call.

    Node order is the supertree's. A budget above the supertree keeps all of it. Raises
    ValueError for budget < 1 or a negative ``depth_penalty``.
    """
    return subtree(supertree, top_b_nodes(supertree, budget, depth_penalty))


def best_first(supertree: Supertree, budget: int, depth_penalty: float = 0.0) -> DraftTree:
    """Reference: pop the best reachable node ``budget`` times from a heap over ``supertree``.

    Gives the same set as :func:`top_b` for depth_penalty >= 0. A negative penalty is allowed
    here, to show what Lemma 1 needs. Nodes are numbered as in the supertree.
    """
    budget = positive_int("budget", budget)
    f = pruning_scores(
        instance("supertree", supertree, DraftTree), finite("depth_penalty", depth_penalty)
    )
    children: list[list[int]] = [[] for _ in range(len(supertree) + 1)]
    for node, parent in enumerate(supertree.parents.tolist(), start=1):
        children[parent].append(node)
    heap = [(-f[node - 1], node) for node in children[0]]
    heapq.heapify(heap)
    chosen: list[int] = []
    while heap and len(chosen) < budget:
        node = heapq.heappop(heap)[1]
        chosen.append(node)
        for child in children[node]:
            heapq.heappush(heap, (-f[child - 1], child))
    return subtree(supertree, np.sort(np.asarray(chosen, dtype=np.int64)))


# What a lazily grown node can have below it: ids and conditional log-probs, best first.
Children = tuple[Sequence[int], Sequence[float]]


def grow_best_first(
    expand_node: Callable[[int, int, Any], tuple[Children | None, Any]],
    budget: int,
    depth_penalty: float,
) -> DraftTree:
    """Grow a tree node by node: pop the best proposed node, then ask for its children.

    ``expand_node(depth, token, parent_state)`` is called once per popped node that may still
    have children (for the root with depth 0) and returns its children, best first, and its own
    state, which is handed back as ``parent_state`` of its children. A node's next sibling enters
    the heap only when the node itself is popped, so the heap holds at most two new entries per
    pop instead of K. Nodes are numbered in pop order; ties go to the entry proposed first.
    """
    tokens: list[int] = []
    parents, depths, scores = [], [], []
    heap: list[tuple[float, int, int, int, float, int]] = []  # (-f, order, parent, rank, base, d)
    below: list[tuple[Children, Any]] = []  # children and state by node number
    proposed = 0

    def propose(parent: int, rank: int, base: float, depth: int) -> None:
        nonlocal proposed
        logps = below[parent][0][1]
        if rank < len(logps) and logps[rank] > -math.inf:
            f = base + logps[rank] - depth_penalty * depth
            heapq.heappush(heap, (-f, proposed, parent, rank, base, depth))
            proposed += 1

    children, state = expand_node(0, -1, None)
    below.append((children or ((), ()), state))
    propose(0, 0, 0.0, 1)
    while heap and len(tokens) < budget:
        _, _, parent, rank, base, depth = heapq.heappop(heap)
        (ids, logps), parent_state = below[parent]
        score = base + logps[rank]
        tokens.append(ids[rank])
        parents.append(parent)
        depths.append(depth)
        scores.append(score)
        propose(parent, rank + 1, base, depth)
        if len(tokens) < budget:
            children, state = expand_node(depth, ids[rank], parent_state)
            below.append((children or ((), ()), state))
            propose(len(tokens), 0, score, depth + 1)
    return DraftTree.built(
        np.asarray(tokens, dtype=np.int64), np.asarray(parents, dtype=np.int64),
        np.asarray(depths, dtype=np.int64), np.asarray(scores, dtype=np.float32),
    )  # fmt: skip
