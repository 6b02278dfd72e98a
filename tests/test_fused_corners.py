"""What fused steps must leave to others, and what C would read or write out of bounds."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

import dartree
from dartree import native
from dartree.clock import Clock
from dartree.compiled import compiled_stack
from dartree.fused import FusedHead, fuse_head
from dartree.heads import DominoHead, NoCorrection
from dartree.memory import estimate
from dartree.methods import proposal_of
from dartree.proposers import greedy_chain
from dartree.settings import TreeSettings
from dartree.supertree import grow_supertree
from tests.reference import prompt, random_stack

pytestmark = pytest.mark.skipif(native.available() is not None, reason="no C compiler")
LIKE = torch.empty(0)  # a weight of an fp32 drafter on the CPU
SETTINGS = TreeSettings(width=4, candidates=6, budget=20)


@pytest.fixture
def stack():
    """A random fp32 stack with Domino's head, fused."""
    made = random_stack(dtype=torch.float32)
    return replace(made, main=replace(made.main, head=FusedHead(made.head)))


@pytest.fixture
def block(stack):
    return dartree.draft(stack, prompt(9))


class Wrapper:
    """Somebody's head around another: what it does not have is the inner one's."""

    name = "opposite"

    def __init__(self, inner):
        self.plain = inner  # a name that fused heads use too

    def __getattr__(self, name):
        if name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)

    def score(self, state, depth):
        logits, state = self.plain.score(state, depth)
        return -logits, state


class Derived(DominoHead):
    """Somebody's variant of Domino's head."""

    def score(self, state, depth):
        logits, state = super().score(state, depth)
        return -logits, state


def derived(head: DominoHead) -> Derived:
    """A copy of ``head`` that scores the other way round."""
    other = copy.deepcopy(head)
    other.__class__ = Derived
    return other


@pytest.mark.parametrize("method", ["dartree", "dartree-fixed", "heap", "domino", "domino-ddtree"])
@pytest.mark.parametrize("make", [Wrapper, lambda h: FusedHead(derived(h.plain))])
def test_a_score_of_ones_own_is_used(stack, block, method, make):
    plain = derived(stack.head.plain)
    one, two = (proposal_of(method, block, h, SETTINGS, Clock())
                for h in (plain, make(stack.head)))  # fmt: skip
    assert two.tree.path_tokens() == one.tree.path_tokens()
    np.testing.assert_allclose(two.tree.scores, one.tree.scores, atol=2e-5)


def test_a_wrapper_of_a_compiled_head_scores_itself(stack, block, eager_graphs):
    compiled = compiled_stack(stack, "head").head
    one, two = (grow_supertree(block, h, SETTINGS).supertree
                for h in (derived(stack.head.plain), Wrapper(compiled)))  # fmt: skip
    assert two.path_tokens() == one.path_tokens()


