"""The round model against sums done by hand, PyTorch's own FLOP counter, and published data."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import dartree
from dartree import memory, plots, public
from dartree.analysis import launches, published, roofline, scale
from dartree.analysis.roofline import (
    QWEN3_4B,
    QWEN3_8B,
    Device,
    DrafterShape,
    Engine,
    Load,
    ModelShape,
)
from dartree.configs import parse_drafter_config
from dartree.plots import scale as pictures

# 1 GB/s and 1 TFLOP/s: milliseconds are read off the bytes.
UNIT = Device("unit", bandwidth=1.0, tflops=1.0, memory=1.0)
PURE = Engine("pure", bandwidth_share=1.0, flops_share=1.0, head_call_ms=0.0)
SMALL = ModelShape("small", 2, 64, 4, 2, 16, 96, 500, tied=True)


@pytest.fixture(scope="module")
def counted():
    return launches.eager_engine(QWEN3_4B, 10.0)


@pytest.mark.parametrize(("shape", "billions"), [(QWEN3_4B, 4.02), (QWEN3_8B, 8.19)])
def test_parameters_are_those_of_the_library(shape, billions):
    """The published sizes, and transformers' own count of a model without data."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**shape.config()))
    assert sum(p.numel() for p in model.parameters()) == shape.parameters
    assert round(shape.parameters / 1e9, 2) == billions


def test_drafter_parameters_are_those_of_our_modules():
    from dartree.checkpoints import empty_drafter

    shape = roofline.DOMINO
    assert shape == DrafterShape(layers=5, taps=5, drafts=16, mlp=256, gru=1024)
    body, _ = empty_drafter(shape.config(QWEN3_4B))
    assert shape.parameters(QWEN3_4B) == sum(p.numel() for p in body.parameters())


def test_one_row_takes_its_bytes_over_the_bandwidth():
    """SMALL by hand: 2 layers of 64*16*2*(4+2) + 3*64*96 weights, table 500*64, cache 11 rows."""
    layer = 64 * 16 * 2 * 6 + 3 * 64 * 96
    cache = 11 * (2 * 2 * 2 * 16) * 2  # columns, (k and v, layers, heads, size), 2 bytes
    by_hand = (2 * (2 * layer + 500 * 64) + cache) / 1e9 * 1e3
    assert roofline.device_ms(SMALL, UNIT, PURE, 1, Load(10)) == pytest.approx(by_hand)
    passes = replace(PURE, kv_passes=3.0, row_bytes=100.0)
    more = by_hand + (2 * cache + 2 * 100) / 1e6
    assert roofline.device_ms(SMALL, UNIT, passes, 1, Load(10)) == pytest.approx(more)


@pytest.mark.parametrize(("rows", "prefix"), [(1, 0), (17, 10), (65, 200)])
def test_many_rows_take_the_flops_that_pytorch_counts(rows, prefix):
    """Where arithmetic is all that costs, time is FLOPs over peak, as counted by PyTorch."""
    endless = Device("endless memory", 1e15, 1.0, 1.0)
    target = launches._target(SMALL, SMALL.layers)
    with launches.on_meta():
        ids = torch.zeros(rows, dtype=torch.long)
        cache = launches._Growing(target.config, rows, torch.bfloat16, target.device)
        cache._data = torch.zeros(*cache._data.shape[:4], prefix + rows, SMALL.head_dim)
        cache._data, cache.length = cache._data.to(torch.bfloat16), prefix
        mask = torch.zeros(1, 1, rows, prefix + rows, dtype=torch.bfloat16)
        with FlopCounterMode(display=False) as counter:
            target.verify(cache, launches.TreeRows(ids, ids, mask))
    made = roofline.device_ms(SMALL, endless, PURE, rows, Load(prefix))
    flops = counter.get_total_flops()
    rotary = rows * SMALL.head_dim  # angles, which transformers 4 makes as a matrix product
    assert any(made == pytest.approx(n / 1e9) for n in (flops, flops - rotary))


def test_the_longer_of_launches_and_device_counts():
    slow = replace(PURE, launch_us=1000.0, layer_launches=10, fixed_launches=5)
    assert roofline.forward_ms(SMALL, UNIT, slow, 1, Load(10)) == pytest.approx(25.0)
    quick = replace(slow, launch_us=1e-6)
    device = roofline.device_ms(SMALL, UNIT, PURE, 1, Load(10))
    assert roofline.forward_ms(SMALL, UNIT, quick, 1, Load(10)) == pytest.approx(device)


