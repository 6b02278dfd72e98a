"""Records: outcomes, reasons, saving."""

from __future__ import annotations

import ast
import inspect
import json

import numpy as np
import pytest

import dartree
from dartree import records as module
from dartree.acceptance import Verdict
from dartree.proposers import Proposal
from dartree.records import REASONS, RoundRecord, load_records, save_records
from dartree.tree import Supertree
from tests.reference import prompt, random_stack


@pytest.fixture(scope="module")
def records():
    stack = random_stack()
    settings = dartree.TreeSettings(width=5, candidates=7, budget=9)
    return {
        method: dartree.generate(
            stack, prompt(6), method=method, settings=settings, max_new_tokens=25, stop=[]
        ).records
        for method in dartree.METHODS
    }


def test_a_record_tells_the_round_again(records):
    for rounds in records.values():
        for record in rounds:
            node = 0
            for accepted in record.path.tolist():
                assert record.tree.parents[accepted - 1] == node
                assert record.tree.tokens[accepted - 1] == record.target_tokens[node]
                node = accepted
            assert record.tree.child(node, int(record.target_tokens[node])) == 0


def test_outcomes(records):
    for rounds in records.values():
        for record in rounds:
            outcomes = record.outcomes()
            visited = {0, *record.path.tolist()}
            for node, outcome in enumerate(outcomes, start=1):
                parent = int(record.tree.parents[node - 1])
                want = "accepted" if node in visited else (
                    "walked past" if parent in visited else "unreached"
                )  # fmt: skip
                assert outcome == want


def test_reasons_by_search(records):
    """The reason is looked up again from scratch in what was proposed, kept and cut."""
    seen = set()
    for method, rounds in records.items():
        for record in rounds:
            node = int(record.path[-1]) if len(record.path) else 0
            depth, token = len(record.path), int(record.target_tokens[node])
            if method == "ar":
                assert record.missing is None
                continue
            seen.add(record.missing)
            if depth == 6:
                want = "block end"
            elif record.candidates is None or token not in record.candidates[depth]:
                want = "not proposed"
            elif record.supertree is not None:
                path = (*[int(record.tree.tokens[n - 1]) for n in record.path], token)
                kept = path in record.supertree.path_tokens()
                lost = "no room at its depth" if method == "dartree-fixed" else "cut at its depth"
                want = "cut by the budget" if kept else lost
            else:
                want = "parent not expanded" if node == len(record.tree) else "cut by the budget"
            assert record.missing == want, method
    assert {"not proposed", "cut by the budget"} <= seen <= REASONS.keys()


def test_a_fixed_tree_has_no_room_where_a_beam_would_cut():
    """Two depths of one node each: W plays no part, and below them nothing was scored."""
    chain = Supertree([5, 6], [0, 1], [1, 2], [-1.0, -2.0])
    candidates = np.array([[5, 7], [6, 8]])
    proposal = Proposal(chain, 2, candidates, chain, np.array([1, 2]))

    def reason(method, path, token):
        verdict = Verdict(np.array(path, dtype=np.int64), token, np.full(3, -1))
        return module.missing_reason(method, proposal, verdict, 6)

    assert reason("dartree-fixed", [], 7) == "no room at its depth"
    assert reason("dartree-fixed", [1, 2], 7) == "no room at its depth"
    assert reason("dartree-fixed", [1], 9) == "not proposed"
    assert reason("dartree", [], 7) == "cut at its depth"
    meaning, cure = REASONS["no room at its depth"]
    assert "W" not in meaning + cure and "larger B" in cure


def test_every_reason_is_explained():
    """All that ``missing_reason`` returns, read from its source."""
    code = ast.parse(inspect.getsource(module.missing_reason))
    named = {n.id for r in ast.walk(code) if isinstance(r, ast.Return)
             for n in ast.walk(r) if isinstance(n, ast.Name) and n.id.isupper()}  # fmt: skip
    assert {getattr(module, name) for name in named} == REASONS.keys()
    assert all(meaning and cure for meaning, cure in REASONS.values())


def test_save_and_load(records, tmp_path):
    rounds = records["dartree"]
    save_records(rounds, tmp_path / "r.jsonl")
    for ours, theirs in zip(rounds, load_records(tmp_path / "r.jsonl"), strict=True):
        assert json.dumps(ours.to_dict()) == json.dumps(theirs.to_dict())
        assert theirs.outcomes() == ours.outcomes()
        np.testing.assert_array_equal(ours.kept, theirs.kept)
    (tmp_path / "bad.jsonl").write_text('{"index": 1}\n')
    with pytest.raises(ValueError, match="bad.jsonl line 1"):
        load_records(tmp_path / "bad.jsonl")


def test_a_record_read_again_has_the_same_scores(tmp_path):
    """Every bit of them, -inf too, from lines that are JSON for any parser."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 0x7F800000, size=2000, dtype=np.uint32)  # every finite size
    scores = -np.concatenate([bits.view(np.float32), np.float32([0, np.inf, 1e-45, 3.4028235e38])])
    count = len(scores)
    flat = Supertree(np.arange(count), np.zeros(count), np.ones(count), scores)
    none = np.empty(0, dtype=np.int64)
    record = RoundRecord(0, "dartree", 3, 4, flat, none, none, [5], supertree=flat)
    save_records([record], tmp_path / "r.jsonl")

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    json.loads((tmp_path / "r.jsonl").read_text(), parse_constant=refuse)
    (again,) = load_records(tmp_path / "r.jsonl")
    for tree in (again.tree, again.supertree):
        np.testing.assert_array_equal(tree.scores, scores)
        assert tree.scores.dtype == np.float32


def test_records_of_earlier_versions_are_read():
    old = {"tokens": [3, 4], "parents": [0, 0], "depths": [1, 1]}
    tree = Supertree.from_dict(old | {"scores": json.loads("[-0.5, -Infinity]")})
    assert tree.scores.tolist() == [-0.5, -np.inf]


def test_kept_nodes_are_the_tree(records):
    for record in records["dartree"]:
        numbers = record.kept - 1
        assert record.supertree.tokens[numbers].tolist() == record.tree.tokens.tolist()
        assert len(record.tree) == min(9, len(record.supertree))


@pytest.mark.parametrize("line", ["[1]", '{"tree": 5}', "[" * 10**5, "1" * 10**4, "x"])
def test_files_that_hold_no_records(tmp_path, line):
    (tmp_path / "bad.jsonl").write_text("\n" + line)
    with pytest.raises(ValueError, match="bad.jsonl line 2 is not a round record"):
        load_records(tmp_path / "bad.jsonl")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: load_records(None), "path must be a path, got NoneType"),
        (lambda: load_records("/nope.jsonl"), "/nope.jsonl cannot be read"),
        (lambda: load_records("/"), "/ cannot be read"),
        (lambda: save_records([], 5), "path must be a path, got int"),
        (lambda: save_records(None, "x"), "records must be an Iterable, got NoneType"),
        (lambda: save_records([5], "x"), "records must be a RoundRecord, got int"),
    ],
)
def test_records_of_the_wrong_kind(call, words):
    with pytest.raises(ValueError, match=words):
        call()
