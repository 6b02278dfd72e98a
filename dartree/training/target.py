"""`dartree train target`: a small Qwen3 language model, trained from nothing on the corpus."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from dartree.training import common, packing
from dartree.training.tokenizer import MODEL_ROWS, SPECIAL

TOKENS = 6_299_648  # of the bundled target
SHAPE = {
    "tiny": {
        "vocab_size": MODEL_ROWS, "hidden_size": 256, "num_hidden_layers": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 768, "max_position_embeddings": 1024, "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
    },
}  # fmt: skip


def new_model(preset: str, tokenizer, seed: int, **changes):
    """A freshly initialised Qwen3ForCausalLM; `changes` replace values of the preset's shape."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    end, _, stop = tokenizer.convert_tokens_to_ids(list(SPECIAL))
    shape = {**SHAPE[preset], **changes}
    # transformers 5 keeps the rotary base in rope_parameters; both versions take rope_theta here
    config = Qwen3Config(
        **shape, eos_token_id=stop, pad_token_id=end, bos_token_id=None, attn_implementation="sdpa"
    )
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = [stop, end]
    model.generation_config.pad_token_id = end
    return model


def loss_of(model, ids, weights, bf16: bool):
    """Weighted mean cross-entropy of the next token.  ids, weights [b, t] -> (loss, its weight)."""
    import torch
    from torch.nn import functional as F

    # no cache of casts: it is one for all threads, and every weight is cast once a forward anyway
    amp = torch.autocast("cpu", torch.bfloat16, cache_enabled=False) if bf16 else nullcontext()
    with amp:
        logits = model(input_ids=ids, use_cache=False).logits  # [b, t, V]
    # the labels are shifted, not the logits: slicing would copy the logits and their gradient
    labels = torch.roll(ids, -1, 1).flatten()
    weight = torch.roll(weights, -1, 1)
    weight[:, -1] = 0
    each = F.cross_entropy(logits.flatten(0, 1).float(), labels, reduction="none")
    total = weight.sum()
    return (each * weight.flatten()).sum() / total.clamp(min=1e-6), total


def held_out_loss(model, held: dict, bf16: bool) -> dict[str, float]:
    """Mean loss of the answers' tokens for each domain."""
    import torch

    model.eval()
    out = {}
    with torch.no_grad():
        for domain, (ids, weights) in held.items():
            pairs = [loss_of(model, ids[i : i + 4], weights[i : i + 4], bf16)
                     for i in range(0, len(ids), 4)]  # fmt: skip
            mass = sum(float(w) for _, w in pairs)
            out[domain] = sum(float(loss) * float(w) for loss, w in pairs) / mass
    model.train()
    return out


def held_out_windows(folder: Path, tokenizer, length: int, limit: int = 12) -> dict:
    """domain -> (ids, weights) tensors [n, length] of the held-out samples, answers only."""
    import torch

    rows = list(common.read_jsonl(folder / "corpus" / "held.jsonl"))
    held = {}
    for domain in common.DOMAINS:
        mine = [row for row in rows if row["domain"] == domain]
        ids, weights = packing.pack(packing.encode(tokenizer, mine), length)
        held[domain] = (
            torch.from_numpy(ids[:limit].astype(np.int64)),
            torch.from_numpy((weights[:limit] == 1).astype(np.float32)),
        )
    return held


def model_rope_theta(model) -> float:
    """The rotary base of a transformers model, wherever its version keeps it."""
    parameters = getattr(model.config, "rope_parameters", None)
    return float(parameters["rope_theta"] if parameters else model.config.rope_theta)


