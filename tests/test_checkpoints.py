"""Public formats: every key accounted for, every fault named."""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import dartree
from dartree.checkpoints import load_target_model
from dartree.configs import default_target_layers, parse_drafter_config
from tests.conftest import DATA
from tests.reference import causal_logits, random_model

# What transformers itself says of a target is shorter before release 5.
TERSE = transformers.__version__.startswith("4.")


@pytest.fixture
def folder(tmp_path):
    """A writable copy of the `domino-shift` case."""
    shutil.copytree(DATA / "domino-shift", tmp_path / "case")
    return tmp_path / "case"


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


@pytest.mark.parametrize(
    ("layers", "target", "want"),
    [(5, 36, (1, 9, 17, 25, 33)), (5, 28, (1, 7, 13, 19, 25)), (5, 24, (1, 6, 11, 16, 21)),
     (1, 36, (18,)), (2, 6, (1, 3))],
)  # fmt: skip
def test_default_target_layers(layers, target, want):
    assert default_target_layers(layers, target) == want


def test_config_variants_read_alike(folder):
    raw = json.loads((folder / "drafter" / "config.json").read_text())
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
def test_bad_configs(folder, changes, words):
    change(folder / "drafter" / "config.json", **changes)
    with pytest.raises(dartree.CheckpointError, match=words):
        load(folder)


