"""Masks, positions, cache and laws: the picture holds what the arrays say."""

import matplotlib
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from dartree.plots import masks
from tests.plots.records import drawn, make_tree

pytestmark = pytest.mark.usefixtures("strict")
SIZE = (8, 4)  # inches


@pytest.mark.parametrize("past, shown", [(9, 4), (2, 6), (0, 6)])
def test_the_mask_picture_is_the_mask(past, shown):
    tree = make_tree(12, 4)
    tree_block = tree.ancestor_mask()
    visible = np.concatenate([np.ones((13, past), bool), tree_block], axis=1)
    labels = [f"$row_{i}" for i in range(13)]
    ax = drawn(masks.draw_mask, SIZE, visible, labels, shown=shown)
    codes = np.asarray(ax.images[0].get_array())
    columns = min(past, shown)
    assert codes.shape == (13, columns + 13)
    assert (codes[:, :columns] == 1).all()
    assert ((codes[:, columns:] > 0) == tree_block).all()
    assert (np.diag(codes[:, columns:]) == 3).all() and (codes == 3).sum() == 13
    assert [t.get_text() for t in ax.get_yticklabels()] == labels
    greys = [np.dot(matplotlib.colors.to_rgb(c), (0.3, 0.6, 0.1)) for c in masks._SHADES]
    assert (np.diff(greys) < -0.1).all(), "shades must differ without colour"


def test_a_hole_in_the_mask_is_seen():
    visible = np.ones((3, 5), bool)
    visible[1, 0] = visible[2, 4] = False
    codes = np.asarray(drawn(masks.draw_mask, SIZE, visible).images[0].get_array())
    assert codes[1, 0] == 0 and codes[2, 4] == 0


def test_positions_over_rows():
    tree = make_tree(10, 4)
    ax = drawn(masks.draw_cache_rows, SIZE, 20 + tree.node_depths(), 20)
    lines = {line.get_label(): line for line in ax.lines}
    assert lines["tree nodes"].get_xdata().tolist() == list(range(21, 31))
    assert lines["tree nodes"].get_ydata().tolist() == (20 + tree.depths).tolist()
    assert lines["anchor"].get_xydata().tolist() == [[20, 20]]
    assert len({line.get_marker() for line in ax.lines}) == 4
    drawn(masks.draw_cache_rows, SIZE, tree.node_depths(), 0)


def test_compaction_moves_the_kept_rows_to_the_front():
    ax = drawn(masks.draw_compaction, SIZE, 7, [0, 2, 5], 8, ["a", "$b", "c"], shown=3)
    cells = [p for p in ax.patches if isinstance(p, Rectangle)]
    assert len(cells) == 3 + 8 + 3 + 3
    arrows = [(a.xyann[0], a.xy[0]) for a in ax.texts if hasattr(a, "xyann")]
    assert arrows == [(0, 0), (2, 1), (5, 2)]
    below = [t.get_text() for t in ax.texts if t.get_position()[1] == 0.0]
    assert below == ["0", "2", "5"]


def test_law_shows_frequencies_and_the_rest():
    p, counts = np.array([0.5, 0.3, 0.1, 0.1]), np.array([40, 40, 15, 5])
    ax = drawn(masks.draw_law, SIZE, p, counts, ["x", "$y"], [0, 1])
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([0.5, 0.3, 0.2])
    container = ax.containers[-1]
    assert container[0].get_ydata() == pytest.approx([0.4, 0.4, 0.2])
    low, high = container[2][0].get_segments()[0][:, 1]
    assert (high - low) / 2 == pytest.approx(2 * np.sqrt(0.25 / 100))
    assert ax.get_xticklabels()[-1].get_text() == "all others"
