"""Checkpoints of a test, changed: a config, the tensors of a file, another format."""

from __future__ import annotations

import json

import transformers
from safetensors.torch import load_file, save_file

import dartree

# What transformers itself says of a target is shorter before release 5.
TERSE = transformers.__version__.startswith("4.")


def load(folder):
    return dartree.load_stack(target=folder / "target", drafter=folder / "drafter")


def change(path, **changes):
    config = json.loads(path.read_text())
    for key, value in changes.items():
        inner = config["dflash_config"] if key in config.get("dflash_config", {}) else config
        inner.pop(key, None)
        if value is not None:
            inner[key] = value
    path.write_text(json.dumps(config))


def rewrite(folder, part, edit):
    path = folder / part / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def speculators_config(folder):
    """The drafter's config as vLLM-speculators writes it."""
    raw = json.loads((folder / "config.json").read_text())
    head = ("block_size", "mask_token_id", "markov_rank", "markov_head_type",
            "enable_confidence_head", "confidence_head_with_markov")  # fmt: skip
    gone = ("target_layer_ids", "num_target_layers", "architectures", *head)
    return {
        "speculators_model_type": "dspark",
        "aux_hidden_state_layer_ids": [tap + 1 for tap in raw["target_layer_ids"]],
        "draft_vocab_size": raw["vocab_size"],
        "sample_from_anchor": True,
        "transformer_layer_config": {k: v for k, v in raw.items() if k not in gone},
        **{k: raw[k] for k in head if k in raw},
    }
