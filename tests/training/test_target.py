"""Tokenizer, packing and the training run of the target, on a model of a few thousand weights."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dartree.cli import build_parser
from dartree.configs import rope_theta_of
from dartree.training import commands, common, loop, optimiser, packing, target
from dartree.training import tokenizer as tok
from tests.training.drafter_fixtures import small_corpus

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64, "head_dim": 16,
         "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
LINE = ["--batch", "2", "--length", "64", "--log-every", "2", "--held-every", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small corpus and its tokenizer; returns the folder that holds the preset."""
    return small_corpus(tmp_path_factory.mktemp("train"), scale=0.005, held=16, entries=600)


@pytest.fixture(scope="module")
def tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder / "tiny" / "tokenizer")


def small_run(folder: Path, tmp_path: Path, *line: str) -> Path:
    """Runs `train target` with the small model in a copy of the folder."""
    import shutil

    place = tmp_path / "tiny"
    if not place.exists():
        shutil.copytree(folder / "tiny", place)
    args = commands.parse(["target", "--out", str(tmp_path), *LINE, *line])
    args.changes = SMALL
    target.run(args)
    return place


@pytest.mark.parametrize(
    "text",
    [
        "Grüße, 東京 🙂\n\n  two  spaces\t",
        " leading",
        "\r\n\x00\x7f",
        "e\u0301 ﬁ <|im_end|> don't",
        "",
    ],
)
def test_round_trip_of_any_text(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_are_single_tokens_and_the_mask_is_outside(tokenizer):
    assert len(tokenizer("1234567")["input_ids"]) == 7
    assert len(tokenizer) <= tok.VOCABULARY < tok.MASK_TOKEN_ID == tok.MODEL_ROWS - 1
    ids = tokenizer.convert_tokens_to_ids(list(tok.SPECIAL))
    assert ids == [0, 1, 2] and tokenizer.eos_token == "<|im_end|>"


def test_chat_template_is_chatml_and_equals_the_training_text(tokenizer):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}]
    for thinking in (True, False):
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        assert text == "<|im_start|>system\nS<|im_end|>\n" + tok.chat("Q")
    turn = [*messages[1:], {"role": "assistant", "content": "A"}]
    assert tokenizer.apply_chat_template(turn, tokenize=False) == tok.chat("Q", "A")


def test_packing_loses_no_sample_and_weighs_answers():
    rng = np.random.default_rng(0)
    samples = [(list(rng.integers(3, 99, int(n))), 3) for n in rng.integers(4, 80, 200)]
    ids, weights = packing.pack(samples, 128)
    assert ids.shape == weights.shape and ids.shape[1] == 128
    assert (ids[weights > 0] > 0).all() and (ids[weights == 0] == 0).all()
    assert (weights > 0).sum() == sum(len(tokens) for tokens, _ in samples)
    assert (weights == 1).sum() == sum(len(tokens) - 3 for tokens, _ in samples)
    assert (weights == 0).mean() < 0.1
    long = [(list(range(1, 300)), 5)]
    ids, weights = packing.pack(long, 128)
    assert ids.tolist() == [list(range(1, 129))]


def test_data_order_depends_on_the_step_alone():
    def shuffled(turn):
        return np.random.default_rng(turn).permutation(10)

    def numbers(step):
        return loop.sample_numbers(step, 3, 10, shuffled)

    rows = np.concatenate([numbers(step) for step in range(10)])
    assert sorted(rows[:10]) == sorted(rows[10:20]) == sorted(rows[20:]) == list(range(10))
    assert numbers(7) == rows[21:24].tolist()


def test_loss_is_the_weighted_mean_of_the_next_tokens(tokenizer):
    model = target.new_model("tiny", tokenizer, seed=0, **SMALL).eval()
    ids = torch.randint(0, 600, (2, 9), generator=torch.Generator().manual_seed(1))
    weights = torch.tensor([[0, 0, 0.1, 1, 1, 1, 0, 0, 0], [0.1, 0.1, 1, 1, 0, 0, 0, 0, 0]])
    loss, mass = target.loss_of(model, (ids, weights), bf16=False)
    logs = model(input_ids=ids).logits.log_softmax(-1)
    places = [(r, t) for r in range(2) for t in range(1, 9)]
    terms = [-logs[r, t - 1, ids[r, t]] * weights[r, t] for r, t in places]
    count = sum(weights[r, t] for r, t in places)
    assert torch.allclose(loss, sum(terms) / count, atol=1e-5) and torch.allclose(mass, count)


