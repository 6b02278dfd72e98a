"""The public Qwen3 targets and drafters: their configurations, known without a download.

Values as published with the loaders and training configs of DFlash, Domino and DSpark. They serve
for memory estimates and for tests of names and shapes; loading reads a checkpoint's own files.
"""

from __future__ import annotations

from typing import Any

_SIZES = {
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
    "8B": {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False},
}
_QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "max_position_embeddings": 40960,
}
_TAPS = {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}
_DOMINO = {
    "projector_type": "domino",
    "emb_dim": 256,
    "gru_hidden_dim": 1024,
    "pure_draft_prefix_len": 1,
    "shift_label": True,
}
_DSPARK = {
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
_BODY = {"num_hidden_layers": 5, "num_target_layers": 36, "tie_word_embeddings": False}


def target_config(name: str) -> dict[str, Any]:
    """config.json of ``Qwen/Qwen3-4B`` or ``Qwen/Qwen3-8B``, as far as it fixes shapes."""
    return _QWEN3 | _SIZES[name.removeprefix("Qwen/Qwen3-")]


def _drafter(size: str, **own: Any) -> dict[str, Any]:
    return _QWEN3 | _SIZES[size] | _BODY | own


# Hub id of a drafter -> hub id of its target and the drafter's config.json.
DRAFTERS: dict[str, tuple[str, dict[str, Any]]] = {}
for _size in _SIZES:
    _target = f"Qwen/Qwen3-{_size}"
    DRAFTERS |= {
        f"Huang2020/Qwen3-{_size}-Domino-b16": (
            _target, _drafter(_size, block_size=16, dflash_config=_TAPS | _DOMINO)
        ),
        f"z-lab/Qwen3-{_size}-DFlash-b16": (
            _target, _drafter(_size, block_size=16, dflash_config=_TAPS)
        ),
        f"deepseek-ai/dspark_qwen3_{_size.lower()}_block7": (
            _target, _drafter(_size, block_size=7, **_TAPS, **_DSPARK)
        ),
    }  # fmt: skip
