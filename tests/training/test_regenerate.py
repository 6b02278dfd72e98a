"""The batched target: answers and features equal to transformers, shards that resume."""

from __future__ import annotations

import pytest
import torch

from dartree.training import regenerate as module
from dartree.training.forward import BatchedTarget, answer, states_of
from dartree.training.regenerate import read_shards, regenerate
from tests.training.drafter_fixtures import VOCABULARY, tiny_model


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def prompts(count: int = 5) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return [
        torch.randint(0, VOCABULARY, (3 + 2 * i,), generator=generator).tolist()
        for i in range(count)
    ]


def reference(model, prompt: list[int], count: int, stop: int | None) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False,
        eos_token_id=stop, pad_token_id=0,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


def test_greedy_answers_equal_transformers_generate(model):
    answers = answer(BatchedTarget(model), prompts(), max_new_tokens=20, stop_ids=set())
    assert answers == [reference(model, p, 20, None) for p in prompts()]
    assert len({tuple(a) for a in answers}) > 1


def test_answers_end_with_the_stop_token(model):
    free = [reference(model, p, 20, None) for p in prompts()]
    stop = free[0][4]  # some rows stop early, so the batch shrinks on the way
    answers = answer(BatchedTarget(model), prompts(), max_new_tokens=20, stop_ids={stop})
    assert answers == [reference(model, p, 20, stop) for p in prompts()]
    assert answers[0] == free[0][: free[0].index(stop) + 1]


def test_greedy_rows_do_not_depend_on_sampled_neighbours(model):
    target, generator = BatchedTarget(model), torch.Generator().manual_seed(5)
    mixed = answer(
        target, prompts(), max_new_tokens=12, stop_ids=set(), generator=generator,
        temperatures=[0.0, 1.0, 0.0, 1.0, 0.0],
    )  # fmt: skip
    greedy = answer(target, prompts(), max_new_tokens=12, stop_ids=set())
    assert [mixed[i] for i in (0, 2, 4)] == [greedy[i] for i in (0, 2, 4)]
    assert mixed[1] != greedy[1]


@pytest.mark.parametrize("taps", [(1, 2), (-1, 0, 3)])
def test_features_follow_the_hidden_states_of_transformers(model, taps):
    target = BatchedTarget(model)
    for prompt, (last, ours) in zip(prompts(), states_of(target, prompts(), taps), strict=True):
        with torch.no_grad():
            states = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        expected = torch.cat([states[t + 1][0] for t in taps], dim=-1)
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(last, states[-1][0], atol=1e-5, rtol=1e-5)


class ToyTokenizer:
    """Words are numbers; stands in for the trained tokenizer."""

    def apply_chat_template(self, messages, **_):
        return messages[0]["content"]

    def __call__(self, text, **_):
        return {"input_ids": [int(word) for word in text.split()]}

    def convert_tokens_to_ids(self, _):
        return 7


@pytest.fixture
def folder(tmp_path):
    import json

    from safetensors.torch import save_file

    rows = [
        {"domain": domain, "prompt": f"{i} {2 * i} {i + k}", "answer": ""}
        for i in range(1, 5)
        for k, domain in enumerate(("arithmetic", "code", "prose"))
    ]
    (tmp_path / "corpus").mkdir()
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "corpus" / "train.jsonl").write_text(text)
    (tmp_path / "target").mkdir()
    save_file({"x": torch.zeros(1)}, tmp_path / "target" / "model.safetensors")
    return tmp_path


def make(folder, model, monkeypatch, seed=0, lanes=1):
    monkeypatch.setattr(module, "SHARD", 6)
    monkeypatch.setattr(module, "MAX_NEW_TOKENS", 8)
    return regenerate(
        folder, BatchedTarget(model), ToyTokenizer(), answers=12, seed=seed, lanes=lanes
    )


def test_shards_resume_and_do_not_depend_on_the_lanes(folder, model, monkeypatch):
    paths = make(folder, model, monkeypatch, lanes=2)
    assert len(paths) == 2
    whole = [t.ids.tolist() for t in read_shards(paths)]
    untouched = paths[0].stat().st_mtime_ns
    paths[1].unlink()
    assert [t.ids.tolist() for t in read_shards(make(folder, model, monkeypatch))] == whole
    assert paths[0].stat().st_mtime_ns == untouched


def test_shards_are_balanced_and_answers_belong_to_prompts(folder, model, monkeypatch):
    texts = read_shards(make(folder, model, monkeypatch))
    assert {d: sum(t.domain == d for t in texts) for d in ("arithmetic", "code", "prose")} == {
        "arithmetic": 4, "code": 4, "prose": 4,
    }  # fmt: skip
    for text in texts:
        assert text.prompt == 3
        assert text.supervised.sum() == len(text.ids) - 3


def test_answers_of_another_target_are_refused(folder, model, monkeypatch):
    make(folder, model, monkeypatch)
    with pytest.raises(ValueError, match="another target or seed"):
        make(folder, model, monkeypatch, seed=1)