def test_a_domino_config_without_its_alignment_warns(folder):
    """Public files name shift_label; without it the drafts would be read one row too late."""
    path = folder / "drafter" / "config.json"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(folder)
    change(path, shift_label=None)
    with pytest.warns(UserWarning, match=f"{path} is a Domino drafter's and lacks shift_label"):
        stack = load(folder)
    assert stack.drafter.config.row_offset == 1
    change(path, sample_from_anchor=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(folder).drafter.config.row_offset == 0


@pytest.mark.parametrize("part", ["drafter", "target"])
def test_many_faults_are_counted(folder, part):
    """A wrong size touches every tensor: three are named, and how many there are."""
    rewrite(folder, part, lambda t: t.update({k: v[:-1].contiguous() for k, v in t.items()}))
    sizes = not (TERSE and part == "target")
    words = rf"shape: .* {'instead of .* ' if sizes else ''}and \d+ more"
    with pytest.raises(dartree.CheckpointError, match=words) as caught:
        load(folder)
    message = str(caught.value)
    assert message.count("instead of") == 3 * sizes and len(message) < 600 and message.endswith(".")
    count = len(load_file(folder / part / "model.safetensors"))
    assert f" and {count - 3} more" in message


def test_the_reason_of_a_refused_field_is_kept(folder):
    path = folder / "target" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_attention_heads": "many"}))
    words = "unsupported operand" if TERSE else "num_attention_heads.: .*many"
    with pytest.raises(dartree.CheckpointError, match=words) as caught:
        load(folder)
    assert "\n" not in str(caught.value) and not str(caught.value).endswith(":")


def test_device_maps_that_are_none(folder):
    paths = dict(target=folder / "target", drafter=folder / "drafter")
    with pytest.raises(ValueError, match="device_map must be one of auto, .*, got 'foo'"):
        dartree.load_stack(**paths, device_map="foo")


@pytest.mark.parametrize("part", ["drafter", "target"])
def test_every_missing_and_unexpected_key_is_named(folder, part):
    def edit(tensors):
        keys = sorted(k for k in tensors if "mlp" in k)
        tensors["stray.one"] = tensors.pop(keys[0])
        tensors["stray.two"] = tensors.pop(keys[1])
        edit.gone = keys[:2]

    rewrite(folder, part, edit)
    with pytest.raises(dartree.CheckpointError) as caught:
        load(folder)
    for name in (*edit.gone, "stray.one", "stray.two"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("part", "key"), [("drafter", "fc.weight"), ("target", "model.norm.weight")]
)
def test_wrong_shapes_are_named(folder, part, key):
    rewrite(folder, part, lambda t: t.update({key: t[key][..., :-1].contiguous()}))
    with pytest.raises(dartree.CheckpointError, match=key.replace(".", r"\.")):
        load(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [("vocab_size", "x"), ("hidden_size", 0), ("head_dim", 0), ("num_attention_heads", 0),
     ("num_key_value_heads", 0), ("tie_word_embeddings", None), ("sliding_window", "x"),
     ("num_hidden_layers", -1), ("layer_types", 3), ("rms_norm_eps", []), ("rope_theta", "x")],
)  # fmt: skip
def test_target_configs_of_the_wrong_kind(folder, key, value):
    """One sentence, or a model: what transformers accepts it may accept."""
    config = json.loads((folder / "target" / "config.json").read_text())
    (folder / "target" / "config.json").write_text(json.dumps(config | {key: value}))
    try:
        load(folder)
    except dartree.CheckpointError as error:
        assert "target" in str(error) or "drafter" in str(error)


@pytest.mark.parametrize("part", ["drafter", "target"])
@pytest.mark.parametrize("size", [0, 7, 100, 5000, -1])
def test_truncated_weights(folder, part, size):
    path = folder / part / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(dartree.CheckpointError, match="model.safetensors .*truncated; download"):
        load(folder)


@pytest.mark.parametrize("part", ["drafter", "target"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files(folder, part, name):
    (folder / part / name).unlink()
    with pytest.raises(dartree.CheckpointError, match=name):
        load(folder)


@pytest.mark.parametrize("part", ["drafter", "target"])
@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "\x00"])
def test_broken_json(folder, part, text):
    (folder / part / "config.json").write_text(text)
    with pytest.raises(dartree.CheckpointError, match="config.json"):
        load(folder)


def test_another_model_type_is_refused(folder):
    change(folder / "target" / "config.json", model_type="llama")
    with pytest.raises(dartree.CheckpointError, match="llama"):
        load(folder)


@pytest.mark.filterwarnings("ignore:.*carries a")
def test_training_prefix_and_frozen_copies(folder):
    """`logit_head.` is stripped; copies of the target's tables are dropped."""
    want = load(folder)

    def edit(tensors):
        for key in [k for k in tensors if k.startswith(("prefix_gru", "embed_proj"))]:
            tensors[f"logit_head.{key}"] = tensors.pop(key)
        tensors["embed_tokens.weight"] = torch.zeros(97, 64)
        tensors["lm_head.weight"] = torch.zeros(97, 64)

    rewrite(folder, "drafter", edit)
    ids = list(range(9))
    got = dartree.draft(load(folder), ids)
    assert torch.equal(got.base_logits, dartree.draft(want, ids).base_logits)


def test_shards(folder):
    """Weights split over two files with an index, as large checkpoints are."""
    path = folder / "drafter" / "model.safetensors"
    tensors = load_file(path)
    keys = sorted(tensors)
    weight_map = {}
    for name, part in (("a.safetensors", keys[::2]), ("b.safetensors", keys[1::2])):
        save_file({k: tensors[k] for k in part}, folder / "drafter" / name)
        weight_map |= dict.fromkeys(part, name)
    path.unlink()
    index = folder / "drafter" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    stack = load(folder)
    assert torch.equal(stack.drafter.fc.weight, tensors["fc.weight"])
    (folder / "drafter" / "b.safetensors").unlink()
    with pytest.raises(dartree.CheckpointError, match="b.safetensors"):
        load(folder)


def test_pickles_are_never_opened(folder):
    path = folder / "drafter" / "model.safetensors"
    torch.save(load_file(path), folder / "drafter" / "pytorch_model.bin")
    path.unlink()
    with pytest.raises(dartree.CheckpointError, match="safetensors only"):
        load(folder)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(folder, dtype):
    stack = dartree.load_stack(target=folder / "target", drafter=folder / "drafter", dtype=dtype)
    out = dartree.generate(stack, [3, 4, 5], max_new_tokens=9, stop=[])
    assert out.dtype == dtype and out.new_tokens == 9


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


@pytest.fixture
def dspark(tmp_path):
    shutil.copytree(DATA / "dspark-vanilla", tmp_path / "case")
    return tmp_path / "case"


def test_speculators_files_draft_alike(dspark):
    want = dartree.draft(load(dspark), [3, 4, 5])
    path = dspark / "drafter" / "config.json"
    path.write_text(json.dumps(speculators_config(dspark / "drafter")))
    rewrite(dspark, "drafter", lambda t: t.update(d2t=torch.zeros(97, dtype=torch.long)))
    stack = load(dspark)
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
def test_bad_speculators_files(dspark, changes, words):
    path = dspark / "drafter" / "config.json"
    path.write_text(json.dumps(speculators_config(dspark / "drafter") | changes))
    with pytest.raises(dartree.CheckpointError, match=words):
        load(dspark)


def test_draft_alignment_of_speculators_files(dspark):
    raw = speculators_config(dspark / "drafter") | {"sample_from_anchor": False}
    config = parse_drafter_config(raw)
    assert (config.row_offset, config.drafts) == (1, config.block_size - 1)


@pytest.mark.parametrize("part", ["drafter", "target"])
def test_quantised_files_are_refused(folder, part):
    path = folder / part / "config.json"
    raw = json.loads(path.read_text()) | {"quantization_config": {"quant_method": "awq"}}
    path.write_text(json.dumps(raw))
    with pytest.raises(dartree.CheckpointError, match=r"is quantised \(awq\)"):
        load(folder)


def test_copies_of_the_targets_tables_are_compared(dspark):
    tables = load_file(dspark / "target" / "model.safetensors")
    embedding = tables["model.embed_tokens.weight"]

    def carry(table):
        rewrite(dspark, "drafter", lambda t: t.update({"embed_tokens.weight": table}))

    carry(embedding.to(torch.bfloat16))  # rounded, as files in half precision are
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(dspark)
    for other in (embedding + 1, embedding[:5].contiguous()):
        carry(other)
        with pytest.warns(UserWarning, match="embed_tokens.weight that is not .*target's"):
            load(dspark)


def test_a_name_that_comes_twice(folder):
    rewrite(folder, "drafter", lambda t: t.update({"logit_head.fc.weight": t["fc.weight"] + 1}))
    with pytest.raises(dartree.CheckpointError, match="fc.weight a second time"):
        load(folder)


@pytest.mark.parametrize(
    ("what", "value"), [("hidden_size", 32), ("vocab_size", 101), ("num_hidden_layers", 8)]
)
def test_wrong_pairings_name_both(folder, what, value):
    """A drafter in order, and a target in order that it was not made for."""
    sizes = dict(hidden_size=64, vocab_size=97, num_hidden_layers=6) | {what: value}
    random_model(dtype=torch.float32, **sizes).save_pretrained(folder / "other")
    with pytest.raises(dartree.CheckpointError, match="made for another target") as caught:
        dartree.load_stack(target=folder / "other", drafter=folder / "drafter")
    for words in (str(folder / "other"), str(folder / "drafter"), f"the target's is {value}"):
        assert words in str(caught.value)


def test_drafter_and_target_may_differ_in_dtype(folder):
    """Half-precision drafts under a target in fp32: other drafts, the same text."""
    paths = dict(target=folder / "target", drafter=folder / "drafter")
    want = dartree.generate(dartree.load_stack(**paths), [3, 4, 5], method="ar", max_new_tokens=20)
    for kind in ("bfloat16", "float16"):
        stack = dartree.load_stack(**paths, drafter_dtype=kind)
        assert str(stack.drafter.dtype) == f"torch.{kind}" and stack.target.dtype == torch.float32
        for method in ("domino", "ddtree", "dartree"):
            out = dartree.generate(stack, [3, 4, 5], method=method, max_new_tokens=20)
            assert out.token_ids == want.token_ids


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_targets_in_shards(folder, tmp_path, tied):
    """Large targets come in shards; 4B ties its tables, 8B does not."""
    model = random_model(dtype=torch.float32, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "target", max_shard_size="30KB")
    assert len(list((tmp_path / "target").glob("*.safetensors"))) > 1
    loaded = load_target_model(tmp_path / "target", torch.float32, "cpu")
    ids = list(range(9))
    assert torch.equal(causal_logits(loaded, ids), causal_logits(model, ids))


def test_device_map(folder):
    pytest.importorskip("accelerate")
    paths = dict(target=folder / "target", drafter=folder / "drafter")
    stack = dartree.load_stack(**paths, device_map={"": "cpu"})
    want = dartree.generate(load(folder), [3, 4, 5], max_new_tokens=9).token_ids
    assert dartree.generate(stack, [3, 4, 5], max_new_tokens=9).token_ids == want


def test_device_map_without_accelerate(folder, monkeypatch):
    if importlib.util.find_spec("accelerate"):
        pytest.skip("accelerate is installed")
    paths = dict(target=folder / "target", drafter=folder / "drafter")
    with pytest.raises(dartree.CheckpointError, match="accelerate"):
        dartree.load_stack(**paths, device_map="auto")
