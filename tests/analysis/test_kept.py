"""Results kept on disk: the same bits as without, and nothing that was damaged is believed."""

import json
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from dartree.analysis import kept
from dartree.analysis.anchors import anchors
from dartree.analysis.replay import Replay
from dartree.packed import pack
from tests.reference import random_stack

PROMPTS = [[1, 2, 3], [5]]


@pytest.fixture(scope="module")
def stack():
    """Two drafters on one target."""
    stack = random_stack(head="domino", dtype=torch.float32)
    return replace(stack, marginal=random_stack("none", seed=7, model=stack.target.model).main)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("DARTREE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def measured(stack, temperature=0.0):
    """Texts, hidden states of all blocks and rounds of two methods, and anchors."""
    replay = Replay(stack, PROMPTS, 12, temperature, seed=3)
    rounds = {m: replay.accepted(m, stack.settings) for m in ("dflash", "dartree")}
    hidden = [tensor for text in replay.texts for tensor in text.hidden.values()]
    return [text.answer for text in replay.texts], hidden, rounds, anchors(stack, PROMPTS, 4, 12)


def same(one, other):
    assert one[0] == other[0] and one[2:] == other[2:]
    assert len(one[1]) == len(other[1]) == 4
    assert all(
        torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one[1], other[1], strict=True)
    )


@pytest.mark.parametrize("temperature", (0.0, 1.0))
def test_the_same_bits_with_and_without(stack, place, monkeypatch, temperature):
    monkeypatch.delenv("DARTREE_CACHE")
    plain = measured(stack, temperature)
    assert not place.exists()
    monkeypatch.setenv("DARTREE_CACHE", str(place))
    first = measured(stack, temperature)
    same(plain, first)
    monkeypatch.setattr("dartree.analysis.answers.generate", None)
    monkeypatch.setattr("dartree.analysis.replay._blocks", None)
    same(plain, measured(stack, temperature))  # nothing is computed


def test_texts_are_shared_by_drafters_on_one_target(stack, place, monkeypatch):
    other = random_stack(head="markov", seed=5, model=stack.target.model)
    texts = [text.answer for text in Replay(stack, PROMPTS, 8).texts]
    monkeypatch.setattr("dartree.analysis.answers.generate", None)
    assert [text.answer for text in Replay(other, PROMPTS, 8).texts] == texts


def tensors():
    return {"hidden": torch.arange(6.0).reshape(2, 3), "ids": torch.tensor([7])}


def never():
    raise AssertionError("computed again")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # in the last number
    path.write_bytes(data)


def relabel(path):
    save_file(load_file(path), path, {"name": path.stem, "sha256": "0" * 64})


def swap(path):
    """A whole file of ours under another one's name."""
    kept.keep("a", {"what": 2}, lambda: {"hidden": torch.ones(2, 3)})
    (other,) = set(path.parent.iterdir()) - {path}
    other.replace(path)


DAMAGE = {
    "half": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not tensors"),
    "bare": lambda path: save_file(tensors(), path),
    "flipped": flip,
    "relabelled": relabel,
    "swapped": swap,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_and_foreign_files_are_computed_again(place, damage):
    kept.keep("a", {"what": 1}, tensors)
    (path,) = place.iterdir()
    found = kept.keep("a", {"what": 1}, never)
    assert found.keys() == tensors().keys()
    DAMAGE[damage](path)
    with pytest.raises(AssertionError, match="computed again"):
        kept.keep("a", {"what": 1}, never)
    found = kept.keep("a", {"what": 1}, tensors)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors().items())
    kept.keep("a", {"what": 1}, never)  # written anew


def test_every_name_stands_for_what_it_depends_on(stack, place, monkeypatch):
    pairing = stack.main
    names = {kept.identity(pairing), kept.identity(stack.pairing("ar"))}
    assert len(names) == 2 and kept.identity(pairing) in names
    for weight in (pairing.drafter.fc.weight, pairing.target.model.lm_head.weight):
        old = weight.detach().clone()
        with torch.no_grad():
            weight[0, 0] += 1e-6
        names.add(kept.identity(pairing))
        with torch.no_grad():
            weight.copy_(old)
    assert len(names) == 4 and kept.identity(pairing) in names
    config = replace(pairing.drafter.config, rope_theta=1e4)
    monkeypatch.setattr(pairing.drafter, "config", config)
    names.add(kept.identity(pairing))
    for name in ("machine", "versions", "_sources"):
        monkeypatch.setattr(kept, name, lambda name=name: name)
        names.add(kept.identity(pairing))
    assert len(names) == 8
    for what in ({"ids": [1, 2]}, {"ids": [1, 2], "seed": 1}, {"ids": [2, 1]}):
        kept.keep("a", what, tensors)
    kept.keep("b", what, tensors)
    assert len(list(place.iterdir())) == 4


def test_layouts_that_round_otherwise_have_names_of_their_own(place, eager_graphs):
    stack = random_stack(dtype=torch.float32)
    names = [kept.identity(stack.main), kept.identity(eager_graphs(stack).main)]
    assert pack([stack.target.model, stack.drafter])
    names += [kept.identity(stack.main), kept.identity(eager_graphs(stack).main)]
    assert len(set(names)) == 4


def test_another_process_may_be_faster(place):
    def compute():
        return kept.keep("a", {}, tensors) and tensors()

    found = kept.keep("a", {}, compute)
    assert torch.equal(found["hidden"], kept.keep("a", {}, never)["hidden"])
    assert len(list(place.iterdir())) == 1


def test_old_files_make_room_and_others_stay(place, monkeypatch):
    place.mkdir()
    mine = place / "model.safetensors"
    mine.write_bytes(bytes(5000))
    for number in range(4):
        kept.keep("a", {"number": number}, tensors)
    for path in place.iterdir():
        os.utime(path, (1, 1))  # all of them old
    kept.keep("a", {"number": 0}, never)  # read last
    size = max(path.stat().st_size for path in place.iterdir() if path != mine)
    monkeypatch.setattr(kept, "MOST_BYTES", 2 * size)
    kept.keep("a", {"number": 4}, tensors)
    for number in (0, 4):
        kept.keep("a", {"number": number}, never)
    assert len(list(place.iterdir())) == 3 and mine.exists()


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text(json.dumps({}))
    monkeypatch.setenv("DARTREE_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        assert torch.equal(kept.keep("a", {}, tensors)["ids"], tensors()["ids"])
    assert (tmp_path / "file").read_text() == "{}"
