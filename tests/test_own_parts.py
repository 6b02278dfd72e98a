"""Methods and heads that users write: what is refused, in one sentence, and what -inf means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import dartree
from dartree import methods, proposers
from dartree.analysis.replay import Replay
from dartree.heads import NoCorrection, corrected_logits
from dartree.methods import TABLE
from dartree.proposers import Proposal
from dartree.settings import TreeSettings
from dartree.supertree import grow_supertree
from tests.reference import VOCABULARY, greedy, prompt, random_stack

DRAFTS = 6
HEADED = ("domino", "domino-ddtree", "heap", "dartree-fixed", "dartree")


@pytest.fixture
def mine():
    """Adds a method that returns what it is given; gone after the test."""

    def add(returns, **options):
        make = returns if callable(returns) else lambda *_: returns
        dartree.add_method("mine", make, **options)

    yield add
    TABLE.pop("mine", None)


def decode(stack=None, method="mine", **options):
    options = {"max_new_tokens": 12, "stop": []} | options
    return dartree.generate(stack or random_stack(), prompt(5), method=method, **options)


def chain(count, token=3, score=-1.0):
    return Proposal(dartree.DraftTree.chain(np.full(count, token), np.full(count, score)))


def star(count):
    return Proposal(
        dartree.DraftTree(np.arange(count), np.zeros(count), np.ones(count), -np.arange(count))
    )


@pytest.mark.parametrize(
    ("proposal", "words"),
    [
        (star(65), r"at most 64 nodes \(the budget\), got 65"),
        (chain(DRAFTS + 1), f"at most {DRAFTS} deep .*, got depth {DRAFTS + 1}"),
        (chain(3, VOCABULARY), f"must lie in 0..{VOCABULARY - 1}, got {VOCABULARY}"),
        (chain(3, -1), "tokens of its tree must lie in 0..96, got -1"),
        (None, "what it returns must be a Proposal, got NoneType"),
        (star(3).tree, "what it returns must be a Proposal, got DraftTree"),
        (lambda *_: chain(3, 3.7), "tokens must be whole numbers, got 3.7"),
        (lambda *_: chain(3, 3, np.nan), "scores must not be NaN or .inf: node 1 has nan"),
        (lambda *_: chain(3, 3, np.inf), "scores must not be NaN or .inf: node 1 has inf"),
        (lambda *_: Proposal(None), "tree must be a DraftTree, got NoneType"),
        (lambda *_: Proposal(star(3).tree, -3), "head_calls must be an integer in 0.*, got -3"),
        (lambda *_: Proposal(star(3).tree, np.nan), "head_calls must be an integer .*, got nan"),
        (lambda *_: Proposal(star(3).tree, 2.5), "head_calls must be an integer .*, got 2.5"),
        (lambda *_: Proposal(star(3).tree, "x"), "head_calls must be an integer .*, got 'x'"),
        (lambda *rest: rest[3].stage("mine").__enter__(), "stage must be one of draft, .*'mine'"),
    ],
)
def test_a_tree_that_cannot_be_verified_is_refused_by_name(mine, proposal, words):
    mine(proposal)
    with pytest.raises(dartree.GenerationError, match=f"^round 0, method 'mine': .*{words}") as got:
        decode()
    assert len(got.value.partial.token_ids) == 1, "the token of the prefill is kept"


def test_the_settings_depth_and_budget_bind_too(mine):
    mine(chain(4))
    assert len(decode(settings=TreeSettings(depth=4, budget=4)).records[0].tree) == 4
    for name in ("depth", "budget"):
        with pytest.raises(ValueError, match="method 'mine': its tree must .* 3"):
            decode(settings=TreeSettings(**{name: 3}))


def test_more_nodes_than_any_tree_may_have_are_refused(mine, monkeypatch):
    monkeypatch.setattr(methods, "MOST_NODES", 5)
    mine(star(6))
    with pytest.raises(ValueError, match="at most 5 nodes"):
        decode()


def test_a_score_of_minus_infinity_rules_a_node_out(mine):
    stack = random_stack()
    text = greedy(stack.target.model, prompt(5), 12)
    mine(chain(5, score=-np.inf))
    out = decode(stack)
    assert out.token_ids == text and out.verified_nodes == 0
    tree = dartree.DraftTree([4, 5, 6, 7], [0, 1, 0, 3], [1, 2, 1, 2], [-1, -np.inf, -2, -3])
    mine(Proposal(tree, supertree=tree, kept=np.arange(1, 5)))
    record = decode(stack).records[0]
    assert record.tree.path_tokens() == [(4,), (6,), (6, 7)] and record.kept.tolist() == [1, 3, 4]


def test_a_method_on_the_marginals_runs_where_ddtree_runs(mine):
    stack = random_stack()
    stack.marginal = random_stack("none", seed=9, model=stack.target.model).main
    for on_marginals, like in ((True, "ddtree"), (False, "dartree")):
        mine(proposers.propose_ddtree, marginal=on_marginals)
        assert stack.pairing("mine") is stack.pairing(like)
    mine(proposers.propose_ddtree, marginal=True)
    ours, theirs = decode(stack), decode(stack, "ddtree")
    assert [r.tree.path_tokens() for r in ours.records] == [
        r.tree.path_tokens() for r in theirs.records
    ]
    with pytest.raises(ValueError, match="marginal must be True or False, got 'yes'"):
        mine(chain(2), marginal="yes")


class Changed(NoCorrection):
    """The marginals, changed by a function of (logits [R, K], depth)."""

    def __init__(self, change):
        self.change = change

    def score(self, state, depth):
        logits, state = super().score(state, depth)
        return self.change(logits, depth), state


class NoPair(NoCorrection):
    def score(self, state, depth):
        return super().score(state, depth)[0]


def headed(head):
    stack = random_stack(dtype=torch.float32)
    stack.main = replace(stack.main, head=head)
    return stack


@pytest.mark.parametrize("method", HEADED)
@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda logits, _: logits.T, "float32 \\[[0-9]+, 1\\]"),
        (lambda logits, _: logits[:, :-1], "float32 \\[1, [0-9]+\\]"),
        (lambda logits, _: logits.repeat(1, 2), "float32 \\[1, [0-9]+\\]"),
        (lambda logits, _: logits.repeat(2, 1), "float32 \\[2, [0-9]+\\]"),
        (lambda logits, _: logits.numpy(), "ndarray"),
        (lambda logits, _: logits.long(), "int64 "),
    ],
)
def test_logits_of_another_shape_or_kind_are_refused(method, change, got):
    words = f"^round 0, method '{method}': Changed.score must return .*R, K.* at depth 1, got {got}"
    with pytest.raises(ValueError, match=words):
        decode(headed(Changed(change)), method)


def test_what_is_no_pair_is_refused():
    with pytest.raises(ValueError, match=r"NoPair.score must return \(logits, state\)"):
        decode(headed(NoPair()), "dartree")


def test_a_head_without_its_functions_is_refused():
    class Half:
        name = "half"
        start = score = None

    with pytest.raises(ValueError, match="head must have .* got Half without advance.$"):
        decode(headed(Half()), "dartree")
    with pytest.raises(ValueError, match="got object without name, start, score, advance"):
        dartree.generate(headed(object()), [3, 4], method="ddtree", max_new_tokens=4)


def test_rows_are_counted_below_the_first_depth():
    """One row for all W paths would broadcast to a tree that looks sound."""
    change = Changed(lambda logits, depth: logits[:1])
    with pytest.raises(ValueError, match=r"\[R, K\] = \[5, 8\] at depth 2, got float32 \[1, 8\]"):
        decode(headed(change), "dartree", settings=TreeSettings(width=5, candidates=8))
    stack = headed(change)
    block = dartree.draft(stack, prompt(5))
    with pytest.raises(ValueError, match=r"Changed.score .*\[1, 97\]"):
        corrected_logits(Changed(lambda logits, _: logits[:, 1:]), block, torch.arange(DRAFTS))


@pytest.mark.parametrize("method", HEADED)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("first", [1, 3])
def test_a_head_that_gives_nan_is_named(method, value, first):
    head = Changed(lambda logits, depth: logits + value if depth >= first else logits)
    words = f"method '{method}': logits of Changed.score must be finite or -inf, got NaN or .inf"
    with pytest.raises(ValueError, match=words):
        decode(headed(head), method)


@pytest.mark.parametrize("method", dartree.METHODS[1:])
def test_a_block_of_nan_is_not_the_heads_fault(method, monkeypatch):
    stack, draft = random_stack(dtype=torch.float32), dartree.decode.draft_block

    def broken(*rest):
        block = draft(*rest)
        return replace(block, base_logits=block.base_logits * float("nan"))

    monkeypatch.setattr(dartree.decode, "draft_block", broken)
    with pytest.raises(ValueError, match=f"method '{method}': base_logits of the block must be"):
        decode(stack, method)


def test_steps_refuse_nan_too():
    nan = headed(Changed(lambda logits, _: logits * float("nan")))
    block = dartree.draft(nan, prompt(5))
    with pytest.raises(ValueError, match="logits of Changed.score must be finite"):
        dartree.expand(nan, block)
    with pytest.raises(ValueError, match="base_logits of the block must be finite"):
        dartree.ddtree(replace(block, base_logits=block.base_logits * float("nan")), 8)
    with pytest.raises(ValueError, match="scores must not be NaN or .inf: node 2 has nan"):
        dartree.top_b(dartree.Supertree([1, 2], [0, 1], [1, 2], [-1.0, np.nan]), 2)


@pytest.mark.parametrize("method", HEADED)
def test_a_head_may_end_all_paths(method):
    """All -inf from depth 3 on: no node there, the first two depths as ever, the same text."""
    ends = headed(Changed(lambda logits, depth: logits - float("inf") if depth > 2 else logits))
    plain = headed(NoCorrection())
    short = TreeSettings(depth=2, width=4, candidates=5, budget=9)
    out = decode(ends, method, settings=replace(short, depth=None))
    assert out.token_ids == greedy(ends.target.model, prompt(5), 12)
    tree = out.records[0].tree
    assert tree.depths.max() <= 2 and np.isfinite(tree.scores).all()
    if method != "dartree-fixed":  # spreads its budget over other depths
        want = decode(plain, method, settings=short).records[0].tree
        assert tree.path_tokens() == want.path_tokens()


def test_a_replay_counts_no_node_that_is_ruled_out():
    stack = headed(Changed(lambda logits, _: logits - float("inf")))
    wide = TreeSettings(width=60, candidates=60, budget=300, depth=2)
    open_to_all = decode(headed(NoCorrection()), "dartree", settings=wide)
    assert open_to_all.tau > 1, "the target's tokens are in the supertree"
    replay = Replay(stack, [prompt(5)], max_new_tokens=12)
    for method in ("dartree", "heap", "dartree-fixed"):
        out = decode(stack, method, settings=wide)
        assert out.accepted_per_round == replay.accepted(method, wide)[0] == [1] * 11


@pytest.mark.parametrize("normalise", ["candidates", "vocabulary"])
def test_one_path_may_end_while_others_go_on(normalise):
    """Below every token with an odd id nothing is allowed: by hand, level by level."""

    class NoneBelowOdd(NoCorrection):
        def start(self, block, candidates):
            return replace(super().start(block, candidates), last=torch.zeros(1))

        def score(self, state, depth):
            logits = state.base[depth - 1].expand(state.rows, -1)
            return logits.masked_fill(state.last[:, None] % 2 == 1, -torch.inf), state

        def advance(self, state, parents, tokens):
            return replace(state, rows=len(parents), last=tokens)

    stack = headed(NoneBelowOdd())
    block = dartree.draft(stack, prompt(5))
    used = TreeSettings(width=200, candidates=4, depth=3, normalise=normalise)
    tree = grow_supertree(block, stack.head, used).supertree
    ids = block.base_logits.topk(4).indices[:3].tolist()
    for path, score in zip(tree.path_tokens(), tree.scores, strict=True):
        ruled_out = any(token % 2 for token in path[:-1])
        assert (score == -np.inf) == ruled_out and path[-1] in ids[len(path) - 1]
    assert np.isinf(tree.scores).any() and np.isfinite(tree.scores[tree.depths == 3]).any()
    used = replace(used, budget=40, depth_penalty=0.0)
    ours, heap = (decode(stack, m, settings=used).records[0].tree for m in ("dartree", "heap"))
    assert set(ours.path_tokens()) == set(heap.path_tokens())
