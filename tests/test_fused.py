"""The fused step against the plain heads, corners, and what is said where it cannot be built."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

import dartree
from dartree import native
from dartree.bench import bench, format_bench
from dartree.clock import Clock
from dartree.compiled import CompiledHead, compiled_stack
from dartree.drafter import Block
from dartree.fused import FusedHead, fuse_head
from dartree.heads import NoCorrection
from dartree.memory import estimate
from dartree.methods import TABLE
from dartree.proposers import best_first_on_rows, greedy_chain, propose_dflash, propose_heap
from dartree.settings import TreeSettings
from dartree.stage_memory import stage_memory
from dartree.supertree import fixed_quotas, grow_supertree
from tests.conftest import load_case
from tests.reference import greedy, prompt, random_stack

pytestmark = pytest.mark.skipif(native.available() is not None, reason="no C compiler")
HEADS = ("domino", "markov")
LIKE = torch.empty(0)  # a weight of an fp32 drafter on the CPU
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
    return stack, fuse_head(stack.head, LIKE, asked=True)


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


@pytest.mark.parametrize("temperature", [1.0, 0.3, 4.0])
@pytest.mark.parametrize(("rows", "vocabulary", "count"), [(1, 1, 1), (3, 97, 97), (16, 4096, 64)])
def test_best_marginals_are_a_stable_sort(rows, vocabulary, count, temperature):
    torch.manual_seed(vocabulary)
    logits = torch.randn(rows, vocabulary).mul(8).round() / 4  # many are equal
    logits[:, vocabulary // 2 :: 3] = -torch.inf
    logits[:, 0] = 1.0
    ids, log_probs = fuse_head(NoCorrection(), LIKE, True).marginals(logits, count, temperature)
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    assert ids.tolist() == order[:, :count].tolist()
    wanted = torch.log_softmax(logits.double() / temperature, -1).gather(1, order[:, :count])
    np.testing.assert_allclose(log_probs, wanted.numpy(), atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("layout", ["fp64", "columns"])
def test_marginals_are_read_from_any_layout(layout):
    torch.manual_seed(1)
    logits = torch.randn(5, 33)
    head = fuse_head(NoCorrection(), LIKE, asked=True)
    given = logits.double() if layout == "fp64" else logits.t().contiguous().t()
    for one, two in zip(head.marginals(given, 4), head.marginals(logits, 4), strict=True):
        np.testing.assert_array_equal(one, two)


def test_methods_on_marginals_build_the_same_trees():
    stack, block = random_stack(dtype=torch.float32), None
    head = fuse_head(NoCorrection(), LIKE, asked=True)
    for seed in (3, 4):
        block = dartree.draft(stack, prompt(9, seed))
        for settings in SETTINGS:
            trees = [best_first_on_rows(block.base_logits, settings, head=h)[0]
                     for h in (None, head)]  # fmt: skip
            trees += [propose_dflash(block, h, settings, Clock()).tree
                      for h in (NoCorrection(), head)]  # fmt: skip
            for one, two in (trees[:2], trees[2:]):
                assert two.path_tokens() == one.path_tokens()
                np.testing.assert_allclose(two.scores, one.scores, atol=2e-5)
                assert two.depths.tolist() == one.depths.tolist()


def test_the_marginal_pairing_is_fused_too():
    stack = dartree.load_stack("tiny")
    assert isinstance(stack.pairing("ddtree").head, FusedHead)
    stack.marginal = None
    pairing = stack.pairing("ddtree")
    assert isinstance(pairing.head, FusedHead) and pairing.head.name == NoCorrection.name
    plain = dartree.load_stack("tiny", fuse=False)
    assert not isinstance(plain.pairing("ddtree").head, FusedHead)
    plain.marginal = None
    assert isinstance(plain.pairing("ddtree").head, NoCorrection)


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
    settings = TreeSettings(width=4, candidates=97, budget=12)
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
    assert (", fused steps, " in format_bench(result)) is found


def test_what_cannot_be_fused_stays_plain_or_is_refused_when_asked_for():
    half = random_stack(dtype=torch.bfloat16).head
    gated = random_stack(head="markov", markov_kind="gated", dtype=torch.float32).head
    cases = [
        (half, "fusing is for float32 on cpu, got torch.bfloat16 on cpu"),
        (gated, "only Domino's and DSpark's vanilla heads can be fused, got gated Markov"),
    ]
    for head, words in cases:
        assert fuse_head(head, LIKE) is head
        with pytest.raises(ValueError, match=words):
            fuse_head(head, LIKE, asked=True)
    with pytest.raises(ValueError, match="fusing is for float32 on cpu, got torch.float64 on cpu"):
        fuse_head(NoCorrection(), LIKE.double(), asked=True)


def test_a_head_without_its_table_stays_plain(monkeypatch):
    head = random_stack(dtype=torch.float32).head
    monkeypatch.setattr("dartree.heads.TABLE_BYTES", 0)
    assert fuse_head(head, LIKE) is head
    with pytest.raises(ValueError, match="needs the table of its GRU's inputs"):
        fuse_head(head, LIKE, asked=True)


@pytest.fixture
def compiler(monkeypatch):
    """Sets CC, and has the function built anew by whatever it names."""
    native.library.cache_clear()
    yield lambda command: monkeypatch.setenv("CC", command)
    native.library.cache_clear()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("false", "false failed: exit status 1"),
        ("/no/such/compiler", "/no/such/compiler cannot be used: .*No such file"),
        ("sh -c 'echo no licence >&2; exit 3'", "sh failed: no licence"),
        ("true", "true cannot be used: .*fused.so"),  # says yes and writes nothing
    ],
)
def test_a_compiler_that_fails_is_named(compiler, command, words):
    compiler(command)
    head = random_stack(dtype=torch.float32).head
    assert fuse_head(head, LIKE) is head and not dartree.load_stack("tiny").fused
    with pytest.raises(ValueError, match=f"fused steps must be built, but {words}"):
        dartree.load_stack("tiny", fuse=True)


def test_without_a_compiler_everything_stays_plain(compiler, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert native.available() == (
        "fused steps must be built, but no C compiler was found "
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


def test_threads_do_not_share_memory():
    """Two threads on one head, as they come: each gets what it gets alone."""
    stack, head = stack_and_head("domino")
    settings = TreeSettings(width=6, candidates=9)
    blocks = [dartree.draft(stack, prompt(9, seed)) for seed in (1, 2)]
    alone = [grow_supertree(block, head, settings).supertree for block in blocks]

    def many(block: Block) -> list[bytes]:
        return [grow_supertree(block, head, settings).supertree.scores.tobytes()
                for _ in range(200)]  # fmt: skip

    with ThreadPoolExecutor(2) as pool:
        for found, tree in zip(pool.map(many, blocks), alone, strict=True):
            assert set(found) == {tree.scores.tobytes()}


def test_a_block_of_another_size_is_left_to_the_plain_head():
    stack, head = stack_and_head("domino")
    block = dartree.draft(stack, prompt(5))
    for other in (
        replace(block, hidden=block.hidden[:, :-1]),
        replace(block, base_logits=block.base_logits[:, :-1]),
    ):
        assert head.expansion(other, [3, 3], TreeSettings(width=3, depth=2)) is None
        assert head.chain(other, 2) is None


@pytest.mark.parametrize("kind", HEADS)
def test_what_a_fused_head_keeps_is_counted_and_estimated(kind):
    settings = TreeSettings(width=3, candidates=4)
    stack, head = stack_and_head(kind)
    options = stack.target.config.to_dict(), stack.drafter.config, settings, 64
    need, half = estimate(*options, value_bytes=4), estimate(*options)
    plain = stage_memory(stack, prompt(6), settings=settings)
    stack.main.head = head
    dartree.generate(stack, prompt(6), method="heap", max_new_tokens=4)  # leaves its own
    kept = stage_memory(stack, prompt(6), settings=settings)["kept"]
    assert plain["kept"] == kept | {"fused": 0}
    assert kept["fused"] == need.fused > half.fused == 0
    assert need.total - need.fused == replace(need, fused=0).total
