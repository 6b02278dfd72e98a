"""`dartree train target`: a small Qwen3 language model, trained from nothing on the corpus."""

from __future__ import annotations

import argparse
import copy
import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from dartree.configs import rope_theta_of
from dartree.training import common, packing
from dartree.training.loop import HALVES, Gradients, Run, add_run_arguments, sample_numbers
from dartree.training.tokenizer import MODEL_ROWS, SPECIAL

TOKENS = 6_299_648  # of the bundled target
SHAPE: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": MODEL_ROWS, "hidden_size": 256, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 768, "max_position_embeddings": 1024, "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
Windows = tuple[torch.Tensor, torch.Tensor]  # ids and loss weights, each [n, T]


def new_model(preset: str, tokenizer: Any, seed: int, **changes: Any) -> Qwen3ForCausalLM:
    """A freshly initialised Qwen3ForCausalLM; `changes` replace values of the preset's shape."""
    end, _, stop = tokenizer.convert_tokens_to_ids(list(SPECIAL))
    # transformers 5 keeps the rotary base in rope_parameters; both versions take rope_theta here
    shape = {**SHAPE[preset], **changes, "attn_implementation": "sdpa"}
    config = Qwen3Config(**shape, eos_token_id=stop, pad_token_id=end, bos_token_id=None)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = [stop, end]
    model.generation_config.pad_token_id = end
    return model