def test_a_derived_head_stays_plain_or_is_refused_by_its_name(stack):
    head = derived(stack.head.plain)
    assert fuse_head(head, LIKE) is head
    with pytest.raises(ValueError, match="heads can be fused, got Derived"):
        fuse_head(head, LIKE, asked=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_head_that_was_cast_is_left_to_torch(stack, block, dtype):
    head = stack.head
    assert head.expansion(block, [3, 3], block.limits(SETTINGS))
    head.plain.to(dtype)
    head.plain.attach(stack.target.embedding)
    assert head.expansion(block, [3, 3], block.limits(SETTINGS)) is None
    one, two = (grow_supertree(block, h, SETTINGS).supertree for h in (head.plain, head))
    assert two.path_tokens() == one.path_tokens()
    head.plain.float()
    head.plain.attach(stack.target.embedding)
    assert head.expansion(block, [3, 3], block.limits(SETTINGS))


@pytest.mark.parametrize(
    ("change", "quotas"),
    [
        (lambda b: replace(b, anchor=97), [2, 2]),
        (lambda b: replace(b, anchor=-1), [2, 2]),
        (lambda b: replace(b, base_logits=b.base_logits[:1]), [2, 2]),
        (lambda b: replace(b, hidden=b.hidden[:1]), [2, 2]),
        (lambda b: b, [2] * 7),
        (lambda b: b, [2, 0, 2]),
        (lambda b: replace(b, base_logits=b.base_logits.to("meta")), [2, 2]),
        (lambda b: replace(b, hidden=b.hidden.to("meta")), [2, 2]),
    ],
)
def test_what_lies_out_of_bounds_is_left_to_torch(stack, block, change, quotas):
    limits = block.limits(SETTINGS)
    assert stack.head.expansion(change(block), quotas, limits) is None


def test_an_embedding_of_fewer_tokens_is_refused_as_by_the_plain_head(stack, block):
    stack.head.plain.attach(stack.target.embedding[:50])
    for head in (stack.head.plain, stack.head):
        with pytest.raises(IndexError):
            grow_supertree(replace(block, anchor=60), head, SETTINGS)


def test_logits_that_are_elsewhere_are_left_to_torch(stack):
    assert stack.head.marginals(torch.empty(2, 8, device="meta"), 2) is None


def test_more_of_the_best_than_insertion_is_for_are_left_to_torch(stack, block):
    most = native.MOST_BEST
    logits = torch.randn(1, 2 * most)
    assert stack.head.marginals(logits, most) is not None
    assert stack.head.marginals(logits, most + 1) is None
    wide = TreeSettings(width=most + 1, candidates=60, depth=2)
    assert stack.head.expansion(block, [most + 1] * 2, block.limits(wide)) is None
    options = stack.target.config.to_dict(), stack.drafter.config, wide, 64
    assert estimate(*options, value_bytes=4).fused == 0


@pytest.mark.parametrize(("offset", "temperature"), [(1e6, 1.0), (30.0, 1e-6), (-3e7, 2.0)])
def test_large_logits_do_not_swallow_the_normaliser(stack, block, offset, temperature):
    logits = torch.full((6, 97), -torch.inf)
    logits[:, 3:11] = offset  # eight that are equal
    ids, log_probs = stack.head.marginals(logits, 8, temperature)
    assert ids.tolist() == [list(range(3, 11))] * 6
    np.testing.assert_allclose(log_probs, -np.log(8), atol=1e-6)
    stack.head.plain.prefix = 6  # no corrections
    settings = TreeSettings(width=8, candidates=8, depth=1, score_temperature=temperature)
    for normalise in ("candidates", "vocabulary"):
        used = replace(settings, normalise=normalise)
        tree = grow_supertree(replace(block, base_logits=logits), stack.head, used).supertree
        np.testing.assert_allclose(tree.scores, -np.log(8), atol=1e-6)


def test_a_chain_takes_the_largest_logit_however_close_the_next(stack, block):
    for weight in stack.head.plain.parameters():
        weight.zero_()
    stack.head.plain.attach(stack.target.embedding)
    logits = torch.zeros(6, 97)
    logits[-1, 5] = 1.0
    logits[-1, 9] = np.nextafter(np.float32(1), np.float32(2)).item()
    ids, _ = greedy_chain(replace(block, base_logits=logits), stack.head, 6)
    assert ids.tolist() == [0, 0, 0, 0, 0, 9]


def test_zeros_are_found_where_the_smallest_numbers_count_as_zero(stack):
    logits = torch.zeros(2, 4096)
    logits[:, 7], logits[:, 100] = 3, -1
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps the smallest numbers")
    try:
        ids, _ = stack.head.marginals(logits, 8)
    finally:
        torch.set_flush_denormal(False)
    assert ids.tolist() == [[7, 0, 1, 2, 3, 4, 5, 6]] * 2


@pytest.mark.parametrize("method", ["dartree", "heap", "domino"])
def test_infinite_weights_are_refused_as_by_the_plain_head(stack, block, method):
    recurrent = stack.head.plain.prefix_gru.weight_hh_l0  # a reset of 0, and infinity behind it
    recurrent[[0, 32], 0], recurrent[[1, 33], 0] = torch.inf, -torch.inf
    stack.head.plain.attach(stack.target.embedding)
    for head in (stack.head.plain, stack.head):
        with pytest.raises(ValueError, match="must be finite or -inf, got NaN"):
            proposal_of(method, block, head, SETTINGS, Clock())


@pytest.fixture
def built_anew():
    """Has the functions built again, in the test and behind it."""
    native.library.cache_clear()
    yield
    native.library.cache_clear()


def test_a_compiler_of_blanks_is_none_that_was_named(built_anew, monkeypatch):
    monkeypatch.setenv("CC", "  ")
    assert native.available() is None


def test_a_command_that_cannot_be_read_is_named(built_anew, monkeypatch):
    monkeypatch.setenv("CC", "gcc 'a")
    assert native.available() == (
        'fused steps must be built, but CC must be a command, got "gcc \'a": No closing quotation.'
    )


def test_a_compiler_may_speak_any_encoding(built_anew, monkeypatch, tmp_path):
    script = tmp_path / "cc"
    script.write_bytes(b"#!/bin/sh\necho 'kein \xfcbersetzer' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    assert native.available().endswith("failed: kein \ufffdbersetzer")


def test_without_a_place_for_temporary_files_everything_stays_plain(
    built_anew, monkeypatch, tmp_path
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    head = NoCorrection()
    assert fuse_head(head, LIKE) is head
    assert native.available().startswith(
        "fused steps must be built, but no folder for it could be made: "
    )


def test_a_pickled_head_is_plain_where_no_compiler_is(built_anew, monkeypatch, stack):
    data = pickle.dumps(stack.head)
    native.library.cache_clear()
    monkeypatch.setenv("CC", "false")
    assert type(pickle.loads(data)) is DominoHead