def test_a_round_is_the_sum_of_its_stages():
    engine = replace(PURE, head_call_ms=2.0, step_ms=0.5, round_ms=0.25, launch_us=1.0,
                     draft_launches=300)  # fmt: skip
    made = roofline.round_ms(QWEN3_4B, UNIT, engine, 64, Load(10, 4))
    assert made["expand"] == 16 * 2.0 and made["host"] == 2 * 0.5 + 4 * 0.25
    assert made["commit"] == pytest.approx(4 * 36 * 1e-3)
    assert roofline.whole_round_ms(QWEN3_4B, UNIT, engine, 64, Load(10, 4)) == sum(made.values())
    assert roofline.round_ms(QWEN3_4B, UNIT, engine, 64, head_calls=0)["expand"] == 0


def test_memory_by_hand():
    """For two sequences of 1000 tokens with trees of 64; one way of counting, here and there."""
    parts = roofline.memory_gb(QWEN3_4B, Load(1000, 2), budget=64)
    assert parts["target weights"] == pytest.approx(8.045, abs=5e-4)
    tables = 151_936 * 3072 + (256 + 3072) * 1024
    assert parts["head tables (V x 3G)"] == pytest.approx(tables * 2 / 1e9)
    row = 2 * 8 * 128 * 2  # keys and values, heads, size, bytes; 36 layers, 5 drafter layers twice
    assert parts["KV caches"] == pytest.approx(2 * (1000 + 64 + 16) * row * (36 + 2 * 5) / 1e9)
    target, raw = public.DRAFTERS["Huang2020/Qwen3-4B-Domino-b16"]
    need = memory.estimate(
        public.target_config(target), parse_drafter_config(raw), dartree.TreeSettings(), 4096
    )
    parts = roofline.memory_gb(QWEN3_4B, Load(4096))
    kept = 1e9 * (sum(parts.values()) - parts["supertree"]) - need.table_left_out
    assert kept == pytest.approx(need.total)


def test_as_many_sequences_as_fit():
    batch = scale.longest_batch(QWEN3_4B, published.ADA, 4096)
    assert batch > 1 and scale.fits(roofline.memory_gb(QWEN3_4B, Load(4096, batch)), published.ADA)
    more = roofline.memory_gb(QWEN3_4B, Load(4096, batch + 1))
    assert not scale.fits(more, published.ADA)
    assert scale.longest_batch(QWEN3_8B, published.RTX5080, 4096) == 0


def test_flat_part_and_best_budget():
    cost = {1: 10.0, 2: 10.4, 4: 10.6, 8: 20.0}.__getitem__
    assert roofline.flat_until(cost, (1, 2, 4, 8)) == 2
    assert roofline.best_budget(lambda b: b**0.5, cost, (1, 2, 4, 8)) == 4
    assert roofline.best_budget(lambda b: 1.0, lambda b: 2.0, (4, 1, 2)) == 1, "ties: the smaller"
    curve = roofline.TauCurve(((16, 0.8), (64, 1.0)))
    assert curve(32) == pytest.approx(0.9) and (curve(8), curve(128)) == (0.8, 1.0)


def test_fit_finds_known_parameters():
    x = np.linspace(1, 5, 9)
    truth = np.array([3.0, 0.25])

    def residuals(p):
        return np.log(p[0] * np.exp(p[1] * x)) - np.log(truth[0] * np.exp(truth[1] * x))

    assert roofline.fit(residuals, (1.0, 1.0)) == pytest.approx(truth, rel=1e-3)


def test_counting_knows_views_repeats_and_one_attention():
    def work():
        a = torch.zeros(4, 6, device="meta")  # a kernel that writes 96 bytes
        b = a.t().expand(6, 4)[None] + 1  # views, and one kernel: 96 read, 96 written
        torch.nn.functional.scaled_dot_product_attention(b[None], b[None], b[None])

    assert launches.counted(work) == launches.Count(3, 96 + 192 + 4 * 96)
    wide = torch.zeros(1, 8, device="meta").expand(5, 8)
    assert launches._bytes(wide) == 32


def test_counts_of_the_real_layer(counted):
    """Seven matrices and attention at least; repeated keys: 2 + 2 copies, 4 + 1, 4 reads."""
    assert 40 < counted.layer_launches < 80 < counted.draft_launches
    assert counted.kv_passes == pytest.approx(11, abs=0.1)


def test_csv_files_say_where_each_number_comes_from():
    for name in ("devices", "round_times"):
        with published.file(name).open(encoding="utf-8", newline="") as lines:
            found = list(csv.DictReader(lines))
        assert found and all(row["source"].strip() for row in found)
    for row in published.rows():
        assert float(row["value"]) == pytest.approx(float(row["value"])) and row["unit"]
        assert row["hardware"] in published.devices()
    with pytest.raises(ValueError, match="0 published numbers"):
        published.number(id="nothing")


