"""The comparison: keys, definitions, prompts files."""

from __future__ import annotations

import json

import pytest
import torch

import dartree
from dartree.clock import STAGES
from dartree.compare import compare, format_table
from dartree.methods import TABLE
from dartree.prompt_files import load_prompts
from tests.reference import causal_logits, graphs, greedy, prompt, random_stack


@pytest.fixture(scope="module")
def result():
    stack = random_stack()
    rows = [{"id": f"p{i}", "domain": "d", "ids": prompt(5, i)} for i in range(3)]
    settings = dartree.TreeSettings(width=4, candidates=6, budget=8)
    out = compare(stack, rows, ["dartree", "dflash"], settings, max_new_tokens=12, repeats=2,
                  stop=[])  # fmt: skip
    return stack, rows, out


def test_entries(result):
    stack, rows, out = result
    assert [e["method"] for e in out["methods"]] == ["ar", "dartree", "dflash"]
    assert {"methods", "prompts", "machine", "versions"} <= out.keys()
    for entry in out["methods"]:
        assert entry["lossless"] is True
        for ids, row in zip(entry["token_ids"], rows, strict=True):
            assert ids == greedy(stack.target.model, row["ids"], 12)
        assert entry["new_tokens"] == 36
        flat = [a for per_prompt in entry["accepted_per_round"] for a in per_prompt]
        assert sum(flat) + 3 == 36 and entry["rounds"] == len(flat)
        assert entry["tau"] == pytest.approx(sum(flat) / len(flat))
        means = [sum(a) / len(a) for a in entry["accepted_per_round"]]
        assert entry["tau_per_prompt"] == pytest.approx(sum(means) / 3)
        assert set(entry["seconds"]) == {"prefill", "total", *STAGES}
        busy = entry["seconds"]["total"] - entry["seconds"]["prefill"]
        assert entry["tokens_per_second"] == pytest.approx(33 / busy)
        low, high = entry["tokens_per_second_range"]
        assert low <= high
    ar, tree, flash = out["methods"]
    assert ar["tau"] == 1 and ar["speedup"] == 1 and ar["verified_nodes"] == 0
    assert tree["settings"]["budget"] == 8 and tree["head_calls"] == 6 * tree["rounds"]
    assert flash["settings"]["width"] is None and "without the head" in flash["drafter"]
    json.dumps(out)


def test_domains_are_pooled_alone(monkeypatch):
    """Times by hand: seconds a token by domain, three repeats of which the middle one counts."""
    from dartree import compare as module

    rows = [{"id": str(i), "domain": "abb"[i], "ids": prompt(4 + i, i)} for i in range(3)]
    pace, calls, true = {4: 1.0, 5: 2.0, 6: 5.0}, {}, module.generate

    def timed(stack, ids, **options):
        out = true(stack, ids, **options)
        key = options["method"], len(ids), options["max_new_tokens"]
        calls[key] = calls.get(key, 0) + 1
        busy = pace[len(ids)] * (out.new_tokens - 1) * (3, 1, 2)[(calls[key] - 1) % 3]
        out.seconds.update(prefill=7.0, total=7.0 + busy)
        return out

    monkeypatch.setattr(module, "generate", timed)
    out = compare(random_stack(), rows, ["dartree"], max_new_tokens=11, repeats=3, stop=[])
    for entry in out["methods"]:
        a, b = entry["domains"]["a"], entry["domains"]["b"]
        assert list(entry["domains"]) == ["a", "b"] and (a["prompts"], b["prompts"]) == (1, 2)
        assert a["tokens_per_second"] == pytest.approx(10 / 20)
        assert b["tokens_per_second"] == pytest.approx(20 / (40 + 100))
        assert entry["tokens_per_second"] == pytest.approx(30 / 160)
        first, *rest = entry["accepted_per_round"]
        assert a["tau"] == pytest.approx(10 / len(first))
        assert b["tau"] == pytest.approx(20 / sum(map(len, rest)))


