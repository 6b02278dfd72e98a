"""`dartree train drafter`: a block-diffusion drafter and its causal head, with the target frozen.

First the target answers training prompts (regenerate.py), then drafter and head are trained
jointly on these answers and exported in the public checkpoint formats.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dartree.training import common

# head -> name of the run's folder, log and state
NAMES = {"domino": "drafter", "none": "dflash", "markov": "dspark"}
# Steps of the bundled drafters; the Markov head starts from the Domino drafter's body (--init).
STEPS = {"domino": 2216, "none": 2216, "markov": 481}
# Of the eight layers of the target the default rule would read 1 to 5; the sixth is the last whose
# output is not yet the prediction itself.
SHAPE = {
    "tiny": {
        "taps": (1, 3, 5, 6),
        "layers": 3,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 64,
        "intermediate": 768,
        "emb_dim": 128,
        "gru": 128,  # its products are made once a depth and branch: 256 took 3 times as long
        "markov_rank": 128,
        "block": 16,
    },
}
HELD_SKIP = 32  # the first held-out samples of a domain are the prompts that `compare` reports on


def drafter_config(args: argparse.Namespace, target_config):
    """DrafterConfig for this target; with a head the labels are shifted, as in the public files."""
    from dartree.checkpoints import rope_theta_of
    from dartree.drafter import DrafterConfig

    shape, count = SHAPE[args.preset], target_config.num_hidden_layers
    taps = tuple(args.taps or shape["taps"])
    if not all(-1 <= tap < count for tap in taps):
        raise ValueError(
            f"taps is {list(taps)}; a target of {count} layers has the layers -1 (its embeddings) "
            f"to {count - 1}"
        )
    domino, markov = args.head == "domino", args.head == "markov"
    return DrafterConfig(
        hidden_size=target_config.hidden_size,
        num_hidden_layers=args.layers or shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        head_dim=shape["head_dim"],
        intermediate_size=shape["intermediate"],
        vocab_size=target_config.vocab_size,
        block_size=args.block or shape["block"],
        mask_token_id=target_config.vocab_size - 1,
        target_layer_ids=taps,
        num_target_layers=count,
        rms_norm_eps=target_config.rms_norm_eps,
        rope_theta=float(rope_theta_of(target_config.to_dict()) or 1_000_000.0),
        shift_label=domino or markov,
        head=args.head,
        emb_dim=shape["emb_dim"] if domino else 0,
        gru_hidden_dim=shape["gru"] if domino else 0,
        pure_draft_prefix_len=1 if domino else 0,
        markov_rank=shape["markov_rank"] if markov else 0,
        enable_confidence_head=markov,
    )


def public_config(config) -> dict:
    """config.json of the public files: nested for DFlash and Domino, flat for DSpark."""
    special: dict = {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
    }
    if config.head == "domino":
        special |= {
            "projector_type": "domino",
            "emb_dim": config.emb_dim,
            "gru_hidden_dim": config.gru_hidden_dim,
            "pure_draft_prefix_len": config.pure_draft_prefix_len,
            "shift_label": config.shift_label,
        }
    elif config.head == "markov":
        special |= {
            "markov_rank": config.markov_rank,
            "markov_head_type": config.markov_head_type,
            "enable_confidence_head": config.enable_confidence_head,
            "confidence_head_with_markov": config.confidence_head_with_markov,
        }
    flat = config.head == "markov"
    public = {
        "architectures": ["Qwen3DSparkModel" if flat else "DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "block_size": config.block_size,
        **(special if flat else {"dflash_config": special}),
        "num_target_layers": config.num_target_layers,
        "num_hidden_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": 1024,
        "attention_bias": False,
        "hidden_act": "silu",
        "layer_types": ["full_attention"] * config.num_hidden_layers,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
    }
    if config.head == "domino":
        public["emb_dim"] = config.emb_dim  # some loaders read it at the top only
    return public


def export(config, tensors: dict, folder: Path) -> None:
    """Drafter and head in bfloat16 as one finished folder: config.json, model.safetensors."""
    import torch
    from safetensors.torch import save_file

    def write(temporary: Path) -> None:
        text = json.dumps(public_config(config), indent=2) + "\n"
        (temporary / "config.json").write_text(text, encoding="utf-8")
        half = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in tensors.items()}
        save_file(half, temporary / "model.safetensors", metadata={"format": "pt"})

    common.replace_folder(folder, write)


def held_out_texts(folder: Path, target, tokenizer, per_domain: int):
    """The target's greedy answers to held-out prompts that `compare` does not use."""
    import torch

    from dartree.training.forward import answer
    from dartree.training.regenerate import Sequence, encode_chat

    rows: dict[str, list[dict]] = {domain: [] for domain in common.DOMAINS}
    for row in common.read_jsonl(folder / "corpus" / "held.jsonl"):
        rows[row["domain"]].append(row)
    chosen = [r for d in common.DOMAINS for r in rows[d][HELD_SKIP : HELD_SKIP + per_domain]]
    if not chosen:
        raise ValueError(
            f"{folder / 'corpus'} has no more than {HELD_SKIP} held-out samples a domain; run "
            "`dartree train corpus` with a larger --held"
        )
    prompts = [encode_chat(tokenizer, row["prompt"]) for row in chosen]
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    answers = answer(target, prompts, max_new_tokens=128, stop_ids={stop})
    return [
        Sequence(torch.tensor(ids + new), len(ids), row["domain"])
        for row, ids, new in zip(chosen, prompts, answers, strict=True)
        if len(new) > 1
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--head", choices=sorted(NAMES), default="domino",
        help="none: the head-less DFlash drafter; markov: DSpark's head")  # fmt: skip
    add("--init", type=Path, metavar="FOLDER", help="start from the drafter body in this folder")
    add("--steps", type=int, help="length of the run (default: the preset's, or as --minutes "
        "allows)")  # fmt: skip
    add("--minutes", type=float, help="end after this time, with the schedules run to their end")
    add("--answers", type=int, default=12_600, help="regenerated answers to train on")
    add("--answers-only", action="store_true", help="stop after the answers")
    add("--batch", type=int, default=16, help="sequences a step")
    add("--anchors", type=int, default=24, help="blocks a sequence")
    add("--layers", type=int, help="drafter layers (default: the preset's)")
    add("--block", type=int, help="block size (default: the preset's)")
    add("--taps", type=int, nargs="+", metavar="ID", help="target layers whose output is read")
    add("--gamma", type=float, default=7.0, help="decay length of the position weights")
    add("--learning-rate", type=float, default=2.5e-3, help="at the end of the warm-up")
    add("--threads", type=int, help="lanes of one thread each (default: all cores)")
    add("--resume", action="store_true", help="go on from the last state")
    add("--save-seconds", type=float, default=60, help="time between two states")
    add("--log-every", type=int, default=20, help="steps between two lines of the log")
    add("--tau-every", type=int, default=250, help="steps between two measurements of tau")
    add("--tau-prompts", type=int, default=10, help="held-out prompts a domain for these")


