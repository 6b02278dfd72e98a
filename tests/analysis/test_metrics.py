"""Metrics against their definitions, counted out pair by pair and bin by bin, ties included."""

import itertools

import numpy as np
import pytest

from dartree.analysis import metrics


def tied(generator, count):
    """Scores on a coarse grid, so that many are equal."""
    return generator.integers(0, 6, size=count) / 5


@pytest.mark.parametrize("seed", range(5))
def test_auroc_counts_all_pairs(seed):
    generator = np.random.default_rng(seed)
    scores, hits = tied(generator, 60), generator.integers(0, 2, size=60)
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, b in itertools.product(scores[hits == 1], scores[hits == 0])
    ]
    assert metrics.auroc(scores, hits) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_auroc_by_hand():
    assert metrics.auroc([1, 2, 3, 4], [0, 0, 1, 1]) == 1.0
    assert metrics.auroc([4, 3, 2, 1], [0, 0, 1, 1]) == 0.0
    assert metrics.auroc([1, 1, 1], [0, 1, 0]) == 0.5
    assert np.isnan(metrics.auroc([1, 2], [1, 1]))
    with pytest.raises(ValueError, match="0 or 1"):
        metrics.auroc([1, 2], [0.5, 1])


@pytest.mark.parametrize("seed", range(5))
def test_ranks_and_spearman_by_definition(seed):
    generator = np.random.default_rng(seed)
    a, b = tied(generator, 50), tied(generator, 50)

    def rank(x):
        return np.array([(x < v).sum() + ((x == v).sum() + 1) / 2 for v in x])

    assert metrics.ranks(a) == pytest.approx(rank(a))
    want = np.corrcoef(rank(a), rank(b))[0, 1]
    assert metrics.spearman(a, b) == pytest.approx(want, abs=1e-12)


def test_spearman_by_hand():
    assert metrics.spearman([1, 2, 3], [10, 20, 1000]) == pytest.approx(1.0)
    assert metrics.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # Without ties: 1 - 6 sum d^2 / (n (n^2 - 1)) with d = (0, 1, 1).
    assert metrics.spearman([1, 2, 3], [1, 3, 2]) == pytest.approx(1 - 6 * 2 / 24)
    assert np.isnan(metrics.spearman([1, 1], [1, 2]))


@pytest.mark.parametrize("seed", range(5))
def test_reliability_and_ece_by_bins(seed):
    generator = np.random.default_rng(seed)
    q, y = generator.random(200), generator.random(200)
    q[:4] = 0.0, 1.0, 0.5, 0.3
    found = metrics.reliability(q, y)
    edges, total = metrics.TENTHS, 0.0
    for i in range(10):
        last = i == 9
        inside = (q >= edges[i]) & ((q <= edges[i + 1]) if last else (q < edges[i + 1]))
        assert found.count[i] == inside.sum()
        assert found.predicted[i] == pytest.approx(q[inside].mean())
        assert found.observed[i] == pytest.approx(y[inside].mean())
        total += inside.sum() / 200 * abs(q[inside].mean() - y[inside].mean())
    assert found.ece == metrics.ece(q, y) == pytest.approx(total)


def test_calibration_by_hand():
    q, y = [0.9, 0.9, 0.9, 0.9, 0.1], [1, 1, 0, 0, 0]
    assert metrics.ece(q, y) == pytest.approx(0.8 * 0.4 + 0.2 * 0.1)
    assert metrics.overconfidence(q, y) == pytest.approx(3.7 / 5 - 2 / 5)
    assert metrics.brier(q, y) == pytest.approx((2 * 0.01 + 2 * 0.81 + 0.01) / 5)
    empty = metrics.reliability([0.05], [1])
    assert np.isnan(empty.predicted[1:]).all() and empty.ece == pytest.approx(0.95)
    assert empty.to_dict() == {"count": [1], "predicted": [0.05], "observed": [1.0]}


def test_brier_of_a_probability_is_the_mean_over_its_outcomes():
    generator = np.random.default_rng(0)
    q, y = generator.random(30), generator.random(30)
    want = np.mean(y * (q - 1) ** 2 + (1 - y) * q**2)
    assert metrics.brier(q, y) == pytest.approx(want)


@pytest.mark.parametrize("seed", range(5))
def test_concordance_counts_all_sibling_pairs(seed):
    generator = np.random.default_rng(seed)
    family = generator.integers(0, 7, size=40)
    scores, truth = tied(generator, 40), tied(generator, 40)
    values = []
    for i, j in itertools.combinations(range(40), 2):
        if family[i] == family[j] and truth[i] != truth[j]:
            ours, theirs = scores[i] - scores[j], truth[i] - truth[j]
            values.append(0.5 if ours == 0 else float(ours * theirs > 0))
    share, pairs = metrics.concordance(family, scores, truth)
    assert pairs == len(values) and share == pytest.approx(np.mean(values))
    share, pairs = metrics.concordance(np.arange(40), scores, truth)
    assert np.isnan(share) and pairs == 0


def test_bootstrap_redraws_whole_groups():
    """Rows of a group stay together: with equal values inside groups only k/4 can come out."""
    groups = np.repeat([3, 5, 8, 9], 10)
    values = np.repeat([0.0, 0.0, 1.0, 1.0], 10)
    seen = set()
    low, high = metrics.bootstrap(
        groups, lambda i: seen.add(float(values[i].mean())) or values[i].mean(), 200
    )
    assert seen <= {0, 0.25, 0.5, 0.75, 1} and len(seen) > 2
    assert 0 <= low < 0.5 < high <= 1
    assert metrics.bootstrap(groups, lambda i: float(len(i)), 20) == (40, 40)
    assert np.isnan(metrics.bootstrap(groups, lambda i: float("nan"), 5)).all()


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="one length and not empty"):
        metrics.ece([], [])
    with pytest.raises(ValueError, match="one length"):
        metrics.spearman([1, 2], [1])
    with pytest.raises(ValueError, match="q must lie between"):
        metrics.ece([1.5], [1])
    with pytest.raises(ValueError, match="draws must be"):
        metrics.bootstrap(np.zeros(3), np.mean, 0)
