"""Independent references: plain causal runs, greedy decoding, random stacks."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from dartree.drafter import DFlashDrafter, DrafterConfig
from dartree.heads import DominoHead, MarkovHead, NoCorrection
from dartree.stack import Pairing, Stack
from dartree.target import Target

VOCABULARY = 97


def random_model(seed: int = 0, dtype=torch.float64, attention: str = "sdpa", **changes):
    """A random Qwen3ForCausalLM with weights large enough for decided argmaxes."""
    torch.manual_seed(seed)
    sizes = dict(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    config = Qwen3Config(**(sizes | changes))
    config._attn_implementation = attention
    model = Qwen3ForCausalLM(config).to(dtype).eval().requires_grad_(False)
    model.generation_config.eos_token_id = None
    return model


def random_stack(
    head: str = "domino",
    seed: int = 0,
    dtype=torch.float64,
    attention: str = "sdpa",
    block_size: int = 6,
    shift_label: bool = True,
    prefix: int = 1,
    markov_kind: str = "vanilla",
    taps: tuple[int, ...] = (0, 2),
    model=None,
) -> Stack:
    """A random stack without tokenizer; drafter and target agree by chance only."""
    model = model or random_model(seed, dtype, attention)
    torch.manual_seed(seed + 1)
    config = DrafterConfig(
        hidden_size=model.config.hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=model.config.vocab_size,
        block_size=block_size,
        mask_token_id=model.config.vocab_size - 1,
        target_layer_ids=taps,
        num_target_layers=model.config.num_hidden_layers,
        shift_label=shift_label,
        head=head,
        emb_dim=12,
        gru_hidden_dim=16,
        pure_draft_prefix_len=prefix,
        markov_rank=10,
        markov_head_type=markov_kind,
        enable_confidence_head=True,
    )
    drafter = DFlashDrafter(config)
    module = {"none": NoCorrection, "domino": DominoHead, "markov": MarkovHead}[head]
    scorer = module() if head == "none" else module(config)
    for part in (drafter, scorer):
        if isinstance(part, torch.nn.Module):
            for p in part.parameters():
                if p.dim() > 1:
                    torch.nn.init.normal_(p, std=0.4)
            part.to(dtype).eval().requires_grad_(False)
    target = Target(model, config.target_layer_ids)
    if head == "domino":
        scorer.attach(target.embedding)
    return Stack("random", Pairing(target, drafter, scorer, f"random {head}"))


@torch.inference_mode()
def causal_logits(model, ids) -> torch.Tensor:
    """Logits [T, V] of one plain causal run of transformers, no cache."""
    return model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]


@torch.inference_mode()
def greedy(model, ids, count: int) -> list[int]:
    """Plain greedy decoding, the whole prefix recomputed for every token."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(causal_logits(model, ids)[-1].argmax()))
    return ids[-count:]


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random ids, the mask id among those that may occur."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()


def all_paths(tokens, depth: int):
    """Every token path of length 1..depth."""
    for length in range(1, depth + 1):
        yield from itertools.product(tokens, repeat=length)


def graphs(stack: Stack) -> int:
    """How many graphs torch.compile has made for ``stack``."""
    pairings = filter(None, (stack.pairing("ar"), stack.main, stack.marginal))
    parts = (getattr(p, name) for p in pairings for name in ("target", "drafter", "head"))
    return sum(len(part.graphs.seconds) for part in parts if hasattr(part, "graphs"))


def headless(folder):
    """A copy of a Domino drafter in ``folder`` without its head."""
    shutil.copytree(Path(__file__).parent / "data" / "domino-shift" / "drafter", folder)
    config = json.loads((folder / "config.json").read_text())
    for name in ("projector_type", "emb_dim", "gru_hidden_dim", "pure_draft_prefix_len"):
        config["dflash_config"].pop(name)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    body = {k: v for k, v in tensors.items() if not k.startswith(("prefix_gru", "embed_proj"))}
    save_file(body, folder / "model.safetensors")
    return folder
