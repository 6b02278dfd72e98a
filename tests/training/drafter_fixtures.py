"""A tiny random target, drafter and texts for the tests of drafter training."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from dartree.drafter import DrafterConfig
from dartree.training import commands
from dartree.training.forward import BatchedTarget
from dartree.training.regenerate import Text

VOCABULARY, HIDDEN, BLOCK = 61, 32, 4
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48}  # fmt: skip


def small_corpus(out: Path, scale: float, held: int, entries: int) -> Path:
    """`out` with a corpus and a tokenizer of ``entries`` entries below its preset."""
    corpus = ["corpus", "--out", str(out), "--scale", str(scale), "--held", str(held)]
    assert commands.main(corpus) == 0
    assert commands.main(["tokenizer", "--out", str(out), "--size", str(entries)]) == 0
    return out


def tiny_model(seed: int = 0) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        **SHAPE,
        num_hidden_layers=4,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.3,  # greedy answers that do not fall into one loop at once
        attn_implementation="sdpa",
    )
    return Qwen3ForCausalLM(config).eval()


def tiny_target(seed: int = 0) -> BatchedTarget:
    return BatchedTarget(tiny_model(seed))


def tiny_config(head: str = "domino", **changes) -> DrafterConfig:
    domino, markov = head == "domino", head == "markov"
    values = dict(
        **SHAPE,
        num_hidden_layers=2,
        block_size=BLOCK,
        mask_token_id=VOCABULARY - 1,
        target_layer_ids=(1, 2),
        num_target_layers=4,
        shift_label=head != "none",
        head=head,
        emb_dim=12 if domino else 0,
        gru_hidden_dim=20 if domino else 0,
        pure_draft_prefix_len=1 if domino else 0,
        markov_rank=10 if markov else 0,
        enable_confidence_head=markov,
    )
    return DrafterConfig(**{**values, **changes})


def tiny_texts(count: int = 6, seed: int = 1) -> list[Text]:
    generator = torch.Generator().manual_seed(seed)
    texts = []
    for i in range(count):
        length = 14 + i
        ids = torch.randint(0, VOCABULARY - 1, (length,), generator=generator)
        texts.append(Text(ids, 4, ("arithmetic", "code", "prose")[i % 3]))
    return texts


def tiny_args(**changes) -> argparse.Namespace:
    values = dict(
        seed=0, batch=4, anchors=3, gamma=7.0, learning_rate=5e-3, steps=6, minutes=None,
        resume=False, save_seconds=0.0, log_every=2, tau_every=3, init=None,
    )  # fmt: skip
    return argparse.Namespace(**{**values, **changes})
