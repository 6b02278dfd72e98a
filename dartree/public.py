"""The public Qwen3 targets and drafters: their configurations, known without a download.

Values as published with the loaders and training configs of DFlash, Domino and DSpark. They serve
for memory estimates and for tests of names and shapes; loading reads a checkpoint's own files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dartree import hub
from dartree.checks import CheckpointError
from dartree.configs import check_pair, check_target_config, parse_drafter_config, read_json
from dartree.drafter import DrafterConfig

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
    """config.json of ``Qwen/Qwen3-4B`` or ``Qwen/Qwen3-8B``, as far as it fixes kind and shapes."""
    size = _SIZES[name.removeprefix("Qwen/Qwen3-")]
    return _QWEN3 | size | {"architectures": ["Qwen3ForCausalLM"]}


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


def known_config(name: str) -> dict[str, Any] | None:
    """The config of a public target or drafter by its hub id; None for others."""
    if name in DRAFTERS:
        return DRAFTERS[name][1]
    return target_config(name) if name in {target for target, _ in DRAFTERS.values()} else None


def config_of(source: str | Path, fetch: bool = True) -> dict[str, Any]:
    """config.json of a folder or a hub id; of the ids known here, what is known of them.

    ``fetch``: whether the file of another id may be fetched. Raises CheckpointError where there is
    none.
    """
    if str(source) and Path(source).expanduser().is_dir():
        return read_json(Path(source).expanduser() / "config.json")
    name, revision = hub.hub_id(str(source))
    known = known_config(name)
    if known is not None and not (fetch and "@" in str(source)):
        return known
    copy = hub.local_copy(name, revision)
    if copy is not None and (copy.folder / "config.json").is_file():
        return read_json(copy.folder / "config.json")
    if not fetch:
        raise CheckpointError(f"{source} is not on this machine, and its config is not known.")
    return read_json(hub.fetch_config(str(source)))


def pair_configs(
    target: str | Path, drafter: str | Path, fetch: bool = True
) -> tuple[dict[str, Any], DrafterConfig]:
    """config.json of a target and the config of its drafter, each by folder or hub id.

    CheckpointError where loading the two would be refused for what their configs say. ``fetch``:
    see :func:`config_of`.
    """
    raw = {
        part: hub.find_part(part, place, lambda place: config_of(place, fetch))
        for part, place in (("target", target), ("drafter", drafter))
    }
    config = parse_drafter_config(raw["drafter"], f"{drafter}, config.json")
    check_target_config(raw["target"], str(target))
    check_pair(config, raw["target"], str(drafter), str(target))
    return raw["target"], config
