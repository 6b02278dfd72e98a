"""The benchmark: what is divided by what, and that every row decodes the same text."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
import torch

import dartree
from dartree import baselines, bench
from dartree.analysis.cost import measure
from dartree.cli import main
from dartree.clock import STAGES
from dartree.packed import pack
from dartree.settings import TreeSettings
from tests.commands import STACK
from tests.reference import graphs, greedy, prompt, random_stack

ROWS = [{"id": "a", "domain": "d", "ids": prompt(5)}, {"id": "b", "domain": "d", "ids": prompt(9)}]


@pytest.fixture(scope="module")
def stack():
    return random_stack(dtype=torch.float64)


def test_hf_generate_is_plain_greedy_and_ends_where_it_should(stack):
    ids = prompt(6)
    out = baselines.hf_generate(stack, ids, max_new_tokens=12, stop=[])
    assert out.token_ids == greedy(stack.target.model, ids, 12)
    assert out.rounds == 11 and out.tau == 1 and out.stop_reason == "length"
    assert 0 < out.seconds["prefill"] < out.seconds["total"]
    stop = out.token_ids[4]
    first = out.token_ids.index(stop)
    cut = baselines.hf_generate(stack, ids, max_new_tokens=12, stop=[stop])
    assert cut.token_ids == out.token_ids[: first + 1] and cut.stop_reason == "stop"


def test_hf_generate_ends_for_the_reason_that_ar_gives(stack):
    """A stop token at the limit is a stop, and the model's context is not the caller's limit."""
    ids, room = prompt(6), stack.target.max_positions - 6
    last = greedy(stack.target.model, ids, 12)[-1]
    first = greedy(stack.target.model, ids, 12).index(last)
    full = prompt(stack.target.max_positions - 3)
    for tokens, length, stop, want in (
        (ids, first + 1, [last], "stop"),
        (ids, first + 1, [], "length"),
        (ids, room + 9, [last], "stop"),
        (full, 9, [], "context"),
    ):
        options = {"max_new_tokens": length, "stop": stop}
        ours = dartree.generate(stack, tokens, method="ar", **options)
        theirs = baselines.hf_generate(stack, tokens, **options)
        assert theirs.stop_reason == ours.stop_reason == want
        assert theirs.token_ids == ours.token_ids and theirs.text == ours.text


@pytest.mark.parametrize(
    "cut", [{}, {"temperature": 0.7, "top_k": 20}, {"top_p": 0.9, "min_p": 0.01}], ids=str
)
def test_hf_generate_draws_what_ar_draws(cut):
    stack, options = random_stack(dtype=torch.float32), {"temperature": 1.0, **cut, "stop": []}
    texts = []
    for seed in range(4):
        length = {"max_new_tokens": 24, "seed": seed}
        texts.append(baselines.hf_generate(stack, prompt(6), **length, **options).token_ids)
        ours = dartree.generate(stack, prompt(6), method="ar", **length, **options)
        assert ours.token_ids == texts[-1]
    assert len({tuple(ids) for ids in texts}) > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_hf_generate_takes_stop_ids_alone_from_the_generation_config(temperature):
    """Qwen3's own has a top_p: the methods do not cut their distribution with it either."""
    stack = random_stack(dtype=torch.float32)
    config = stack.target.model.generation_config
    config.top_p, config.repetition_penalty, config.suppress_tokens = 0.3, 5.0, [1, 2, 3]
    options = {"max_new_tokens": 24, "temperature": temperature, "seed": 1}
    ours = dartree.generate(stack, prompt(6), method="ar", **options).token_ids
    assert baselines.hf_generate(stack, prompt(6), **options).token_ids == ours
    config.eos_token_id = ours[5]
    cut = ours[: ours.index(ours[5]) + 1]
    assert baselines.hf_generate(stack, prompt(6), **options).token_ids == cut
    assert stack.target.model.generation_config is config and config.top_p == 0.3


def test_hf_generate_leaves_the_global_generator_alone(stack):
    torch.manual_seed(5)
    want = torch.rand(1)
    torch.manual_seed(5)
    one = baselines.hf_generate(stack, prompt(6), max_new_tokens=8, temperature=1.0, seed=3)
    two = baselines.hf_generate(stack, prompt(6), max_new_tokens=8, temperature=1.0, seed=3)
    assert one.token_ids == two.token_ids and torch.equal(torch.rand(1), want)


