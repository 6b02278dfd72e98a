"""config.json of drafters and targets: what is read alike, and every fault named."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

import dartree
from dartree.configs import default_target_layers, parse_drafter_config
from tests.checkpoint_files import TERSE, change, load, rewrite, speculators_config
from tests.conftest import DATA


@pytest.mark.parametrize(
    ("layers", "target", "want"),
    [(5, 36, (1, 9, 17, 25, 33)), (5, 28, (1, 7, 13, 19, 25)), (5, 24, (1, 6, 11, 16, 21)),
     (1, 36, (18,)), (2, 6, (1, 3))],
)  # fmt: skip
def test_default_target_layers(layers, target, want):
    assert default_target_layers(layers, target) == want


def test_config_variants_read_alike(shift_folder):
    raw = json.loads((shift_folder / "drafter" / "config.json").read_text())
    want = parse_drafter_config(raw)
    inner = raw["dflash_config"]
    inner["block_size"] = raw.pop("block_size")
    inner["projector_type"] = "causal_v5"
    raw["emb_dim"] = inner.pop("emb_dim")
    raw["rope_parameters"] = {"rope_theta": raw.pop("rope_theta"), "rope_type": "default"}
    assert parse_drafter_config(raw) == want
    del inner["target_layer_ids"]
    assert parse_drafter_config(raw).target_layer_ids == (1, 3)
    del inner["pure_draft_prefix_len"]
    assert parse_drafter_config(raw).pure_draft_prefix_len == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(projector_type="causal_v3"), "causal_v3"),
        (dict(use_bias_gate=True), "use_bias_gate"),
        (dict(mask_token_id=97), "mask_token_id 97; an integer in 0..96"),
        (dict(mask_token_id=None), "lacks 'mask_token_id'"),
        (dict(block_size="eight"), "block_size 'eight'; an integer"),
        (dict(block_size=0), "block_size 0"),
        (dict(layer_types=["sliding_attention"]), "layer_types"),
        (dict(hidden_act="gelu"), "gelu"),
        (dict(rope_scaling={"rope_type": "yarn", "factor": 4.0}), "rope_scaling of type 'yarn'"),
        (dict(rope_parameters={"rope_type": "linear"}), "rope_parameters of type 'linear'"),
        (dict(hidden_size=None), "lacks 'hidden_size'"),
        (dict(emb_dim=None), "lacks 'emb_dim'"),
        (dict(shift_label="false"), "has shift_label 'false'; true or false is needed"),
        (dict(shift_label=1), "has shift_label 1; true or false"),
        (dict(sample_from_anchor="true"), "sample_from_anchor 'true'"),
        (dict(enable_confidence_head=0), "enable_confidence_head 0"),
        (dict(confidence_head_with_markov="no"), "confidence_head_with_markov 'no'"),
        (dict(attention_bias="false"), "attention_bias 'false'"),
        (dict(use_sliding_window=[]), "use_sliding_window"),
        (dict(rope_theta=10000.0), "rope_theta is 10000.0, the target's is 1000000.0"),
        (dict(num_target_layers=8), "num_target_layers is 8"),
    ],
    ids=lambda v: str(v),
)
def test_bad_configs(shift_folder, changes, words):
    change(shift_folder / "drafter" / "config.json", **changes)
    with pytest.raises(dartree.CheckpointError, match=words):
        load(shift_folder)


def test_a_domino_config_without_its_alignment_warns(shift_folder):
    """Public files name shift_label; without it the drafts would be read one row too late."""
    path = shift_folder / "drafter" / "config.json"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(shift_folder)
    change(path, shift_label=None)
    with pytest.warns(UserWarning, match=f"{path} is a Domino drafter's and lacks shift_label"):
        stack = load(shift_folder)
    assert stack.drafter.config.row_offset == 1
    change(path, sample_from_anchor=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(shift_folder).drafter.config.row_offset == 0


def test_the_reason_of_a_refused_field_is_kept(shift_folder):
    path = shift_folder / "target" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_attention_heads": "many"}))
    words = "unsupported operand" if TERSE else "num_attention_heads.: .*many"
    with pytest.raises(dartree.CheckpointError, match=words) as caught:
        load(shift_folder)
    assert "\n" not in str(caught.value) and not str(caught.value).endswith(":")


@pytest.mark.parametrize(
    ("key", "value"),
    [("vocab_size", "x"), ("hidden_size", 0), ("head_dim", 0), ("num_attention_heads", 0),
     ("num_key_value_heads", 0), ("tie_word_embeddings", None), ("sliding_window", "x"),
     ("num_hidden_layers", -1), ("layer_types", 3), ("rms_norm_eps", []), ("rope_theta", "x")],
)  # fmt: skip
def test_target_configs_of_the_wrong_kind(shift_folder, key, value):
    """One sentence, or a model: what transformers accepts it may accept."""
    config = json.loads((shift_folder / "target" / "config.json").read_text())
    (shift_folder / "target" / "config.json").write_text(json.dumps(config | {key: value}))
    try:
        load(shift_folder)
    except dartree.CheckpointError as error:
        assert "target" in str(error) or "drafter" in str(error)


@pytest.mark.parametrize("part", ["drafter", "target"])
@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "\x00"])
def test_broken_json(shift_folder, part, text):
    (shift_folder / part / "config.json").write_text(text)
    with pytest.raises(dartree.CheckpointError, match="config.json"):
        load(shift_folder)


def test_another_model_type_is_refused(shift_folder):
    change(shift_folder / "target" / "config.json", model_type="llama")
    with pytest.raises(dartree.CheckpointError, match="llama"):
        load(shift_folder)


@pytest.mark.parametrize("case", ["domino-shift", "dspark-vanilla"])
def test_a_drafter_in_the_targets_place_is_called_one(case):
    drafter = DATA / case / "drafter"
    with pytest.raises(dartree.CheckpointError, match="is a drafter's config, not a target's"):
        dartree.load_stack(target=drafter, drafter=drafter)


@pytest.mark.parametrize("part", ["drafter", "target"])
def test_quantised_files_are_refused(shift_folder, part):
    path = shift_folder / part / "config.json"
    raw = json.loads(path.read_text()) | {"quantization_config": {"quant_method": "awq"}}
    path.write_text(json.dumps(raw))
    with pytest.raises(dartree.CheckpointError, match=r"is quantised \(awq\)"):
        load(shift_folder)


def test_speculators_files_draft_alike(dspark_folder):
    want = dartree.draft(load(dspark_folder), [3, 4, 5])
    path = dspark_folder / "drafter" / "config.json"
    path.write_text(json.dumps(speculators_config(dspark_folder / "drafter")))
    rewrite(dspark_folder, "drafter", lambda t: t.update(d2t=torch.zeros(97, dtype=torch.long)))
    stack = load(dspark_folder)
    got = dartree.draft(stack, [3, 4, 5])
    assert torch.equal(got.base_logits, want.base_logits)
    assert got.drafts == stack.drafter.config.block_size


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(draft_vocab_size=32), r"reduced draft vocabulary \(32 of 97 tokens\)"),
        (dict(speculators_model_type="eagle3"), "speculators_model_type 'eagle3'"),
        (dict(transformer_layer_config=3), "transformer_layer_config"),
        (dict(aux_hidden_state_layer_ids=None), "lacks 'num_target_layers'"),
        (dict(aux_hidden_state_layer_ids=[1, 9]), "target_layer_ids must lie in -1..5"),
    ],
    ids=str,
)
def test_bad_speculators_files(dspark_folder, changes, words):
    path = dspark_folder / "drafter" / "config.json"
    path.write_text(json.dumps(speculators_config(dspark_folder / "drafter") | changes))
    with pytest.raises(dartree.CheckpointError, match=words):
        load(dspark_folder)


def test_draft_alignment_of_speculators_files(dspark_folder):
    raw = speculators_config(dspark_folder / "drafter") | {"sample_from_anchor": False}
    config = parse_drafter_config(raw)
    assert (config.row_offset, config.drafts) == (1, config.block_size - 1)
