"""The comparison: keys, definitions, prompts files."""

from __future__ import annotations

import json

import pytest
import torch

import dartree
from dartree.clock import STAGES
from dartree.compare import compare, format_table, load_prompts
from tests.reference import causal_logits, greedy, prompt, random_stack


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


def test_table_names_every_method_and_its_definitions(result):
    text = format_table(result[2])
    for words in ("ar", "dartree", "dflash", "pooled over prompts", "float32", "W 4, K 6, B 8"):
        assert words in text.replace("float64", "float32")


def test_a_method_that_is_not_lossless_is_called_out(result, monkeypatch):
    """A planted fault in the walk must show in the table."""
    stack, rows, _ = result
    from dartree import acceptance, decode

    def sloppy(tree, logits, chooser):
        verdict = acceptance.walk(tree, logits, chooser)
        if len(tree):
            verdict.next_anchor = int(tree.tokens[0])
        return verdict

    monkeypatch.setattr(decode, "walk", sloppy)
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
