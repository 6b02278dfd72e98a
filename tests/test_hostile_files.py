"""Bytes of a checkpoint changed at random: a CheckpointError or a model, nothing else."""

from __future__ import annotations

import json
import random
import shutil

import pytest

import dartree
from dartree.checkpoints import load_drafter
from tests.conftest import DATA


def attack(data: bytes, rng: random.Random) -> bytes:
    """One random edit, the first bytes (lengths, header) most of the time."""
    kind = rng.choice(["flip", "flip", "cut", "insert", "header length", "header word"])
    reach = len(data) if rng.random() < 0.2 else min(len(data), 4000)
    place = rng.randrange(max(1, reach))
    if kind == "flip":
        return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
    if kind == "cut":
        return data[:place]
    if kind == "insert":
        return data[:place] + rng.randbytes(rng.randrange(1, 20)) + data[place:]
    if kind == "header length":
        return rng.choice([2**63, 2**32, 0, 7, len(data)]).to_bytes(8, "little") + data[8:]
    old, new = rng.choice([(b"F32", b"I64"), (b"F32", b"BF16"), (b"shape", b"shapo"),
                           (b"data_offsets", b"data_offsetz"), (b"[64", b"[-4")])  # fmt: skip
    return data.replace(old, new, rng.choice([1, -1]))


def survive(folder, name, rng) -> bool:
    """Attack one file of a drafter; True where it still loaded."""
    import torch

    path = folder / name
    path.write_bytes(attack((DATA / "domino-shift" / "drafter" / name).read_bytes(), rng))
    try:
        load_drafter(folder, torch.float32, "cpu")
    except dartree.CheckpointError as error:
        assert "\n" not in str(error).strip() and name in str(error) or str(folder) in str(error)
        return False
    return True


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("rounds", [60, pytest.param(3000, marks=pytest.mark.long)])
def test_random_bytes(tmp_path, name, rounds):
    folder = tmp_path / "drafter"
    shutil.copytree(DATA / "domino-shift" / "drafter", folder)
    rng = random.Random(7)
    outcomes = [survive(folder, name, rng) for _ in range(rounds)]
    assert not all(outcomes)


@pytest.mark.parametrize("value", [None, "x", [], {}, -1, 1e400, 2**70, True])
@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "dflash_config", "layer_types", "block_size",
            "rope_theta", "head_dim", "rope_parameters", "vocab_size"],
)  # fmt: skip
def test_values_of_the_wrong_kind(tmp_path, key, value):
    """Every config field set to every kind of nonsense."""
    import torch

    folder = tmp_path / "drafter"
    shutil.copytree(DATA / "domino-shift" / "drafter", folder)
    config = json.loads((folder / "config.json").read_text())
    config[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    try:
        load_drafter(folder, torch.float32, "cpu")
    except dartree.CheckpointError as error:
        assert str(folder) in str(error)
