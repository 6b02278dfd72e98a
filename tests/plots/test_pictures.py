"""Trees, rounds and bars: what is in the picture, and that nothing warns."""

import html.parser
import json

import numpy as np
import pytest
from matplotlib.lines import Line2D

from dartree import plots
from dartree.methods import METHODS
from dartree.plots import style
from dartree.plots.bars import prompt_taus
from dartree.plots.layout import child_lists, pack_rows
from dartree.plots.style import METHOD_LOOKS
from dartree.tree import DraftTree
from tests.plots.records import WORDS, decode, drawn, make_record, make_result, make_tree

pytestmark = pytest.mark.usefixtures("strict")


def texts(ax):
    return [text.get_text() for text in ax.texts]


TREES = {
    "wide": make_tree(64, 15, 0),
    "flat": make_tree(64, 2, 1, fan=20),
    "chain": DraftTree.chain(np.arange(16), -np.arange(1, 17) * 0.1),
    "one node": make_tree(1),
    "empty": DraftTree.empty(),
}


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("accepted", [0, 2, 16])
def test_tree_shows_every_node_once(name, accepted):
    tree = TREES[name]
    record = make_record(tree, accepted)
    ax = drawn(plots.draw_round, plots.round_figsize(record, decode), record, decode)
    boxes = [text for text in ax.texts if text.get_bbox_patch() is not None]
    shown = sorted(text.get_text() for text in boxes)
    tokens = [record.anchor, *tree.tokens.tolist(), 4]
    assert shown == sorted(plots.plot_label(decode(token)) for token in tokens)
    assert all(not text.get_parse_math() for text in boxes)
    places = [text.get_position() for text in boxes]
    assert len(set(places)) == len(places), "two nodes at one place"
    assert "cut by the budget" in texts(ax)


def test_tree_looks_follow_outcomes():
    record = make_record(TREES["wide"], 2)
    ax = drawn(plots.draw_round, plots.round_figsize(record, decode), record, decode)
    boxes = [text.get_bbox_patch() for text in ax.texts if text.get_bbox_patch() is not None]
    kinds = {}
    for outcome, box in zip(record.outcomes(), boxes[1:-1], strict=True):
        kinds.setdefault(outcome, set()).add((box.get_facecolor(), type(box.get_boxstyle())))
    assert all(len(looks) == 1 for looks in kinds.values())
    colours = {color for looks in kinds.values() for color, _ in looks}
    styles = [box.get_boxstyle() for box in boxes]
    assert len(kinds) == len(colours) == 3
    assert len({str(style) for style in styles}) >= 4, "shape must tell outcomes apart as well"


def test_tree_boxes_do_not_overlap():
    """At the size that round_figsize gives, no two boxes of one column touch."""
    record = make_record(TREES["flat"], 1)
    ax = drawn(plots.draw_round, plots.round_figsize(record, decode), record, decode)
    by_column = {}
    for text in ax.texts:
        if text.get_bbox_patch() is not None:
            extent = text.get_bbox_patch().get_window_extent()
            by_column.setdefault(text.get_position()[0], []).append((extent.y0, extent.y1))
    for spans in by_column.values():
        spans.sort()
        assert all(low[1] <= high[0] for low, high in zip(spans, spans[1:], strict=False))


def test_edges_are_as_wide_as_they_are_likely():
    tree = DraftTree([5, 6, 7], [0, 0, 0], [1, 1, 1], np.log([0.6, 0.3, 0.1]))
    record = make_record(tree, 0)
    ax = drawn(plots.draw_round, (6, 3), record, decode)
    widths = [patch.get_linewidth() for patch in ax.patches][:3]
    assert widths == sorted(widths, reverse=True) and widths[0] > 2 * widths[2]