def export(model, tokenizer_folder: Path, folder: Path) -> None:
    """The model in bfloat16 and its tokenizer in Hugging Face format, as one finished folder."""
    import copy
    import json
    import shutil

    import torch

    def write(temporary: Path) -> None:
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(temporary)
        # transformers 4 reads rope_theta, transformers 5 rope_parameters and writes only that
        path = temporary / "config.json"
        config = {**json.loads(path.read_text()), "rope_theta": model_rope_theta(model)}
        path.write_text(json.dumps(config, indent=2) + "\n")
        stops = model.generation_config.eos_token_id
        generation = {"eos_token_id": stops, "pad_token_id": model.config.pad_token_id}
        text = json.dumps(generation, indent=2) + "\n"
        (temporary / "generation_config.json").write_text(text)
        for path in tokenizer_folder.iterdir():
            shutil.copy(path, temporary)

    common.replace_folder(folder, write)


class Run:
    """One training run: the model, its optimiser, how far it is; what a kill must not lose."""

    def __init__(self, args: argparse.Namespace, folder: Path, tokenizer) -> None:
        from dartree.training.optimiser import Optimiser

        self.args, self.folder = args, folder
        self.state_file = folder / "target-state.pt"
        self.model = new_model(args.preset, tokenizer, args.seed, **args.changes)
        self.optimiser = Optimiser(self.model.named_parameters(), args.learning_rate, 0.05)
        self.step, self.seconds = 0, 0.0

    @property
    def tokens(self) -> int:
        return self.step * self.args.batch * self.args.length

    @property
    def progress(self) -> float:
        """0..1, by tokens and, with --minutes, by time as well: whichever is further."""
        done = self.tokens / self.args.tokens
        if self.args.minutes:
            done = max(done, self.seconds / (60 * self.args.minutes))
        return min(1.0, done)

    def save(self) -> None:
        import torch

        from dartree.training.state import save_state

        save_state(
            self.state_file, self.fixed(), model=self.model.state_dict(),
            optimiser=self.optimiser.state_dict(), step=self.step, seconds=self.seconds,
            rng=torch.get_rng_state(),
        )  # fmt: skip

    def fixed(self) -> dict:
        """The arguments that must stay the same over a resumed run."""
        a = self.args
        return {"seed": a.seed, "batch": a.batch, "length": a.length, "tokens": a.tokens}

    def resume(self) -> None:
        import torch

        from dartree.training.state import load_state

        state = load_state(self.state_file, self.fixed(), "target")
        if state:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
            torch.set_rng_state(state["rng"])
            self.step, self.seconds = state["step"], state["seconds"]


def gradients(model, ids, weights, total: float, bf16: bool) -> tuple[list, float]:
    """Gradients and loss of some windows, as their share of a step whose weights sum to `total`.

    One lane: a thread with single-threaded matrix products.  Two threads of one product wait for
    each other actively, and stall by ten times where another program runs beside them.
    """
    import torch

    torch.set_num_threads(1)
    loss, mass = loss_of(model, ids, weights, bf16)
    share = loss * (mass / total)
    return list(torch.autograd.grad(share, list(model.parameters()))), float(share.detach())


def one_step(run: Run, rows: np.ndarray, ids, weights, pool, bf16: bool) -> tuple[float, float]:
    """Loss and learning rate of one update on these windows.

    The windows are split into two fixed halves and summed in order, so the result does not
    depend on how many lanes there are.
    """
    import torch

    from dartree.training.optimiser import HALVES, take_gradients

    total = float(weights[rows][:, 1:].astype(np.float64).sum())
    halves = [half for half in np.array_split(rows, HALVES) if len(half)]

    def lane(half: np.ndarray) -> tuple[list, float]:
        x = torch.from_numpy(ids[half].astype(np.int64))
        w = torch.from_numpy(weights[half].astype(np.float32))
        return gradients(run.model, x, w, total, bf16)

    results = list(pool.map(lane, halves))
    take_gradients(list(run.model.parameters()), [grads for grads, _ in results])
    rate = run.optimiser.step(run.step, run.progress, lanes=pool.map)
    return sum(loss for _, loss in results), rate


