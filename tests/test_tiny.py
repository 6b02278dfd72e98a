"""The bundled stack: real text through every method."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch

import dartree
from dartree.prompt_files import load_prompts
from dartree.stack import bundled_stacks, data_dir, describe

DOMAINS = ("arithmetic", "code", "prose")
ODD_PROMPTS = {
    "chinese": "你好，世界。请解释一下。",
    "emoji": "🙂🙃 What is 🐳?",
    "control": "a\x00b\x07\t\n\r c",
    "markup": "<|im_end|><|im_start|>user\n</s> $x_1$ {{ message }}",
    "one letter": "x",
}


@pytest.fixture(scope="module")
def tiny():
    return dartree.load_stack("tiny")


def held_out(domain: str, count: int) -> list[str]:
    return [r["prompt"] for r in load_prompts(data_dir() / "prompts" / f"{domain}.jsonl", count)]


@torch.no_grad()
def by_transformers(stack, ids, count):
    """Greedy decoding by transformers' own generate."""
    out = stack.target.model.generate(
        torch.tensor([ids]), max_new_tokens=count, do_sample=False,
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
    )  # fmt: skip
    return out[0, len(ids) :].tolist()


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_method_writes_the_targets_own_text(tiny, domain):
    for prompt in held_out(domain, 2):
        want = by_transformers(tiny, tiny.encode(prompt), 48)
        for method in dartree.METHODS:
            out = dartree.generate(tiny, prompt, method=method, max_new_tokens=48)
            assert out.token_ids == want, (method, prompt)


@pytest.mark.long
def test_fifty_prompts_of_64_tokens_in_fp32(tiny):
    """Every method against transformers' own generate; in some rounds no draft is accepted."""
    prompts = [p for domain in DOMAINS for p in held_out(domain, 17)][:50]
    rejected = 0
    for prompt in prompts:
        want = by_transformers(tiny, tiny.encode(prompt), 64)
        for method in dartree.METHODS:
            out = dartree.generate(tiny, prompt, method=method, max_new_tokens=64)
            assert out.token_ids == want, (method, prompt)
            rejected += method != "ar" and 1 in out.accepted_per_round
    assert rejected > 20


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_target_stops_by_itself(tiny, domain):
    for prompt in held_out(domain, 3):
        out = dartree.generate(tiny, prompt, max_new_tokens=256)
        assert out.stop_reason == "stop" and out.token_ids[-1] in tiny.stop_ids()
        assert out.text and "<|im_end|>" not in out.text


def test_trees_need_fewer_rounds_than_plain_decoding(tiny):
    for domain in DOMAINS:
        prompt = held_out(domain, 1)[0]
        plain = dartree.generate(tiny, prompt, method="ar", max_new_tokens=64)
        tree = dartree.generate(tiny, prompt, method="dartree", max_new_tokens=64)
        assert plain.tau == 1.0 and tree.rounds < plain.rounds / 1.5


@pytest.mark.parametrize("name", ODD_PROMPTS)
def test_prompts_of_every_kind(tiny, name):
    options = dict(max_new_tokens=24, stop=[])
    plain = dartree.generate(tiny, ODD_PROMPTS[name], method="ar", **options)
    tree = dartree.generate(tiny, ODD_PROMPTS[name], method="dartree", **options)
    assert tree.token_ids == plain.token_ids
    pieces = list(dartree.stream(tiny, ODD_PROMPTS[name], **options))
    assert "".join(pieces) == tree.text


def test_bad_prompts(tiny, recwarn):
    for prompt, words in (
        ("", "empty"), (" \n", "empty"), ("a\ud800", "lone surrogate at character 1"),
        ("word " * 200_000, "context of 1024 tokens"), ([{"role": "user"}], "role and content"),
        ([{"content": "x"}], "role and content"), ([{"role": "user", "content": 3}], "content"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            dartree.generate(tiny, prompt)


def test_a_text_is_one_user_turn(tiny):
    prompt = "Name the capital of Portugal."
    ids = tiny.encode(prompt)
    assert ids == tiny.encode([{"role": "user", "content": prompt}])
    text = tiny.decode(ids, skip_special=False)
    assert text == f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    assert tiny.decode(tiny.encode(prompt, raw=True), skip_special=False) == prompt
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    assert "system\nBe brief." in tiny.decode(tiny.encode(system), skip_special=False)


def test_the_mask_id_lies_outside_the_tokenizer(tiny):
    for pairing in (tiny.main, tiny.marginal or tiny.main):
        config = pairing.drafter.config
        assert config.mask_token_id == tiny.target.vocab_size - 1 >= len(tiny.tokenizer)


def test_the_public_domino_format(tiny):
    config = json.loads((data_dir() / "stacks/tiny/drafter/config.json").read_text())
    inner = config["dflash_config"]
    assert inner["projector_type"] == "domino" and inner["shift_label"] is True
    assert inner["pure_draft_prefix_len"] == 1 and config["block_size"] == 16
    assert tiny.drafter.config.drafts == 16 and tiny.head.name == "domino"


def test_the_same_stack_by_its_folders(tiny):
    folder = data_dir() / "stacks" / "tiny"
    again = dartree.load_stack(target=folder / "target", drafter=folder / "drafter")
    prompt = held_out("prose", 1)[0]
    ours, theirs = (dartree.generate(s, prompt, max_new_tokens=20) for s in (tiny, again))
    assert ours.token_ids == theirs.token_ids and ours.tau == theirs.tau


def test_descriptions_read_no_weights(tiny):
    assert "tiny" in bundled_stacks()
    row = describe("tiny")
    sizes = {part["name"]: part["parameters"] for part in row["parts"]}
    model = tiny.target.model
    assert sizes["target"] == sum(
        p.numel() for p in {id(p): p for p in model.parameters()}.values()
    )
    parts = (tiny.drafter, tiny.head)
    assert sizes["drafter"] == sum(p.numel() for m in parts for p in m.state_dict().values())
    assert sum(part["bytes"] for part in row["parts"]) < 40 * 2**20


def test_the_card_names_the_shipped_weights():
    folder = data_dir() / "stacks" / "tiny"
    card = (folder / "card.md").read_text(encoding="utf-8")
    files = sorted(folder.rglob("*.safetensors"))
    assert len(files) >= 2
    for file in files:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert f"{digest}  {file.relative_to(folder).as_posix()}" in card
        assert file.stat().st_size <= 15 * 2**20