def test_every_row_is_lossless_and_its_ratios_are_what_they_say(stack):
    methods = ["dflash", "heap", "dartree"]
    result = bench.bench(
        stack, ROWS, methods, compiled=False, repeats=2, max_new_tokens=20, stop=[]
    )
    entries = {e["method"]: e for e in result["methods"]}
    assert list(entries) == ["ar", *methods, "hf-generate"]
    speed = {m: e["tokens_per_second"] for m, e in entries.items()}
    fastest = max(("ar", "hf-generate"), key=speed.get)
    assert result["fastest_baseline"] == fastest
    for name, e in entries.items():
        assert e["lossless"] is True
        assert e["speedup_fastest"] == pytest.approx(speed[name] / speed[fastest])
        assert e["speedup_hf"] == pytest.approx(speed[name] / speed["hf-generate"])
        assert sum(e["stage_ms"].values()) <= e["ms_per_round"] * 1.0001
        assert set(e["stage_ms"]) == set(STAGES)
    models = sum(entries["dartree"]["stage_ms"][s] for s in ("draft", "expand", "verify"))
    bound = entries["dartree"]["tau"] * entries["ar"]["ms_per_round"] / models
    assert entries["dartree"]["bound"] == pytest.approx(bound)
    text = bench.format_bench(result)
    assert all(line.split()[0] in text for line in (*entries, *STAGES))
    head, _, *lines = (re.split(r"  +", line) for line in text.splitlines()[: 2 + len(entries)])
    assert head.index("bound") == head.index("vs ar") + 1
    for cells, (name, e) in zip(lines, entries.items(), strict=True):
        assert cells[head.index("vs ar")] == f"{speed[name] / speed['ar']:.2f}"
        assert cells[head.index("bound")] == f"{e['bound']:.2f}"
    assert "2 prompts (2 d)" in text and "the length limit" in text and "mean of 2 repeats" in text


def test_sampled_benchmarks_compare_what_has_the_same_draws(stack):
    options = dict(compiled=False, max_new_tokens=12, stop=[], temperature=1.0)
    result = bench.bench(stack, ROWS, ["dartree"], repeats=2, prompts_file="p.jsonl", **options)
    lines = bench.format_bench(result).splitlines()
    ends = {line.split()[0]: line.split("%")[-1].strip() for line in lines[2:5]}
    assert ends == {"ar": "same ids", "dartree": "same ids", "hf-generate": "same ids"}
    assert any("2 prompts (p.jsonl)" in line for line in lines)
    assert any("no spread of sampling" in line for line in lines)


def test_the_compiled_baseline_compiles_nothing_while_it_is_timed(stack, monkeypatch, eager_graphs):
    made, found = [], []

    def keep(one, cuda_graphs):
        made.append(eager_graphs(one, cuda_graphs=cuda_graphs))
        return made[0]

    monkeypatch.setattr(bench, "compiled_stack", keep)
    monkeypatch.setattr(bench, "why_not", lambda: None)
    rows = [ROWS[0], {"id": "b", "domain": "d", "ids": prompt(70)}]
    bench.bench(stack, rows, ["dartree"], repeats=2, max_new_tokens=9, stop=[],
                progress=lambda _: found.append(graphs(made[0])))  # fmt: skip
    assert set(found) == {2} and len(found) == 2 * 2 * 4


def test_rows_that_do_not_use_packed_weights_are_named(monkeypatch, eager_graphs):
    """The graphs of ar-compiled; on a compiled stack the others, since hf-generate has none."""
    monkeypatch.setattr(bench, "compiled_stack", eager_graphs)
    monkeypatch.setattr(bench, "why_not", lambda: None)
    packed = random_stack(dtype=torch.float32)
    packed.packed = pack([packed.target.model, packed.drafter])
    options = dict(repeats=1, max_new_tokens=4, stop=[])
    result = bench.bench(packed, ROWS[:1], [], **options)
    assert [e["method"] for e in result["methods"] if not e["packed"]] == ["ar-compiled"]
    text = bench.format_bench(result)
    assert ", packed weights, " in text and "\nar-compiled: plain weights, since " in text
    result = bench.bench(eager_graphs(packed), ROWS[:1], ["domino"], **options)
    assert [e["method"] for e in result["methods"] if e["packed"]] == ["hf-generate"]
    text = bench.format_bench(result)
    assert ", packed weights, " not in text and "\nhf-generate: packed weights.\n" in text


