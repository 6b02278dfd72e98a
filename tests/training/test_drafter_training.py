"""Drafter training: resume, learning, export in the public formats."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from dartree.checkpoints import load_drafter
from dartree.training.drafter import export
from dartree.training.drafter_run import DrafterRun
from dartree.training.heldout import accepted_prefix, free_running_tau, rounds_from
from tests.training.drafter_fixtures import (
    HIDDEN,
    VOCABULARY,
    tiny_args,
    tiny_config,
    tiny_target,
    tiny_texts,
)


def training(folder, head="domino", lanes=1, **changes) -> DrafterRun:
    texts = tiny_texts()
    return DrafterRun(
        tiny_args(**changes), tiny_config(head), tiny_target(), texts, texts[:3], folder,
        "drafter", lanes=lanes,
    )  # fmt: skip


def weights(run: DrafterRun) -> dict[str, torch.Tensor]:
    return run.model.state_dict()


def same(first, second) -> bool:
    return all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.parametrize("head", ["domino", "none", "markov"])
def test_killed_and_resumed_run_gives_the_same_weights(tmp_path, head, monkeypatch):
    whole = training(tmp_path / "whole", head)
    whole.train()
    killed = training(tmp_path / "killed", head)
    step = killed.one_step

    def die(*args):
        if killed.step == 4:
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(killed, "one_step", die)
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    resumed = training(tmp_path / "killed", head, resume=True)
    assert resumed.step == 4
    resumed.train()
    assert same(weights(whole), weights(resumed))
    assert same(whole.best_weights(), resumed.best_weights())
    rows = [
        [json.loads(line)["step"] for line in (tmp_path / name / "drafter.jsonl").open()]
        for name in ("whole", "killed")
    ]
    assert rows[0] == rows[1] == [2, 3, 4, 6]


def test_result_does_not_depend_on_the_number_of_lanes(tmp_path):
    one, two = training(tmp_path / "one"), training(tmp_path / "two", lanes=2)
    one.train()
    two.train()
    assert same(weights(one), weights(two))


def test_resume_refuses_other_arguments(tmp_path):
    training(tmp_path).train()
    with pytest.raises(ValueError, match="anchors"):
        training(tmp_path, resume=True, anchors=2)


@pytest.mark.parametrize("head", ["domino", "none", "markov"])
def test_training_lowers_the_loss_and_raises_tau(tmp_path, head):
    run = training(tmp_path, head, steps=80, anchors=20, log_every=1, tau_every=80,
                  learning_rate=1e-2, save_seconds=1e9)  # fmt: skip
    before = free_running_tau(run.drafter, run.head, run.target, run.held)
    run.train()
    rows = [json.loads(line) for line in (tmp_path / "drafter.jsonl").open()]
    assert rows[-1]["loss"] < 0.7 * rows[0]["loss"]
    assert rows[-1]["mix"] < rows[0]["mix"] == 1
    assert run.best["tau"] > before.mean + 0.5


def test_minutes_end_the_run(tmp_path):
    run = training(tmp_path, steps=None, minutes=0.01, save_seconds=1e9)
    run.train()
    assert run.progress == 1 and run.seconds >= 0.6


PUBLIC_BODY = {
    "fc.weight": [HIDDEN, 2 * HIDDEN],
    "hidden_norm.weight": [HIDDEN],
    "norm.weight": [HIDDEN],
    **{
        f"layers.{i}.{name}.weight": shape
        for i in range(2)
        for name, shape in {
            "self_attn.q_proj": [32, HIDDEN],
            "self_attn.k_proj": [16, HIDDEN],
            "self_attn.v_proj": [16, HIDDEN],
            "self_attn.o_proj": [HIDDEN, 32],
            "self_attn.q_norm": [8],
            "self_attn.k_norm": [8],
            "mlp.gate_proj": [48, HIDDEN],
            "mlp.up_proj": [48, HIDDEN],
            "mlp.down_proj": [HIDDEN, 48],
            "input_layernorm": [HIDDEN],
            "post_attention_layernorm": [HIDDEN],
        }.items()
    },
}
PUBLIC_HEAD = {
    "none": {},
    "domino": {
        "prefix_gru.weight_ih_l0": [60, HIDDEN],
        "prefix_gru.weight_hh_l0": [60, 20],
        "embed_proj.0.weight": [12, HIDDEN + 20],
        "embed_proj.2.weight": [VOCABULARY, 12],
    },
    "markov": {
        "markov_head.markov_w1.weight": [VOCABULARY, 10],
        "markov_head.markov_w2.weight": [VOCABULARY, 10],
        "confidence_head.proj.weight": [1, HIDDEN + 10],
        "confidence_head.proj.bias": [1],
    },
}


@pytest.mark.parametrize("head", ["domino", "none", "markov"])
def test_export_has_the_public_names_and_loads(tmp_path, head):
    run = training(tmp_path, head)
    export(run.config, run.best_weights(), tmp_path / "out")
    export(run.config, run.best_weights(), tmp_path / "out")  # replaces a finished folder
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    expected = PUBLIC_BODY | PUBLIC_HEAD[head]
    assert {k: list(v.shape) for k, v in tensors.items()} == expected
    assert {v.dtype for v in tensors.values()} == {torch.bfloat16}
    raw = json.loads((tmp_path / "out" / "config.json").read_text())
    assert raw["block_size"] == 4 and raw["num_target_layers"] == 4
    nested = raw if head == "markov" else raw["dflash_config"]
    assert nested["target_layer_ids"] == [1, 2] and nested["mask_token_id"] == VOCABULARY - 1
    if head == "domino":
        assert nested["projector_type"] == "domino" and nested["shift_label"] is True
        assert raw["emb_dim"] == nested["emb_dim"] == 12
    elif head == "markov":
        assert raw["architectures"] == ["Qwen3DSparkModel"] and "dflash_config" not in raw
        assert raw["markov_rank"] == 10 and raw["enable_confidence_head"] is True
    else:
        assert raw["architectures"] == ["DFlashDraftModel"]
        assert "projector_type" not in nested and "shift_label" not in nested
    drafter, loaded = load_drafter(tmp_path / "out", torch.float32, "cpu")
    assert drafter.config == run.config
    assert loaded.name == head


def test_accepted_prefix_and_rounds():
    drafts = torch.tensor([[1, 2, 3], [1, 9, 3], [9, 2, 3]])
    truth = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, -1]])
    assert accepted_prefix(drafts, truth).tolist() == [3, 1, 0]
    # anchors 0..5, the answer's last token has index 6: 0 -> 3 -> 4 -> 6 (cut at the end)
    assert rounds_from([2, 9, 9, 0, 5, 9]) == (6, 3)
    assert rounds_from([]) == (0, 0)
