"""The public checkpoint formats -> our modules, with every tensor accounted for.

Formats: DFlash (nested ``dflash_config``, no head), Domino (nested, ``projector_type`` domino),
DSpark (flat, Markov head and confidence head). Weights come from safetensors files only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from dartree.drafter import DFlashDrafter, DrafterConfig
from dartree.heads import DominoHead, Head, MarkovHead, NoCorrection
from dartree.settings import CheckpointError

# "causal_v5" is the older name of exactly the Domino head.
_PROJECTORS = {None: "none", "domino": "domino", "causal_v5": "domino", "dspark": "markov"}
# Frozen copies of the target's tables that some files carry.
_COPIES = ("embed_tokens.weight", "lm_head.weight")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from ``path``; CheckpointError names the file and what is wrong."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}.") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(data).__name__}.")
    return data


def default_target_layers(draft_layers: int, target_layers: int) -> tuple[int, ...]:
    """Tap ids where a config names none: evenly spaced from 1 to L - 3; L // 2 for one layer."""
    if draft_layers == 1:
        return (target_layers // 2,)
    span = target_layers - 4
    return tuple(round(1 + i * span / (draft_layers - 1)) for i in range(draft_layers))


def rope_theta_of(config: dict[str, Any]) -> float | None:
    """Rotary base of a config dict, from ``rope_parameters`` or the attribute; None if absent."""
    parameters = config.get("rope_parameters") or {}
    return parameters.get("rope_theta", config.get("rope_theta"))


def parse_drafter_config(raw: dict[str, Any], source: str = "config.json") -> DrafterConfig:
    """DrafterConfig from the JSON of any supported format; CheckpointError says what is wrong."""
    nested = raw.get("dflash_config")
    flat = not isinstance(nested, dict)
    inner: dict[str, Any] = raw if flat else nested

    def need(name: str) -> Any:
        value = inner.get(name, raw.get(name))
        if value is None:
            raise CheckpointError(f"{source} lacks {name!r}.")
        return value

    for name in ("attention_bias", "use_bias_gate", "use_bias_norm", "use_sliding_window"):
        if inner.get(name, raw.get(name)):
            raise CheckpointError(f"{source} sets {name}, which is not supported.")
    if any(kind != "full_attention" for kind in raw.get("layer_types") or []):
        raise CheckpointError(f"{source} has layer_types other than full_attention.")
    if raw.get("hidden_act", "silu") != "silu":
        raise CheckpointError(f"{source} has hidden_act {raw['hidden_act']!r}; silu is supported.")
    projector = inner.get("projector_type")
    if projector not in _PROJECTORS:
        raise CheckpointError(
            f"{source} has projector_type {projector!r}; domino, causal_v5 and dspark are "
            "supported."
        )
    head = _PROJECTORS[projector]
    rank = int(inner.get("markov_rank") or 0)
    if head != "domino" and rank:
        head = "markov"
    layers, target_layers = int(need("num_hidden_layers")), int(need("num_target_layers"))
    taps = inner.get("target_layer_ids") or default_target_layers(layers, target_layers)
    emb_dim = int(inner.get("emb_dim") or raw.get("emb_dim") or 0)
    if head == "domino" and not emb_dim:
        raise CheckpointError(f"{source} lacks 'emb_dim'.")
    heads = int(need("num_attention_heads"))
    kind = inner.get("markov_head_type", "vanilla")
    if kind not in ("vanilla", "gated", "rnn"):
        raise CheckpointError(
            f"{source} has markov_head_type {kind!r}; vanilla, gated and rnn are supported."
        )
    try:
        config = DrafterConfig(
            hidden_size=int(need("hidden_size")),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=int(raw.get("num_key_value_heads") or heads),
            head_dim=int(raw.get("head_dim") or int(need("hidden_size")) // heads),
            intermediate_size=int(need("intermediate_size")),
            vocab_size=int(need("vocab_size")),
            block_size=int(need("block_size")),
            mask_token_id=int(need("mask_token_id")),
            target_layer_ids=tuple(int(t) for t in taps),
            num_target_layers=target_layers,
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope_theta_of(raw) or 1_000_000.0),
            # Flat files are anchor-first always; nested ones say so.
            shift_label=True if flat or head == "markov" else bool(inner.get("shift_label")),
            head=head,
            emb_dim=emb_dim,
            gru_hidden_dim=int(inner.get("gru_hidden_dim") or emb_dim),
            pure_draft_prefix_len=int(inner.get("pure_draft_prefix_len") or 0),
            markov_rank=rank,
            markov_head_type=kind,
            enable_confidence_head=bool(inner.get("enable_confidence_head")),
            confidence_head_with_markov=bool(inner.get("confidence_head_with_markov", True)),
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{source} has a value of the wrong type: {error}.") from None
    if config.drafts < 1:
        raise CheckpointError(f"{source} has block_size {config.block_size}: no draft position.")
    if not 0 <= config.mask_token_id < config.vocab_size:
        raise CheckpointError(
            f"{source} has mask_token_id {config.mask_token_id} outside 0..{config.vocab_size - 1}."
        )
    return config


def weight_files(folder: Path) -> list[Path]:
    """``model.safetensors``, or the shards of the index file; each is opened once as a check."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
    for name in names:
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist; weights are read from safetensors only.")
        try:
            with safe_open(path, framework="pt") as tensors:
                tensors.keys()
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path} is not a readable safetensors file: {error}.") from None
    return [folder / name for name in names]


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a folder: ``model.safetensors`` or the shards of its index file."""
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        tensors.update(load_file(path))
    return tensors


def _fit(modules: dict[str, nn.Module], tensors: dict[str, torch.Tensor], source: str) -> None:
    """Load ``tensors`` into ``modules``; every missing, unexpected or misshapen key is named."""
    expected = {k: v for m in modules.values() for k, v in m.state_dict().items()}
    missing = sorted(expected.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - expected.keys())
    wrong = [
        f"{k} {list(tensors[k].shape)} instead of {list(v.shape)}"
        for k, v in sorted(expected.items())
        if k in tensors and tensors[k].shape != v.shape
    ]
    faults = [
        f"{label}: {', '.join(keys)}"
        for label, keys in (("missing", missing), ("unexpected", unexpected), ("shape", wrong))
        if keys
    ]
    if faults:
        raise CheckpointError(f"{source} does not match its config.json; {'; '.join(faults)}.")
    for module in modules.values():
        own = module.state_dict().keys()
        module.load_state_dict({k: tensors[k] for k in own}, assign=True)


def load_drafter(
    folder: str | Path, dtype: torch.dtype, device: torch.device | str
) -> tuple[DFlashDrafter, Head]:
    """Drafter and head of a local folder, in ``dtype`` on ``device``.

    Raises CheckpointError for unreadable files, unsupported configs and any tensor that is
    missing, unexpected or wrongly shaped. Frozen copies of the target's embedding and lm_head
    are dropped; the prefix ``logit_head.`` of training checkpoints is stripped.
    """
    folder = Path(folder)
    config = parse_drafter_config(read_json(folder / "config.json"), str(folder / "config.json"))
    tensors = {
        name.removeprefix("logit_head."): tensor.to(dtype)
        for name, tensor in read_weights(folder).items()
        if name not in _COPIES
    }
    with torch.device("meta"):
        drafter = DFlashDrafter(config)
        head: Head = NoCorrection()
        if config.head == "domino":
            head = DominoHead(config)
        elif config.head == "markov":
            head = MarkovHead(config)
    modules: dict[str, nn.Module] = {"drafter": drafter}
    if isinstance(head, nn.Module):
        modules["head"] = head
    _fit(modules, tensors, str(folder))
    for module in modules.values():
        module.requires_grad_(False).to(device).eval()
    return drafter, head


def load_target_model(folder: str | Path, dtype: torch.dtype, device: torch.device | str):
    """Qwen3ForCausalLM of a local folder; CheckpointError where anything does not fit."""
    from transformers import AutoConfig, Qwen3ForCausalLM
    from transformers.utils import logging

    folder = Path(folder)
    kind = read_json(folder / "config.json").get("model_type")
    if kind != "qwen3":
        raise CheckpointError(f"{folder} has model_type {kind!r}; the target must be qwen3.")
    weight_files(folder)  # a broken file is named before transformers looks at it
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its warnings repeat what the check below reports
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        model, info = Qwen3ForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, with the other faults
        )
    except (OSError, ValueError, RuntimeError, SafetensorError, TypeError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise CheckpointError(f"{folder} cannot be loaded as a Qwen3 target: {first}") from None
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
    faults = [
        f"{label}: {', '.join(sorted(_key_name(k) for k in info[key]))}"
        for label, key in (
            ("missing", "missing_keys"),
            ("unexpected", "unexpected_keys"),
            ("shape", "mismatched_keys"),
        )
        if info.get(key)
    ]
    if faults:
        raise CheckpointError(f"{folder} does not match its config.json; {'; '.join(faults)}.")
    return model.requires_grad_(False).to(device).eval()


def _key_name(entry: str | tuple) -> str:
    """A key of transformers' loading report; misshapen ones come with both shapes."""
    if isinstance(entry, str):
        return entry
    return f"{entry[0]} {list(entry[1])} instead of {list(entry[2])}"
