"""The public checkpoint formats -> our modules, with every tensor accounted for.

Formats: DFlash (nested ``dflash_config``, no head), Domino (nested, ``projector_type`` domino),
DSpark (flat, Markov head and confidence head; nested by SpecForge; with a
``transformer_layer_config`` by vLLM-speculators). Weights come from safetensors files only.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from dartree.drafter import DFlashDrafter, DrafterConfig
from dartree.heads import DominoHead, Head, MarkovHead, NoCorrection
from dartree.settings import CheckpointError, first_line
from dartree.spread import TENSOR_PARALLEL, tensor_parallel_options

# "causal_v5" is the older name of exactly the Domino head.
_PROJECTORS = {None: "none", "domino": "domino", "causal_v5": "domino", "dspark": "markov"}
# Frozen copies of the target's tables that some files carry.
_COPIES = ("embed_tokens.weight", "lm_head.weight")
# Maps between a reduced draft vocabulary and the target's; of no use where it is not reduced.
_VOCABULARY_MAPS = ("d2t", "t2d")


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


def rope_theta_of(config: dict[str, Any]) -> float | Any:
    """Rotary base of a config dict, from ``rope_parameters`` or the attribute; None if absent."""
    parameters = config.get("rope_parameters") or {}
    return parameters.get("rope_theta", config.get("rope_theta"))


class _Fields:
    """Typed reads of a drafter config whose head part may be nested; names what is wrong."""

    def __init__(self, raw: dict[str, Any], source: str) -> None:
        nested = raw.get("dflash_config")
        if nested is not None and not isinstance(nested, dict):
            raise CheckpointError(f"{source} has a dflash_config that is not an object.")
        self.flat = nested is None
        self._raw, self._inner, self._source = raw, raw if nested is None else nested, source

    def get(self, name: str, default: Any = None) -> Any:
        """The value of ``name``, nested first; ``default`` where it is absent or null."""
        value = self._inner.get(name)
        value = self._raw.get(name) if value is None else value
        return default if value is None else value

    def count(
        self, name: str, default: int | None = None, least: int = 1, most: int = 2**24
    ) -> int:
        """An integer in least..most."""
        value = self.get(name, default)
        if value is None:
            raise CheckpointError(f"{self._source} lacks {name!r}.")
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise CheckpointError(
                f"{self._source} has {name} {value!r}; an integer in {least}..{most} is needed."
            )
        return value

    def number(self, name: str, value: Any) -> float:
        """``value`` as a finite float above 0."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
            raise CheckpointError(
                f"{self._source} has {name} {value!r}; a number above 0 is needed."
            )
        return float(value)

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A non-empty list of integers."""
        value = self.get(name, default)
        plain = isinstance(value, (list, tuple)) and all(type(v) is int for v in value)
        if not plain or not value:
            raise CheckpointError(
                f"{self._source} has {name} {value!r}; a list of integers is needed."
            )
        return tuple(value)


def _from_speculators(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """The flat fields of a vLLM-speculators config; other configs come back as they are."""
    kind = raw.get("speculators_model_type")
    if kind is None:
        return raw
    body = raw.get("transformer_layer_config")
    if kind != "dspark" or not isinstance(body, dict):
        raise CheckpointError(
            f"{source} has speculators_model_type {kind!r}; supported: dspark, with a "
            "transformer_layer_config."
        )
    flat = body | {k: v for k, v in raw.items() if k != "transformer_layer_config"}
    vocabulary, reduced = flat.get("vocab_size"), flat.get("draft_vocab_size")
    if reduced is not None and reduced != vocabulary:
        raise CheckpointError(
            f"{source} has a reduced draft vocabulary ({reduced} of {vocabulary} tokens), which "
            "is not supported."
        )
    taps = flat.get("aux_hidden_state_layer_ids")
    if isinstance(taps, list) and all(type(tap) is int for tap in taps):
        flat["target_layer_ids"] = [tap - 1 for tap in taps]  # theirs count the embedding as 0
    return flat


def parse_drafter_config(raw: dict[str, Any], source: str = "config.json") -> DrafterConfig:
    """DrafterConfig from the JSON of any supported format; CheckpointError says what is wrong."""
    speculators = "speculators_model_type" in raw
    raw = _from_speculators(raw, source)
    fields = _Fields(raw, source)
    _refuse_unsupported(fields, source)
    head = _PROJECTORS[fields.get("projector_type")]
    rank = fields.count("markov_rank", 0, least=0)
    if head != "domino" and rank:
        head = "markov"
    domino, markov = head == "domino", head == "markov"
    if "Qwen3ForCausalLM" in (fields.get("architectures") or ()):
        raise CheckpointError(f"{source} is a target's config (Qwen3ForCausalLM), not a drafter's.")
    layers = fields.count("num_hidden_layers", most=1000)
    # Their files name no layer count of the target, but always the tapped layers.
    named = speculators and fields.get("target_layer_ids") is not None
    target_layers = fields.count("num_target_layers", 0 if named else None, least=0, most=1000)
    heads = fields.count("num_attention_heads")
    hidden = fields.count("hidden_size")
    emb_dim = fields.count("emb_dim") if domino else 0
    vocabulary = fields.count("vocab_size")
    try:
        theta = rope_theta_of(raw)
    except AttributeError:
        raise CheckpointError(f"{source} has rope_parameters that are not an object.") from None
    config = DrafterConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=fields.count("num_key_value_heads", heads),
        head_dim=fields.count("head_dim", hidden // heads, least=2),
        intermediate_size=fields.count("intermediate_size"),
        vocab_size=vocabulary,
        block_size=fields.count("block_size", most=4096),
        mask_token_id=fields.count("mask_token_id", least=0, most=vocabulary - 1),
        target_layer_ids=fields.integers(
            "target_layer_ids", default_target_layers(layers, target_layers)
        ),
        num_target_layers=target_layers,
        rms_norm_eps=fields.number("rms_norm_eps", fields.get("rms_norm_eps", 1e-6)),
        rope_theta=fields.number("rope_theta", 1_000_000.0 if theta is None else theta),
        # Flat files are anchor-first always; nested ones say so.
        shift_label=bool(
            fields.get("sample_from_anchor", fields.flat or markov or fields.get("shift_label"))
        ),
        head=head,
        emb_dim=emb_dim,
        gru_hidden_dim=fields.count("gru_hidden_dim", emb_dim) if domino else 0,
        pure_draft_prefix_len=fields.count("pure_draft_prefix_len", 0, least=0) if domino else 0,
        markov_rank=rank if markov else 0,
        markov_head_type=fields.get("markov_head_type", "vanilla"),
        enable_confidence_head=bool(fields.get("enable_confidence_head", False)),
        confidence_head_with_markov=bool(fields.get("confidence_head_with_markov", True)),
    )
    if config.drafts < 1:
        raise CheckpointError(f"{source} has block_size {config.block_size}: no draft position.")
    if config.num_attention_heads % config.num_key_value_heads or config.head_dim % 2:
        raise CheckpointError(
            f"{source} has num_attention_heads {heads}, num_key_value_heads "
            f"{config.num_key_value_heads} and head_dim {config.head_dim}, which do not fit."
        )
    return config


def _refuse_unsupported(fields: _Fields, source: str) -> None:
    """CheckpointError for whatever would silently change what the drafter computes."""
    _refuse_quantised({"quantization_config": fields.get("quantization_config")}, source)
    for name in ("attention_bias", "use_bias_gate", "use_bias_norm", "use_sliding_window"):
        if fields.get(name):
            raise CheckpointError(f"{source} sets {name}, which is not supported.")
    allowed = {
        "hidden_act": ("silu",),
        "projector_type": tuple(k for k in _PROJECTORS if k),
        "markov_head_type": ("vanilla", "gated", "rnn"),
    }
    for name, values in allowed.items():
        value = fields.get(name, values[0] if name != "projector_type" else None)
        if value is not None and value not in values:
            raise CheckpointError(f"{source} has {name} {value!r}; supported: {', '.join(values)}.")
    for name in ("rope_scaling", "rope_parameters"):
        rope = fields.get(name)
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else None
        if kind not in (None, "default"):
            raise CheckpointError(f"{source} has {name} of type {kind!r}; supported: default.")
    kinds = fields.get("layer_types", [])
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise CheckpointError(f"{source} has layer_types other than full_attention.")


def _refuse_quantised(raw: dict[str, Any], source: str) -> None:
    quantised = raw.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise CheckpointError(
            f"{source} is quantised ({method}), which is not supported: heads and taps are made "
            "for the target's own weights; give the bf16 or fp16 checkpoint."
        )


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


def read_weights(
    folder: Path, dtype: torch.dtype | None = None, skip: tuple[str, ...] = ()
) -> dict[str, torch.Tensor]:
    """Tensors of a folder's ``model.safetensors`` or shards, all but ``skip``, cast to ``dtype``.

    The prefix ``logit_head.`` of training checkpoints is stripped. Raises CheckpointError where
    one name comes twice.
    """
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for key in file.keys():
                name = key.removeprefix("logit_head.")
                if name in skip:
                    continue
                if name in tensors:
                    raise CheckpointError(f"{path} holds {name} a second time.")
                tensors[name] = file.get_tensor(key).to(dtype)
    return tensors


def warn_of_other_copies(
    folder: Path, tables: dict[str, torch.Tensor], drafter: str, target: str
) -> None:
    """Warn where a file's frozen copy of a target table is not the target's.

    ``tables``: embed_tokens.weight and lm_head.weight of the target, [V, H] each. 64 rows of
    each are read and compared in the copy's own dtype; the copy itself is never used.
    """
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in set(file.keys()) & set(_COPIES):
                theirs, ours = file.get_slice(name), tables[name]
                if list(theirs.get_shape()) == list(ours.shape):
                    rows = range(0, len(ours), max(1, len(ours) // 64))
                    copy = torch.cat([theirs[row : row + 1] for row in rows])
                    own = ours[list(rows)].to(device=copy.device, dtype=copy.dtype)
                    if torch.equal(copy, own):
                        continue
                warnings.warn(
                    f"{drafter} carries a {name} that is not {target}'s: it may have been "
                    "trained for another target, and few of its drafts would be accepted.",
                    stacklevel=4,
                )


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
    tensors = read_weights(folder, dtype, skip=_COPIES + _VOCABULARY_MAPS)
    drafter, head = empty_drafter(config)
    modules: dict[str, nn.Module] = {"drafter": drafter}
    if isinstance(head, nn.Module):
        modules["head"] = head
    _fit(modules, tensors, str(folder))
    for module in modules.values():
        module.requires_grad_(False).to(device).eval()
    return drafter, head


def empty_drafter(config: DrafterConfig) -> tuple[DFlashDrafter, Head]:
    """Drafter and head of ``config`` on the meta device: names and shapes, no storage."""
    heads: dict[str, Callable[[DrafterConfig], Head]]
    heads = {"none": lambda _: NoCorrection(), "domino": DominoHead, "markov": MarkovHead}
    with torch.device("meta"):
        return DFlashDrafter(config), heads[config.head](config)


def load_target_model(
    folder: str | Path,
    dtype: torch.dtype,
    device: torch.device | str,
    device_map: str | dict[str, Any] | None = None,
) -> Any:
    """Qwen3ForCausalLM of a local folder; CheckpointError where anything does not fit.

    ``device_map``, as transformers takes it, spreads the layers in place of ``device``;
    "tensor-parallel" splits every layer over the processes that torchrun started.
    """
    from transformers import AutoConfig, Qwen3ForCausalLM
    from transformers.utils import logging

    folder = Path(folder)
    raw = read_json(folder / "config.json")
    kind = raw.get("model_type")
    if kind != "qwen3":
        raise CheckpointError(f"{folder} has model_type {kind!r}; the target must be qwen3.")
    _refuse_quantised(raw, str(folder / "config.json"))
    weight_files(folder)  # a broken file is named before transformers looks at it
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its warnings repeat what the check below reports
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if device_map == TENSOR_PARALLEL:
            options = tensor_parallel_options(config, str(folder / "config.json"))
        else:
            options = {"device_map": device_map}
        load: Any = Qwen3ForCausalLM.from_pretrained  # typed as if output_loading_info were False
        model, info = load(
            folder,
            config=config,
            dtype=dtype,
            **options,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, with the other faults
        )
    except CheckpointError:
        raise
    except Exception as error:  # configs of the wrong types raise many kinds; one sentence serves
        raise CheckpointError(
            f"{folder} cannot be loaded as a Qwen3 target: {first_line(error)}"
        ) from None
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
    model = model if device_map is not None else model.to(device)
    return model.requires_grad_(False).eval()


def _key_name(entry: str | tuple) -> str:
    """A key of transformers' loading report; misshapen ones come with both shapes."""
    if isinstance(entry, str):
        return entry
    return f"{entry[0]} {list(entry[1])} instead of {list(entry[2])}"
