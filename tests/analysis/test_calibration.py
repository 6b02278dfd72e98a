"""Verified supertrees against plain runs per path, and fits against data made to order."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import dartree
from dartree.acceptance import Chooser, walk
from dartree.analysis import calibration, metrics
from dartree.proposers import greedy_chain
from tests.reference import causal_logits, prompt, random_stack

SETTINGS = dartree.TreeSettings(width=4, candidates=6, depth=4)


@pytest.fixture(scope="module", params=["domino", "markov"])
def measured(request):
    """(stack, ids, round) of one verified supertree of a random fp64 stack."""
    stack, ids = random_stack(head=request.param), prompt(7)
    return stack, ids, calibration.verify_supertree(stack, ids, SETTINGS)


def test_labels_come_from_plain_runs(measured):
    stack, ids, one = measured
    assert len(one.tree) == 16
    for node, path in enumerate(one.tree.path_tokens()):
        logits = causal_logits(stack.target.model, [*ids, *path[:-1]])[-1]
        assert one.target[node] == pytest.approx(float(logits.log_softmax(-1)[path[-1]]), abs=1e-5)
        assert one.hit[node] == (int(logits.argmax()) == path[-1])


def test_scorers_along_every_path(measured):
    stack, ids, one = measured
    block = dartree.draft(stack, ids)
    chain = greedy_chain(block, stack.head, 4)[0].tolist()
    for node, path in enumerate(one.tree.path_tokens()):
        depth = len(path) - 1
        padded = [*path, *[0] * block.drafts][: block.drafts]
        logits = dartree.corrected_logits(stack, block, padded)[depth].log_softmax(-1)
        assert one.vocabulary[node] == pytest.approx(float(logits[path[-1]]), abs=1e-9)
        marginal = block.base_logits[depth].log_softmax(-1)[path[-1]]
        assert one.marginal[node] == pytest.approx(float(marginal), abs=1e-5)
        assert one.left_chain[node] == (list(path[:-1]) != chain[:depth])


def test_columns_by_brute_force(measured):
    _, _, one = measured
    tree, nodes = one.tree, calibration.collect([one, replace(one, prompt=1)])
    assert len(nodes) == 32 and nodes.counts() == "32 nodes, 2 rounds, 2 prompts"
    conditionals = tree.conditionals()
    for node in range(1, 17):
        path = np.array(tree.path(node)) - 1
        family = np.flatnonzero(tree.parents == tree.parents[node - 1])
        better = (tree.scores[family] > tree.scores[node - 1]).sum()
        assert nodes.rank[node - 1] == better + 1
        assert nodes.path_hit[node - 1] == one.hit[path].all()
        assert nodes.left_text[node - 1] == (not one.hit[path[:-1]].all())
        assert nodes.path_target[node - 1] == pytest.approx(one.target[path].sum())
        assert nodes.candidates[node - 1] == pytest.approx(conditionals[node - 1], abs=1e-6)
    assert len(np.unique(nodes.family)) == 2 * len(np.unique(tree.parents))
    sub = nodes[nodes.depth == 2]
    assert (sub.depth == 2).all() and len(sub) == 8


def test_nothing_counts_below_a_stop_token(measured):
    stack, ids, one = measured
    first = int(one.tree.tokens[0])
    stop = random_stack(head=stack.head.name)
    stop.target.model.generation_config.eos_token_id = first
    ended = calibration.verify_supertree(stop, ids, SETTINGS)
    for node, path in enumerate(ended.tree.path_tokens()):
        assert ended.ended[node] == (first in path[:-1])
    assert ended.ended.any() and not one.ended.any()
    assert len(calibration.collect([ended])) == (~ended.ended).sum()
    p = dartree.verify(stop, ids, ended.tree).softmax(-1).numpy()
    expected = 0.0
    for node, path in enumerate(ended.tree.path_tokens(), start=1):
        rows = ended.tree.parents[np.array(ended.tree.path(node)) - 1]
        expected += float(np.prod(p[rows, list(path)])) * (first not in path[:-1])
    found = calibration.accepted([ended], 16, 0.0)
    assert found["T = 1"] == pytest.approx(expected, rel=1e-4)
    assert found["T = 1"] < 0.999 * calibration.accepted([one], 16, 0.0)["T = 1"]


@pytest.mark.parametrize("budget", [1, 5, 16])
@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_accepted_is_what_the_walk_accepts(measured, budget, penalty):
    stack, ids, one = measured
    tree = dartree.top_b(one.tree, budget, penalty)
    logits = dartree.verify(stack, ids, tree)
    found = calibration.accepted([one], budget, penalty)
    assert found["T = 0"] == len(walk(tree, logits, Chooser()).path)
    p = logits.softmax(-1).numpy()
    expected = 0.0
    for node in range(1, len(tree) + 1):
        path = tree.path(node)
        expected += np.prod([p[tree.parents[n - 1], tree.tokens[n - 1]] for n in path])
    assert found["T = 1"] == pytest.approx(expected, abs=1e-5)
    predicted = np.exp(tree.scores - penalty * tree.depths).sum()
    assert found["predicted"] == pytest.approx(predicted, abs=1e-5)


def test_accepted_finds_the_text_where_the_draft_is_right():
    """A chain that the target itself wrote is accepted to its end."""
    stack, ids = random_stack(), prompt(5)
    text = dartree.generate(stack, ids, method="ar", max_new_tokens=4, stop=[]).token_ids
    tree = dartree.Supertree([9, *text], [0, 0, 2, 3, 4], [1, 1, 2, 3, 4], [-2, -1, -2, -3, -4])
    assert text[0] != 9
    path = torch.tensor(text)
    log_p = dartree.verify(stack, ids, tree).log_softmax(-1)
    rows = [0, 0, 2, 3, 4]
    one = calibration.VerifiedRound(
        0, tree, tree.scores, tree.scores, log_p[rows, [9, *text]].numpy(),
        (log_p.argmax(-1)[rows] == torch.cat([torch.tensor([9]), path])).numpy(),
        np.zeros(5, bool), np.zeros(5, bool),
    )  # fmt: skip
    assert one.hit.tolist() == [False, True, True, True, True]
    assert calibration.accepted([one], 5, 0.0)["T = 0"] == 4
    assert calibration.accepted([one], 2, 0.0)["T = 0"] == 1


def test_anchors_lie_on_the_greedy_text():
    stack, ids = random_stack(), prompt(5)
    text = dartree.generate(stack, ids, method="ar", max_new_tokens=9).token_ids
    places = calibration.anchors(stack, [ids, prompt(4, 1)], every=3, max_new_tokens=9)
    assert [p.ids for p in places if p.prompt == 0] == [[*ids, *text[:n]] for n in (1, 4, 7)]
    rounds = calibration.measure(stack, places[:2], SETTINGS)
    assert [one.prompt for one in rounds] == [0, 0]
    with pytest.raises(ValueError, match="normalise 'candidates'"):
        calibration.measure(stack, places, replace(SETTINGS, normalise="vocabulary"))
    with pytest.raises(ValueError, match="at least one round"):
        calibration.collect([])
    with pytest.raises(ValueError, match="every must be"):
        calibration.anchors(stack, [ids], every=0)


def made(factor: float, prompts: int = 12, seed: int = 0) -> calibration.Nodes:
    """Chains whose true conditionals are the predicted ones times ``factor``."""
    generator = np.random.default_rng(seed)
    count, depth = 400 * prompts, 5
    log_q = np.log(generator.uniform(0.3, 0.95, size=(count, depth)))
    right = generator.random((count, depth)) < factor * np.exp(log_q)
    columns = dict.fromkeys(f.name for f in calibration.fields(calibration.Nodes))
    log_p = log_q + np.log(factor)
    above = np.concatenate([np.zeros((count, 1), bool), ~right.cumprod(1).astype(bool)], 1)
    columns |= {
        "prompt": np.repeat(np.arange(count) % prompts, depth),
        "round": np.repeat(np.arange(count), depth), "family": np.arange(count * depth),
        "depth": np.tile(np.arange(1, depth + 1), count), "rank": np.ones(count * depth, int),
        "candidates": log_q.ravel(), "vocabulary": log_q.ravel(), "marginal": log_q.ravel(),
        "target": log_p.ravel(), "hit": right.ravel(),
        "left_chain": above[:, :-1].ravel(), "left_text": above[:, :-1].ravel(),
        "path_score": log_q.cumsum(1).ravel(), "path_target": log_p.cumsum(1).ravel(),
        "path_hit": right.cumprod(1).astype(bool).ravel(),
    }  # fmt: skip
    return calibration.Nodes(**columns)


@pytest.mark.parametrize("label", calibration.LABELS)
@pytest.mark.parametrize("penalty", [0.0, 0.2, 0.5])
def test_the_fit_finds_the_factor_that_the_data_was_made_with(label, penalty):
    fit = calibration.fit_penalty(made(np.exp(-penalty)), label)
    assert fit.best == pytest.approx(penalty, abs=0.03)
    assert fit.low <= fit.best <= fit.high and fit.high - fit.low < 0.1
    at = np.argmin(abs(fit.penalties - penalty))
    assert fit.loss[at] < fit.loss[at + 20] and len(fit.loss) == len(fit.penalties)


def test_summary_groups_and_intervals_use_the_right_rows():
    nodes = made(np.exp(-0.2))
    q = np.exp(nodes.candidates)
    found = calibration.summary(nodes)
    assert found["overconfidence T = 0"] == pytest.approx(q.mean() - nodes.hit.mean())
    assert found["overconfidence T = 1"] == pytest.approx(q.mean() * (1 - np.exp(-0.2)))
    assert found["AUROC"] == metrics.auroc(q, nodes.hit) == found["AUROC, rank 1"]
    assert found["Spearman"] == pytest.approx(1.0) and found["sibling pairs"] == 0
    masks = calibration.groups(nodes)
    assert (masks["on the text"] ^ masks["off the text"]).all()
    rows = calibration.intervals(nodes, lambda n: float(n.hit.mean()), draws=50)
    for name, value, low, high in rows:
        assert value == nodes.hit[masks[name]].mean() and low <= value <= high
    lines = calibration.table(nodes).splitlines()
    assert len({len(line) for line in lines}) == 1 and "off the text" in lines[0]
    assert str(len(nodes)) in lines[1]


def test_by_column_by_hand():
    nodes = made(0.8, prompts=1)
    found = calibration.by_column(nodes, "depth", "T = 0", 9)
    assert found["value"].tolist() == [1, 2, 3, 4, 5]
    for i, depth in enumerate(found["value"]):
        here = nodes.depth == depth
        assert found["count"][i] == here.sum()
        assert found["predicted"][i] == pytest.approx(np.exp(nodes.candidates[here]).mean())
        assert found["observed"][i] == pytest.approx(nodes.hit[here].mean())
    with pytest.raises(ValueError, match="label must be one of"):
        calibration.by_column(nodes, "depth", "T = 2", 9)
