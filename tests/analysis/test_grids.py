"""Grids against single replays, fronts against brute force, and the cost curve's arithmetic."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import dartree
from dartree.analysis import beams, cost, grids
from dartree.analysis.replay import Replay
from dartree.methods import TABLE
from dartree.settings import TreeSettings
from tests.reference import random_stack

BASE = TreeSettings(width=3, candidates=4, budget=6, depth_penalty=0.1)


@pytest.fixture(scope="module")
def stack():
    return random_stack(head="domino", dtype=torch.float64)


@pytest.fixture(scope="module")
def replay(stack):
    return Replay(stack, [[1, 2], [3, 4, 5]], 16)


def test_every_combination_once_and_in_order(replay):
    price = SimpleNamespace(ms=lambda s: 2.0 * s.budget)
    points = grids.grid(replay, BASE, {"width": [1, 4], "budget": [2, 5, 9]}, price)
    asked = [(w, b) for w in (1, 4) for b in (2, 5, 9)]
    assert [(p.settings.width, p.settings.budget) for p in points] == asked
    for p in points:
        assert p.tau == replay.tau("dartree", p.settings)
        assert p.tokens_per_second == pytest.approx(1000 * p.tau / (2 * p.settings.budget))
    cells = grids.table(points, "width", "budget")
    assert cells.tolist() == [[p.tau for p in points[:3]], [p.tau for p in points[3:]]]
    best_over_width = grids.table(points, "depth_penalty", "budget")
    assert best_over_width.tolist() == [np.max(cells, axis=0).tolist()]
    with pytest.raises(ValueError, match="values must name settings among .*, got height"):
        grids.grid(replay, BASE, {"height": [1]})


def test_a_sweep_has_every_method_at_every_value(replay):
    found = grids.sweep(replay, BASE, "budget", (2, 9), ("heap", "dartree"), only=[1])
    asked = [(v, m) for v in (2, 9) for m in ("heap", "dartree")]
    assert found["parameter"] == "budget"
    assert [(row["value"], row["method"]) for row in found["rows"]] == asked
    for row in found["rows"]:
        at = replace(BASE, budget=row["value"])
        assert row["tau"] == replay.tau(row["method"], at, only=[1])
    with pytest.raises(ValueError, match="values must name settings among .*, got height"):
        grids.sweep(replay, BASE, "height", [1])


def test_fronts_by_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.integers(1, 6, size=(12, 2))
        points = [grids.Point(replace(BASE, budget=i + 1), float(t), float(m))
                  for i, (t, m) in enumerate(values)]  # fmt: skip
        front = grids.pareto(points)
        better = [
            [q for q in points if q.tau >= p.tau and q.ms_per_round <= p.ms_per_round
             and (q.tau, q.ms_per_round) != (p.tau, p.ms_per_round)]
            for p in points
        ]  # fmt: skip
        expected = {(p.tau, p.ms_per_round) for p, q in zip(points, better, strict=True) if not q}
        assert [(p.tau, p.ms_per_round) for p in front] == sorted(expected, key=lambda x: x[1])
        top = grids.best(points)
        assert top.tokens_per_second == max(p.tokens_per_second for p in points)


def test_cost_curve_recovers_a_known_machine(monkeypatch):
    """Sweeps of a machine whose times follow the model exactly give its parameters back."""

    def call(rows, candidates):
        return 0.1 + 0.05 * rows + 0.001 * rows * candidates

    def expand(s):  # eight calls: one over the root, the others over W rows
        return call(1, s.candidates) + 7 * call(s.width, s.candidates)

    def fake(stack, prompts, parameter, values, *, settings, **_):
        rows = []
        for value in values:
            s = replace(settings, **{parameter: value}).clamped(8, 200)
            nodes = min(s.budget, 8 * s.width)
            stages = {"draft": 2.0, "expand": expand(s)}
            rows.append({
                "value": value, "nodes_per_round": nodes, "head_calls_per_round": 8.0,
                "stage_ms": stages, "ms_per_round": [sum(stages.values()) + 6 + 0.1 * nodes] * 3,
            })  # fmt: skip
        return {"rows": rows}

    monkeypatch.setattr(cost, "sweep", fake)
    machine = SimpleNamespace(
        drafter=SimpleNamespace(config=SimpleNamespace(drafts=8)),
        target=SimpleNamespace(vocab_size=200),
        chosen_settings=lambda given: given or TreeSettings(),
    )
    price = cost.measure(machine, [])
    assert price.call_fit == pytest.approx((0.1, 0.05, 0.001)) and price.residual < 1e-9
    for s in (TreeSettings(), TreeSettings(width=20, candidates=33, budget=50)):
        assert price.ms(s) == pytest.approx(2 + expand(s) + 6 + 0.1 * s.budget)
    narrow = TreeSettings(width=1, budget=128)
    assert price.ms(narrow) == pytest.approx(2 + expand(narrow) + 6 + 0.8)
    chain = TreeSettings(candidates=1)  # one token a depth is one row a call, whatever W
    assert price.ms(chain) == pytest.approx(2 + 8 * call(1, 1) + 6 + 0.8)
    wide = TreeSettings(candidates=1000)
    assert price.ms(wide) == pytest.approx(price.ms(replace(wide, candidates=200)))


def test_other_methods_are_estimated_from_the_same_parts():
    price = cost.RoundCost(5, 97, 2.0, (1.0, 0.1, 0.0), (1, 64), (10.0, 73.0), 0.0)
    used = TreeSettings(width=11, candidates=64)
    assert price.round_ms("dartree", 1, 5, used) == pytest.approx(2 + 10 + 5 + 0.1 * (1 + 4 * 11))
    assert price.round_ms("heap", 64, 10, used) == pytest.approx(2 + 73 + 10 * 1.1)
    assert price.round_ms("ddtree", 32, 0, used) == pytest.approx(2 + 41)
    assert price.round_ms("ar", 0, 0, used) == pytest.approx(10)
    # B = 64 over 5 depths: 13, 13, 13, 13, 12 nodes, below one root row
    fixed = 2 + 10 + 5 + 0.1 * (1 + 4 * 13)
    assert price.round_ms("dartree-fixed", 1, 5, used) == pytest.approx(fixed)


def test_an_added_method_costs_what_dartree_does(monkeypatch):
    monkeypatch.setattr(cost, "TABLE", dict(TABLE) | {"mine": TABLE["dartree"]})
    price = cost.RoundCost(5, 97, 2.0, (1.0, 0.1, 0.0), (1, 64), (10.0, 73.0), 0.0)
    used = TreeSettings(width=11, candidates=64)
    assert price.round_ms("mine", 9, 5, used) == price.round_ms("dartree", 9, 5, used)


def test_costs_are_measured_by_the_decode_loop(stack):
    options = {"budgets": (8, 1), "widths": (1, 4), "candidates": (2, 500), "repeats": 1}
    price = cost.measure(stack, [{"ids": [5, 17, 3]}], max_new_tokens=6, **options)
    assert price.nodes == (1.0, 8.0) and price.drafts == stack.drafter.config.drafts
    assert min(price.draft_ms, *price.rest_ms) > 0
    with pytest.raises(ValueError, match="a round to measure"):
        cost.measure(stack, [{"ids": [5, 17, 3]}], max_new_tokens=1, **options)


def test_beams_as_wide_as_the_budget_miss_nothing(replay):
    found = beams.missed(replay, BASE, [1, 2, BASE.budget])
    assert [m.width for m in found] == [1, 2, BASE.budget]
    assert found[-1].nodes.max() == 0 and found[-1].mass.max() == 0
    assert found[0].nodes.mean() >= found[1].nodes.mean() > 0
    assert np.all(found[0].mass > 0)
    rounds = sum(len(replay.rounds(i, "dartree", BASE)) for i in range(2))
    assert len(found[0].nodes) == rounds


def test_branches_are_the_chain_s_conditionals(stack):
    block = dartree.draft(stack, [1, 2, 3])
    tree = dartree.expand(stack, block, BASE)
    marginal, *rest = beams.branches(stack, block, tree, depth=2, count=2, most=2)
    want = block.base_logits[2].softmax(-1)
    assert marginal.path == () and marginal.tokens == want.topk(2).indices.tolist()
    for branch in rest:
        assert len(branch.path) == 2 and branch.path in tree.path_tokens()
        ids = [*branch.path, *[0] * (block.drafts - 2)]
        chain = dartree.corrected_logits(stack, block, ids)[2].float().softmax(-1)
        assert branch.tokens == chain.topk(2).indices.tolist()
        assert branch.probabilities == pytest.approx(chain.topk(2).values.tolist())
