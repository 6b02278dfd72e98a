"""A short training of a head alone: what stays fixed, what it learns, and that it loads again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import dartree
from dartree.checks import CheckpointError
from dartree.heads import NoCorrection, corrected_logits
from dartree.plots import training as pictures
from dartree.settings import TreeSettings
from dartree.stack import Pairing, Stack
from dartree.target import Target
from dartree.training import corpus, short
from dartree.training.heldout import Tau
from tests.conftest import DATA
from tests.training.drafter_fixtures import tiny_config, tiny_model, tiny_texts


@pytest.fixture(scope="module")
def stack() -> Stack:
    """A random target and a random head-less body with shifted labels."""
    from dartree.drafter import DFlashDrafter

    config = tiny_config("none", shift_label=True, rope_theta=10_000.0)  # of the random target
    torch.manual_seed(3)
    body = DFlashDrafter(config).requires_grad_(False).eval()
    target = Target(tiny_model(), config.target_layer_ids)
    return Stack("random", Pairing(target, body, NoCorrection(), "body"))


@pytest.fixture(scope="module")
def rows(stack):
    return short.frozen_rows(stack.main, tiny_texts(), anchors=3, seed=1)


def test_training_prompts_are_never_held_out():
    found = short.training_prompts(5, seed=2)
    assert [row["domain"] for row in found] == [d for d in short.DOMAINS for _ in range(5)]
    assert not any(corpus.held_out(row["prompt"]) for row in found)
    assert found == short.training_prompts(5, seed=2) != short.training_prompts(5, seed=3)


def test_answers_are_the_targets_own(stack, monkeypatch):
    monkeypatch.setattr(Stack, "encode", lambda self, prompt, raw=False: prompt)
    prompts = [{"prompt": [5, 6, 7], "domain": "code"}, {"prompt": [9, 1], "domain": "prose"}]
    texts = short.answered(stack, prompts, max_new_tokens=6)
    for row, text in zip(prompts, texts, strict=True):
        run = dartree.generate(stack, row["prompt"], method="ar", max_new_tokens=6)
        assert text.ids.tolist() == row["prompt"] + run.token_ids
        assert (text.prompt, text.domain) == (len(row["prompt"]), row["domain"])


def test_rows_are_what_decoding_would_draft(stack, rows):
    """Row by row: the body's output after the text up to the anchor, and the true next tokens."""
    config = stack.drafter.config
    generator = torch.Generator().manual_seed(1)
    place = 0
    for text in tiny_texts():
        anchors = short.sample_anchors(text.supervised, 3, generator)
        for anchor in anchors.tolist():
            block = dartree.draft(stack, text.ids[: anchor + 1].tolist())
            torch.testing.assert_close(rows.hidden[place], block.hidden, atol=2e-5, rtol=1e-4)
            for i in range(config.drafts):
                if rows.weights[place, i] > 0:
                    assert rows.labels[place, i] == text.ids[anchor + i + 1]
                    assert rows.prefix[place, i] == text.ids[anchor + i]
            place += 1
    assert place == len(rows.hidden)


def test_a_head_learns_its_rows_and_nothing_else_moves(stack, rows):
    before = {name: value.clone() for name, value in stack.drafter.state_dict().items()}
    table = stack.target.embedding.clone()
    calls = []

    def measure(head) -> Tau:
        calls.append(head)
        return short.chain_tau(stack.main, tiny_texts(), head)

    head, log = short.train_head(stack.main, rows, steps=40, batch=64, learning_rate=1e-2,
                                 measure=measure, measure_every=20)  # fmt: skip
    kept = rows.weights > 0
    logits = F.linear(rows.hidden[kept], table).detach()
    plain = F.cross_entropy(logits, rows.labels[kept], reduction="none")
    wanted = (plain * rows.weights[kept]).sum() / rows.weights.sum()
    assert log[0]["loss"] == pytest.approx(float(wanted), rel=1e-4), "the head starts as nothing"
    assert log[0]["tau"] == log[0]["tau_base"]
    assert log[-1]["loss"] < 0.6 * log[0]["loss"]
    assert log[-1]["final_accuracy"] > log[0]["final_accuracy"]
    assert [row["step"] for row in log if "tau" in row] == [1, 20, 40] and len(calls) == 3
    assert all(torch.equal(before[n], v) for n, v in stack.drafter.state_dict().items())
    assert torch.equal(table, stack.target.embedding)
    again, same = short.train_head(stack.main, rows, steps=3, batch=64)
    assert same == short.train_head(stack.main, rows, steps=3, batch=64)[1]
    assert not any(p.requires_grad for p in again.parameters())
    assert torch.equal(head.embed_proj[2].weight, again.embed_proj[2].weight), "frozen"
    assert not torch.equal(head.prefix_gru.weight_hh_l0, again.prefix_gru.weight_hh_l0)


