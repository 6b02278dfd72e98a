"""The explorer's rounds against the decode loop, its counters against hooks on the models."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

import dartree
from dartree.methods import METHODS, TABLE
from dartree.proposers import propose_dartree
from dartree.records import ACCEPTED, UNREACHED, WALKED_PAST
from dartree.settings import TreeSettings
from dartree.widgets.session import PRUNED, Calls, Choice, Session
from dartree.widgets.svg import tree_svg

PROMPT = "Please write `unique(items)` in Python. It returns the items without repeats."
SETTINGS = TreeSettings(width=6, candidates=16, budget=20, depth_penalty=0.1)


@pytest.fixture(scope="module")
def stack():
    return dartree.load_stack("tiny")


@pytest.fixture(scope="module")
def session(stack):
    return Session(stack, max_new_tokens=24)


def same(a, b):
    return (a is None and b is None) or np.array_equal(a, b)


def check_equal(ours, theirs):
    """Two records of one round, one from the decode loop, which has its own caches."""
    for name in ("index", "method", "anchor", "position", "committed", "missing", "head_calls"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("path", "target_tokens", "candidates", "kept"):
        assert same(getattr(ours, name), getattr(theirs, name)), name
    for name in ("tokens", "parents", "depths"):
        assert np.array_equal(getattr(ours.tree, name), getattr(theirs.tree, name)), name
    assert np.allclose(ours.tree.scores, theirs.tree.scores, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature, seed", [(0.0, 0), (0.9, 5)])
def test_first_round_is_the_decode_loops(session, stack, method, temperature, seed):
    run = dartree.generate(stack, PROMPT, method=method, settings=SETTINGS, max_new_tokens=24,
                           temperature=temperature, seed=seed)  # fmt: skip
    view = session.look(Choice(PROMPT, SETTINGS, 0, method, temperature, seed))
    check_equal(view.record, run.records[0])


@pytest.mark.parametrize("temperature, seed", [(0.0, 0), (0.9, 5)])
def test_every_round_at_the_stacks_settings(session, stack, temperature, seed):
    run = dartree.generate(stack, PROMPT, max_new_tokens=24, temperature=temperature, seed=seed)
    choice = Choice(PROMPT, stack.settings, temperature=temperature, seed=seed)
    for record in run.records:
        check_equal(session.look(replace(choice, round=record.index)).record, record)


def test_pruning_of_kept_scores_is_a_fresh_round(session, stack):
    """Budgets and penalties that the session never computed models for, against new sessions."""
    for budget, penalty in ((1, 0.0), (7, 2.0), (500, 0.3)):
        settings = replace(SETTINGS, budget=budget, depth_penalty=penalty)
        ours = session.look(Choice(PROMPT, settings, 1))
        fresh = Session(stack, 24).look(Choice(PROMPT, settings, 1))
        check_equal(ours.record, fresh.record)
        run = dartree.generate(stack, session.text(PROMPT).ids[: ours.record.position],
                               settings=settings, max_new_tokens=30)  # fmt: skip
        check_equal(
            replace(ours.record, index=0, committed=[]), replace(run.records[0], committed=[])
        )


@pytest.fixture
def counted(stack, monkeypatch):
    """Calls counted at the models themselves."""
    seen = Calls()

    def count(name):
        return lambda *_: setattr(seen, name, getattr(seen, name) + 1)

    owner, name = (stack.head._library, "step") if stack.fused else (stack.head, "score")
    step = getattr(owner, name)

    def scored(*args):
        seen.head += 1
        return step(*args)

    monkeypatch.setattr(owner, name, scored)
    if stack.fused:  # what was made for earlier blocks has the function itself
        monkeypatch.setattr(stack.head, "_local", threading.local())
    hooks = [stack.target.model.model.register_forward_hook(count("target"))]
    drafters = {id(p.drafter): p.drafter for p in (stack.main, stack.marginal) if p}
    hooks += [d.norm.register_forward_hook(count("drafter")) for d in drafters.values()]
    yield seen
    for hook in hooks:
        hook.remove()


def test_counters_are_what_the_models_saw(stack, counted):
    session, choice = Session(stack, 24), Choice(PROMPT, SETTINGS)

    def cost(**changes):
        before = replace(session.calls)
        session.look(replace(choice, **changes))
        assert session.calls == counted
        return session.calls.since(before)

    depth = stack.drafter.config.drafts
    assert cost().drafter > 1  # the text, then the block of the round
    free = Calls()
    assert cost(settings=replace(SETTINGS, budget=3)) == free
    assert cost(settings=replace(SETTINGS, depth_penalty=1.0)) == free
    assert cost(settings=replace(SETTINGS, width=9)) == Calls(0, depth, 2)
    assert cost(settings=replace(SETTINGS, candidates=9)) == Calls(0, depth, 2)
    assert cost(settings=replace(SETTINGS, width=9)) == free
    assert cost(round=1) == Calls(1, depth, 3)
    assert cost(prompt="Name a colour.").drafter > 1
    assert cost(method="ddtree").head == 0
    assert cost(method="heap").head > depth
    assert cost(method="heap", settings=replace(SETTINGS, budget=3)) == Calls(0, 3, 2)
    assert cost(method="ar") == Calls(0, 0, 2)


@pytest.mark.parametrize("method", ["dartree", "heap", "dflash"])
def test_outcomes_follow_the_text(session, method):
    view = session.look(Choice(PROMPT, SETTINGS, 0, method))
    text, start = session.text(PROMPT).ids, view.record.position + 1
    kept = set(view.record.tree.path_tokens())
    for path, outcome in zip(view.nodes.path_tokens(), view.outcomes, strict=True):
        right = [token == truth for token, truth in zip(path, text[start:], strict=False)]
        expected = (
            PRUNED if path not in kept
            else ACCEPTED if all(right)
            else WALKED_PAST if all(right[:-1])
            else UNREACHED
        )  # fmt: skip
        assert outcome == expected
    assert view.bonus == text[start + len(view.path)]
    scores = view.record.tree.scores.astype(float)
    assert view.expected == pytest.approx(1 + sum(np.exp(s) for s in scores))


def test_an_added_method_is_shown_as_what_it_is(session, monkeypatch):
    """The same proposer under a name of one's own: the same ranks, which the penalty moves."""
    monkeypatch.setitem(TABLE, "mine", None)  # taken away afterwards
    dartree.add_method("mine", propose_dartree)
    settings = replace(SETTINGS, depth_penalty=1.5)
    mine, theirs = (session.look(Choice(PROMPT, settings, 1, m)) for m in ("mine", "dartree"))
    plain = session.look(Choice(PROMPT, replace(settings, depth_penalty=0.0), 1))
    assert mine.ranks.tolist() == theirs.ranks.tolist() != plain.ranks.tolist()
    assert mine.outcomes == theirs.outcomes and "pruned" in mine.outcomes
    assert mine.normalise == theirs.normalise == "candidates"