def test_the_most_telling_round():
    """Second choices accepted count first, then how far the round came; the earliest of equals."""
    tree = DraftTree([5, 6, 7, 8], [0, 0, 1, 2], [1, 1, 2, 2], np.log([0.6, 0.3, 0.5, 0.2]))
    paths = {0: [], 1: [1, 3], 2: [2], 3: [2, 4], 4: [2, 4]}
    records = []
    for index, path in paths.items():
        records.append(make_record(tree, 0, index=index))
        records[-1].path = np.array(path, dtype=np.int64)
    assert plots.telling_round(records).index == 3
    assert plots.telling_round(records[:2]).index == 1
    with pytest.raises(ValueError, match="at least one round"):
        plots.telling_round([])


def test_sampled_round_with_unvisited_rows():
    """At T > 0 the target's choices are -1 where nobody looked; the picture needs only the walk."""
    record = make_record(TREES["wide"], 1)
    assert (record.target_tokens == -1).any()
    drawn(plots.draw_round, (9, 9), record, decode)


def test_packing_by_brute_force():
    """No two nodes of a column closer than a row, first children straight on, order kept."""
    for seed in range(20):
        tree = make_tree(40, 6, seed)
        depths = tree.node_depths()
        children = child_lists(tree.parents.tolist(), np.concatenate([[0], -tree.scores]))
        rows = pack_rows(children, depths)
        for column in range(depths.max() + 1):
            here = np.sort(rows[depths == column])
            assert (np.diff(here) >= 1).all()
        for node, below in enumerate(children):
            assert not below or rows[below[0]] == rows[node]
            assert (np.diff(rows[below]) >= 1).all()


def test_rounds_picture():
    records = [make_record(make_tree(20, 9, s), s % 5, index=s, bonus=s) for s in range(1, 9)]
    ax = drawn(plots.draw_rounds, plots.rounds_figsize(records), records, decode)
    labels = texts(ax)
    for record in records:
        assert f"round {record.index}" in labels
        for token in record.committed:
            assert plots.plot_label(decode(token), 24) in labels
    assert "prefill" in labels and "1 token" in labels
    with pytest.raises(ValueError, match="at least one round"):
        plots.draw_rounds(ax, [], decode)


def test_a_cut_round_shows_only_what_was_committed():
    """The limit may cut a round inside its accepted drafts: then it has no token of the target."""
    record = make_record(TREES["wide"], 3)
    record.committed = record.committed[:2]
    page = plots.rounds_html([record], decode)
    assert "depth 2" in page and "round 1: the target" not in page
    drawn(plots.draw_rounds, (9, 2), [record], decode)


