"""The public checkpoints at full size on the meta device: names and shapes as published.

The lists are written out from the published descriptions of the files, not from our modules.
"""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import dartree
from dartree import public
from dartree.checkpoints import empty_drafter, load_drafter
from dartree.configs import parse_drafter_config

V = 151936
SIZES = {"4B": (2560, 9728), "8B": (4096, 12288)}


def dflash(h: int, inner: int) -> dict[str, list[int]]:
    """5 layers of 11 tensors, and 3 more."""
    names = {"fc.weight": [h, 5 * h], "hidden_norm.weight": [h], "norm.weight": [h]}
    for n in range(5):
        names |= {
            f"layers.{n}.self_attn.q_proj.weight": [4096, h],
            f"layers.{n}.self_attn.k_proj.weight": [1024, h],
            f"layers.{n}.self_attn.v_proj.weight": [1024, h],
            f"layers.{n}.self_attn.o_proj.weight": [h, 4096],
            f"layers.{n}.self_attn.q_norm.weight": [128],
            f"layers.{n}.self_attn.k_norm.weight": [128],
            f"layers.{n}.mlp.gate_proj.weight": [inner, h],
            f"layers.{n}.mlp.up_proj.weight": [inner, h],
            f"layers.{n}.mlp.down_proj.weight": [h, inner],
            f"layers.{n}.input_layernorm.weight": [h],
            f"layers.{n}.post_attention_layernorm.weight": [h],
        }
    return names


def domino(h: int, inner: int) -> dict[str, list[int]]:
    return dflash(h, inner) | {
        "prefix_gru.weight_ih_l0": [3072, h],
        "prefix_gru.weight_hh_l0": [3072, 1024],
        "embed_proj.0.weight": [256, h + 1024],
        "embed_proj.2.weight": [V, 256],
    }


def dspark(h: int, inner: int) -> dict[str, list[int]]:
    """Without the frozen embed_tokens and lm_head, which are dropped on loading."""
    return dflash(h, inner) | {
        "markov_head.markov_w1.weight": [V, 256],
        "markov_head.markov_w2.weight": [V, 256],
        "confidence_head.proj.weight": [1, h + 256],
        "confidence_head.proj.bias": [1],
    }


FILES = [
    ("z-lab/Qwen3-{}-DFlash-b16", dflash, 58, 15, 1),
    ("Huang2020/Qwen3-{}-Domino-b16", domino, 62, 16, 0),
    ("deepseek-ai/dspark_qwen3_{}_block7", dspark, 62, 7, 0),  # 64 with the two copies
]


def module_shapes(config) -> dict[str, list[int]]:
    parts = [m for m in empty_drafter(config) if isinstance(m, torch.nn.Module)]
    return {k: list(v.shape) for m in parts for k, v in m.state_dict().items()}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "published", "count", "drafts", "offset"), FILES)
def test_names_and_shapes(size, name, published, count, drafts, offset):
    hub_id = name.format(size.lower() if "dspark" in name else size)
    target, raw = public.DRAFTERS[hub_id]
    config = parse_drafter_config(raw)
    want = published(*SIZES[size])
    assert target == f"Qwen/Qwen3-{size}" and len(want) == count
    assert module_shapes(config) == want
    assert (config.drafts, config.row_offset) == (drafts, offset)
    assert config.target_layer_ids == (1, 9, 17, 25, 33) and config.mask_token_id == 151669
    assert config.rope_theta == 1e6 and config.num_target_layers == 36


@pytest.mark.parametrize(("size", "count"), [("4B", 398), ("8B", 399)])
def test_targets_carry_every_layer(size, count):
    """11 tensors a layer, embedding and norm; the 8B model adds an lm_head of its own."""
    h, inner = SIZES[size]
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**public.target_config(f"Qwen/Qwen3-{size}")))
    shapes = {k: list(p.shape) for k, p in model.named_parameters()}
    assert len(shapes) == count
    assert shapes["model.embed_tokens.weight"] == [V, h]
    assert shapes["model.layers.35.mlp.up_proj.weight"] == [inner, h]
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == [4096, h]


@pytest.mark.parametrize("hub_id", sorted(public.DRAFTERS))
def test_a_file_of_the_published_list_loads_and_any_other_does_not(hub_id, tmp_path, monkeypatch):
    """Through the loader itself, at full size, with tensors that hold nothing."""
    import json

    _, raw = public.DRAFTERS[hub_id]
    published = next(f for n, f, *_ in FILES if n.split("{}")[0] in hub_id)
    tensors = {
        k: torch.empty(shape, dtype=torch.bfloat16, device="meta")
        for k, shape in published(raw["hidden_size"], raw["intermediate_size"]).items()
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    monkeypatch.setattr("dartree.checkpoints.read_weights", lambda *_, **__: dict(tensors))
    drafter, head = load_drafter(tmp_path, torch.bfloat16, "meta")
    assert drafter.dtype == torch.bfloat16
    lost = tensors.pop("layers.3.mlp.up_proj.weight")
    tensors["layers.3.mlp.gate_up_proj.weight"] = lost
    with pytest.raises(dartree.CheckpointError) as caught:
        load_drafter(tmp_path, torch.bfloat16, "meta")
    assert "missing: layers.3.mlp.up_proj.weight" in str(caught.value)
    assert "unexpected: layers.3.mlp.gate_up_proj.weight" in str(caught.value)


def test_markov_variants():
    """Names and shapes of the two that no public file uses."""
    raw = public.DRAFTERS["deepseek-ai/dspark_qwen3_4b_block7"][1]
    gated = module_shapes(parse_drafter_config(raw | {"markov_head_type": "gated"}))
    assert gated["markov_head.gate_proj.weight"] == [256, 2560 + 256]
    rnn = module_shapes(parse_drafter_config(raw | {"markov_head_type": "rnn"}))
    assert rnn["markov_head.joint_proj.weight"] == [3 * 256, 2 * 256 + 2560]
    plain = module_shapes(parse_drafter_config(raw | {"confidence_head_with_markov": False}))
    assert plain["confidence_head.proj.weight"] == [1, 2560]
