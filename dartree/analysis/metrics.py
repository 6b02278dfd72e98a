"""Calibration and ranking of scores against labels, in numpy.

A label says what came of a prediction: 0 or 1, or the probability of a 1. ``q`` are predicted
probabilities [M], ``labels`` [M] lie in 0..1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dartree.checks import positive_int

TENTHS = np.linspace(0.0, 1.0, 11)


@dataclass(frozen=True)
class Reliability:
    """Predictions sorted into bins; every array [bins], NaN in the means of an empty bin.

    count
        Predictions in the bin.
    predicted, observed
        Mean prediction and mean label.
    """

    count: np.ndarray
    predicted: np.ndarray
    observed: np.ndarray

    @property
    def ece(self) -> float:
        """Expected calibration error: mean over predictions of their bin's |predicted - observed|.

        Guo et al., On Calibration of Modern Neural Networks (arXiv 1706.04599).
        """
        full = self.count > 0
        gaps = np.abs(self.predicted - self.observed)[full]
        return float(gaps @ self.count[full] / self.count.sum())

    def to_dict(self) -> dict[str, list]:
        """Plain lists of the bins that hold something, for JSON."""
        full = self.count > 0
        return {name: values[full].tolist() for name, values in vars(self).items()}


def reliability(q: np.ndarray, labels: np.ndarray, edges: np.ndarray = TENTHS) -> Reliability:
    """Bins [edges[i], edges[i + 1]); the last one includes its upper end.

    Raises ValueError for arrays that are empty, of different lengths or outside the edges.
    """
    q, labels = _pair(q, labels)
    if q.min() < edges[0] or q.max() > edges[-1]:
        raise ValueError(
            f"q must lie between the outer edges {edges[0]:g} and {edges[-1]:g}, "
            f"got {q.min():g} to {q.max():g}."
        )
    bins = len(edges) - 1
    index = np.clip(np.searchsorted(edges, q, side="right") - 1, 0, bins - 1)
    count = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(index, q, bins) / count
        observed = np.bincount(index, labels, bins) / count
    return Reliability(count, predicted, observed)


def ece(q: np.ndarray, labels: np.ndarray) -> float:
    """Expected calibration error over ten bins of equal width."""
    return reliability(q, labels).ece


def brier(q: np.ndarray, labels: np.ndarray) -> float:
    """Mean of (q - y)^2; y is the label, or is drawn with the label as its probability."""
    q, labels = _pair(q, labels)
    return float(np.mean(q**2 - 2 * q * labels + labels))


def overconfidence(q: np.ndarray, labels: np.ndarray) -> float:
    """Mean prediction less mean label: above 0 promises too much."""
    q, labels = _pair(q, labels)
    return float(q.mean() - labels.mean())


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks 1..M of ``values`` [M], ascending; equal values share the mean of their ranks."""
    _, inverse, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return ((2 * last - count + 1) / 2)[inverse.reshape(-1)]


def auroc(scores: np.ndarray, hits: np.ndarray) -> float:
    """P(a hit scores above a miss), a tie counting half; NaN without a hit or without a miss."""
    scores, hits = _pair(scores, hits)
    if not np.isin(hits, (0, 1)).all():
        raise ValueError("hits must all be 0 or 1.")
    positive = int(hits.sum())
    negative = len(hits) - positive
    if not positive or not negative:
        return float("nan")
    above = ranks(scores)[hits == 1].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Rank correlation -1..1 of ``a`` and ``b`` [M] with shared ranks for ties; NaN if constant."""
    a, b = _pair(a, b)
    x, y = ranks(a) - (len(a) + 1) / 2, ranks(b) - (len(b) + 1) / 2
    size = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / size) if size else float("nan")


def concordance(families: np.ndarray, scores: np.ndarray, truth: np.ndarray) -> tuple[float, int]:
    """Share of sibling pairs that ``scores`` order as ``truth`` does, and the number of pairs.

    Pairs have the same number in ``families`` [M]. A tie of scores counts half, pairs with equal
    truth are left out. 0.5 is chance; NaN without a pair.
    """
    scores, truth = _pair(scores, truth)
    order = np.argsort(families, kind="stable")
    family, score, true = np.asarray(families)[order], scores[order], truth[order]
    right, pairs = 0.0, 0
    for step in range(1, len(family)):  # each with the one ``step`` places further on
        same = family[step:] == family[:-step]
        if not same.any():
            break
        sign = np.sign(true[step:] - true[:-step])[same]
        ours = np.sign(score[step:] - score[:-step])[same]
        right += float((0.5 + 0.5 * ours * sign)[sign != 0].sum())
        pairs += int((sign != 0).sum())
    return (right / pairs if pairs else float("nan")), pairs


def bootstrap(
    groups: np.ndarray, statistic: Callable[[np.ndarray], float], draws: int = 100, seed: int = 0
) -> tuple[float, float]:
    """The middle 90 % of ``statistic`` when whole groups are drawn again with replacement.

    ``groups`` [M] numbers the group (prompt) of each row, since rows of one prompt are not
    independent; ``statistic`` gets an index array into the rows. NaN where it always is.
    """
    positive_int("draws", draws)
    names = np.unique(groups)
    rows = [np.flatnonzero(groups == name) for name in names]
    generator = np.random.default_rng(seed)
    values = []
    for _ in range(draws):
        chosen = generator.integers(len(names), size=len(names))
        values.append(statistic(np.concatenate([rows[i] for i in chosen])))
    if np.isnan(values).all():
        return float("nan"), float("nan")
    low, high = np.nanquantile(values, (0.05, 0.95))
    return float(low), float(high)


def _pair(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise ValueError(
            f"both arrays must be 1-D, of one length and not empty, got {a.shape} and {b.shape}."
        )
    return a, b
