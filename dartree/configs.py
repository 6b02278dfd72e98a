"""Configs of the public formats -> :class:`dartree.drafter.DrafterConfig`, every field checked.

Formats: DFlash (nested ``dflash_config``, no head), Domino (nested, ``projector_type`` domino),
DSpark (flat, Markov head and confidence head; nested by SpecForge; with a
``transformer_layer_config`` by vLLM-speculators).
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from dartree.checks import CheckpointError
from dartree.drafter import DrafterConfig

# "causal_v5" is the older name of exactly the Domino head.
_PROJECTORS = {None: "none", "domino": "domino", "causal_v5": "domino", "dspark": "markov"}


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

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false; ``default`` where it is absent or null."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self._source} has {name} {value!r}; true or false is needed.")
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
        shift_label=_anchor_first(fields, head, source),
        head=head,
        emb_dim=emb_dim,
        gru_hidden_dim=fields.count("gru_hidden_dim", emb_dim) if domino else 0,
        pure_draft_prefix_len=fields.count("pure_draft_prefix_len", 0, least=0) if domino else 0,
        markov_rank=rank if markov else 0,
        markov_head_type=fields.get("markov_head_type", "vanilla"),
        enable_confidence_head=fields.flag("enable_confidence_head"),
        confidence_head_with_markov=fields.flag("confidence_head_with_markov", True),
    )
    if config.drafts < 1:
        raise CheckpointError(f"{source} has block_size {config.block_size}: no draft position.")
    if config.num_attention_heads % config.num_key_value_heads or config.head_dim % 2:
        raise CheckpointError(
            f"{source} has num_attention_heads {heads}, num_key_value_heads "
            f"{config.num_key_value_heads} and head_dim {config.head_dim}, which do not fit."
        )
    return config


def _anchor_first(fields: _Fields, head: str, source: str) -> bool:
    """Whether row 0 of a block drafts already: flat files always, nested ones say so."""
    named = fields.get("shift_label", fields.get("sample_from_anchor")) is not None
    if head == "domino" and not (named or fields.flat):
        warnings.warn(
            f"{source} is a Domino drafter's and lacks shift_label, which is true in the public "
            "files: it is read as false, and with the wrong alignment few drafts are accepted.",
            stacklevel=3,
        )
    shifted = fields.flag("shift_label")
    return fields.flag("sample_from_anchor", fields.flat or head == "markov" or shifted)


def check_target_config(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """Return ``raw``; CheckpointError for another model than Qwen3, and for a quantised one."""
    if "block_size" in raw or "speculators_model_type" in raw:
        raise CheckpointError(f"{source} is a drafter's config, not a target's.")
    kind = raw.get("model_type")
    if kind != "qwen3":
        raise CheckpointError(f"{source} has model_type {kind!r}; the target must be qwen3.")
    refuse_quantised(raw, source)
    return raw


def check_pair(
    drafter: DrafterConfig, target: dict[str, Any], drafter_name: str, target_name: str
) -> None:
    """CheckpointError where a drafter was made for another target than the config ``target``.

    Fields that ``target`` leaves out are not compared.
    """
    rope = target.get("rope_parameters")
    theta = rope_theta_of(target | {"rope_parameters": rope if isinstance(rope, dict) else None})
    layers = target.get("num_hidden_layers")
    for what, ours, theirs in (
        ("hidden_size", drafter.hidden_size, target.get("hidden_size")),
        ("vocab_size", drafter.vocab_size, target.get("vocab_size")),
        ("num_target_layers", drafter.num_target_layers or layers, layers),
        ("rope_theta", drafter.rope_theta, theta),
    ):
        if theirs is not None and ours != theirs:
            raise CheckpointError(
                f"{drafter_name} was made for another target than {target_name}: its {what} is "
                f"{ours}, the target's is {theirs!r}."
            )
    for tap in drafter.target_layer_ids:
        if isinstance(layers, int) and not -1 <= tap < layers:
            raise CheckpointError(
                f"{drafter_name} does not fit {target_name}: its target_layer_ids must lie in "
                f"-1..{layers - 1} for a target of {layers} layers, got {tap}."
            )


def check_headless(config: DrafterConfig, name: str) -> None:
    """CheckpointError where a drafter that is to draft by its marginals has a head."""
    if config.head != "none":
        raise CheckpointError(
            f"dflash must be a drafter without a correction head, got {name}, which has a "
            f"{config.head} head."
        )


def _refuse_unsupported(fields: _Fields, source: str) -> None:
    """CheckpointError for whatever would silently change what the drafter computes."""
    refuse_quantised({"quantization_config": fields.get("quantization_config")}, source)
    for name in ("attention_bias", "use_bias_gate", "use_bias_norm", "use_sliding_window"):
        if fields.flag(name):
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


def refuse_quantised(raw: dict[str, Any], source: str) -> None:
    quantised = raw.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise CheckpointError(
            f"{source} is quantised ({method}), which is not supported: heads and taps are made "
            "for the target's own weights; give the bf16 or fp16 checkpoint."
        )