def test_schedule_warms_up_and_ends_low():
    rates = [optimiser.learning_rate(1.0, i, i / 1000, warmup=100) for i in range(1001)]
    assert rates[0] == pytest.approx(0.01, rel=0.02) and max(rates) == pytest.approx(1, rel=0.05)
    assert rates[-1] == pytest.approx(0.02) and rates[100:] == sorted(rates[100:], reverse=True)


def test_resumed_run_equals_an_uninterrupted_one(folder, tmp_path, monkeypatch):
    whole = small_run(folder, tmp_path / "a", "--tokens", "1280")  # 10 steps
    step = optimiser.learning_rate

    def killed(peak, number, *rest, **named):
        if number == 6:
            raise KeyboardInterrupt
        return step(peak, number, *rest, **named)

    monkeypatch.setattr(optimiser, "learning_rate", killed)
    line = ["--tokens", "1280", "--save-seconds", "0"]
    with pytest.raises(KeyboardInterrupt):
        small_run(folder, tmp_path / "b", *line)
    monkeypatch.setattr(optimiser, "learning_rate", step)
    resumed = small_run(folder, tmp_path / "b", *line, "--resume")
    states = [torch.load(p / "target-state.pt", weights_only=True) for p in (whole, resumed)]
    assert states[0]["step"] == states[1]["step"] == 10
    for name, value in states[0]["model"].items():
        assert torch.equal(value, states[1]["model"][name]), name
    logs = [[(r["step"], r["loss"]) for r in common.read_jsonl(p / "target.jsonl")]
            for p in (whole, resumed)]  # fmt: skip
    assert [s for s, _ in logs[0]] == [s for s, _ in logs[1]] == [2, 4, 6, 8, 10]
    rows = list(common.read_jsonl(resumed / "target.jsonl"))
    assert set(rows[-1]["held_out"]) == set(common.DOMAINS)
    with pytest.raises(ValueError, match="--resume needs"):
        small_run(folder, tmp_path / "b", "--tokens", "99999", "--resume")


def test_export_loads_with_the_settings_of_both_transformers(folder, tmp_path):
    from transformers import AutoModelForCausalLM

    place = small_run(folder, tmp_path, "--tokens", "256") / "target"
    config = json.loads((place / "config.json").read_text())
    assert config["rope_theta"] == 1e6 and config["model_type"] == "qwen3"
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16)
    assert rope_theta_of(model.config.to_dict()) == 1e6
    assert model.generation_config.eos_token_id == [2, 0]
    assert model.get_input_embeddings().weight.shape[0] == tok.MODEL_ROWS
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert not list(place.parent.glob(".*"))  # no temporary folder stays


def test_a_kill_in_the_middle_of_a_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "state"
    path.write_text("old")
    script = (
        "import pathlib, sys, time\nfrom dartree.files import replace_with\n"
        "def slow(p):\n    p.write_text('new, half')\n    print('writing', flush=True)\n"
        "    time.sleep(60)\nreplace_with(pathlib.Path(sys.argv[1]), slow)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout.readline().strip() == b"writing"
    os.kill(process.pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
    process.wait()
    assert path.read_text() == "old"


def test_a_log_line_cut_by_a_kill_is_dropped_on_resume(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 2}\n{"step": 4}\n{"step": 6}\n{"st')
    common.Log(path, resume_at=4).write(step=5)
    assert [row["step"] for row in common.read_jsonl(path)] == [2, 4, 5]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [(["tokenizer", "--size", "10"], "size is 10"), (["corpus", "--scale", "0"], "scale must be"),
     (["target", "--batch", "0"], "batch is 0"), (["target"], "train tokenizer")],
)  # fmt: skip
def test_bad_arguments_end_in_one_sentence(line, sentence, tmp_path, capsys):
    assert commands.main([*line, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1 and "Traceback" not in error


def test_a_step_is_loaded_only_when_it_is_used(monkeypatch):
    loaded = []
    find = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda n: loaded.append(n) or find(n))
    parser = build_parser()
    assert loaded == []
    args = parser.parse_args(["train", "tokenizer", "--size", "500"])
    assert loaded == ["dartree.training.commands", "dartree.training.tokenizer"]
    assert (args.size, args.preset, args.handler) == (500, "tiny", tok.run)