def test_compression_is_the_best_of_its_rank():
    """Eckart and Young: no other matrix of this rank is nearer, and full rank loses nothing."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(40, 12, generator=generator, dtype=torch.float64).float()
    sizes = torch.linalg.svdvals(table)
    for rank in (3, 12):
        rows = short.compressed(table, rank)
        basis = torch.linalg.lstsq(rows, table).solution  # back to H with the best basis
        lost = (rows @ basis - table).norm()
        assert rows.shape == (40, rank)
        torch.testing.assert_close(lost, sizes[rank:].norm(), atol=1e-4, rtol=1e-4)


def test_an_exported_head_decodes_losslessly_and_says_the_same(stack, rows, tmp_path):
    head, _ = short.train_head(stack.main, rows, steps=5, batch=16)
    folder = short.export_head(stack.main, head, tmp_path / "own")
    stack.target.model.save_pretrained(tmp_path / "target")
    loaded = dartree.load_stack(target=tmp_path / "target", drafter=folder)
    mine = short.with_head(stack, head, "mine")
    assert mine.pairing("dartree").label == "mine" and isinstance(stack.head, NoCorrection)
    ids = [3, 4, 5, 6]
    block, theirs = dartree.draft(mine, ids), dartree.draft(loaded, ids)
    drafts = torch.tensor([7, 8, 9, 10])
    torch.testing.assert_close(
        corrected_logits(mine.head, block, drafts),
        corrected_logits(loaded.head, theirs, drafts), atol=0.2, rtol=0.05,
    )  # fmt: skip
    for one in (mine, loaded):
        plain, tree = (
            dartree.generate(one, ids, method=m, max_new_tokens=10, stop=[])
            for m in ("ar", "dartree")
        )
        assert plain.token_ids == tree.token_ids


def test_tau_table_is_that_of_generate(stack):
    prompts, settings = [[1, 2, 3], [4, 5]], TreeSettings(2, 4, 6)
    table = short.tau_table({"it": stack}, prompts, ["domino", "dartree"], settings, 8)
    for method, tau in table["it"].items():
        runs = [dartree.generate(stack, p, method=method, settings=settings, max_new_tokens=8)
                for p in prompts]  # fmt: skip
        counts = [n for run in runs for n in run.accepted_per_round]
        assert tau == pytest.approx(sum(counts) / len(counts))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s, r: short.train_head(s.main, r, steps=0), "steps"),
        (lambda s, r: short.train_head(s.main, r, batch=0), "batch"),
        (lambda s, r: short.train_head(s.main, r, learning_rate=0), "learning_rate"),
        (lambda s, r: short.training_prompts(0), "per_domain"),
    ],
)
def test_bad_arguments(stack, rows, call, words):
    with pytest.raises(ValueError, match=words):
        call(stack, rows)


def test_altered_checkpoints_and_what_the_loader_says(tmp_path):
    case = DATA / "domino-shift"
    target, drafter = case / "target", case / "drafter"
    assert short.complaint(target, drafter) is None
    same = short.altered(drafter, tmp_path / "same")
    assert short.complaint(target, same) is None
    assert (
        load_file(same / "model.safetensors").keys()
        == load_file(drafter / "model.safetensors").keys()
    )
    for number, (change, words) in enumerate((
        ({"config": {"num_target_layers": 77}}, "num_target_layers is 77"),
        ({"config": {"rope_theta": 123.0}}, "rope_theta is 123.0"),
        ({"config": {"block_size": None}}, "block_size"),
        ({"config": {"projector_type": "causal_v2"}}, "causal_v2"),
        ({"drop": "fc.weight"}, "fc.weight"),
    )):  # fmt: skip
        place = short.altered(drafter, tmp_path / f"c{number}", **change)
        said = short.complaint(target, place)
        assert said and words in said and str(tmp_path) not in said
        with pytest.raises(CheckpointError):
            dartree.load_stack(target=target, drafter=place)
    with pytest.raises(ValueError, match="no.such"):
        short.altered(drafter, tmp_path / "x", drop="no.such")
    silent = short.altered(drafter, tmp_path / "silent", config={"shift_label": False})
    assert short.complaint(target, silent) is None, "what no loader can see"


def test_pictures():
    import matplotlib.pyplot as plt

    rows = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0, "tau": {"code": 2, "prose": 4}}]
    assert pictures.log_values(rows, "tau") == ([2], [3.0])
    fig, ax = plt.subplots()
    pictures.draw_log(ax, {"drafter": rows, "target": [{"step": 1, "loss": 3.0}]}, "tau")
    assert [line.get_label() for line in ax.lines] == ["drafter"]
    pictures.draw_level(ax, 1.0, "no head", above=False)
    fig, ax = plt.subplots()
    pictures.draw_stack_tau(ax, {"a": {"domino": 2.0, "dartree": 3.0}, "b": {"domino": 1.0}})
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b"]
    plt.close("all")