def train(
    run: Run, ids: np.ndarray, weights: np.ndarray, held: dict, tokenizer_folder: Path, pool
) -> None:
    """Steps until the progress is 1, with log, progress bar, regular states and an early export."""
    from tqdm import tqdm

    args, model = run.args, run.model
    bf16 = common.bf16_on_cpu()
    log = common.Log(run.folder / "target.jsonl", resume_at=run.step)
    per_step = args.batch * args.length
    bar = tqdm(total=args.tokens, initial=run.tokens, unit="tok", unit_scale=True, desc="target",
               mininterval=5)  # fmt: skip
    model.train()
    last, saved, early, mean = time.perf_counter(), run.seconds, args.early_minutes, None
    with bar:  # closed before whatever an interrupt has to say
        while run.progress < 1:
            rows = packing.batch_rows(run.step, args.batch, len(ids), args.seed)
            value, rate = one_step(run, rows, ids, weights, pool, bf16)
            run.step += 1
            now = time.perf_counter()
            run.seconds, last, speed = run.seconds + now - last, now, per_step / (now - last)
            mean = value if mean is None else 0.95 * mean + 0.05 * value
            bar.update(per_step)
            left = run.seconds * (1 - run.progress) / max(run.progress, 1e-9) / 60
            bar.set_postfix_str(f"loss {mean:.3f}, {left:.0f} min left", refresh=False)
            if run.step % args.log_every == 0 or run.progress >= 1:
                extra = {}
                if run.step % args.held_every == 0 or run.progress >= 1:
                    extra["held_out"] = held_out_loss(model, held, bf16)
                extra |= {"tokens_per_second": round(speed), "seconds": round(run.seconds, 1)}
                log.write(step=run.step, tokens=run.tokens, loss=round(mean, 4), lr=rate, **extra)
            if run.seconds - saved > args.save_seconds or run.progress >= 1:
                run.save()
                saved = run.seconds
            if early and run.seconds > 60 * early:
                export(model, tokenizer_folder, run.folder / "target-early")
                early = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tokens", type=int, default=TOKENS, help=f"length of the run (default {TOKENS:,})")
    add("--minutes", type=float, help="end after this time, with the schedule run to its end")
    add("--batch", type=int, default=8, help="windows a step")
    add("--length", type=int, default=512, help="tokens a window")
    add("--learning-rate", type=float, default=4e-3, help="at the end of the warm-up")
    add("--threads", type=int, help="lanes of one thread each (default: 2, or all cores if fewer)")
    add("--resume", action="store_true", help="go on from the last state")
    add("--early-minutes", type=float, help="also export target-early/ after this time")
    add("--save-seconds", type=float, default=60, help="time between two states")
    add("--log-every", type=int, default=20, help="steps between two lines of the log")
    add("--held-every", type=int, default=200, help="steps between two held-out losses")
    parser.set_defaults(changes={})


def run(args: argparse.Namespace) -> None:
    import torch
    from transformers import AutoTokenizer

    for name in ("tokens", "batch", "length", "log_every", "held_every", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"{name} is {getattr(args, name)}; it must be at least 1")
    lanes = args.threads or min(2, os.cpu_count() or 1)
    torch.set_num_threads(1)
    folder = common.preset_folder(args.preset, args.out)
    tokenizer_folder = folder / "tokenizer"
    if not tokenizer_folder.exists():
        raise ValueError(f"{tokenizer_folder} does not exist; run `dartree train tokenizer` first")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    ids, weights = packing.windows(folder, tokenizer, args.length)
    state = Run(args, folder, tokenizer)
    if args.resume:
        state.resume()
    count = sum(p.numel() for p in state.model.parameters())
    print(
        f"target: {count / 1e6:.2f} million parameters, {ids.size / 1e6:.1f} million tokens a pass"
    )
    held = held_out_windows(folder, tokenizer, args.length)
    with ThreadPoolExecutor(lanes) as pool:
        train(state, ids, weights, held, tokenizer_folder, pool)
    export(state.model, tokenizer_folder, folder / "target")
    losses = held_out_loss(state.model, held, common.bf16_on_cpu())
    text = ", ".join(f"{domain} {loss:.3f}" for domain, loss in losses.items())
    print(f"target: held-out loss {text}; in {folder / 'target'}")
