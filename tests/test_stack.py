"""Stacks: names, prompts, pairings, dtypes, device maps."""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings

import pytest
import torch

import dartree
from dartree.heads import NoCorrection
from dartree.stack import data_dir
from tests.checkpoint_files import load
from tests.conftest import DATA
from tests.reference import headless, random_model, random_stack


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(name="huge"), "stack must be one of"),
        (dict(target="x"), "together"),
        (dict(name="tiny", target="x", drafter="y"), "not both"),
        (dict(target="./nowhere", drafter="./nowhere"), "neither a folder nor a hub id"),
        (dict(name="tiny", dtype="int3"), "dtype must be one of"),
        (dict(name="tiny", dtype=[]), "dtype must be one of"),
        (dict(target=5, drafter=5), "target must be a folder or a hub id, got 5"),
        (dict(target="~nobody-of-this-name", drafter="x"), "target must be a folder or a hub id"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(ValueError, match=words):
        dartree.load_stack(**arguments)


def test_a_stack_needs_its_data(monkeypatch, tmp_path):
    monkeypatch.setenv("DARTREE_DATA", str(tmp_path))
    with pytest.raises(dartree.CheckpointError, match="DARTREE_DATA"):
        dartree.load_stack("tiny")


def test_the_data_folder_does_not_depend_on_the_working_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert (data_dir() / "prompts").is_dir()


def test_labels_say_which_drafter_and_whether_the_head_is_used():
    stack = random_stack(head="domino")
    assert stack.pairing("ar").drafter is None
    assert stack.pairing("dartree") is stack.main
    marginals = stack.pairing("dflash")
    assert isinstance(marginals.head, NoCorrection) and "without the head" in marginals.label
    stack.marginal = random_stack(head="none").main
    assert stack.pairing("ddtree") is stack.marginal
    assert stack.pairing("domino-ddtree") is stack.main
    for name in ("nope", None):
        with pytest.raises(ValueError, match=f"method must be one of .*, got {name!r}"):
            stack.pairing(name)


def test_a_drafter_without_a_head_says_so_where_a_head_would_be_used():
    stack = random_stack(head="none")
    labels = {m: stack.pairing(m).label for m in dartree.METHODS}
    plain = ("ar", "dflash", "ddtree")
    assert {m for m, label in labels.items() if "without a correction head" in label} == {
        m for m in dartree.METHODS if m not in plain
    }
    assert dartree.generate(stack, [5], max_new_tokens=2).drafter == labels["dartree"]
    outs = {m: dartree.generate(stack, [5], method=m, max_new_tokens=2) for m in dartree.METHODS}
    assert {m for m, out in outs.items() if not out.lacks_head} == set(plain)
    stack.main.label = "a name that ends without a correction head"
    assert not dartree.generate(stack, [5], method="ddtree", max_new_tokens=2).lacks_head


def test_methods_on_the_head_less_drafter_use_its_taps():
    """Two drafters, one target: each gets features of its own layers."""
    stack = random_stack(head="domino")
    other = random_stack(head="none", seed=9, model=stack.target.model)
    stack.marginal = other.main
    ids = [5, 6, 7]
    alone = dartree.generate(other, ids, method="ddtree", max_new_tokens=12, stop=[])
    both = dartree.generate(stack, ids, method="ddtree", max_new_tokens=12, stop=[])
    assert both.token_ids == alone.token_ids
    assert [r.tree.path_tokens() for r in both.records] == [
        r.tree.path_tokens() for r in alone.records
    ]


THINKING = [
    ([{"role": "user", "content": "Hello /think"}], True),
    ([{"role": "user", "content": "/think please"}, {"role": "assistant", "content": "ok"},
      {"role": "user", "content": "Hello /no_think"}], False),
    ([{"role": "user", "content": "the folder /thinker and a/think"}], False),
    ("<think>\n", True),
    ("<think>\n\n</think>\n\nHello", False),
    ("Hello /think<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", False),  # Qwen3's
    ("Hello", False),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "thinks"), THINKING, ids=lambda v: str(v)[:40])
def test_thinking_prompts_warn(prompt, thinks):
    stack = dartree.load_stack("tiny")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stack.encode(prompt, raw=isinstance(prompt, str))
    assert any("lets the model think" in str(w.message) for w in caught) is thinks


def test_a_stack_of_folders_with_a_drafter_of_its_own_for_the_marginals(tmp_path):
    folder, own = DATA / "domino-shift", headless(tmp_path / "own")
    paths = dict(target=folder / "target", drafter=folder / "drafter")
    stack = dartree.load_stack(**paths, dflash=own)
    assert stack.pairing("ddtree").drafter is not stack.drafter
    assert {part: s.folder for part, s in stack.sources.items()} == {
        "target": folder / "target", "drafter": folder / "drafter", "dflash": own
    }  # fmt: skip
    with pytest.raises(ValueError, match="dflash is given together with"):
        dartree.load_stack("tiny", dflash=own)


