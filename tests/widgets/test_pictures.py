"""The SVG, the tables and the exports: read back by parsers that are not ours."""

import argparse
import html
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from dartree import explore, reports
from dartree.analysis.cost import RoundCost
from dartree.methods import METHODS
from dartree.plots.labels import token_label
from dartree.plots.style import BONUS
from dartree.records import REASONS, RoundRecord
from dartree.settings import TreeSettings
from dartree.widgets import facts
from dartree.widgets.exports import EXPORTS, as_dot, as_json, command, download_html
from dartree.widgets.session import PRUNED, Choice, Judged, Session, View
from dartree.widgets.svg import LONGEST, NAMES, ORDER, _label, _letters, shape, summary, tree_svg
from tests.plots.records import WORDS, decode, make_record, make_tree
from tests.reference import random_stack

SVG = "{http://www.w3.org/2000/svg}"


def made_view(nodes=40, kept=25, accepted=2, missing="not proposed", bonus=4) -> View:
    """A view of a made supertree whose first ``kept`` nodes are the draft tree."""
    whole = make_tree(nodes)
    numbers = np.arange(1, kept + 1)
    from dartree.pruning import subtree

    tree = subtree(whole, numbers)
    record = make_record(tree, accepted, bonus=bonus, missing=missing)
    record = replace(record, supertree=whole, kept=numbers)
    choices = np.full(nodes + 1, -1)
    choices[: kept + 1] = record.target_tokens
    judged = Judged(choices, np.full(nodes + 1, -0.5), np.full(nodes, -2.0))
    outcomes = record.outcomes() + [PRUNED] * (nodes - kept)
    settings = TreeSettings(budget=kept)
    choice = Choice("<b>prompt</b>", settings)
    ranks = np.arange(1, nodes + 1)
    return View(choice, settings, record, whole, outcomes, ranks, judged, 3)


def groups(svg: str) -> dict[int, ElementTree.Element]:
    root = ElementTree.fromstring(svg)
    return {int(g.get("data-node")): g for g in root.iter(f"{SVG}g")}


def test_every_node_is_there_with_its_outcome_and_words():
    view = made_view()
    found = groups(tree_svg(view, decode))
    assert found.keys() == {*range(0, 41), 41}  # the anchor, 40 nodes, the ghost
    for node in range(1, 41):
        assert found[node].get("data-outcome") == view.outcomes[node - 1]
        words = found[node].find(f"{SVG}title").text
        for name in ("token", "conditional", "path score", "rank", "depth", "target's probability"):
            assert name in words
    assert found[41].get("data-outcome") == BONUS
    assert "not proposed" in found[41].find(f"{SVG}title").text


def test_a_missed_node_is_drawn_as_the_targets_own():
    view = made_view()
    last = view.path[-1]
    children = np.flatnonzero(view.nodes.parents == last)
    bonus = int(view.nodes.tokens[children[-1]])
    view = made_view(bonus=bonus, kept=int(children[-1]), missing="cut by the budget")
    assert view.missed == children[-1] + 1
    for pruned in (True, False):  # it is shown even where pruned nodes are not
        found = groups(tree_svg(view, decode, pruned=pruned))
        assert found[view.missed].get("data-outcome") == BONUS and 41 not in found
        outcomes = {g.get("data-outcome") for g in found.values()}
        assert (PRUNED in outcomes) == pruned


def test_nothing_overlaps_and_parents_stand_left():
    view = made_view(192, 64)
    found = groups(tree_svg(view, decode))
    places = {}
    for node, group in found.items():
        text = group.find(f"{SVG}text")
        places[node] = float(text.get("x")), float(text.get("y")), _letters(text.text)
    assert len({(x, y) for x, y, _ in places.values()}) == len(places)
    by_row = {}
    for x, y, letters in places.values():
        by_row.setdefault(y, []).append((x, letters))
    for row in by_row.values():
        row.sort()
        for (x0, n0), (x1, n1) in zip(row, row[1:], strict=False):
            assert x1 - x0 > (n0 + n1) / 2 * 6.6, "two labels of a row touch"
    for node, parent in enumerate(view.nodes.parents, start=1):
        assert places[int(parent)][0] < places[node][0]


def test_labels_are_short_whole_and_escaped():
    labels = [_label(text) for text in WORDS]
    assert all(0 < _letters(label) <= LONGEST for label in labels)
    assert "…" in _label("antidisestablishmentarianism") and _label("中文") == "中文"
    texts = [g.find(f"{SVG}text").text for g in groups(tree_svg(made_view(), decode)).values()]
    assert set(texts) <= set(labels)