def loss_of(model: nn.Module, windows: Windows, bf16: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted mean cross-entropy of the next token over the windows, and its weight."""
    ids, weights = windows
    # no cache of casts: it is one for all threads, and every weight is cast once a forward anyway
    amp = torch.autocast("cpu", torch.bfloat16, cache_enabled=False) if bf16 else nullcontext()
    with amp:
        logits = model(input_ids=ids, use_cache=False).logits  # [n, T, V]
    # the labels are shifted, not the logits: slicing would copy the logits and their gradient
    labels = torch.roll(ids, -1, 1).flatten()
    weight = torch.roll(weights, -1, 1)
    weight[:, -1] = 0
    each = F.cross_entropy(logits.flatten(0, 1).float(), labels, reduction="none")
    total = weight.sum()
    return (each * weight.flatten()).sum() / total.clamp(min=1e-6), total


@torch.no_grad()
def held_out_loss(model: nn.Module, held: dict[str, Windows], bf16: bool) -> dict[str, float]:
    """Mean loss of the answers' tokens for each domain."""
    model.eval()
    found = {}
    for domain, (ids, weights) in held.items():
        parts = [loss_of(model, (ids[i : i + 4], weights[i : i + 4]), bf16)
                 for i in range(0, len(ids), 4)]  # fmt: skip
        mass = sum(float(weight) for _, weight in parts)
        found[domain] = sum(float(loss) * float(weight) for loss, weight in parts) / mass
    model.train()
    return found


def held_out_windows(
    folder: Path, tokenizer: Any, length: int, limit: int = 12
) -> dict[str, Windows]:
    """Windows of the held-out samples of each domain, with weights for the answers only."""
    rows = common.by_domain(common.read_jsonl(folder / "corpus" / "held.jsonl"))
    held = {}
    for domain, mine in rows.items():
        ids, weights = packing.pack(packing.encode(tokenizer, mine), length)
        held[domain] = _tensors(ids[:limit], weights[:limit] == 1)
    return held


def _tensors(ids: np.ndarray, weights: np.ndarray) -> Windows:
    return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(weights.astype(np.float32))


def export(model: Qwen3ForCausalLM, tokenizer_folder: Path, folder: Path) -> None:
    """The model in bfloat16 and its tokenizer in Hugging Face format, as one finished folder."""

    def write(temporary: Path) -> None:
        copy.deepcopy(model).bfloat16().save_pretrained(temporary)
        # transformers 4 reads rope_theta, transformers 5 rope_parameters and writes only that
        path = temporary / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        common.write_json(path, {**config, "rope_theta": float(rope_theta_of(config))})
        stops, pad = model.generation_config.eos_token_id, model.config.pad_token_id
        common.write_json(temporary / "generation_config.json",
                          {"eos_token_id": stops, "pad_token_id": pad})  # fmt: skip
        for path in tokenizer_folder.iterdir():
            shutil.copy(path, temporary)

    common.replace_folder(folder, write)


class TargetRun(Run):
    """The training of a target on windows of text, for a number of tokens."""

    def __init__(
        self, args: argparse.Namespace, folder: Path, model: nn.Module,
        windows: tuple[np.ndarray, np.ndarray], held: dict[str, Windows],
    ) -> None:  # fmt: skip
        lanes = common.lanes(args.threads, most=HALVES)
        super().__init__(args, folder, "target", model.train(), weight_decay=0.05, warmup=100,
                         measure_every=args.held_every, lanes=lanes)  # fmt: skip
        self.windows, self.held, self.bf16 = windows, held, common.bf16_on_cpu()

    @property
    def tokens(self) -> int:
        """Tokens of all steps so far."""
        return self.step * self.args.batch * self.args.length

    @property
    def done(self) -> float:
        return self.tokens / self.args.tokens

    def fixed(self) -> dict[str, Any]:
        return {name: getattr(self.args, name) for name in ("seed", "batch", "length", "tokens")}

    def halves(self) -> tuple[list[np.ndarray], float]:
        """Numbers of windows; the sum of the whole step's weights."""
        count = len(self.windows[0])

        def shuffled(turn: int) -> np.ndarray:
            return np.random.default_rng([self.args.seed, turn]).permutation(count)

        rows = sample_numbers(self.step, self.args.batch, count, shuffled)
        halves = [half for half in np.array_split(rows, HALVES) if len(half)]
        return halves, float(self.windows[1][rows][:, 1:].astype(np.float64).sum())

    def lane(self, half: np.ndarray, whole: float) -> tuple[Gradients, dict[str, float]]:
        windows = _tensors(*(part[half] for part in self.windows))
        loss, mass = loss_of(self.model, windows, self.bf16)
        share = loss * (mass / whole)
        values = {"loss": float(share.detach()), "tokens": len(half) * self.args.length}
        return list(torch.autograd.grad(share, self.parameters)), values

    def row(self, mean: dict[str, float]) -> dict[str, Any]:
        return {"tokens": self.tokens}

    def measure(self) -> dict[str, Any]:
        return {"held_out": held_out_loss(self.model, self.held, self.bf16)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tokens", type=int, default=TOKENS, help=f"length of the run (default {TOKENS:,})")
    add("--batch", type=int, default=8, help="windows a step")
    add("--length", type=int, default=512, help="tokens a window")
    add("--held-every", type=int, default=200, help="steps between two held-out losses")
    add_run_arguments(parser, learning_rate=4e-3)
    parser.set_defaults(changes={})


def run(args: argparse.Namespace) -> None:
    common.check_counts(args, "tokens", "batch", "length", "log_every", "held_every", "threads")
    folder = common.preset_folder(args.preset, args.out)
    tokenizer_folder = folder / "tokenizer"
    if not tokenizer_folder.exists():
        raise ValueError(f"{tokenizer_folder} does not exist; run `dartree train tokenizer` first")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    windows = packing.windows(folder, tokenizer, args.length)
    model = new_model(args.preset, tokenizer, args.seed, **args.changes)
    held = held_out_windows(folder, tokenizer, args.length)
    training = TargetRun(args, folder, model, windows, held)
    if args.resume:
        training.resume()
    count = sum(p.numel() for p in training.parameters)
    print(f"target: {count / 1e6:.2f} million parameters, {windows[0].size / 1e6:.1f} million "
          "tokens a pass")  # fmt: skip
    training.train()
    export(model, tokenizer_folder, folder / "target")
    losses = training.measure()["held_out"]
    text = ", ".join(f"{domain} {loss:.3f}" for domain, loss in losses.items())
    print(f"target: held-out loss {text}; in {folder / 'target'}")