def by_hand(monkeypatch, table):
    """Seconds of a run's rounds: ``table`` by the length of the prompt, by repeat."""
    from dartree import compare as module

    calls, true = {}, module.generate

    def timed(stack, ids, **options):
        out = true(stack, ids, **options)
        key = options["method"], len(ids), options["max_new_tokens"]
        calls[key] = calls.get(key, 0) + 1
        row = table[len(ids)]
        busy = row[(calls[key] - 1) % len(row)]
        out.seconds.update(dict.fromkeys(STAGES, 0.0))
        out.seconds.update(prefill=7.0, total=7.0 + busy, draft=busy / 2, verify=busy / 2)
        return out

    monkeypatch.setattr(module, "generate", timed)


@pytest.mark.parametrize(
    ("table", "busy", "of_domains"),
    [
        ({4: (1,), 5: (6,)}, 7, (1, 6)),
        ({4: (1, 5), 5: (6, 1)}, 6.5, (3, 3.5)),  # each prompt's faster run would give 2
        ({4: (1, 5, 9), 5: (9, 1, 8)}, 10, (5, 8)),
        ({4: (1, 2, 3, 4), 5: (40, 30, 20, 10)}, 27.5, (2.5, 25)),
    ],
)
def test_times_are_those_of_the_middle_repeat(monkeypatch, table, busy, of_domains):
    by_hand(monkeypatch, table)
    rows = [{"id": str(n), "domain": f"of {n}", "ids": prompt(n)} for n in table]
    repeats = len(table[4])
    out = compare(random_stack(), rows, ["dartree"], max_new_tokens=11, repeats=repeats, stop=[])
    for entry in out["methods"]:
        seconds = entry["seconds"]
        assert seconds["prefill"] == 14 and seconds["total"] == pytest.approx(14 + busy)
        assert sum(seconds[s] for s in STAGES) == pytest.approx(busy)
        assert entry["tokens_per_second"] == pytest.approx(20 / busy)
        whole = [20 / (a + b) for a, b in zip(*table.values(), strict=True)]
        assert entry["tokens_per_second_range"] == pytest.approx([min(whole), max(whole)])
        speeds = [d["tokens_per_second"] for d in entry["domains"].values()]
        assert speeds == pytest.approx([10 / one for one in of_domains])
        runs = [[{"prefill": 7, "total": 7 + t} for t in row] for row in table.values()]
        assert entry["seconds_per_run"] == runs
    assert "range" in format_table(out).splitlines()[0].split() or repeats == 1


def test_nothing_is_said_of_rounds_that_never_were():
    rows = [{"id": "a", "domain": "x", "ids": [3, 4]}]
    table = format_table(compare(random_stack(), rows, ["dartree"], max_new_tokens=1))
    row = next(line for line in table.splitlines() if line.startswith("dartree"))
    assert row.split()[1:7] == ["-"] * 6


def test_the_range_is_printed_only_where_there_is_one(monkeypatch):
    by_hand(monkeypatch, {4: (1, 4)})
    rows, options = [{"id": "a", "domain": "d", "ids": prompt(4)}], dict(max_new_tokens=11, stop=[])
    two = format_table(compare(random_stack(), rows, ["dartree"], repeats=2, **options))
    assert "2.5-10.0" in two and "mean of 2 repeats" in two and "slowest and fastest" in two
    one = format_table(compare(random_stack(), rows, ["dartree"], **options))
    assert " range" not in one and ", 1 repeat;" in one


@pytest.fixture
def taper():
    """`dartree` under another name, as a reader would add a method."""
    dartree.add_method("taper", TABLE["dartree"].propose)
    yield
    del TABLE["taper"]


def test_settings_are_said_of_the_methods_that_had_them(taper):
    rows = [{"id": "a", "domain": "d", "ids": prompt(4)}]
    settings = {"taper": dartree.TreeSettings(width=30, candidates=8, budget=40), "heap": None,
                "dartree": dartree.TreeSettings(width=2, candidates=8, budget=3)}  # fmt: skip

    def lines(methods):
        out = compare(random_stack(), rows, methods, settings, max_new_tokens=4)
        return [line for line in format_table(out).splitlines() if ", depth " in line]

    assert lines(["dartree", "taper"]) == [
        "dartree: W 2, K 8, B 3, depth penalty 0.2, depth 6.",
        "taper: W 30, K 8, B 40, depth penalty 0.2, depth 6.",
    ]
    assert not any(line.startswith("dartree:") for line in lines(["domino", "taper"]))


