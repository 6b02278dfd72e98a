"""Folders as the hub has them, every config field and every tensor, only the sizes reduced.

Each kind goes through `dartree generate --target DIR --drafter DIR`. Configs are written out from
the published descriptions, not read from our tables; a size is replaced by its small twin.
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from dartree.checkpoints import load_drafter, load_target_model
from dartree.cli import main
from tests.reference import greedy
from tests.test_public_shapes import dflash, domino, dspark

SMALL = {
    151936: 97, 2560: 48, 5 * 2560: 5 * 48, 9728: 112, 4096: 64, 1024: 32, 3072: 96, 128: 16,
    256: 24, 2560 + 1024: 48 + 32, 2560 + 256: 48 + 24, 1: 1,
}  # fmt: skip
TAPS = [1, 9, 17, 25, 33]
QWEN3 = {
    "model_type": "qwen3", "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 16, "hidden_act": "silu",
    "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 112,
    "max_position_embeddings": 40960, "max_window_layers": 36, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": None, "use_cache": True, "use_sliding_window": False, "vocab_size": 97,
}  # fmt: skip
BODY = {
    "num_hidden_layers": 5, "num_target_layers": 36, "tie_word_embeddings": False,
    "layer_types": ["full_attention"] * 5, "transformers_version": "4.57.1",
}  # fmt: skip
NESTED = {"mask_token_id": 96, "target_layer_ids": TAPS}
MARKOV = {
    "markov_rank": 24, "markov_head_type": "vanilla", "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}  # fmt: skip
DOMINO = {"projector_type": "domino", "emb_dim": 24, "gru_hidden_dim": 32,
          "pure_draft_prefix_len": 1, "shift_label": True}  # fmt: skip


def nested(name: str, **head) -> dict:
    return QWEN3 | BODY | {
        "architectures": [name], "auto_map": {"AutoModel": f"dflash.{name}"}, "dtype": "bfloat16",
        "block_size": 16, "dflash_config": NESTED | head,
    }  # fmt: skip


def inner(config: dict) -> dict:
    """The block size where newer files have it."""
    size = {"block_size": config["block_size"]}
    plain = {k: v for k, v in config.items() if k != "block_size"}
    return plain | {"dflash_config": config["dflash_config"] | size}


def flat(**head) -> dict:
    """As transformers 5 writes it: a deep copy of the target's config, and the rotary base in an
    object."""
    base = {k: v for k, v in QWEN3.items() if k not in ("rope_theta", "rope_scaling")}
    return base | BODY | NESTED | head | {
        "architectures": ["Qwen3DSparkModel"], "dtype": "bfloat16", "block_size": 7,
        "num_anchors": 512, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    }  # fmt: skip


def speculators() -> dict:
    """Nested the other way round, and taps counted from the embedding."""
    return {
        "architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark",
        "speculators_version": "0.5.0", "block_size": 7, "mask_token_id": 96,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in TAPS], "draft_vocab_size": 97,
        "sample_from_anchor": True, "tie_word_embeddings": False, **MARKOV,
        "speculators_config": {"algorithm": "dspark", "default_proposal_method": "greedy",
                               "verifier": {"name_or_path": "Qwen/Qwen3-4B"}},
        "transformer_layer_config": QWEN3 | {"num_hidden_layers": 5},
    }  # fmt: skip


# kind -> (config.json, published tensors, whether copies of the target's tables are in the file,
# prefix of the head's tensors, draft positions)
KINDS = {
    "z-lab DFlash": (nested("DFlashDraftModel"), dflash, False, "", 15),
    "z-lab DFlash, newer": (inner(nested("DFlashDraftModel")), dflash, False, "", 15),
    "z-lab DFlash, early": (nested("DFlashDraftModel"), dflash, True, "", 15),
    "Domino": (
        nested("DFlashDraftModel", **DOMINO) | {"emb_dim": 24}, domino, False, "", 16
    ),
    "SpecForge Domino": (
        nested("DominoDraftModel", **DOMINO), domino, False, "logit_head.", 16
    ),
    "DeepSpec DSpark": (flat(**MARKOV), dspark, True, "", 7),
    "DeepSpec DFlash": (
        flat(markov_rank=0, enable_confidence_head=False), dflash, True, "", 7
    ),
    "SpecForge DSpark": (
        nested("DSparkDraftModel", projector_type="dspark", **MARKOV), dspark, False, "", 16
    ),
    "speculators DSpark": (speculators(), dspark, True, "", 7),
}  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """36 layers, tied, in bfloat16 and in shards, with the generation config of Qwen3."""
    folder = tmp_path_factory.mktemp("hub") / "Qwen3-4B"
    torch.manual_seed(0)
    sizes = QWEN3 | {"num_hidden_layers": 36, "tie_word_embeddings": True}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes | {"initializer_range": 0.3}))
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="500KB")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 1
    (folder / "config.json").write_text(
        json.dumps(sizes | {"architectures": ["Qwen3ForCausalLM"], "torch_dtype": "bfloat16"})
    )
    (folder / "generation_config.json").write_text(json.dumps(
        {"bos_token_id": 151643, "do_sample": True, "eos_token_id": [151645, 151643],
         "pad_token_id": 151643, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    ))  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def text(target):
    """What transformers makes of the target alone."""
    return greedy(load_target_model(target, torch.float32, "cpu"), [3, 4, 5], 8)


def write(folder, kind, target):
    """The drafter's folder; returns how many tensors its file holds."""
    config, published, copies, prefix, _ = KINDS[kind]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "dflash.py").write_text("raise SystemExit('code of a repository was run')\n")
    torch.manual_seed(1)
    tensors = {}
    for name, shape in published(2560, 9728).items():
        tensor = 0.2 * torch.randn([SMALL[size] for size in shape])
        head = name.startswith(("prefix_gru", "embed_proj", "markov_head", "confidence_head"))
        tensors[prefix + name if head else name] = tensor.to(torch.bfloat16)
    if copies:
        weights = {}
        for path in target.glob("*.safetensors"):
            weights |= load_file(path)
        table = weights["model.embed_tokens.weight"]
        tensors |= {"embed_tokens.weight": table, "lm_head.weight": table.clone()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return len(tensors)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("error:.*carries a")
def test_every_kind_generates_from_the_command_line(kind, target, text, tmp_path, capsys):
    folder = tmp_path / kind.replace(" ", "-")
    count = write(folder, kind, target)
    _, published, copies, _, drafts = KINDS[kind]
    assert count == {dflash: 58, domino: 62, dspark: 62}[published] + 2 * copies
    command = ["generate", "--target", str(target), "--drafter", str(folder), "--ids", "3,4,5",
               "--max-new-tokens", "8", "--threads", "1", "--json"]  # fmt: skip
    assert main(command) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["token_ids"] == text and result["dtype"] == "float32"
    assert load_drafter(folder, torch.float32, "cpu")[0].config.drafts == drafts


def test_half_precision_from_the_command_line(target, tmp_path, capsys):
    write(tmp_path / "drafter", "Domino", target)
    command = ["generate", "--target", str(target), "--drafter", str(tmp_path / "drafter")]
    for dtype in ("bfloat16", "float16"):
        assert main([*command, "--ids", "3,4,5", "--max-new-tokens", "5", "--dtype", dtype,
                     "--json"]) == 0  # fmt: skip
        result = json.loads(capsys.readouterr().out)
        assert result["dtype"] == dtype and result["new_tokens"] == 5
