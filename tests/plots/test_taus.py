"""Pictures of accepted lengths, grids and supertrees: what is drawn is what was given."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from dartree import plots
from dartree.analysis.grids import Point
from dartree.settings import TreeSettings
from dartree.tree import Supertree
from tests.plots.records import decode

matplotlib.use("agg")
RUNS = {"domino": [[1, 3, 2], [4, 1]], "dartree": [[5, 5, 1], [3]]}


@pytest.fixture
def ax():
    fig, ax = plt.subplots()
    yield ax
    plt.close(fig)


def texts(ax):
    return [t.get_text() for t in ax.texts]


def test_survival_leaves_the_last_round_out(ax):
    plots.draw_survival(ax, RUNS, 4)
    lines = {line.get_label(): line.get_ydata() for line in ax.lines}
    assert lines["domino"] == pytest.approx([1, 2 / 3, 2 / 3, 1 / 3, 0])  # drafts 0, 2, 3
    assert lines["dartree"] == pytest.approx([1, 1, 1, 1, 1])  # drafts 4, 4
    lengths = np.array([0, 2, 3])
    assert plots.survival(RUNS["domino"], 4)[1:].sum() == pytest.approx(lengths.mean())
    tau = np.mean([n for counts in RUNS["domino"] for n in counts])  # with the last rounds, cut
    assert abs(tau - 1 - lengths.mean()) > 0.1


def test_lengths_are_shares_of_rounds(ax):
    plots.draw_lengths(ax, "dartree", RUNS["dartree"], 4)
    assert [bar.get_height() for bar in ax.patches] == [0, 0, 0, 0, 1]
    title = ax.get_title() + ax.get_title(loc="left")
    assert "block's end: 100%" in texts(ax) and "2 rounds" in title
    plots.draw_lengths(ax, "dartree", [[3, 1]], 4)
    assert "(1 round)" in ax.get_title() + ax.get_title(loc="left")


def test_groups_name_every_bar(ax):
    plots.draw_groups(ax, {"B = 16": {"domino": 2.5}, "B = 64": {"dartree": 4.0}}, "tau")
    assert [t.get_text() for t in ax.get_yticklabels()] == ["domino", "dartree"]
    assert texts(ax) == ["B = 16", "2.50", "B = 64", "4.00"]


def test_heat_map_frames_its_best_cell(ax):
    plots.draw_heat(ax, np.array([[1.0, 2.0], [5.0, 3.0]]), [1, 2], [0.5, 1.0])
    assert texts(ax) == ["1.00", "2.00", "5.00", "3.00"]
    assert (ax.patches[0].get_x(), ax.patches[0].get_y()) == (-0.5, 0.5)


def test_front_names_the_fastest_setting(ax):
    points = [Point(TreeSettings(budget=b), tau, ms)
              for b, tau, ms in ((4, 3.0, 10.0), (16, 5.0, 12.0), (64, 6.0, 40.0))]  # fmt: skip
    plots.draw_front(ax, points, points)
    assert texts(ax) == ["W 12, K 64, B 16, penalty 0.2"]
    assert any("most tokens/s: 417" in line.get_label() for line in ax.lines)


def test_lines_stand_at_their_values(ax):
    plots.draw_lines(ax, [1, 2, 8], {"a": [1, 2, 3]}, {"a": "heap"})
    assert ax.lines[0].get_xdata().tolist() == [1, 2, 8]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1", "2", "8"]


def test_supertree_shows_every_token_and_edge():
    tree = Supertree([5, 6, 7, 8], [0, 0, 1, 2], [1, 1, 2, 2], np.array([-1, -2, -1.5, -3.0]))
    for depth, count in ((None, 4), (1, 2)):
        fig, ax = plt.subplots(figsize=plots.supertree_figsize(tree, depth))
        plots.draw_supertree(ax, tree, decode, 3, kept={1, 3}, path={1}, depth=depth)
        labels = [t for t in texts(ax) if not t.startswith("depth")]
        assert labels == [plots.plot_label(decode(t), 9) for t in [3, 5, 6, 7, 8][: count + 1]]
        assert len(ax.lines) == count and len(ax.patches) == count + 1
        plt.close(fig)
