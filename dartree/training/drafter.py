"""`dartree train drafter`: a block-diffusion drafter and its causal head, with the target frozen.

First the target answers training prompts (regenerate.py), then drafter and head are trained
jointly on these answers and exported in the public checkpoint formats.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from dartree.checkpoints import load_target_model
from dartree.configs import rope_theta_of
from dartree.drafter import DrafterConfig
from dartree.training import common
from dartree.training.drafter_run import DrafterRun
from dartree.training.forward import BatchedTarget
from dartree.training.loop import add_run_arguments
from dartree.training.regenerate import Text, answered, encode_chat, read_shards, regenerate

# head -> name of the run's folder, log and state
NAMES = {"domino": "drafter", "none": "dflash", "markov": "dspark"}
# Steps of the bundled drafters; the Markov head starts from the Domino drafter's body (--init).
STEPS = {"domino": 2216, "none": 2216, "markov": 481}
# Of the eight layers of the target the default rule would read 1 to 5; the sixth is the last whose
# output is not yet the prediction itself.
SHAPE: dict[str, dict[str, Any]] = {
    "tiny": {
        "target_layer_ids": (1, 3, 5, 6), "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 768, "block_size": 16,
    },
}  # fmt: skip
# With a head the labels are shifted, as in the public files. The GRU's products are made once a
# depth and branch: 256 took 3 times as long.
HEADS: dict[str, dict[str, Any]] = {
    "none": {},
    "domino": {"shift_label": True, "emb_dim": 128, "gru_hidden_dim": 128,
               "pure_draft_prefix_len": 1},
    "markov": {"shift_label": True, "markov_rank": 128, "enable_confidence_head": True},
}  # fmt: skip
# What config.json of the public files says of a head.
HEAD_KEYS = {
    "none": (),
    "domino": ("emb_dim", "gru_hidden_dim", "pure_draft_prefix_len", "shift_label"),
    "markov": ("markov_rank", "markov_head_type", "enable_confidence_head",
               "confidence_head_with_markov"),
}  # fmt: skip
BODY_KEYS = (
    "num_target_layers", "num_hidden_layers", "hidden_size", "intermediate_size",
    "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta",
)  # fmt: skip
HELD_SKIP = 32  # the first held-out samples of a domain are the prompts that `compare` reports on


def drafter_config(args: argparse.Namespace, target_config: Any) -> DrafterConfig:
    """The preset's drafter for this target, with what the arguments change.

    ValueError for taps that the target does not have.
    """
    count = target_config.num_hidden_layers
    asked = {"num_hidden_layers": args.layers, "block_size": args.block,
             "target_layer_ids": tuple(args.taps or ())}  # fmt: skip
    shape = {**SHAPE[args.preset], **{name: value for name, value in asked.items() if value}}
    taps = shape["target_layer_ids"]
    if not all(-1 <= tap < count for tap in taps):
        raise ValueError(
            f"taps is {list(taps)}; a target of {count} layers has the layers -1 (its embeddings) "
            f"to {count - 1}"
        )
    return DrafterConfig(
        **shape, **HEADS[args.head], head=args.head, num_target_layers=count,
        hidden_size=target_config.hidden_size, vocab_size=target_config.vocab_size,
        mask_token_id=target_config.vocab_size - 1, rms_norm_eps=target_config.rms_norm_eps,
        rope_theta=float(rope_theta_of(target_config.to_dict()) or 1_000_000.0),
    )  # fmt: skip


def public_config(config: DrafterConfig) -> dict[str, Any]:
    """config.json of the public files: nested for DFlash and Domino, flat for DSpark."""
    flat = config.head == "markov"
    special: dict[str, Any] = {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
    }
    if config.head == "domino":
        special["projector_type"] = "domino"
    special |= {name: getattr(config, name) for name in HEAD_KEYS[config.head]}
    public = {
        "architectures": ["Qwen3DSparkModel" if flat else "DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "block_size": config.block_size,
        **(special if flat else {"dflash_config": special}),
        **{name: getattr(config, name) for name in BODY_KEYS},
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


def export(config: DrafterConfig, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Drafter and head in bfloat16 as one finished folder: config.json, model.safetensors."""

    def write(temporary: Path) -> None:
        common.write_json(temporary / "config.json", public_config(config))
        half = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in tensors.items()}
        save_file(half, temporary / "model.safetensors", metadata={"format": "pt"})

    common.replace_folder(folder, write)


