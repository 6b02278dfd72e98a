"""Reliability pictures: the dots are the bins, and series differ without colour."""

import numpy as np
import pytest

from dartree.analysis import metrics
from dartree.analysis.calibration import PenaltyFit
from dartree.plots import reliability
from tests.plots.records import drawn

pytestmark = pytest.mark.usefixtures("strict")
SIZE = (6.4, 4.8)  # inches


def curve(seed=0, edges=metrics.TENTHS, largest=1.0):
    generator = np.random.default_rng(seed)
    q = largest * generator.random(300) ** 3
    return metrics.reliability(q, (generator.random(300) < q).astype(float), edges)


def test_dots_are_the_bins_and_larger_where_fuller():
    one, other = curve(0), curve(1, largest=0.4)
    ax = drawn(reliability.draw_reliability, SIZE, {"one": one, "other": other})
    for dots, want in zip(ax.collections, (one, other), strict=True):
        full = want.count > 0
        places = np.stack([want.predicted[full], want.observed[full]], axis=1)
        assert np.asarray(dots.get_offsets()) == pytest.approx(places)
        order = np.argsort(want.count[full])
        assert (np.diff(dots.get_sizes()[order]) >= 0).all()
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["one (n 300)", "other (n 300)"]


def test_log_axes_keep_bins_without_a_hit_in_the_picture():
    found = metrics.reliability([1e-5, 1e-3, 0.5], [0, 0, 1], 10.0 ** np.arange(-6, 1))
    ax = drawn(reliability.draw_reliability, SIZE, {"paths": found}, log=True)
    offsets = ax.collections[0].get_offsets()
    assert (offsets[:, 1] >= ax.get_ylim()[0]).all() and (offsets[:, 1] > 0).all()
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_predicted_and_observed_lines():
    column = {"value": np.arange(1, 4), "count": np.ones(3), "predicted": np.array([0.9, 0.8, 0.7]),
              "observed": np.array([0.9, 0.7, 0.5])}  # fmt: skip
    ax = drawn(reliability.draw_predicted_observed, SIZE, {"off": column}, "depth")
    observed, predicted = ax.lines
    assert observed.get_ydata().tolist() == column["observed"].tolist()
    assert predicted.get_ydata().tolist() == column["predicted"].tolist()
    assert predicted.get_markerfacecolor() == "white" != observed.get_markerfacecolor()


def test_intervals():
    series = {"a": [("on", 0.9, 0.8, 0.95), ("off", 0.7, 0.6, 0.8)],
              "b": [("on", 0.8, 0.7, 0.9), ("off", 0.6, 0.5, 0.7)]}  # fmt: skip
    ax = drawn(reliability.draw_intervals, SIZE, series, "AUROC", 0.5)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["on", "off"]
    values = [line.get_xdata().tolist() for line in ax.lines[:2]]
    assert values == [[0.9, 0.7], [0.8, 0.6]]
    heights = np.concatenate([line.get_ydata() for line in ax.lines[:2]])
    assert len(np.unique(heights)) == 4, "intervals of two series lie beside each other"


def test_penalty_fit_and_accepted():
    penalties = np.linspace(-0.2, 1, 13)
    fits = {
        name: PenaltyFit(penalties, 1 + (penalties - best) ** 2, best, best - 0.1, best + 0.1)
        for name, best in (("T = 0", 0.2), ("T = 1", 0.4))
    }
    ax = drawn(reliability.draw_penalty_fit, SIZE, fits, 0.3)
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["T = 0: least at 0.20", "T = 1: least at 0.40"]
    assert ax.lines[0].get_ydata().min() == 0 and "used: 0.3" in ax.texts[0].get_text()
    ax = drawn(reliability.draw_accepted, SIZE, [0, 1], {"T = 0": [5, 4], "T = 1": [4, 3]}, 0.3)
    assert [list(line.get_ydata()) for line in ax.lines[:2]] == [[5, 4], [4, 3]]


def test_series_differ_in_colour_and_in_two_more_channels():
    looks = reliability.SERIES
    assert len({x.color for x in looks}) == len({x.marker for x in looks}) == len(looks)
    assert len({x.dash for x in looks}) == len(looks)