def test_the_table_says_what_is_not_as_usual():
    rows = [{"id": "a", "domain": "d", "ids": prompt(4)}]
    own = dartree.TreeSettings(2, 8, 3, normalise="vocabulary", score_temperature=0.5)
    methods, options = ["domino", "ddtree", "dartree"], {"max_new_tokens": 4}

    def text(settings=None, **sampling):
        return format_table(compare(random_stack(), rows, methods, settings, **options, **sampling))

    told, usual = text(own, top_p=0.25), text(temperature=1.0, top_p=0.25, min_p=0.125)
    end = "depth 6, score temperature 0.5, scores over the vocabulary."
    assert f"dartree: W 2, K 8, B 3, depth penalty 0.2, {end}" in told
    assert "ddtree: K 3, B 3, depth penalty 0, depth 6, score temperature 0.5.\n" in told + "\n"
    assert "domino: depth 6." in told and "top_p" not in told  # greedy all the same
    assert "vocabulary" not in usual and "score temperature" not in usual
    assert ", T = 1, top_p 0.25, min_p 0.125, 1 repeat; " in usual


def test_the_table_says_which_prompts(result):
    stack, rows, out = result
    assert "3 prompts (3 d)" in format_table(out) and out["prompts_file"] is None
    out = compare(stack, rows, ["domino"], max_new_tokens=4, prompts_file="mine.jsonl")
    assert "3 prompts (mine.jsonl)" in format_table(out) and out["prompts_file"] == "mine.jsonl"


def test_tau_counts_a_cut_round_as_it_was_cut():
    stack = random_stack()
    options = dict(settings=dartree.TreeSettings(4, 6, 8), stop=[])
    rows = [{"id": str(i), "domain": "d", "ids": prompt(5, i)} for i in range(8)]
    for row in rows:
        whole = dartree.generate(stack, row["ids"], max_new_tokens=30, **options).accepted_per_round
        at = next((i for i, n in enumerate(whole[:-1]) if n > 1), None)
        if at is not None:
            break
    limit = 1 + sum(whole[:at]) + 1  # the last token is the first of a round with more
    out = compare(stack, [row], ["dartree"], max_new_tokens=limit, **options)
    cut = [*whole[:at], 1]
    assert out["methods"][1]["tau"] == sum(cut) / len(cut) < sum(whole[: at + 1]) / len(cut)
    assert "only those up to its stop token or the length limit" in format_table(out)


def plant_a_fault_in_the_walk(monkeypatch):
    """From now on the next anchor is the draft tree's first token, whatever the target says."""
    from dartree import acceptance, decode

    def sloppy(tree, logits, chooser):
        verdict = acceptance.walk(tree, logits, chooser)
        if len(tree):
            verdict.next_anchor = int(tree.tokens[0])
        return verdict

    monkeypatch.setattr(decode, "walk", sloppy)


def test_sampled_texts_are_those_of_plain_decoding(monkeypatch):
    stack, rows = random_stack(), [{"id": f"{n}", "domain": "d", "ids": prompt(n)} for n in (4, 6)]
    options = dict(max_new_tokens=16, temperature=0.9, seed=3, repeats=2, stop=[])
    out = compare(stack, rows, None, **options)
    greedy_ids = [greedy(stack.target.model, row["ids"], 16) for row in rows]
    for entry in out["methods"]:
        assert entry["same_ids"] is True and entry["lossless"] is None
        assert entry["token_ids"] == out["methods"][0]["token_ids"] != greedy_ids
    text = format_table(out)
    assert text.count("same ids") == 8 and "seed 3" in text and "no spread of sampling" in text
    assert "no spread" not in format_table(compare(stack, rows, [], **{**options, "repeats": 1}))
    plant_a_fault_in_the_walk(monkeypatch)
    out = compare(stack, rows, ["dartree"], **options)
    assert out["methods"][1]["same_ids"] is False and "other ids" in format_table(out)