def held_out_texts(
    folder: Path, target: BatchedTarget, tokenizer: Any, per_domain: int
) -> list[Text]:
    """The target's greedy answers to held-out prompts that `compare` does not use.

    ValueError where the corpus has no such prompts.
    """
    rows = common.read_jsonl(folder / "corpus" / "held.jsonl")
    chosen = common.some_of_each(rows, slice(HELD_SKIP, HELD_SKIP + per_domain))
    if not chosen:
        raise ValueError(
            f"{folder / 'corpus'} has no more than {HELD_SKIP} held-out samples a domain; run "
            "`dartree train corpus` with a larger --held"
        )
    prompts = [encode_chat(tokenizer, row["prompt"]) for row in chosen]
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    return answered(target, chosen, prompts, max_new_tokens=128, stop_ids={stop})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--head", choices=sorted(NAMES), default="domino",
        help="none: the head-less DFlash drafter; markov: DSpark's head")  # fmt: skip
    add("--init", type=Path, metavar="FOLDER", help="start from the drafter body in this folder")
    add("--steps", type=int, help="length of the run (default: the preset's, or as --minutes "
        "allows)")  # fmt: skip
    add("--answers", type=int, default=12_600, help="regenerated answers to train on")
    add("--answers-only", action="store_true", help="stop after the answers")
    add("--batch", type=int, default=16, help="sequences a step")
    add("--anchors", type=int, default=24, help="blocks a sequence")
    add("--layers", type=int, help="drafter layers (default: the preset's)")
    add("--block", type=int, help="block size (default: the preset's)")
    add("--taps", type=int, nargs="+", metavar="ID", help="target layers whose output is read")
    add("--gamma", type=float, default=7.0, help="decay length of the position weights")
    add("--tau-every", type=int, default=250, help="steps between two measurements of tau")
    add("--tau-prompts", type=int, default=10, help="held-out prompts a domain for these")
    add_run_arguments(parser, learning_rate=2.5e-3)


def run(args: argparse.Namespace) -> None:
    common.check_counts(args, "answers", "batch", "anchors", "log_every", "tau_every",
                        "tau_prompts")  # fmt: skip
    common.check_above_0(args, "gamma", "learning_rate", "steps", "minutes", "layers", "block",
                         "threads")  # fmt: skip
    if not args.steps and not args.minutes:
        args.steps = STEPS[args.head]
    folder, name = common.preset_folder(args.preset, args.out), NAMES[args.head]
    if not (folder / "target" / "config.json").exists():
        raise ValueError(f"{folder / 'target'} does not exist; run `dartree train target` first")
    lanes, bf16 = common.lanes(args.threads), common.bf16_on_cpu()
    tokenizer = AutoTokenizer.from_pretrained(folder / "target")
    model = load_target_model(folder / "target", torch.float32, "cpu")
    target = BatchedTarget(model, torch.bfloat16 if bf16 else None)
    paths = regenerate(folder, target, tokenizer, answers=args.answers, seed=args.seed, lanes=lanes)
    if args.answers_only:
        return
    held = held_out_texts(folder, BatchedTarget(model), tokenizer, args.tau_prompts)
    config = drafter_config(args, model.config)
    training = DrafterRun(args, config, target, read_shards(paths), held, folder, name, lanes, bf16)
    training.train()
    export(config, training.best_weights(), folder / name)
    print(f"{name}: best held-out tau {training.best['tau']:.2f} at step "
          f"{training.best['step']}; in {folder / name}")  # fmt: skip