def test_each_domain_is_divided_by_the_loop_that_is_fastest_there(stack, monkeypatch):
    """Tokens a second set by hand: `ar` wins the domain of 5 ids, hf-generate that of 9."""
    from dartree import compare

    speeds = {("ar", 5): 8.0, ("ar", 9): 2.0, ("dartree", 5): 4.0, ("dartree", 9): 9.0,
              ("hf-generate", 5): 1.0, ("hf-generate", 9): 3.0}  # fmt: skip

    def timed(true):
        def run(stack, ids, **options):
            out = true(stack, ids, **options)
            busy = (out.new_tokens - 1) / speeds[out.method, len(ids)]
            out.seconds.update(prefill=0.0, total=busy)
            return out

        return run

    monkeypatch.setattr(compare, "generate", timed(compare.generate))
    monkeypatch.setattr(bench, "hf_generate", timed(bench.hf_generate))
    rows = [{**ROWS[0], "domain": "sums"}, {**ROWS[1], "domain": "prose"}]
    options = dict(compiled=False, repeats=1, max_new_tokens=9, stop=[])
    result = bench.bench(stack, rows, ["dartree"], **options)
    found = {e["method"]: e["domains"] for e in result["methods"]}
    want = {"ar": (1, 2 / 3), "dartree": (0.5, 3), "hf-generate": (1 / 8, 1)}
    for method, (sums, prose) in want.items():
        assert found[method]["sums"]["speedup_fastest"] == pytest.approx(sums)
        assert found[method]["prose"]["speedup_fastest"] == pytest.approx(prose)
    line = "fastest one-token loop on each domain"
    text = bench.format_bench(result)
    assert f"{line}: sums: ar (prompts: 1), prose: hf-generate (prompts: 1)." in text
    assert "mean tokens/s: the mean of the domains' tokens/s" in text
    table = next(part for part in text.split("\n\n") if "sums: tokens/s" in part)
    assert table.splitlines()[0].endswith("  mean tokens/s")
    assert [row.split()[-1] for row in table.splitlines()[2:]] == ["5", "6", "2"]  # 6.5 to even
    assert [row.split()[:3] for row in table.splitlines()[2:]] == [
        ["ar", "8", "1.00"], ["dartree", "4", "0.50"], ["hf-generate", "1", "0.12"],
    ]  # fmt: skip
    assert line not in bench.format_bench(bench.bench(stack, ROWS, ["dartree"], **options))


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        ("budget", (2, 9)),
        ("width", (1, 3)),
        ("prefix", (16, 40)),
        ("threads", (1,)),
        ("depth_penalty", (0.0, 9.0)),
    ],
)
def test_sweeps_change_what_they_say(stack, parameter, values):
    threads = torch.get_num_threads()
    result = bench.sweep(stack, ROWS, parameter, values, max_new_tokens=8, repeats=1)
    assert torch.get_num_threads() == threads
    both = {"budget": {"heap", "dartree"}, "depth_penalty": {"dartree"}}
    methods = both.get(parameter, {"ar", "dartree"})
    assert [(r["value"], r["method"]) for r in result["rows"]] == [
        (v, m) for v in values for m in sorted(methods, key=["ar", "heap", "dartree"].index)
    ]
    for row in result["rows"]:
        if parameter == "budget":
            assert row["nodes_per_round"] == row["value"]
        if row["method"] == "dartree":
            assert row["head_calls_per_round"] == stack.drafter.config.drafts
    assert parameter in bench.format_sweep(result)


def test_a_heavy_penalty_leaves_the_first_level(stack):
    settings, options = TreeSettings(width=5, budget=5), {"max_new_tokens": 8, "stop": []}
    (row,) = bench.sweep(
        stack, ROWS, "depth_penalty", (1000.0,), settings=settings, repeats=1, **options
    )["rows"]
    flat = dataclasses.replace(settings, depth=1)
    outs = [dartree.generate(stack, row["ids"], settings=flat, **options) for row in ROWS]
    assert row["tau"] == sum(o.new_tokens - 1 for o in outs) / sum(o.rounds for o in outs)
    assert row["nodes_per_round"] == 5


def test_the_table_of_a_sweep_says_what_it_was_made_on(stack):
    settings = TreeSettings(width=5, candidates=8, budget=9, depth=3, score_temperature=2)
    options = {"settings": settings, "methods": ["dartree"], "max_new_tokens": 4, "repeats": 2}
    result = bench.sweep(stack, ROWS, "budget", (4,), **options, temperature=1.0, top_k=7)
    threads = "1 thread" if torch.get_num_threads() == 1 else f"{torch.get_num_threads()} threads"
    text = bench.format_sweep(result)
    on = "\n\nstack random, float64 on cpu"
    assert f"{on}, {threads}, 2 prompts, up to 4 new tokens, T = 1, top_k 7, mean of 2 rep" in text
    told = "beside budget: W 5, K 8, depth penalty 0.2, depth 3, score temperature 2.\n"
    assert told in text and "B 9" not in text
    swept = bench.sweep(stack, ROWS[:1], "threads", (1,), **options, prompts_file="mine")
    assert f"{on}, 1 prompt (mine), up to 4 new tokens, T = 0, " in bench.format_sweep(swept)


def test_the_drafters_weights_are_the_same_however_they_are_laid_out(monkeypatch):
    monkeypatch.setattr(bench, "peak_memory", lambda arguments: 0)
    plain, usual = (dartree.load_stack("tiny", pack=way, fuse=way) for way in (False, None))
    count = sum(p.numel() for part in (plain.drafter, plain.head) for p in part.parameters())
    assert bench.memory(plain, [])["drafter"] == bench.memory(usual, [])["drafter"] == 4 * count