def test_target_probabilities_are_those_of_plain_runs(session, stack):
    view = session.look(Choice(PROMPT, SETTINGS))
    ids = session.text(PROMPT).ids[: view.record.position + 1]
    paths = view.nodes.path_tokens()
    for node in range(0, len(paths), 7):
        with torch.no_grad():
            logits = stack.target.model(torch.tensor([[*ids, *paths[node]]])).logits[0]
        logps = torch.log_softmax(logits.float(), dim=-1)
        assert view.judged.node_logps[node] == pytest.approx(
            float(logps[-2, paths[node][-1]]), abs=1e-3
        )
        assert view.judged.choices[node + 1] == int(logits[-1].argmax())


def test_missed_token_is_found_where_it_was_cut(session, stack):
    small = session.look(Choice(PROMPT, replace(SETTINGS, budget=1, depth_penalty=0.0)))
    found = small.nodes.child(small.path[-1] if small.path else 0, small.bonus)
    assert small.missed == found
    assert (small.record.missing == "cut by the budget") == bool(found)


def test_every_reason_is_found_and_drawn(session, stack):
    """Why the target's own token was missed, from the scores of the block alone."""
    depth, few = stack.drafter.config.drafts, TreeSettings(budget=64)
    changes = ({}, {"budget": 1}, {"width": 1}, {"candidates": 1}, {"depth": 1})
    tried = [(replace(few, **change), "dartree") for change in changes]
    tried.append((replace(few, budget=2), "heap"))
    seen = set()
    for settings, method in tried:
        for index in range(4):
            view = session.look(Choice(PROMPT, settings, index, method))
            last, record = (view.path[-1] if view.path else 0), view.record
            level, place = len(record.path), record.position + 1
            block = dartree.draft(stack, session.text(PROMPT).ids[:place])
            allowed = 1 if settings.depth else depth
            if level == allowed:
                expected = "block end"
            elif view.bonus not in block.base_logits[level].topk(settings.candidates).indices:
                expected = "not proposed"
            elif method == "heap":
                expanded = record.path.size == 0 or int(record.path[-1]) < len(record.tree)
                expected = "cut by the budget" if expanded else "parent not expanded"
            else:
                expected = "cut by the budget" if view.nodes.child(last, view.bonus) else (
                    "cut at its depth"
                )  # fmt: skip
            assert record.missing == expected
            seen.add(expected)
            assert f">{expected}</text>" in tree_svg(view, session.decode)
    assert seen >= {"not proposed", "cut at its depth", "cut by the budget", "block end"}


def test_bad_choices_are_sentences(session, stack):
    with pytest.raises(ValueError, match="round must lie in 0"):
        session.look(Choice(PROMPT, SETTINGS, round=99))
    with pytest.raises(ValueError, match="single token"):
        Session(stack, max_new_tokens=1).look(Choice(PROMPT, SETTINGS))
    with pytest.raises(ValueError, match="method must be one of"):
        session.look(Choice(PROMPT, SETTINGS, method="beam"))
    with pytest.raises(ValueError, match="prompt must not be empty"):
        session.look(Choice(" ", SETTINGS))


def test_old_results_go(stack):
    session = Session(stack, 8, keep=2)
    for width in (2, 3, 4, 5):
        session.look(Choice(PROMPT, replace(SETTINGS, width=width)))
    assert all(len(kept) <= 2 for kept in session._kept.values())
