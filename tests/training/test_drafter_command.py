"""`dartree train drafter` from a small corpus and a random target to a stack that decodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import dartree
from dartree.training import commands, regenerate, target
from tests.training.drafter_fixtures import small_corpus

LINE = "--answers 6 --steps 2 --batch 2 --anchors 4 --tau-prompts 1 --tau-every 2 --log-every 1"
SMALL = {"hidden_size": 32, "num_hidden_layers": 8, "intermediate_size": 48, "head_dim": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder that holds the preset: corpus, tokenizer and a random target."""
    from transformers import AutoTokenizer

    out = small_corpus(tmp_path_factory.mktemp("train"), scale=0.002, held=34, entries=500)
    tokenizer = AutoTokenizer.from_pretrained(out / "tiny" / "tokenizer")
    model = target.new_model("tiny", tokenizer, 0, **SMALL)
    target.export(model, out / "tiny" / "tokenizer", out / "tiny" / "target")
    return out


def command(folder: Path, *line: str) -> int:
    return commands.main(["drafter", "--out", str(folder), *LINE.split(), *line])


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(regenerate, "SHARD", 6)
    monkeypatch.setattr(regenerate, "MAX_NEW_TOKENS", 12)


@pytest.mark.parametrize(
    ("head", "name", "method"),
    [
        ("domino", "drafter", "dartree"),
        ("none", "dflash", "ddtree"),
        ("markov", "dspark", "domino"),
    ],
)
def test_command_gives_a_stack_that_decodes(folder, head, name, method):
    assert command(folder, "--head", head) == 0
    rows = [json.loads(line) for line in (folder / "tiny" / f"{name}.jsonl").open()]
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[-1]["tau"].keys() == {"arithmetic", "code", "prose"}
    stack = dartree.load_stack(target=folder / "tiny" / "target", drafter=folder / "tiny" / name)
    plain = dartree.generate(stack, "Two and two?", method="ar", max_new_tokens=8)
    drafted = dartree.generate(stack, "Two and two?", method=method, max_new_tokens=8)
    assert drafted.token_ids == plain.token_ids


def test_a_body_can_start_from_another_drafter(folder, capsys):
    from safetensors.torch import load_file

    assert command(folder, "--head", "domino") == 0
    start = folder / "tiny" / "drafter"
    line = ["--head", "markov", "--init", str(start), "--learning-rate", "1e-9"]
    assert command(folder, *line) == 0
    old = load_file(start / "model.safetensors")
    new = load_file(folder / "tiny" / "dspark" / "model.safetensors")
    body = [name for name in old if name.startswith(("layers.", "fc.", "norm."))]
    assert len(body) > 20 and all(
        torch.allclose(old[name].float(), new[name].float(), atol=1e-6) for name in body
    )
    assert command(folder, "--head", "none", "--init", str(start)) == 2
    assert "shift_label" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (["--taps", "8"], "taps"),
        (["--anchors", "0"], "anchors"),
        (["--learning-rate", "0"], "learning_rate"),
        (["--minutes", "-1"], "minutes"),
        (["--answers", "100000"], "answers"),
    ],
)
def test_bad_arguments_end_with_one_sentence(folder, capsys, line, word):
    assert command(folder, *line) == 2
    error = capsys.readouterr().err
    assert word in error and "Traceback" not in error


def test_without_a_target_the_command_says_what_to_run(tmp_path, capsys):
    assert command(tmp_path) == 2
    assert "train target" in capsys.readouterr().err


@pytest.mark.parametrize("seed", ["-1", str(2**70), "one"])
def test_a_seed_that_torch_or_numpy_would_not_take(seed, capsys):
    with pytest.raises(SystemExit):
        commands.parse(["drafter", f"--seed={seed}"])
    assert "--seed" in capsys.readouterr().err