def test_nothing_is_compiled_while_it_is_timed(eager_graphs):
    """The second prompt needs a larger cache, so that its graphs are others."""
    stack = eager_graphs(random_stack(dtype=torch.float32))
    rows = [{"id": str(n), "domain": "d", "ids": prompt(n)} for n in (4, 70)]
    settings, found = dartree.TreeSettings(4, 6, 8), []
    out = compare(stack, rows, ["domino", "dartree"], settings, max_new_tokens=40, repeats=2,
                  stop=[], progress=lambda _: found.append(graphs(stack)))  # fmt: skip
    assert len(found) == 12 and len(set(found)) == 1 and found[0] == graphs(stack) > 6
    assert all(entry["lossless"] for entry in out["methods"])


def test_table_names_every_method_and_its_definitions(result):
    text = format_table(result[2])
    for words in ("ar", "dartree", "dflash", "pooled over prompts", "float32", "W 4, K 6, B 8"):
        assert words in text.replace("float64", "float32")


def test_a_method_that_is_not_lossless_is_called_out(result, monkeypatch):
    """A planted fault in the walk must show in the table."""
    stack, rows, _ = result
    plant_a_fault_in_the_walk(monkeypatch)
    out = compare(stack, rows, ["dartree"], max_new_tokens=12, stop=[])
    assert out["methods"][1]["lossless"] is False and " NO " in format_table(out)
    (plain, tree), first = out["methods"], out["methods"][1]["differences"][0]
    index = [row["id"] for row in rows].index(first["prompt"])
    ours, theirs = tree["token_ids"][index], plain["token_ids"][index]
    at = first["position"]
    assert ours[:at] == theirs[:at] and ours[at] != theirs[at]
    logits = causal_logits(stack.target.model, rows[index]["ids"] + theirs[:at])[-1]
    best = logits.topk(2).values
    assert first["gap"] == pytest.approx(float(best[0] - best[1]), rel=1e-4)
    assert "texts differ from ar" in format_table(out) and plain["differences"] == []


def test_gaps_of_raw_prompts_are_measured_without_the_template(monkeypatch):
    plant_a_fault_in_the_walk(monkeypatch)
    stack, row = dartree.load_stack("tiny"), {"id": "a", "domain": "d", "prompt": "Once upon"}
    out = compare(stack, [row], ["dartree"], max_new_tokens=12, raw=True)
    plain, tree = out["methods"]
    (found,) = tree["differences"]
    ids = stack.tokenizer("Once upon", add_special_tokens=False)["input_ids"]
    assert len(ids) == plain["prompt_tokens"][0]
    so_far = plain["token_ids"][0][: found["position"]]
    best = causal_logits(stack.target.model, ids + so_far)[-1].topk(2).values
    assert found["gap"] == pytest.approx(float(best[0] - best[1]), rel=1e-3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not JSON"),
        ("[]", "line 2 must be an object"),
        ('{"id": "b", "prompt": "x"}', "line 2 must be an object"),
        ('{"id": "b", "domain": "d"}', "line 2 must hold exactly one of"),
        ('{"id": "b", "domain": "d", "prompt": ""}', "line 2 must hold exactly one of"),
        ('{"id": "b", "domain": "d", "prompt": "x", "ids": [1]}', "line 2 must hold exactly one"),
        ('{"id": "b", "domain": "d", "ids": "1"}', "line 2: 'ids' must be a list"),
        ('{"id": "b", "domain": "d", "ids": [true]}', "line 2: 'ids' must be a list of integers"),
        ('{"id": [1], "domain": {"a": 1}, "prompt": "x"}', "line 2 must be an object with the"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('{"id": "b", "domain": "d", "prompt": [1]}', "line 2: 'prompt' must be a str"),
        ('{"id": "a", "domain": "e", "prompt": "x"}', "line 2 repeats the id 'a' of line 1"),
        ('{"id": "b", "domain": "d", "ids": [' + "1" * 10**4 + "]}", "line 2 is not JSON"),
    ],
)
def test_bad_prompt_lines(tmp_path, line, words):
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "domain": "d", "prompt": "hi"}\n' + line + "\n")
    with pytest.raises(ValueError, match=words):
        load_prompts(path)