AWKWARD = [
    " 的", "\u3000", "\U0001f468\u200d\U0001f469", b"\xe4\xb8", b"\xff", "\ufffd", "שלום",
    " العربية", "\u202eabc", "\u0301", "<b>&amp;\"'", "]]><!--", "\x00\x1b[0m", "\ufffe\uffff",
    "\ue000", "\ud800", "\r\n\t\u00a0\u2003\u2028", "", "\\N\\n\\", "$x_1$%{y}",
]  # fmt: skip


def test_awkward_texts_survive_in_every_form():
    """SVG for a parser of XML, DOT for one of its quotes and entities, and the words of a node."""
    view, decode = made_view(192, 64), AWKWARD.__getitem__
    found = groups(tree_svg(view, decode))
    dot = re.findall(r'n(\d+) \[shape=.*? label="((?:[^"\\]|\\.)*)"', as_dot(view, decode))
    written = {int(n): html.unescape(re.sub(r"\\(.)", r"\1", label)) for n, label in dot}
    for node, token in enumerate(view.nodes.tokens, start=1):
        label = token_label(AWKWARD[token])
        assert written[node] == label and label.isprintable()
        assert found[node].find(f"{SVG}text").text == _label(AWKWARD[token])
        words = found[node].find(f"{SVG}title").text.replace("\u2068", "").replace("\u2069", "")
        assert f"token: {label} (id {token})" in words
    assert ("characters", "U+0020 U+7684") in facts.node_facts(
        view, 1 + view.nodes.tokens.tolist().index(0), decode
    )


def test_edges_are_as_wide_as_their_conditionals():
    view = made_view(40, 40)
    root = ElementTree.fromstring(tree_svg(view, decode))
    widths = [float(edge.get("stroke-width")) for edge in root.findall(f"{SVG}path[@fill='none']")]
    ghost = 1.2
    assert sorted(widths) == pytest.approx(sorted([*(0.5 + 4.5 * view.odds), ghost]), abs=0.006)


def test_outcomes_differ_in_shape_and_not_only_in_colour():
    outlines = {re.sub(r"#\w+", "", shape(name, 0, 0, 10)) for name in ORDER}
    assert len(outlines) == len(ORDER) == len(NAMES)


def test_a_selected_node_has_a_ring_and_the_summary_counts():
    view = made_view()
    plain, ringed = (groups(tree_svg(view, decode, selected=node))[7] for node in (0, 7))
    assert len(ringed) == len(plain) + 1
    assert "40 nodes scored, 25 verified, 2 accepted" in summary(view)
    assert ElementTree.fromstring(tree_svg(view, decode)).get("aria-label") == summary(view)


@pytest.fixture(scope="module")
def session():
    return Session(random_stack(), max_new_tokens=12)


SMALL = TreeSettings(width=4, candidates=8, budget=9, depth_penalty=0.1)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_drawn_and_exported(session, method):
    view = session.look(Choice((5, 17, 3), SMALL, 0, method))
    count = len(view.nodes)
    drawn = groups(tree_svg(view, session.decode))
    assert len(drawn) == count + 1 + (not view.missed)
    data = json.loads(as_json(session, view))
    back = RoundRecord.from_dict(data["record"])
    assert back.tree.path_tokens() == view.record.tree.path_tokens()
    assert data["nodes"]["outcomes"] == view.outcomes and data["settings"]["width"] == 4
    dot = as_dot(view, session.decode)
    edges = re.findall(r"n(\d+) -> n(\d+) \[penwidth", dot)
    assert [int(parent) for parent, _ in edges] == view.nodes.parents.tolist()
    for kind, (suffix, _, make) in EXPORTS.items():
        assert f".{suffix}" in download_html(kind, make(session, view), view)
    assert facts.round_facts(view) and facts.node_facts(view, 0, session.decode)


def test_dot_labels_are_quoted():
    dot = as_dot(made_view(), lambda token: '"x\\')
    assert 'label="\\"x\\\\"' in dot


def test_the_command_is_one_that_figures_accepts(session):
    choice = Choice('it\'s "new" $HOME', SMALL, 2, "heap", 0.5, 3)
    view = replace(made_view(), choice=choice)
    bundled = Session(replace(session.stack, name="tiny"), max_new_tokens=12)
    lines = [line for line in command(bundled, view).splitlines() if line]
    _, ours, _, _, papermill = lines
    parser = argparse.ArgumentParser()
    reports.add_arguments(parser)
    words = shlex.split(ours)
    assert words[:2] == ["dartree", "figures"]
    args = parser.parse_args(words[2:])
    books = reports.find_notebooks(reports.PROJECT / "notebooks", args.only)
    assert reports.FULL not in (path := reports.PROJECT / args.out).parents and path != reports.FULL
    (job,) = reports.plan(books, args.parameter, path, False)
    assert job.notebook.name == explore.NOTEBOOK
    expected = {
        "prompt": choice.prompt,
        "max_new_tokens": 12,
        "round_index": 2,
        "method": "heap",
        "temperature": 0.5,
        "seed": 3,
    }
    expected |= {name: getattr(SMALL, name) for name in
                 ("width", "candidates", "budget", "depth_penalty")}  # fmt: skip
    assert expected.items() <= job.parameters.items()
    assert shlex.split(papermill)[-3:] == ["-r", "prompt", choice.prompt]
    ids = replace(view, choice=replace(choice, prompt=(1, 2)))
    for impossible in (command(bundled, ids), command(session, view)):
        assert impossible.startswith("#") and "\n" not in impossible