def test_data_sheet_numbers_follow_from_bus_and_clock():
    """Bandwidth and peak, each from three or two other numbers of the same device."""
    with published.file("devices").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            device = published.devices()[row["name"]]
            bus = int(row["bus_bits"]) * float(row["gbit_s_per_pin"]) / 8
            clocked = int(row["tensor_cores"]) * float(row["boost_ghz"])
            peak = int(row["flop_per_core_and_clock"]) * clocked / 1e3
            assert device.bandwidth == pytest.approx(bus, rel=0.01), row["name"]
            assert device.tflops == pytest.approx(peak, rel=0.01), row["name"]
            assert "not read again" in row["status"]


def test_published_numbers_agree_with_each_other():
    """Times, tau and speedups of Table 2 give one denominator, which is the implied one."""
    given = published.number(id="implied_ar")
    wanted = {"id": "table2", "benchmark": "GSM8K"}
    for method in ("dartree", "domino-ddtree", "heap"):
        tau, ms, speedup = (
            published.number(**wanted, method=method, quantity=q)
            for q in ("tau", "round", "speedup")
        )
        assert ms / tau * speedup == pytest.approx(given, rel=0.02)
    gains = scale.quoted_gains()
    assert gains["tau"] == pytest.approx(46.8, abs=0.15)
    assert gains["speedup"] == pytest.approx(40.1, abs=0.15)


def test_model_against_published_numbers(counted):
    """What the notebook says: rounds within 15 %, Table 4's crossings, and the fastest budgets."""
    serving = published.serving_engine()
    eager = published.eager_engines(counted, serving.flops_share)
    checks = {c.what: c for c in published.eager_checks(eager)}
    rounds = [c for what, c in checks.items() if what.startswith("dartree: round")]
    assert len(rounds) == 7 and all(0.85 < c.ratio < 1.15 for c in rounds)
    assert checks["one-token step"].ratio == pytest.approx(1) and checks["one-token step"].fitted
    assert any(abs(np.log(c.ratio)) > 0.5 for c in checks.values()), "the table hides nothing"
    for benchmark in ("GSM8K", "HumanEval"):
        curves = scale.serving_curves(serving, benchmark)
        for kind in ("published", "model"):
            assert scale.crossing(curves["dartree"][kind], curves["domino"][kind]) == 4
    assert all(0.6 < c.ratio < 1.6 for c in published.serving_checks(serving))
    assert all(0.5 <= c.ratio <= 2 for c in published.budget_checks(eager))


def test_adaptive_budgets_are_never_slower_and_shrink():
    engine = replace(PURE, flops_share=0.3, bandwidth_share=0.8, round_ms=2.0, token_ms=0.2)
    found = scale.adaptive_budgets(QWEN3_4B, published.ADA, engine, "GSM8K", (1, 4, 16, 64, 256))
    assert all(c.speedup >= c.fixed for c in found)
    budgets = [c.budget for c in found]
    assert budgets == sorted(budgets, reverse=True) and budgets[0] > budgets[-1]


def test_pictures():
    import matplotlib.pyplot as plt

    plots.use_style()
    engine = replace(PURE, flops_share=0.3)
    engines = scale.on_each_device(engine, {published.ADA: 0.3, published.H200: 0.4})
    curves = scale.round_curves(QWEN3_4B, engines, Load(100), (1, 64, 1024))
    fig, ax = plt.subplots()
    assert pictures.draw_round_curves(ax, curves, "title") is ax and len(ax.lines) == 4
    check = published.Check(published.ADA, "a round", 10.0, 12.0, "ms")
    assert "1.20" in published.table([check]) and "1 numbers" in published.spread([check])
    fig, ax = plt.subplots()
    pictures.draw_checks(ax, [check, replace(check, fitted=True)])
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a round", "a round"]
    fig, ax = plt.subplots()
    curves = {m: {"published": [2, 1], "model": [3, 1]} for m in ("dartree", "dartree-adaptive")}
    pictures.draw_concurrency(ax, curves, "model", (2, 4))
    assert ax.get_ylim()[1] > 3
    for draw in (pictures.draw_choices, pictures.draw_budget_choices):
        fig, ax = plt.subplots()
        draw(ax, {published.H200: [scale.Choice(1, 64, 3.0, 3.0), scale.Choice(2, 0, 1.0, 0.8)]})
        assert ax.get_legend()
    plt.close("all")
