"""Memory by stage against the allocator's own events and against counts by hand."""

from __future__ import annotations

import gc
import itertools
import json
from contextlib import contextmanager

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import dartree
from dartree import bench
from dartree.clock import STAGES, Clock
from dartree.memory import estimate
from dartree.stage_memory import LiveBytes, stage_memory
from tests.reference import prompt, random_model, random_stack

SETTINGS = dartree.TreeSettings(width=6, candidates=32, budget=24)
# Bytes: tensors made of Python numbers come into being out of sight, and so does, with
# transformers 4.57, one row of a mask inside the attention.
LARGEST_CONSTANT = 512


class AllocatorPeaks(Clock):
    """By stage, the peak of what torch's allocator gave out and got back, from its events."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = dict.fromkeys(STAGES, 0)

    @contextmanager
    def stage(self, name):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            yield
        events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
        events.sort(key=lambda e: e.start_ns())
        self.bytes[name] = max(itertools.accumulate((e.nbytes() for e in events), initial=0))


@pytest.fixture(scope="module")
def stack():
    model = random_model(dtype=torch.float32, vocab_size=3000, max_position_embeddings=512)
    return random_stack(dtype=torch.float32, model=model)


@pytest.mark.parametrize("method", bench.STAGE_MEMORY)
def test_every_stage_takes_what_the_allocator_gives_out(stack, method):
    ids = prompt(90)
    found = stage_memory(stack, ids, method, SETTINGS)
    decoding = dartree.Decoding(
        stack, ids, method=method, settings=SETTINGS, max_new_tokens=128, stop=[]
    )
    list(itertools.islice(decoding, 2))
    gc.collect()  # what earlier tests left must not be given back meanwhile
    peaks = AllocatorPeaks()
    decoding._round(decoding.result.token_ids[-1], peaks)
    assert set(found["stages"]) == set(STAGES)
    for stage in STAGES:
        assert found["stages"][stage] == pytest.approx(peaks.bytes[stage], abs=LARGEST_CONSTANT)
    assert found["stages"]["verify"] > 0


def test_counts_by_hand():
    def work():
        kept = torch.empty(1000)  # 4000
        for _ in range(3):
            torch.empty(500) + 1  # two of 2000, one after the other freed
        kept.view(10, 100).t().add_(1).mul_(2)  # in place, through views: nothing
        return kept[:10]  # holds all of its storage

    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), LiveBytes() as live:
            rest = work()
            assert (live.live, live.peak) == (4000, 8000)
            del rest
            assert (live.live, live.peak) == (0, 8000)


def test_parts_of_a_composite_operation_are_seen():
    """A product of three matrices makes one in between, inside a single call."""
    a, b, c = torch.ones(100, 1), torch.ones(1, 50), torch.ones(50, 2)
    with torch.inference_mode(), LiveBytes() as live:
        torch.linalg.multi_dot([a, b, c]).sum()
        torch.einsum("ij,jk,kl->il", c.t(), b.t(), a.t())
    with torch.inference_mode(), profile(profile_memory=True) as seen:
        torch.linalg.multi_dot([a, b, c]).sum()
        torch.einsum("ij,jk,kl->il", c.t(), b.t(), a.t())
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    assert live.peak == max(itertools.accumulate(e.nbytes() for e in events)) > 400


def test_known_tensors_of_verify(stack):
    """Logits and features are alive at the end: with what the body leaves, that is the peak."""
    c, rows = stack.target.config, 1 + SETTINGS.budget
    found = stage_memory(stack, prompt(40), "dartree", SETTINGS)
    taps = len(stack.drafter.config.target_layer_ids)
    least = 4 * rows * (c.vocab_size + taps * c.hidden_size)
    assert least <= found["stages"]["verify"] < 1.2 * least
    assert found["round"] >= found["stages"]["verify"] + 4 * stack.drafter.config.drafts * 3000


def test_a_longer_prefix_takes_more_where_it_must(stack):
    short, long = (stage_memory(stack, prompt(n), "dartree", SETTINGS) for n in (40, 340))
    assert long["stages"]["mask"] - short["stages"]["mask"] >= 4 * 25 * 250
    c = stack.target.config
    row = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * 4
    assert long["kept"]["kv_cache"] - short["kept"]["kv_cache"] == 300 * row


@pytest.mark.parametrize("head", ["none", "domino", "markov"])
def test_what_stays_is_what_the_estimate_says(head):
    stack = random_stack(head=head, dtype=torch.float32)
    found = bench.memory_by_stage(stack, prompt(30), SETTINGS, 20)
    kept, need = found["methods"]["dartree"]["kept"], found["estimate"]
    config = stack.target.config.to_dict()
    assert need == vars(estimate(config, stack.drafter.config, SETTINGS, 50, 4, may_fuse=False))
    assert kept["fused"] == need["fused"] == 0
    for part in ("target", "drafter", "head"):
        assert kept[part] == need[part], part
    assert kept["head_tables"] == (need["head_tables"] if head == "domino" else 0)
    plain = found["methods"]["ar"]["kept"]
    assert (plain["target"], plain["drafter"], plain["drafter_cache"]) == (need["target"], 0, 0)


def test_a_second_drafter_may_leave_no_room_to_pack(monkeypatch):
    stack = random_stack(dtype=torch.float32)
    monkeypatch.setattr("dartree.memory.MOST_BYTES", 2**30)
    alone = bench.memory_by_stage(stack, prompt(9), SETTINGS, 4)["estimate"]
    monkeypatch.setattr("dartree.memory.MOST_BYTES", alone["packed"])
    assert bench.memory_by_stage(stack, prompt(9), SETTINGS, 4)["estimate"] == alone
    stack.marginal = random_stack(head="none", dtype=torch.float32, model=stack.target.model).main
    assert bench.memory_by_stage(stack, prompt(9), SETTINGS, 4)["estimate"]["packed"] == 0


def test_where_the_limit_leaves_no_round_one_is_measured_nevertheless(stack):
    most = stack.target.max_positions
    found = stage_memory(stack, prompt(most - 1), "dartree", SETTINGS)
    assert found["stages"]["verify"] > 0
    with pytest.raises(ValueError, match="prompt must be shorter"):
        stage_memory(stack, prompt(most), "dartree", SETTINGS)


@pytest.mark.parametrize("parts", ["all", "head"])
def test_a_compiled_stack_is_refused_and_its_sweep_goes_without(stack, eager_graphs, parts):
    compiled = eager_graphs(stack, parts)
    with pytest.raises(ValueError, match="stack must not be compiled"):
        stage_memory(compiled, prompt(5))
    rows = [{"id": "a", "domain": "a", "ids": prompt(9)}]
    swept = bench.sweep(compiled, rows, "prefix", (20,), max_new_tokens=6, repeats=1)
    assert swept["rows"] and "peak_mib" not in swept["rows"][0]
    assert "the methods: torch.compile, graphs: " in bench.format_sweep(swept)


def test_tables_and_the_prefix_sweep(stack):
    rows = [{"id": d, "domain": d, "ids": prompt(9)} for d in ("a", "b")]
    result = bench.bench(
        stack, rows, ["dartree"], SETTINGS, compiled=False, repeats=1, max_new_tokens=6, stop=[]
    )
    assert "drafter cache" not in bench.format_bench(result)
    result["stage_memory"] = bench.memory_by_stage(stack, prompt(9), SETTINGS, 6)
    text = bench.format_bench(result)
    for words in ("drafter cache", "Memory of one round", "of 9 tokens", "numpy", "estimates"):
        assert words in text
    json.dumps(result)
    swept = bench.sweep(stack, rows, "prefix", (20, 60), max_new_tokens=6, repeats=1)
    for row in swept["rows"]:
        ids = bench.long_prompt([r["ids"] for r in rows], 0, row["value"])
        found = stage_memory(stack, ids, row["method"], None, 6)
        want = found["kept"]["kv_cache"] + found["kept"]["drafter_cache"]
        assert row["peak_mib"] == (want + found["stages"]["verify"]) / 2**20
    assert "peak MiB" in bench.format_sweep(swept)
    other = bench.sweep(stack, rows, "width", (2,), max_new_tokens=6, repeats=1)
    assert "peak_mib" not in other["rows"][0] and "peak MiB" not in bench.format_sweep(other)