def check(args: argparse.Namespace) -> None:
    """ValueError for arguments outside their range."""
    for name in ("answers", "batch", "anchors", "log_every", "tau_every", "tau_prompts"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name} is {getattr(args, name)}; it must be at least 1")
    for name in ("gamma", "learning_rate"):
        if not getattr(args, name) > 0:
            raise ValueError(f"{name} is {getattr(args, name)}; it must be above 0")
    for name in ("steps", "minutes", "layers", "block", "threads"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value}; it must be above 0")


def run(args: argparse.Namespace) -> None:
    import os

    import torch
    from transformers import AutoTokenizer

    from dartree.checkpoints import load_target_model
    from dartree.training.forward import BatchedTarget
    from dartree.training.regenerate import read_shards, regenerate
    from dartree.training.trainer import Trainer

    check(args)
    if not args.steps and not args.minutes:
        args.steps = STEPS[args.head]
    lanes = args.threads or os.cpu_count() or 1
    # Each lane is a Python thread whose matrix products run on that thread alone: small products
    # do not gain from a second thread, and two that wait for each other stall beside other work.
    torch.set_num_threads(1)
    folder = common.preset_folder(args.preset, args.out)
    if not (folder / "target" / "config.json").exists():
        raise ValueError(f"{folder / 'target'} does not exist; run `dartree train target` first")
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    model = load_target_model(folder / "target", torch.float32, "cpu")
    bf16 = common.bf16_on_cpu()
    target = BatchedTarget(model, torch.bfloat16 if bf16 else None)
    paths = regenerate(folder, target, tokenizer, answers=args.answers, seed=args.seed, lanes=lanes)
    if args.answers_only:
        return
    trainer = Trainer(
        args,
        drafter_config(args, model.config),
        target,
        read_shards(paths),
        held_out_texts(folder, BatchedTarget(model), tokenizer, args.tau_prompts),
        folder,
        NAMES[args.head],
        lanes=lanes,
        bf16=bf16,
    )
    trainer.train()
    export(trainer.config, trainer.best_weights(), folder / NAMES[args.head])
    print(f"{NAMES[args.head]}: best held-out tau {trainer.best['tau']:.2f} at step "
          f"{trainer.best['step']}; in {folder / NAMES[args.head]}")  # fmt: skip
