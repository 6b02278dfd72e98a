"""Memory estimates against what tensors really take."""

from __future__ import annotations

import json

import pytest
import torch

import dartree
from dartree import public
from dartree.cli import main
from dartree.configs import parse_drafter_config
from dartree.memory import drafter_bytes, estimate
from dartree.packed import PackedLinear, pack
from dartree.stage_memory import LiveBytes
from tests.conftest import DATA
from tests.reference import random_model, random_stack


def bytes_of(module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


@pytest.mark.parametrize("head", ["none", "domino", "markov"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_exact(head, tied):
    model = random_model(dtype=torch.float32, tie_word_embeddings=tied)
    stack = random_stack(head=head, dtype=torch.float32, model=model)
    need = estimate(model.config.to_dict(), stack.drafter.config, dartree.TreeSettings(), 64, 4)
    assert need.target == bytes_of(model)
    assert need.drafter == bytes_of(stack.drafter)
    assert need.head == (bytes_of(stack.head) if head != "none" else 0)


@pytest.mark.parametrize("tied", [True, False])
def test_the_packed_copy_is_exact(tied):
    model = random_model(dtype=torch.float32, tie_word_embeddings=tied)
    stack = random_stack(dtype=torch.float32, model=model)
    options = stack.target.config.to_dict(), stack.drafter.config, dartree.TreeSettings(), 64
    need, half = estimate(*options, 4), estimate(*options, 2)
    models = [stack.target.model, stack.drafter]
    assert pack(models)
    layers = [m for model in models for m in model.modules() if isinstance(m, PackedLinear)]
    assert need.packed == sum(layer.weight.nbytes for layer in layers) > 0
    assert half.packed == 0
    assert estimate(*options, 4, may_pack=False).packed == 0  # as on a GPU
    assert need.total - need.packed - need.fused == estimate(*options, 4, may_pack=False).total


@pytest.mark.parametrize("spare", [-1, 0])
def test_a_second_drafter_counts_for_the_limit_of_packing_alone(monkeypatch, spare):
    """The estimate packs exactly where loading does, which weighs all three models."""
    main, second = random_stack(dtype=torch.float32), random_stack(head="none", dtype=torch.float32)
    models = [main.target.model, main.drafter, second.drafter]
    layers = {m for model in models for m in model.modules() if isinstance(m, torch.nn.Linear)}
    limit = sum(layer.weight.nbytes for layer in layers) + spare
    for module in ("memory", "packed"):
        monkeypatch.setattr(f"dartree.{module}.MOST_BYTES", limit)
    options = main.target.config.to_dict(), main.drafter.config, dartree.TreeSettings(), 64, 4
    alone, beside = estimate(*options), estimate(*options, beside=second.drafter.config)
    assert pack(models) == bool(beside.packed) == (spare == 0)
    assert alone.packed > 0 and beside.total - beside.packed == alone.total - alone.packed


def test_head_tables_and_cache_are_exact():
    stack = random_stack(head="domino", dtype=torch.float32)
    settings = dartree.TreeSettings(width=3, candidates=8, budget=9)
    need = estimate(stack.target.config.to_dict(), stack.drafter.config, settings, 64, 4)
    dartree.generate(stack, [3, 4], settings=settings, max_new_tokens=9, stop=[])
    made = (stack.head._joint, *stack.head._table)
    assert need.head_tables == sum(t.numel() * t.element_size() for t in made)
    rows = 64 + 9 + stack.drafter.config.block_size
    cache = stack.target.new_cache(rows)
    keys = dartree.drafter.DrafterCache(stack.drafter)
    keys.reserve(2 * rows, torch.device("cpu"))
    buffers = [cache._data, *keys._keys, *keys._values]
    assert need.cache == sum(t.numel() * t.element_size() for t in buffers)


@pytest.mark.parametrize("settings", [(12, 64, 64), (4, 8, 8), (32, 256, 192)], ids=str)
@pytest.mark.parametrize("vocabulary", [500, 8000])
def test_peak_of_a_round(settings, vocabulary):
    """What a round's tensors take at their most: at most the estimate, and not far below it."""
    model = random_model(dtype=torch.float32, vocab_size=vocabulary, max_position_embeddings=2048)
    stack = random_stack(head="domino", dtype=torch.float32, model=model, block_size=16)
    width, candidates, budget = settings
    chosen = dartree.TreeSettings(width=width, candidates=candidates, budget=budget)
    prompt = list(range(200))
    decoding = dartree.Decoding(stack, prompt, settings=chosen, max_new_tokens=60, stop=[])
    rounds = iter(decoding)
    for _ in range(3):  # tables and buffers of the first rounds stay
        next(rounds)
    with LiveBytes() as seen:
        next(rounds)
    need = estimate(model.config.to_dict(), stack.drafter.config, chosen, len(prompt) + 60, 4)
    assert 0.4 * need.round_peak < seen.peak < need.round_peak


def test_half_the_bytes_in_half_precision_and_more_for_more():
    target, raw = public.DRAFTERS["Huang2020/Qwen3-4B-Domino-b16"]
    pair = public.target_config(target), parse_drafter_config(raw)
    small = dartree.TreeSettings(width=12, candidates=64, budget=64)
    large = dartree.TreeSettings(width=48, candidates=256, budget=256)
    half, full = (estimate(*pair, small, 2048, size) for size in (2, 4))
    assert (2 * half.target, 2 * half.cache) == (full.target, full.cache)
    assert estimate(*pair, large, 2048).round_peak > half.round_peak
    assert estimate(*pair, small, 4096).cache > half.cache
    assert half.table_left_out == 2 * 151936 * 3072 and full.head_tables < 2**26


@pytest.mark.parametrize("context", [0, -1, 1.5, "x"])
def test_bad_context(context):
    target, raw = public.DRAFTERS["z-lab/Qwen3-4B-DFlash-b16"]
    with pytest.raises(ValueError, match="context must be"):
        estimate(
            public.target_config(target), parse_drafter_config(raw), dartree.TreeSettings(), context
        )


def test_the_command_reads_no_weights(capsys, monkeypatch):
    monkeypatch.setattr("dartree.checkpoints.read_weights", None)
    assert main(["stacks", "--context", "1000"]) == 0
    out = capsys.readouterr().out
    for name in ("tiny", *public.DRAFTERS):
        assert name in out
    assert "bfloat16, 1000 tokens" in out and "peak of a round" in out


def test_the_command_as_json_and_for_one_pair(capsys):
    assert main(["stacks", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["memory"]["total"] > row["memory"]["target"] > 0 for row in rows)
    folder = DATA / "domino-shift"
    pair = ["--target", str(folder / "target"), "--drafter", str(folder / "drafter")]
    assert main(["stacks", *pair, "--budget", "9"]) == 0
    assert str(folder / "drafter") in capsys.readouterr().out
    for wrong in (["--context", "9999"], ["--width", "0"], ["--dtype", "int4"]):
        assert main(["stacks", *pair, *wrong]) == 2
    assert main(["stacks", *pair[:2]]) == 2
    assert main(["stacks", "--target", "/no", "--drafter", "/no"]) == 2
    assert capsys.readouterr().err.count("\n") == 5


def test_the_command_takes_the_ids_that_it_lists(capsys, monkeypatch):
    """And other ids, of which nothing but config.json is fetched."""
    (drafter, (target, raw)) = next(iter(public.DRAFTERS.items()))
    pair = ["--target", target, "--drafter", drafter, "--json"]
    assert main(["stacks", *pair]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    need = estimate(public.target_config(target), parse_drafter_config(raw), dartree.TreeSettings(),
                    4096)  # fmt: skip
    assert row["memory"]["total"] == need.total and not row["memory"]["at_limit"]

    asked = []

    def download(name, file, revision=None):
        asked.append((name, file, revision))
        return str(DATA / "domino-shift" / name.split("/")[1] / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert main(["stacks", "--target", "me/target@v1", "--drafter", "me/drafter"]) == 0
    assert asked == [("me/target", "config.json", "v1"), ("me/drafter", "config.json", None)]


def test_a_target_in_a_drafters_place_is_named_by_folder_and_by_id_alike(capsys):
    folder = str(DATA / "domino-shift" / "target")
    for target, drafter in ((folder, folder), ("Qwen/Qwen3-8B", "Qwen/Qwen3-4B")):
        assert main(["stacks", "--target", target, "--drafter", drafter]) == 2
        words = f"{drafter}, config.json is a target's config (Qwen3ForCausalLM), not a drafter's."
        assert words in capsys.readouterr().err


def test_the_command_refuses_the_pairs_that_loading_refuses(tmp_path, capsys):
    folder = DATA / "domino-shift"
    config = json.loads((folder / "drafter" / "config.json").read_text())
    for number, (changes, words) in enumerate((
        ({"num_target_layers": 36}, "num_target_layers is 36, the target's is 6"),
        ({"rope_theta": 10000.0}, "rope_theta is 10000.0"),
        ({"target_layer_ids": [33]}, "target_layer_ids must lie in -1..5"),
    )):  # fmt: skip
        wrong = config | {k: v for k, v in changes.items() if k in config}
        inner = {k: v for k, v in changes.items() if k not in config}
        wrong["dflash_config"] = wrong["dflash_config"] | inner
        drafter = tmp_path / str(number)
        drafter.mkdir()
        (drafter / "config.json").write_text(json.dumps(wrong))
        pair = ["--target", str(folder / "target"), "--drafter", str(drafter)]
        assert main(["stacks", *pair]) == 2
        err = capsys.readouterr().err
        assert words in err and str(drafter) in err
    wrong_kind = ["--target", str(folder / "drafter"), "--drafter", str(folder / "target")]
    assert main(["stacks", *wrong_kind]) == 2


def test_a_context_beyond_the_model_is_said(capsys):
    assert main(["stacks", "--context", "100000"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "in all" in line]
    assert len(lines) > 6 and all("tokens (the model's limit)" in line for line in lines)
    assert main(["stacks", "--context", "1000"]) == 0
    assert "limit" not in capsys.readouterr().out


def test_a_packed_drafter_counts_its_copy():
    stack = random_stack(dtype=torch.float32)
    config, weights = stack.drafter.config, bytes_of(stack.drafter) + bytes_of(stack.head)
    assert pack([stack.drafter])
    copies = sum(m.weight.nbytes for m in stack.drafter.modules() if isinstance(m, PackedLinear))
    assert drafter_bytes(config, 4) == weights
    assert drafter_bytes(config, 4, packed=True) == weights + copies > weights
