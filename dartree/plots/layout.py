"""Where the nodes of a tree go: depth gives the column, packed subtrees give the row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def child_lists(parents: Sequence[int], order: np.ndarray) -> list[list[int]]:
    """Children of nodes 0..N, each list sorted by ``order`` [1 + N] (smallest first)."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents, start=1):
        children[int(parent)].append(node)
    for siblings in children:
        siblings.sort(key=lambda node: (order[node], node))
    return children


def pack_rows(children: list[list[int]], depths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Row of every node, [1 + N]; the root and all first children below it are on row 0.

    A node sits on the row of its first child, so the most important path is a straight line on
    top. Every further subtree slides up until it touches what is already placed in any of its
    columns: as compact as drawing whole subtrees below each other allows. ``depths`` [1 + N]
    holds the root's 0 in front. Nodes are numbered parents first.
    """
    count = len(children)
    shift = np.zeros(count)  # of a subtree against its parent
    contours: list[dict[int, tuple[float, float]]] = [{} for _ in range(count)]
    for node in range(count - 1, -1, -1):
        contour: dict[int, tuple[float, float]] = {int(depths[node]): (0.0, 0.0)}
        for number, child in enumerate(children[node]):
            shift[child] = _clearance(contour, contours[child]) if number else 0.0
            for column, (top, bottom) in contours[child].items():
                low, high = contour.get(column, (np.inf, -np.inf))
                top, bottom = top + shift[child], bottom + shift[child]
                contour[column] = (min(low, top), max(high, bottom))
            contours[child] = {}
        contours[node] = contour
    rows = np.zeros(count)
    for node in range(count):
        for child in children[node]:
            rows[child] = rows[node] + shift[child]
    return rows


def _clearance(placed: dict, moving: dict) -> float:
    """How far down ``moving`` must go to be one row below ``placed`` in all shared columns."""
    gaps = [placed[c][1] - top + 1 for c, (top, _) in moving.items() if c in placed]
    return max(gaps, default=1.0)