def test_a_line_ends_at_a_line_feed_alone(tmp_path):
    row = {"id": "a", "domain": "d", "prompt": "one\u2028two\x85three"}
    (tmp_path / "p.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\r\n", newline="")
    assert load_prompts(tmp_path / "p.jsonl") == [row]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(stack=None), "stack must be a Stack, got NoneType"),
        (dict(prompts=[]), "prompts must be a list of rows, and not empty"),
        (dict(prompts="hi"), "prompts must be a list of rows"),
        (dict(prompts=[{"id": "a", "ids": [1]}]), "prompt 1 must be an object with the texts"),
        (dict(prompts=[{"id": "a", "domain": "d"}]), "prompt 1 must hold exactly one of"),
        (dict(methods="dartree"), "methods must be a list of names, got 'dartree'"),
        (dict(methods=5), "methods must be a list of names, got 5"),
        (dict(settings=5), "settings must be a TreeSettings"),
        (dict(settings={"heap": dartree.TreeSettings(10**6)}, methods=["heap"]), "width must be"),
        (dict(repeats=0), "repeats must be"),
        (
            dict(settings={"dartre": dartree.TreeSettings()}),
            r"keyed by methods \(ar, .*\), got 'dartre'",
        ),
        (dict(settings={"hf-generate": None}), "settings must be keyed by methods"),
        (dict(settings={3: None}), "settings must be keyed by methods .*, got 3"),
    ],
    ids=str,
)
def test_bad_arguments_are_found_before_anything_runs(change, words, monkeypatch):
    monkeypatch.setattr("dartree.compare.generate", lambda *_, **__: pytest.fail("it ran"))
    good = dict(stack=random_stack(), prompts=[{"id": "a", "domain": "d", "ids": [3]}])
    with pytest.raises(ValueError, match=words):
        compare(**{**good, **change})


def test_the_table_says_which_methods_lacked_a_head(result):
    rows = [{"id": "a", "domain": "d", "ids": [3, 4]}]
    out = compare(random_stack(head="none"), rows, ["dflash", "heap", "dartree"], max_new_tokens=4)
    note = "heap, dartree: the drafter has no correction head"
    assert note in format_table(out) and "no correction head" not in format_table(result[2])


def test_prompt_files(tmp_path):
    path = tmp_path / "p.jsonl"
    with pytest.raises(ValueError, match="cannot be read"):
        load_prompts(path)
    with pytest.raises(ValueError, match="path must be a path, got NoneType"):
        load_prompts(None)
    with pytest.raises(ValueError, match="limit must be an integer"):
        load_prompts(path, "2")
    path.write_text("\n\n")
    with pytest.raises(ValueError, match="holds no prompts"):
        load_prompts(path)
    rows = [{"id": str(i), "domain": "ab"[i % 2], "prompt": "x"} for i in range(6)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert [r["id"] for r in load_prompts(path, limit=2)] == ["0", "1", "2", "3"]


def test_in_half_precision_only_near_ties_may_differ():
    """bf16 has 8 bits: logits of this size are within 0.5 of each other where an argmax flips."""
    stack = random_stack(dtype=torch.bfloat16)
    rows = [{"id": str(i), "domain": "d", "ids": prompt(6, i)} for i in range(12)]
    out = compare(stack, rows, ["domino", "dartree"], max_new_tokens=24, stop=[])
    size = stack.target.prefill(stack.target.new_cache(6), torch.tensor(prompt(6))).logits.std()
    for entry in out["methods"]:
        assert entry["lossless"] is (entry["differences"] == [])
        assert all(d["gap"] < 0.05 * float(size) for d in entry["differences"])
    assert "bfloat16" in format_table(out)
