"""The fused step against the plain heads, corners, and what is said where it cannot be built."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

import dartree
from dartree import fused
from dartree.bench import bench, format_bench
from dartree.clock import Clock
from dartree.compiled import CompiledHead, compiled_stack
from dartree.drafter import Block
from dartree.fused import FusedHead, fuse_head
from dartree.methods import TABLE
from dartree.proposers import greedy_chain, propose_heap
from dartree.settings import TreeSettings
from dartree.stage_memory import stage_memory
from dartree.supertree import fixed_quotas, grow_supertree
from tests.conftest import load_case
from tests.reference import greedy, prompt, random_stack

pytestmark = pytest.mark.skipif(fused.available() is not None, reason="no C compiler")
HEADS = ("domino", "markov")
SETTINGS = (
    TreeSettings(width=4, candidates=6, budget=20),
    TreeSettings(width=13, candidates=7, budget=30, depth=3, score_temperature=0.6),
    TreeSettings(width=1, candidates=1, budget=5),
    TreeSettings(width=200, candidates=97, budget=64, depth=3),
    TreeSettings(width=5, candidates=9, budget=64, normalise="vocabulary"),
)


def stack_and_head(kind: str, **options):
    """A random fp32 stack, and its head with fused steps."""
    stack = random_stack(head=kind, dtype=torch.float32, **options)
    return stack, fuse_head(stack.head, asked=True)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", HEADS)
def test_it_grows_the_supertree_of_the_plain_head(kind, settings):
    for seed, prefix in ((3, 0), (4, 1), (5, 3)):
        stack, head = stack_and_head(kind, prefix=prefix)
        block = dartree.draft(stack, prompt(9, seed))
        quotas = [None, fixed_quotas(17, block.limits(settings).depth)]
        for quota in quotas:
            one, two = (grow_supertree(block, h, settings, quota) for h in (stack.head, head))
            assert two.supertree.path_tokens() == one.supertree.path_tokens()
            np.testing.assert_allclose(two.supertree.scores, one.supertree.scores, atol=2e-5)
            assert two.head_calls == one.head_calls == len(quota or one.candidates)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", HEADS)
def test_it_grows_the_heap_of_the_plain_head(kind, settings):
    stack, head = stack_and_head(kind)
    for seed in (3, 4):
        block = dartree.draft(stack, prompt(9, seed))
        one, two = (propose_heap(block, h, settings, Clock()) for h in (stack.head, head))
        assert two.tree.path_tokens() == one.tree.path_tokens()
        np.testing.assert_allclose(two.tree.scores, one.tree.scores, atol=2e-5)
        assert two.head_calls == one.head_calls > 0


@pytest.mark.parametrize("name", ["domino", "domino-shift", "dspark-vanilla"])
def test_the_conformance_cases_run_on_fused_heads(name):
    stack, expected, _ = load_case(name)
    assert stack.fused and isinstance(stack.head, FusedHead)
    ids, logits = greedy_chain(dartree.draft(stack, prompt(9)), stack.head, 3)
    wanted = dartree.corrected_logits(stack, dartree.draft(stack, prompt(9)), ids_of(stack, ids))
    torch.testing.assert_close(logits, wanted[:3], atol=2e-5, rtol=1e-4)


def ids_of(stack, ids: torch.Tensor) -> list[int]:
    """``ids`` and zeros behind them, as many as a block drafts."""
    return [*ids.tolist(), *[0] * (stack.main.drafts - len(ids))]


def test_a_chain_is_the_teacher_forced_gru_in_one_run():
    stack, head = stack_and_head("domino")
    block = dartree.draft(stack, prompt(9))
    ids, logits = greedy_chain(block, head, block.drafts)
    fed = torch.cat([block.anchor_ids(), ids[:-1]])
    bias = stack.head.chain_bias(block.hidden[None], stack.target.embedding[fed][None])[0]
    torch.testing.assert_close(logits, block.base_logits + bias, atol=2e-5, rtol=1e-4)
    assert ids.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("kind", HEADS)
def test_equal_scores_go_to_the_smaller_row_and_candidate(kind):
    stack, head = stack_and_head(kind)
    for weight in stack.head.parameters():
        weight.zero_()
    block = replace(dartree.draft(stack, prompt(5)), base_logits=torch.zeros(6, 97))
    settings = TreeSettings(width=4, candidates=3, budget=12)
    one, two = (grow_supertree(block, h, settings).supertree for h in (stack.head, head))
    assert two.path_tokens() == one.path_tokens() == sorted(two.path_tokens(), key=len)
    one, two = (propose_heap(block, h, settings, Clock()).tree for h in (stack.head, head))
    assert two.path_tokens() == one.path_tokens()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", ["dartree", "dartree-fixed", "heap", "domino", "domino-ddtree"])
@pytest.mark.parametrize("kind", HEADS)
def test_logits_that_are_not_finite_are_refused_by_name(kind, method, value):
    stack, head = stack_and_head(kind, prefix=0)
    output = stack.head.embed_proj[2] if kind == "domino" else stack.head.markov_head.markov_w2
    output.weight.fill_(value)
    stack = replace(stack, main=replace(stack.main, head=head))
    words = f"{type(head.plain).__name__}.score must be finite or -inf, got NaN"
    with pytest.raises(dartree.GenerationError, match=words):
        dartree.generate(stack, prompt(5), method=method, max_new_tokens=8)


@pytest.mark.parametrize("make", [grow_supertree, lambda *a: propose_heap(*a, Clock())])
def test_minus_infinity_rules_out_children_and_whole_rows(make):
    stack, head = stack_and_head("domino")
    block = dartree.draft(stack, prompt(5))
    settings = TreeSettings(width=4, candidates=5, budget=24)
    logits = block.base_logits.clone()
    logits[1, logits[1].argsort(descending=True)[2:]] = -torch.inf  # two tokens are left at 2
    logits[3] = -torch.inf  # and none at 4
    block = replace(block, base_logits=logits)
    one, two = (make(block, h, settings) for h in (stack.head, head))
    one, two = (getattr(x, "supertree", None) or x.tree for x in (one, two))
    assert two.path_tokens() == one.path_tokens()
    np.testing.assert_allclose(two.scores, one.scores, atol=2e-5)


@pytest.mark.parametrize("method", [m for m, facts in TABLE.items() if m != "ar"])
@pytest.mark.parametrize("kind", HEADS)
def test_all_methods_write_the_text_of_plain_decoding(kind, method):
    stack, head = stack_and_head(kind)
    stack = replace(stack, main=replace(stack.main, head=head))
    settings = TreeSettings(width=4, candidates=6, budget=24)
    out = dartree.generate(
        stack, prompt(6), method=method, settings=settings, max_new_tokens=40, stop=[]
    )
    assert out.token_ids == greedy(stack.target.model, prompt(6), 40)
    assert out.fused and out.to_dict()["fused"]


def test_long_rows_lose_no_precision():
    """Normalised over 40,000 tokens: a sum in fp32 one by one would be off by 1e-4."""
    model = random_stack(dtype=torch.float32).target.model
    torch.manual_seed(2)
    stack, _ = stack_and_head("markov")
    plain = copy.deepcopy(stack.head)
    plain.markov_head.markov_w1.weight.data = torch.randn(40_000, plain.rank)
    plain.markov_head.markov_w2.weight.data = torch.randn(40_000, plain.rank)
    block = Block(7, 3, torch.randn(6, model.config.hidden_size), torch.randn(6, 40_000))
    settings = TreeSettings(width=3, candidates=8, normalise="vocabulary")
    one, two = (
        grow_supertree(block, h, settings).supertree for h in (plain.double(), FusedHead(plain))
    )
    assert one.path_tokens() == two.path_tokens()


def test_a_copy_works_and_changed_weights_are_seen():
    stack, head = stack_and_head("domino")
    block, settings = dartree.draft(stack, prompt(5)), TreeSettings(width=3, candidates=4)
    first = grow_supertree(block, head, settings).supertree.scores
    other = pickle.loads(pickle.dumps(copy.deepcopy(head)))
    np.testing.assert_array_equal(grow_supertree(block, other, settings).supertree.scores, first)
    for weight in (stack.head.prefix_gru.weight_hh_l0, stack.head.embed_proj[2].weight):
        weight.mul_(-1)
        stack.head.attach(stack.target.embedding)
        changed = grow_supertree(block, head, settings).supertree
        wanted = grow_supertree(block, stack.head, settings).supertree
        assert changed.path_tokens() == wanted.path_tokens()
        np.testing.assert_allclose(changed.scores, wanted.scores, atol=2e-5)
        assert np.abs(changed.scores - first).max() > 1e-3
        first = changed.scores


@pytest.mark.parametrize(("asked", "found"), [(None, True), (True, True), (False, False)])
def test_a_stack_says_whether_its_head_is_fused(asked, found):
    stack = dartree.load_stack("tiny", fuse=asked)
    assert stack.fused is found is isinstance(stack.head, FusedHead)
    rows = [{"id": "a", "domain": "x", "ids": [5, 6, 7]}]
    result = bench(stack, rows, ["dartree"], max_new_tokens=4, repeats=1, compiled=False)
    assert {e["fused"] for e in result["methods"]} == {found}
    assert (", fused head, " in format_bench(result)) is found


def test_what_cannot_be_fused_stays_plain_or_is_refused_when_asked_for():
    half = random_stack(dtype=torch.bfloat16).head
    gated = random_stack(head="markov", markov_kind="gated", dtype=torch.float32).head
    none = random_stack(head="none").head
    cases = [
        (half, "fusing is for float32 on cpu, got torch.bfloat16 on cpu"),
        (gated, "only Domino's and DSpark's vanilla heads can be fused, got gated Markov"),
        (none, "only Domino's and DSpark's vanilla heads can be fused, got none"),
    ]
    for head, words in cases:
        assert fuse_head(head) is head
        with pytest.raises(ValueError, match=words):
            fuse_head(head, asked=True)


def test_a_head_without_its_table_stays_plain(monkeypatch):
    head = random_stack(dtype=torch.float32).head
    monkeypatch.setattr("dartree.heads.TABLE_BYTES", 0)
    assert fuse_head(head) is head
    with pytest.raises(ValueError, match="needs the table of its GRU's inputs"):
        fuse_head(head, asked=True)


@pytest.fixture
def compiler(monkeypatch):
    """Sets CC, and has the function built anew by whatever it names."""
    fused.library.cache_clear()
    yield lambda command: monkeypatch.setenv("CC", command)
    fused.library.cache_clear()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("false", "false failed: "),
        ("/no/such/compiler", "/no/such/compiler cannot be used: .*No such file"),
        ("sh -c 'echo no licence >&2; exit 3'", "sh failed: no licence"),
        ("true", "true cannot be used: .*fused.so"),  # says yes and writes nothing
    ],
)
def test_a_compiler_that_fails_is_named(compiler, command, words):
    compiler(command)
    head = random_stack(dtype=torch.float32).head
    assert fuse_head(head) is head and not dartree.load_stack("tiny").fused
    with pytest.raises(ValueError, match=f"a fused head must be built, but {words}"):
        dartree.load_stack("tiny", fuse=True)


def test_without_a_compiler_everything_stays_plain(compiler, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert fused.available() == (
        "a fused head must be built, but no C compiler was found "
        "(cc, gcc or clang; CC names another)."
    )
    assert not dartree.load_stack("tiny").fused


def test_a_compiler_that_does_not_know_the_processor_builds_for_any(compiler, tmp_path):
    script = tmp_path / "cc"
    script.write_text('#!/bin/sh\ncase "$*" in *native*) exit 1;; esac\nexec cc "$@"\n')
    script.chmod(0o755)
    compiler(str(script))
    stack, head = stack_and_head("domino")
    block, settings = dartree.draft(stack, prompt(5)), TreeSettings(width=7, candidates=5)
    one, two = (grow_supertree(block, h, settings).supertree for h in (stack.head, head))
    assert two.path_tokens() == one.path_tokens()
    np.testing.assert_allclose(two.scores, one.scores, atol=2e-5)


@pytest.mark.parametrize(("parts", "kind"), [("all", FusedHead), ("head", CompiledHead)])
def test_a_fused_head_is_compiled_only_when_named(eager_graphs, parts, kind):
    stack, head = stack_and_head("domino")
    stack = replace(stack, main=replace(stack.main, head=head))
    made = compiled_stack(stack, parts)
    assert type(made.head) is kind and made.fused is (kind is FusedHead)
    if parts == "head":
        assert made.head._head is head.plain


def test_what_a_fused_head_keeps_counts_as_tables():
    stack = random_stack(dtype=torch.float32)
    plain = stage_memory(stack, prompt(6), settings=TreeSettings(width=3, candidates=4))
    stack.main.head = head = fuse_head(stack.head, asked=True)
    found = stage_memory(stack, prompt(6), settings=TreeSettings(width=3, candidates=4))
    copies = sum(tensor.nbytes for tensor in head._kept)
    assert found["kept"]["head_tables"] == plain["kept"]["head_tables"] + copies
    assert found["kept"]["head"] == plain["kept"]["head"]