def test_notes_explain_what_a_control_cannot_do(session):
    def notes(method, **changes):
        view = session.look(Choice((5, 17, 3), replace(SMALL, **changes), 0, method))
        return " ".join(facts.notes(session.stack, view))

    assert notes("dartree") == ""
    assert "keeps all" in notes("dartree", budget=500)
    assert "depth 1 has only 2 nodes" in notes("dartree", candidates=2)
    assert "depth 1 has only 1 node:" in notes("dartree", candidates=1)
    assert "has 1 node; B" in notes("dartree", width=1, depth=1)
    assert "held at the vocabulary's 97 tokens" in notes("dartree", candidates=200)
    assert notes("ar").startswith("ar does not use W, K, B and the depth penalty")
    assert notes("ddtree") == "ddtree does not use W, K and the depth penalty."
    assert notes("heap") == "heap does not use W."


def test_the_expectation_says_what_it_sums_over(session):
    """With one candidate every node has probability 1, whatever the head thinks of it."""

    def expected(method, **changes):
        view = session.look(Choice((5, 17, 3), replace(SMALL, **changes), 0, method))
        return dict(facts.round_facts(view))["expected under the head"], len(view.record.tree)

    words, nodes = expected("dartree", candidates=1)
    assert words == f"{1 + nodes}.00 with the bonus (odds over K = 1, so too high)"
    assert "(odds over K = 16)" in expected("dartree", candidates=16)[0]
    assert "over the vocabulary" in expected("dartree", normalise="vocabulary")[0]
    assert "over the vocabulary" in expected("domino")[0]


def test_the_table_of_reasons_is_the_packages_own():
    rows = [line.split(" | ") for line in facts.reasons_markdown().splitlines()]
    assert [row[0] for row in rows[2:]] == [f"| *{name}*" for name in REASONS]
    assert {len(row) for row in rows if len(row) > 1} == {3}


def test_round_time_is_that_of_the_shown_round():
    view = replace(made_view(1, 1, 0), used=TreeSettings(width=11, budget=1))
    costs = RoundCost(16, 97, 34.0, (1.0, 0.0, 0.0), (1, 64), (10.0, 73.0), 0.0)
    assert view.record.head_calls == 0
    assert "44.0 ms" in str(facts.round_facts(view, costs))
    view = replace(view, record=replace(view.record, head_calls=5))
    assert "49.0 ms" in str(facts.round_facts(view, costs))
    assert "not measured" in str(facts.round_facts(view))


def test_probabilities_are_readable():
    assert [facts.probability(np.log(p)) for p in (1, 0.5, 0.0001)] == ["1.000", "0.500", "1e-04"]
    assert facts.probability(-np.inf) == "0"


def test_explore_passes_its_options_on(tmp_path):
    parser = argparse.ArgumentParser()
    explore.add_arguments(parser)
    book = tmp_path / "a folder" / "one.ipynb"
    plain = explore.lab_command(book, parser.parse_args([]))
    assert plain[1:] == ["-m", "jupyterlab", f"--ServerApp.root_dir={book.parent}",
                         "--LabApp.default_url=/lab/tree/one.ipynb"]  # fmt: skip
    given = parser.parse_args(["--no-browser", "--port", "9", "--", "--ip", "0.0.0.0"])
    assert explore.lab_command(book, given) == [*plain, "--no-browser", "--port=9", "--ip",
                                                "0.0.0.0"]  # fmt: skip


def test_explore_works_on_a_copy(tmp_path):
    with pytest.raises(ValueError, match="come with a checkout"):
        explore.working_copy(tmp_path)
    source = tmp_path / "notebooks" / explore.NOTEBOOK
    source.parent.mkdir()
    source.write_text("one")
    copy = explore.working_copy(tmp_path)
    assert copy.read_text() == "one" and copy.parent == tmp_path / "build"
    copy.write_text("mine")
    assert explore.working_copy(tmp_path).read_text() == "mine"
    import os

    os.utime(source, (2e9, 2e9))
    source_time = source.stat().st_mtime
    assert explore.working_copy(tmp_path).read_text() == "one" and source_time > 0
    assert copy.with_suffix(".old.ipynb").read_text() == "mine"