def test_a_sweep_over_nothing_is_refused(stack):
    with pytest.raises(ValueError, match="prompts must hold one, got none"):
        bench.sweep(stack, [], "budget")
    with pytest.raises(ValueError, match="values of prefix must hold one that fits, got none"):
        bench.sweep(stack, ROWS, "prefix", (10_000,))


def test_a_sweep_of_chosen_methods(stack):
    only = bench.sweep(stack, ROWS, "budget", (4,), methods=["domino"], max_new_tokens=8, repeats=1)
    assert [row["method"] for row in only["rows"]] == ["domino"]
    with pytest.raises(ValueError, match="method must be one of"):
        bench.sweep(stack, ROWS, "budget", (4,), methods=["tree"])


def test_unknown_sweeps_are_refused(stack):
    with pytest.raises(ValueError, match="sweep must be one of budget"):
        bench.sweep(stack, ROWS, "speed")
    with pytest.raises(ValueError, match="settings must be a TreeSettings, got dict"):
        bench.sweep(stack, ROWS, "budget", settings={})
    with pytest.raises(ValueError, match="settings must be a TreeSettings, got dict"):
        measure(stack, ROWS, settings={})


def test_long_prompts_end_with_the_question_and_have_the_length_asked_for():
    prompts = [[1, 2, 3], [4, 5]]
    assert bench.long_prompt(prompts, 1, 7) == [3, 4, 5, 1, 2, 3, 4, 5][-7:]
    assert bench.long_prompt(prompts, 0, 2) == [2, 3]


def test_peak_memory_is_that_of_another_process():
    used = bench.peak_memory([*STACK, "--ids", "3,4", "--max-new-tokens", "4"])
    assert 50 * 2**20 < used < 4 * 2**30


def test_why_peak_memory_cannot_be_measured(monkeypatch):
    with pytest.raises(ValueError, match="cannot be measured: dartree: stack must be one of"):
        bench.peak_memory(["--stack", "giant", "--ids", "3"])
    long = ",".join(["3"] * 70_000)  # more than one argument of a process may hold
    with pytest.raises(ValueError, match="cannot be measured: dartree: prompt must be shorter"):
        bench.peak_memory([*STACK, "--ids", long])
    monkeypatch.setattr(bench, "_PEAK", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(ValueError, match="cannot be measured: it ended with status -9"):
        bench.peak_memory([])


def test_peak_memory_is_not_that_of_the_process_that_asks():
    line = [*STACK, "--ids", "3,4", "--max-new-tokens", "4"]
    before = bench.peak_memory(line)
    much = np.ones(3 * 2**27, dtype=np.uint8)  # 384 MiB, written to
    after = bench.peak_memory(line)
    assert much.any() and abs(after - before) < 2**27


def test_the_command_prints_a_table_and_writes_json(tmp_path, capsys):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps(ROWS[0]) + "\n")
    line = ["bench", *STACK, "--prompts", str(prompts), "--repeats", "1", "--max-new-tokens", "6"]
    where = str(tmp_path / "b.json")
    assert main([*line, "--methods", "dartree", "--no-compile", "--json", where]) == 0
    assert "hf-generate" in capsys.readouterr().out
    found = json.loads((tmp_path / "b.json").read_text())
    assert [e["method"] for e in found["methods"]] == ["ar", "dartree", "hf-generate"]
    assert found["prompts_file"] == "p.jsonl"
    assert main([*line, "--sweep", "width", "--json", where]) == 0
    assert json.loads((tmp_path / "b.json").read_text())[0]["prompts_file"] == "p.jsonl"
    assert "ms/round" in capsys.readouterr().out
    assert main([*line, "--sweep", "speed"]) == 2
    assert "sweep must be one of" in capsys.readouterr().err


def test_methods_run_at_settings_of_their_own(stack):
    settings = {"dartree": TreeSettings(width=2, budget=3), "domino": TreeSettings(depth=2)}
    methods = ["domino", "heap", "dartree"]
    result = bench.bench(
        stack, ROWS, methods, settings, compiled=False, repeats=1, max_new_tokens=10, stop=[]
    )
    rounds = {e["method"]: e["verified_nodes"] / e["rounds"] for e in result["methods"]}
    assert (rounds["domino"], rounds["dartree"]) == (2, 3)
    assert rounds["heap"] == stack.settings.budget
    text = bench.format_bench(result)
    assert "dartree: W 2, K 64, B 3" in text.replace("K 29", "K 64") and "domino: depth 2" in text


def test_threads_above_the_cores_are_left_out(stack):
    result = bench.sweep(stack, ROWS, "threads", (1, 10_000), max_new_tokens=4, repeats=1)
    assert {r["value"] for r in result["rows"]} == {1}
    assert dartree.METHODS  # the package is whole after the sweep
