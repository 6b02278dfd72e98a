"""The measurements of a card, and the data folder that a finished training leaves."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch

from dartree.compare import compare
from dartree.settings import TreeSettings
from dartree.stack import data_dir
from dartree.training import card, card_text, commands, evaluation, stack
from dartree.training.stack import LOGS
from tests.reference import random_stack


def test_repetition_counts_4_grams_that_stood_there_before():
    assert evaluation.repeated_4_grams([1, 2, 3, 4, 5, 6, 7]) == 0
    assert evaluation.repeated_4_grams([9] * 13) == pytest.approx(0.9)  # 10 grams, 1 of them new
    assert evaluation.repeated_4_grams([1, 2]) == 0


def test_final_numbers_and_sources_are_read_from_answers():
    assert evaluation.final_number("3 + 4 = 7 pens.\nThe answer is 7.") == "7"
    assert evaluation.final_number("The answer is 7. Or not.") is None
    assert evaluation.source_of("Text\n```python\nx = 1\n```\nmore") == "x = 1"
    assert evaluation.source_of("no block") is None


def test_functions_are_alike_when_they_return_the_same_and_loops_end():
    double = "def f(values):\n    return [value * 2 for value in values]"
    loop = "def f(v):\n    out = []\n    for x in v:\n        out.append(x + x)\n    return out"
    wrong, broken = double.replace("* 2", "* 3"), "def f(values:"
    pairs = [(double, other, "f", "numbers") for other in (loop, wrong, broken, "")]
    assert evaluation.functions_alike(pairs) == [True, False, False, False]
    endless = [(double, "def f(v):\n    while True: pass", "f", "numbers")]
    assert evaluation.functions_alike(endless, timeout=2) == [False]


def test_perplexity_is_that_of_a_plain_forward_over_the_answer():
    class Words:
        """Ids of single characters."""

        def __call__(self, texts):
            return {"input_ids": [[ord(c) % 50 for c in text] for text in texts]}

    model = random_stack(seed=1).target.model.float()
    rows = [{"domain": "prose", "prompt": "Hi?", "answer": "Yes, so."},
            {"domain": "prose", "prompt": "Why?", "answer": "No."}]  # fmt: skip
    total, count = 0.0, 0
    for row in rows:
        head = f"<|im_start|>user\n{row['prompt']}<|im_end|>\n<|im_start|>assistant\n"
        ids = Words()([head])["input_ids"][0]
        for c in row["answer"] + "<|im_end|>":
            logits = model(torch.tensor([ids])).logits[0, -1].detach()
            ids = [*ids, ord(c) % 50]
            total -= float(logits.log_softmax(-1)[ids[-1]])
            count += 1
    found = evaluation.perplexity(model, Words(), rows)["prose"]
    assert found["tokens"] == count
    assert found["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)


def test_tau_of_a_domain_is_pooled_over_its_prompts():
    domains = ("code", "code", "prose", "prose")
    prompts = [{"id": str(i), "domain": d, "ids": [3, i]} for i, d in enumerate(domains)]
    result = compare(random_stack(), prompts, ["domino"], max_new_tokens=9, stop=[])
    rounds = result["methods"][1]["accepted_per_round"]
    code, prose = (rounds[0] + rounds[1], rounds[2] + rounds[3])
    taus = [sum(code) / len(code), sum(prose) / len(prose)]
    table = card.tau_by_domain(result)["domino"]
    assert table == {"code": taus[0], "prose": taus[1], "mean": sum(taus) / 2}


def test_the_steps_lead_from_nothing_to_two_stacks(tmp_path, capsys):
    args = commands.parse(["stack", "--out", str(tmp_path), "--seed", "3"])
    folder = tmp_path / "tiny"
    lines = stack.steps(args, folder)
    assert [line[0] for _, line in lines] == ["corpus", "tokenizer", "target"] + 3 * ["drafter"]
    for _, line in lines:  # every line is one that the command takes
        assert commands.parse(line).seed == 3
    for path, _ in lines:  # as if all of them were done
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if not path.suffix else path.write_text("{}\n")
    (folder / "prompts").mkdir()
    for name in LOGS:
        (folder / f"{name}.jsonl").write_text('{"step": 1}\n')
    assert commands.main(["stack", "--out", str(tmp_path), "--seed", "3"]) == 0
    assert capsys.readouterr().out.count("is there") == 6
    for name in ("tiny", "tiny-dspark"):
        place = folder / "data" / "stacks" / name
        told = json.loads((place / "stack.json").read_text())
        assert all((place / told[part]).is_dir() for part in ("target", "drafter", "dflash"))
    assert sorted(p.stem for p in (folder / "data/stacks/tiny/logs").iterdir()) == sorted(LOGS)


def test_a_card_without_stacks_is_one_sentence(tmp_path, capsys):
    assert commands.main(["card", "--out", str(tmp_path)]) == 2
    assert "run `dartree train stack` first" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tiny", "tiny-dspark"])
def test_the_committed_cards_are_made_from_their_measurements(name):
    folder = data_dir() / "stacks" / name
    measured = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert card_text.render(measured) == (folder / "card.md").read_text(encoding="utf-8")


def test_a_tuning_enters_card_and_stack(tmp_path, monkeypatch):
    monkeypatch.setenv("DARTREE_DATA", "")  # the command sets it: put it back afterwards
    bundled, place = data_dir() / "stacks" / "tiny", tmp_path / "data" / "stacks" / "tiny"
    place.mkdir(parents=True)
    for name in ("card.json", "stack.json"):
        shutil.copy(bundled / name, place / name)
    settings = TreeSettings(width=3, budget=7, depth_penalty=0.0).to_dict()
    trial = {
        "settings": settings,
        "tau": 2.5,
        "tokens_per_second": 123.0,
        "speedup": 4.5,
        "repeats": 3,
    }
    tuned = {
        "methods": {"dartree": [trial]}, "stack": "tiny", "on": "stack tiny, here",
        "compiled": "head", "prompts": 24, "max_new_tokens": 96, "repeats": 3,
    }  # fmt: skip
    (tmp_path / "tuned.json").write_text(json.dumps(tuned))
    data = str(tmp_path / "data")
    assert commands.main(["card", "--data", data, "--tuned", str(tmp_path / "tuned.json")]) == 0
    assert json.loads((place / "stack.json").read_text())["tuned"] == {"dartree": settings}
    text = (place / "card.md").read_text()
    assert "| dartree | fastest | 3 | 64 | 7 | - | 0 | 2.50 | 123 | 4.50 | 1 |" in text
    assert "stack tiny, here, torch.compile: head, 24 prompts" in text


def test_a_card_says_on_what_it_was_measured():
    """Packed weights too; cards that were made before they were known keep their words."""
    measured = json.loads((data_dir() / "stacks/tiny/card.json").read_text(encoding="utf-8"))
    rows = [{"id": "a", "domain": "code", "ids": [3, 4]}]
    result = compare(random_stack(dtype=torch.float32), rows, ["domino"], max_new_tokens=9, stop=[])
    for packed in (True, False):
        result["methods"][0]["packed"] = packed
        measured["greedy"]["64"]["on"] = card.summary(result, rows)["on"]
        line = next(s for s in card_text.render(measured).splitlines() if "one repeat; " in s)
        assert ("float32 on cpu, packed weights, " in line) == packed
        assert ("float32 on cpu, " in line) and "threads, float32" not in line


def test_tuned_settings_stay_with_their_weights(tmp_path):
    path, sums = tmp_path / "card.json", {"target/model.safetensors": "12ab"}
    assert card.tuned_before(path, sums) == {}
    path.write_text(json.dumps({"checksums": sums, "tuned": {"prompts": 24}}))
    assert card.tuned_before(path, sums) == {"tuned": {"prompts": 24}}
    assert card.tuned_before(path, {"target/model.safetensors": "34cd"}) == {}