def test_a_drafter_with_a_head_is_no_dflash():
    folder = DATA / "domino-shift"
    paths = dict(target=folder / "target", drafter=folder / "drafter")
    with pytest.raises(dartree.CheckpointError, match="without a correction head, got .* domino"):
        dartree.load_stack(**paths, dflash=folder / "drafter")


def test_a_wrong_pairing_is_refused_before_weights_are_read(tmp_path, monkeypatch):
    """By the configs alone, and what is named is the drafter."""
    monkeypatch.setattr("dartree.stack.load_target_model", None)
    folder = tmp_path / "drafter"
    shutil.copytree(DATA / "domino-shift" / "drafter", folder)
    config = json.loads((folder / "config.json").read_text())
    target = DATA / "domino-shift" / "target"
    for changes, words in (
        ({"num_target_layers": 36}, "its num_target_layers is 36, the target's is 6"),
        ({"rope_theta": 10000.0}, "its rope_theta is 10000.0, the target's is 1000000"),
        ({"vocab_size": 98}, "its vocab_size is 98, the target's is 97"),
    ):
        (folder / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(dartree.CheckpointError, match=f"{folder} was made for .*{words}"):
            dartree.load_stack(target=target, drafter=folder)
    taps = config["dflash_config"] | {"target_layer_ids": [1, 33]}
    (folder / "config.json").write_text(json.dumps(config | {"dflash_config": taps}))
    with pytest.raises(dartree.CheckpointError, match=f"{folder} does not fit .* in -1..5 .* 33"):
        dartree.load_stack(target=target, drafter=folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").unlink()
    with pytest.raises(dartree.CheckpointError, match="drafter/model.safetensors does not exist"):
        dartree.load_stack(target=target, drafter=folder)


@pytest.mark.parametrize(
    ("what", "value"), [("hidden_size", 32), ("vocab_size", 101), ("num_hidden_layers", 8)]
)
def test_wrong_pairings_name_both(shift_folder, what, value):
    """A drafter in order, and a target in order that it was not made for."""
    sizes = dict(hidden_size=64, vocab_size=97, num_hidden_layers=6) | {what: value}
    random_model(dtype=torch.float32, **sizes).save_pretrained(shift_folder / "other")
    with pytest.raises(dartree.CheckpointError, match="made for another target") as caught:
        dartree.load_stack(target=shift_folder / "other", drafter=shift_folder / "drafter")
    for words in (
        str(shift_folder / "other"),
        str(shift_folder / "drafter"),
        f"the target's is {value}",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(shift_folder, dtype):
    stack = dartree.load_stack(
        target=shift_folder / "target", drafter=shift_folder / "drafter", dtype=dtype
    )
    out = dartree.generate(stack, [3, 4, 5], max_new_tokens=9, stop=[])
    assert out.dtype == dtype and out.new_tokens == 9


def test_drafter_and_target_may_differ_in_dtype(shift_folder):
    """Half-precision drafts under a target in fp32: other drafts, the same text."""
    paths = dict(target=shift_folder / "target", drafter=shift_folder / "drafter")
    want = dartree.generate(dartree.load_stack(**paths), [3, 4, 5], method="ar", max_new_tokens=20)
    for kind in ("bfloat16", "float16"):
        stack = dartree.load_stack(**paths, drafter_dtype=kind)
        assert str(stack.drafter.dtype) == f"torch.{kind}" and stack.target.dtype == torch.float32
        for method in ("domino", "ddtree", "dartree"):
            out = dartree.generate(stack, [3, 4, 5], method=method, max_new_tokens=20)
            assert out.token_ids == want.token_ids


def test_device_maps_that_are_none(shift_folder):
    paths = dict(target=shift_folder / "target", drafter=shift_folder / "drafter")
    with pytest.raises(ValueError, match="device_map must be one of auto, .*, got 'foo'"):
        dartree.load_stack(**paths, device_map="foo")


def test_device_map(shift_folder):
    pytest.importorskip("accelerate")
    paths = dict(target=shift_folder / "target", drafter=shift_folder / "drafter")
    stack = dartree.load_stack(**paths, device_map={"": "cpu"})
    want = dartree.generate(load(shift_folder), [3, 4, 5], max_new_tokens=9).token_ids
    assert dartree.generate(stack, [3, 4, 5], max_new_tokens=9).token_ids == want


def test_device_map_without_accelerate(shift_folder, monkeypatch):
    if importlib.util.find_spec("accelerate"):
        pytest.skip("accelerate is installed")
    paths = dict(target=shift_folder / "target", drafter=shift_folder / "drafter")
    with pytest.raises(dartree.CheckpointError, match="accelerate"):
        dartree.load_stack(**paths, device_map="auto")
