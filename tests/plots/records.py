"""Round records made by hand for the plots' tests: no model, awkward token texts."""

import heapq

import matplotlib.pyplot as plt
import numpy as np

from dartree.records import RoundRecord
from dartree.tree import DraftTree

WORDS = [
    " the", "\n", "\t", "  ", " return", "$a_b^c$", "<b>", "中文", "\U0001f642", "_x", "\\alpha",
    b"\xe4\xb8", "\ufffd", "", "\x1b[0m", "antidisestablishmentarianism", "&amp;", "x", "{y}", "é",
]  # fmt: skip


def decode(token):
    return WORDS[token]


def drawn(draw, size, *arguments, **options):
    """The Axes that ``draw`` gives back, on a figure of ``size`` that has been rendered."""
    fig, ax = plt.subplots(figsize=size)
    assert draw(ax, *arguments, **options) is ax
    fig.canvas.draw()
    return ax


def make_tree(nodes=64, depth=15, seed=0, fan=8) -> DraftTree:
    """Best-first tree over random conditionals."""
    random = np.random.default_rng(seed)
    columns = ([], [], [], [])
    heap, count = [], 0

    def open_node(parent, level, score):
        nonlocal count
        odds = np.sort(random.dirichlet(np.full(fan, 0.4)))[::-1]
        for share, token in zip(odds, random.permutation(len(WORDS))[:fan], strict=True):
            count += 1
            entry = (-(score + float(np.log(share + 1e-9))), count, parent, int(token), level)
            heapq.heappush(heap, entry)

    open_node(0, 1, 0.0)
    while len(columns[0]) < nodes:
        cost, _, parent, token, level = heapq.heappop(heap)
        for column, value in zip(columns, (token, parent, level, -cost), strict=True):
            column.append(value)
        if level < depth:
            open_node(len(columns[0]), level + 1, -cost)
    return DraftTree(*(np.array(column) for column in columns))


def make_record(tree: DraftTree, accepted=3, index=1, bonus=4, **fields) -> RoundRecord:
    """The walk takes the first child ``accepted`` times, then the target says ``bonus``."""
    path = [0]
    while len(path) <= accepted:
        children = np.flatnonzero(tree.parents == path[-1]) + 1
        if not children.size:
            break
        path.append(int(children[0]))
    choices = np.full(1 + len(tree), -1)
    for node, following in zip(path, path[1:], strict=False):
        choices[node] = tree.tokens[following - 1]
    choices[path[-1]] = bonus
    committed = [int(tree.tokens[node - 1]) for node in path[1:]] + [bonus]
    given = {"method": "dartree", "missing": "cut by the budget", "anchor": 0, "position": 9}
    return RoundRecord(
        index=index, tree=tree, target_tokens=choices, path=np.array(path[1:], dtype=np.int64),
        committed=committed, **(given | fields),
    )  # fmt: skip


def make_result(repeats=1):
    """What ``dartree.compare.compare`` returns, as far as the plots read it."""
    from dartree.methods import METHODS

    prompts = [{"id": f"{d}-{i}", "domain": d} for d in ("arithmetic", "prose") for i in range(3)]
    methods = []
    for number, method in enumerate(METHODS):
        rounds = [[1 + number, 1], [2 + number], [1], [1, 1 + number], [3], []]
        flat = [count for counts in rounds for count in counts]
        first, last = ([n for counts in part for n in counts] for part in (rounds[:3], rounds[3:]))
        speed = 20.0 + 10 * number
        methods.append({
            "method": method, "accepted_per_round": rounds, "tau": sum(flat) / len(flat),
            "tokens_per_second": speed, "tokens_per_second_range": [speed - 5, speed + 5],
            "domains": {"arithmetic": {"tau": sum(first) / len(first)},
                        "prose": {"tau": sum(last) / len(last)}},
        })  # fmt: skip
    return {"methods": methods, "prompts": prompts}