class Page(html.parser.HTMLParser):
    """Collects text and checks that tags nest."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.hints = [], "", []

    def handle_starttag(self, tag, attributes):
        if tag != "br":
            self.open.append(tag)
        self.hints += [value for name, value in attributes if name == "title"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_rounds_html_is_escaped_and_complete():
    tree = DraftTree.chain(np.arange(len(WORDS)), -np.arange(1, len(WORDS) + 1) * 0.1)
    record = make_record(tree, len(WORDS), bonus=6)
    page = Page()
    page.feed(plots.rounds_html([record], decode))
    assert not page.open
    assert len(page.hints) == len(record.committed) + 1
    for text in ("<b>", "&amp;", "$a_b^c$", "中文", "‹e4 b8›", "{y}"):
        assert text in page.text
    assert "nothing was drafted" in plots.rounds_html([], decode)


def test_bars():
    result = make_result()
    assert len(drawn(plots.draw_tau, (7, 4), result).patches) == len(METHODS)
    ax = drawn(plots.draw_speed, (7, 4), result)
    assert len(ax.lines) == len(METHODS) and "whisker" in ax.get_xlabel()
    assert [label.get_text() for label in ax.get_yticklabels()] == list(METHODS)
    ax = drawn(plots.draw_tau_by_domain, (7, 4), result)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["arithmetic", "prose"]
    assert len(ax.get_legend().get_texts()) == len(METHODS)


def test_bars_of_a_single_domain_and_without_rounds():
    """A limit of one token leaves no rounds: tau and speed are None, the picture still stands."""
    result = make_result()
    for entry in result["methods"]:
        entry |= {"tau": None, "tokens_per_second": None, "tokens_per_second_range": None}
        entry["accepted_per_round"] = [[] for _ in result["prompts"]]
        entry["domains"] = {domain: {"tau": None} for domain in entry["domains"]}
    for draw in (plots.draw_tau, plots.draw_speed, plots.draw_tau_by_domain):
        assert "whisker" not in drawn(draw, (7, 4), result).get_xlabel()


def test_taus_by_hand():
    result = make_result()
    entry = result["methods"][2]  # rounds [[3, 1], [4], [1], [1, 3], [3], []]
    ax = drawn(plots.draw_tau_by_domain, (7, 4), result)
    line = next(line for line in ax.lines if line.get_label() == entry["method"])
    assert line.get_ydata() == pytest.approx([9 / 4, 7 / 3])
    assert prompt_taus(entry) == [2, 4, 1, 2, 3]


def test_methods_differ_in_colour_and_in_a_second_channel():
    assert set(METHOD_LOOKS) == set(METHODS)
    looks = METHOD_LOOKS.values()
    assert len({look.color for look in looks}) == len({look.marker for look in looks}) == 8


@pytest.fixture
def no_names(monkeypatch):
    monkeypatch.setattr(style, "_added", [])
    monkeypatch.setattr(style, "TABLE", {})


def test_added_methods_differ_from_each_other_and_keep_their_looks(no_names):
    style.TABLE.update(dict.fromkeys(("comb", "brush")))
    first = {name: plots.method_look(name) for name in ("brush", "comb", "eagle", "hawk")}
    assert [first[n] for n in ("comb", "brush", "eagle", "hawk")] == list(style.ADDED_LOOKS)
    style.TABLE["rake"] = None  # later than names of a saved result were drawn
    assert plots.method_look("rake") == style.ADDED_LOOKS[0]
    assert {name: plots.method_look(name) for name in first} == first
    looks = [*METHOD_LOOKS.values(), *style.BASELINE_LOOKS.values(), *style.ADDED_LOOKS]
    for channel in ("color", "marker", "hatch"):
        mine = [getattr(look, channel) for look in style.ADDED_LOOKS]
        assert len(set(mine)) == len(mine)
    assert len({look.color for look in looks}) == len({look.marker for look in looks}) == len(looks)
    assert len({str(look.dash) for look in style.ADDED_LOOKS}) == len(style.ADDED_LOOKS)


def test_a_saved_result_is_drawn_where_its_method_was_not_added(no_names):
    saved = make_result()
    saved["methods"][1]["method"], saved["methods"][2]["method"] = "comb", "brush"
    result = json.loads(json.dumps(saved))
    for draw in (plots.draw_tau, plots.draw_speed, plots.draw_tau_by_domain):
        ax = drawn(draw, (7, 4), result)
    colours = {line.get_label(): line.get_color() for line in ax.lines}
    assert colours["comb"] != colours["brush"]


def test_markers_that_are_all_edge_are_seen(no_names):
    result = make_result()
    for entry, name in zip(result["methods"][:3], ("ar", *style.BASELINE_LOOKS), strict=True):
        entry["method"] = name
    ax = drawn(plots.draw_tau_by_domain, (7, 4), result)
    assert len(ax.lines) == len(METHODS)
    for line in ax.lines:
        filled = line.get_marker() in Line2D.filled_markers
        assert filled or line.get_markeredgecolor() == line.get_color(), line.get_label()


def test_one_is_not_written_as_many():
    record = make_record(TREES["one node"], 0)
    ax = drawn(plots.draw_rounds, plots.rounds_figsize([record]), [record], decode)
    told = [ax.get_title(loc=place) for place in ("left", "center")]
    assert any(title.endswith("1 token in 1 round, tau 1.00") for title in told)
