"""Weights in the public formats: every key accounted for, every fault named."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

import dartree
from dartree.checkpoints import load_target_model
from tests.checkpoint_files import TERSE, load, rewrite
from tests.reference import causal_logits, random_model


@pytest.mark.parametrize("part", ["drafter", "target"])
def test_many_faults_are_counted(shift_folder, part):
    """A wrong size touches every tensor: three are named, and how many there are."""
    rewrite(shift_folder, part, lambda t: t.update({k: v[:-1].contiguous() for k, v in t.items()}))
    sizes = not (TERSE and part == "target")
    words = rf"shape: .* {'instead of .* ' if sizes else ''}and \d+ more"
    with pytest.raises(dartree.CheckpointError, match=words) as caught:
        load(shift_folder)
    message = str(caught.value)
    assert message.count("instead of") == 3 * sizes and len(message) < 600 and message.endswith(".")
    count = len(load_file(shift_folder / part / "model.safetensors"))
    assert f" and {count - 3} more" in message


@pytest.mark.parametrize("part", ["drafter", "target"])
def test_every_missing_and_unexpected_key_is_named(shift_folder, part):
    def edit(tensors):
        keys = sorted(k for k in tensors if "mlp" in k)
        tensors["stray.one"] = tensors.pop(keys[0])
        tensors["stray.two"] = tensors.pop(keys[1])
        edit.gone = keys[:2]

    rewrite(shift_folder, part, edit)
    with pytest.raises(dartree.CheckpointError) as caught:
        load(shift_folder)
    for name in (*edit.gone, "stray.one", "stray.two"):
        assert name in str(caught.value)


@pytest.mark.parametrize(
    ("part", "key"), [("drafter", "fc.weight"), ("target", "model.norm.weight")]
)
def test_wrong_shapes_are_named(shift_folder, part, key):
    rewrite(shift_folder, part, lambda t: t.update({key: t[key][..., :-1].contiguous()}))
    with pytest.raises(dartree.CheckpointError, match=key.replace(".", r"\.")):
        load(shift_folder)


@pytest.mark.parametrize("part", ["drafter", "target"])
@pytest.mark.parametrize("size", [0, 7, 100, 5000, -1])
def test_truncated_weights(shift_folder, part, size):
    path = shift_folder / part / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(dartree.CheckpointError, match="model.safetensors .*truncated; download"):
        load(shift_folder)


@pytest.mark.parametrize("part", ["drafter", "target"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files(shift_folder, part, name):
    (shift_folder / part / name).unlink()
    with pytest.raises(dartree.CheckpointError, match=name):
        load(shift_folder)


@pytest.mark.filterwarnings("ignore:.*carries a")
def test_training_prefix_and_frozen_copies(shift_folder):
    """`logit_head.` is stripped; copies of the target's tables are dropped."""
    want = load(shift_folder)

    def edit(tensors):
        for key in [k for k in tensors if k.startswith(("prefix_gru", "embed_proj"))]:
            tensors[f"logit_head.{key}"] = tensors.pop(key)
        tensors["embed_tokens.weight"] = torch.zeros(97, 64)
        tensors["lm_head.weight"] = torch.zeros(97, 64)

    rewrite(shift_folder, "drafter", edit)
    ids = list(range(9))
    got = dartree.draft(load(shift_folder), ids)
    assert torch.equal(got.base_logits, dartree.draft(want, ids).base_logits)


def test_shards(shift_folder):
    """Weights split over two files with an index, as large checkpoints are."""
    path = shift_folder / "drafter" / "model.safetensors"
    tensors = load_file(path)
    keys = sorted(tensors)
    weight_map = {}
    for name, part in (("a.safetensors", keys[::2]), ("b.safetensors", keys[1::2])):
        save_file({k: tensors[k] for k in part}, shift_folder / "drafter" / name)
        weight_map |= dict.fromkeys(part, name)
    path.unlink()
    index = shift_folder / "drafter" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    stack = load(shift_folder)
    assert torch.equal(stack.drafter.fc.weight, tensors["fc.weight"])
    (shift_folder / "drafter" / "b.safetensors").unlink()
    with pytest.raises(dartree.CheckpointError, match="b.safetensors"):
        load(shift_folder)


def test_pickles_are_never_opened(shift_folder):
    path = shift_folder / "drafter" / "model.safetensors"
    torch.save(load_file(path), shift_folder / "drafter" / "pytorch_model.bin")
    path.unlink()
    with pytest.raises(dartree.CheckpointError, match="safetensors only"):
        load(shift_folder)


def test_copies_of_the_targets_tables_are_compared(dspark_folder):
    tables = load_file(dspark_folder / "target" / "model.safetensors")
    embedding = tables["model.embed_tokens.weight"]

    def carry(table):
        rewrite(dspark_folder, "drafter", lambda t: t.update({"embed_tokens.weight": table}))

    carry(embedding.to(torch.bfloat16))  # rounded, as files in half precision are
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(dspark_folder)
    for other in (embedding + 1, embedding[:5].contiguous()):
        carry(other)
        with pytest.warns(UserWarning, match="embed_tokens.weight that is not .*target's"):
            load(dspark_folder)


def test_a_name_that_comes_twice(shift_folder):
    rewrite(
        shift_folder, "drafter", lambda t: t.update({"logit_head.fc.weight": t["fc.weight"] + 1})
    )
    with pytest.raises(dartree.CheckpointError, match="fc.weight a second time"):
        load(shift_folder)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_targets_in_shards(shift_folder, tmp_path, tied):
    """Large targets come in shards; 4B ties its tables, 8B does not."""
    model = random_model(dtype=torch.float32, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "target", max_shard_size="30KB")
    assert len(list((tmp_path / "target").glob("*.safetensors"))) > 1
    loaded = load_target_model(tmp_path / "target", torch.float32, "cpu")
    ids = list(range(9))
    assert torch.equal(causal_logits(loaded, ids), causal_logits(model, ids))
