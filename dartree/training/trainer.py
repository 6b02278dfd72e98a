"""The training loop of drafter and head: lanes, loss, schedules, state, log.

A step's sequences are split into two halves. Each half is one lane: a Python thread with
single-threaded matrix products, which gives its own gradients. The halves are fixed and summed
in order, so the result does not depend on how many lanes run at the same time.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from dartree.drafter import DFlashDrafter, DrafterConfig
from dartree.training import common
from dartree.training.batched_heads import confidence_loss, head_middle, new_head, output_matrix
from dartree.training.blocks import (
    Blocks,
    block_forward,
    context_of,
    join_blocks,
    make_blocks,
    sample_anchors,
    weighted_loss,
)
from dartree.training.forward import BatchedTarget, states_of
from dartree.training.heldout import Tau, free_running_tau
from dartree.training.optimiser import HALVES, Optimiser, take_gradients
from dartree.training.regenerate import Sequence
from dartree.training.state import load_state, save_state

PACK = 4  # sequences a graph: fewer casts of the weights, larger matrix products
CONFIDENCE_STRIDE = 4  # every fourth row trains the confidence head
WARMUP = 100  # steps, or a tenth of a shorter run


def new_modules(config: DrafterConfig, seed: int) -> nn.ModuleDict:
    """Freshly initialised drafter and, if the config names one, head; the head starts as 0."""
    torch.manual_seed(seed)
    modules = nn.ModuleDict({"drafter": DFlashDrafter(config)})
    head = new_head(config)
    if head is not None:
        modules["head"] = head
    for parameter in modules.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    if head is not None:
        nn.init.zeros_(output_matrix(head))
    return modules


class Trainer:
    """One run: modules, optimiser, progress, best weights; everything a kill must not lose."""

    def __init__(
        self,
        args: argparse.Namespace,
        config: DrafterConfig,
        target: BatchedTarget,
        sequences: list[Sequence],
        held: list[Sequence],
        folder: Path,
        name: str,
        lanes: int = 1,
        bf16: bool = False,
    ) -> None:
        self.args, self.config, self.target = args, config, target
        self.sequences, self.held = sequences, held
        self.folder, self.name = folder, name
        self.lanes, self.bf16 = lanes, bf16
        self.embedding = target.embedding.detach().float()  # [V, H]
        self.modules = new_modules(config, args.seed)
        # The drafter's output goes through the target's lm_head: start on the target's scale.
        self.modules["drafter"].norm.weight.data.copy_(target.body.norm.weight)
        if args.init:
            self._start_from(args.init)
        self.parameters = list(self.modules.parameters())
        self.optimiser = Optimiser(self.modules.named_parameters(), args.learning_rate, 0.01)
        self.step, self.seconds = 0, 0.0
        self.best: dict = {"tau": 0.0, "step": 0, "weights": self._weights()}
        if args.resume:
            self._resume()

    def _start_from(self, folder: Path) -> None:
        """The body of a finished drafter of the same shape; its head is left out."""
        from dartree.checkpoints import load_drafter

        other, _ = load_drafter(folder, torch.float32, "cpu")
        ours, theirs = self.config, other.config
        for name in ("hidden_size", "num_hidden_layers", "target_layer_ids", "block_size",
                     "shift_label"):  # fmt: skip
            if getattr(ours, name) != getattr(theirs, name):
                raise ValueError(
                    f"init is {folder}, a drafter with {name} {getattr(theirs, name)}; this one "
                    f"has {getattr(ours, name)}"
                )
        self.modules["drafter"].load_state_dict(other.state_dict())

    @property
    def head(self) -> nn.Module | None:
        """The head under training, None for a head-less drafter."""
        return self.modules["head"] if "head" in self.modules else None

    @property
    def progress(self) -> float:
        """0..1 by steps and by minutes, whichever is further."""
        by_steps = self.step / self.args.steps if self.args.steps else 0.0
        by_time = self.seconds / (60 * self.args.minutes) if self.args.minutes else 0.0
        return min(1.0, max(by_steps, by_time))

    def best_weights(self) -> dict[str, torch.Tensor]:
        """Tensors of the best step, under their public names."""
        return self.best["weights"]

    def _weights(self) -> dict[str, torch.Tensor]:
        return {
            name: tensor.detach().clone()
            for module in self.modules.values()
            for name, tensor in module.state_dict().items()
        }

    # State -----------------------------------------------------------------------------------

    @property
    def state_file(self) -> Path:
        """Where the state of this run lies."""
        return self.folder / f"{self.name}-state.pt"

    def _fixed(self) -> dict:
        """What must stay the same over a resumed run."""
        a = self.args
        shape = {k: str(v) for k, v in vars(self.config).items()}
        run = {k: getattr(a, k) for k in ("seed", "batch", "anchors", "gamma", "learning_rate")}
        return {**run, **shape, "sequences": len(self.sequences)}

    def save(self) -> None:
        """Write the whole state in one rename."""
        save_state(
            self.state_file, self._fixed(), modules=self.modules.state_dict(),
            optimiser=self.optimiser.state_dict(), step=self.step, seconds=self.seconds,
            best=self.best,
        )  # fmt: skip

    def _resume(self) -> None:
        state = load_state(self.state_file, self._fixed(), self.name)
        if state:
            self.modules.load_state_dict(state["modules"])
            self.optimiser.load_state_dict(state["optimiser"])
            self.step, self.seconds, self.best = state["step"], state["seconds"], state["best"]

    # One step --------------------------------------------------------------------------------

    def _batch(self, step: int) -> list[tuple]:
        """(sequence, blocks) of a step: a function of the seed and the step's number alone."""
        count, size = len(self.sequences), self.args.batch
        places = range(step * size, (step + 1) * size)
        orders: dict[int, torch.Tensor] = {}
        generator = torch.Generator().manual_seed(self.args.seed * 1_000_003 + step)
        items = []
        for place in places:
            turn = place // count
            if turn not in orders:
                shuffle = torch.Generator().manual_seed(self.args.seed * 7919 + turn)
                orders[turn] = torch.randperm(count, generator=shuffle)
            text = self.sequences[int(orders[turn][place % count])]
            anchors = sample_anchors(text.supervised, self.args.anchors, generator)
            blocks = make_blocks(self.config, text.ids, text.supervised, anchors, self.args.gamma)
            items.append((text, blocks))
        return items

    def _loss(self, states: list[tuple], parts: list[Blocks], mix: float) -> tuple:
        """Weighted loss sum of some sequences' blocks, and their correct rows [2].

        ``states``: the target's last hidden states [T, H] and tapped features [T, taps * H].
        """
        blocks, owners = join_blocks(parts)
        context = context_of([features.float() for _, features in states])
        first, kept = self.config.row_offset, blocks.weights > 0
        dtype = torch.bfloat16 if self.bf16 else torch.float32
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            embeddings = F.embedding(blocks.ids, self.embedding)
            hidden = block_forward(
                self.modules["drafter"], embeddings, context, blocks.anchors, owners
            )[:, first:]
            middle = None
            if self.head is not None:
                middle = head_middle(self.head, hidden, blocks.prefix, self.embedding)
        hidden, weights = hidden[kept].float(), blocks.weights[kept]
        if middle is not None:
            middle = middle[kept].float()
        output = None if self.head is None else output_matrix(self.head)
        loss, hits = weighted_loss(
            hidden, middle, self.embedding, output, blocks.labels[kept], weights, mix, dtype
        )
        if hasattr(self.head, "confidence_head"):
            truth = torch.cat([
                last[(p.anchors[:, None] + torch.arange(self.config.drafts))[p.weights > 0]]
                for (last, _), p in zip(states, parts, strict=True)
            ])  # fmt: skip
            some = slice(None, None, CONFIDENCE_STRIDE)  # enough for so small a head
            loss = loss + confidence_loss(
                self.head, hidden[some], middle[some], truth[some], self.embedding, weights[some]
            )
        return loss, hits

    def _lane(self, items: list[tuple], mix: float, total: float) -> tuple:
        """Gradients, loss and correct rows of half a batch."""
        torch.set_num_threads(1)
        texts = [text.ids.tolist() for text, _ in items]
        states = states_of(self.target, texts, self.config.target_layer_ids)
        sums, loss, hits = None, 0.0, torch.zeros(2)
        for start in range(0, len(items), PACK):
            parts = [blocks for _, blocks in items[start : start + PACK]]
            value, right = self._loss(states[start : start + PACK], parts, mix)
            grads = torch.autograd.grad(value / total, self.parameters)
            sums = list(grads) if sums is None else torch._foreach_add(sums, grads)
            loss, hits = loss + float(value.detach()) / total, hits + right
        return sums, loss, hits

    def _one_step(self, pool: ThreadPoolExecutor, mix: float) -> dict:
        items = self._batch(self.step)
        total = float(sum(blocks.weights.sum() for _, blocks in items))
        rows = int(sum((blocks.weights > 0).sum() for _, blocks in items))
        size = -(-len(items) // HALVES)
        halves = [items[i : i + size] for i in range(0, len(items), size)]
        results = list(pool.map(lambda half: self._lane(half, mix, total), halves))
        take_gradients(self.parameters, [grads for grads, _, _ in results])
        hits = sum(hit for _, _, hit in results) / rows
        return {"loss": sum(loss for _, loss, _ in results), "rows": rows,
                "base": float(hits[0]), "final": float(hits[1])}  # fmt: skip

    # The loop --------------------------------------------------------------------------------

    def train(self) -> None:
        """Steps until the progress is 1; tau is measured on the way and the best step kept."""
        from tqdm.auto import tqdm

        args, saved = self.args, self.seconds
        warmup = min(WARMUP, args.steps // 10) if args.steps else WARMUP
        log = common.Log(self.folder / f"{self.name}.jsonl", resume_at=self.step)
        bar = tqdm(total=100, unit="%", desc=self.name, mininterval=5,
                   bar_format="{desc}: {percentage:3.0f}%|{bar}| {postfix}")  # fmt: skip
        last, mean = time.perf_counter(), {}
        with ThreadPoolExecutor(min(self.lanes, HALVES)) as pool, bar:
            while self.progress < 1:
                mix = max(0.0, 1.0 - self.progress)
                result = self._one_step(pool, mix)
                rate = self.optimiser.step(self.step, self.progress, warmup, pool.map)
                self.step += 1
                done = self._clock(last)
                speed, last = result.pop("rows") / (done - last), done
                mean = _smooth(mean, {**result, "speed": speed})
                self._show(bar, mean)
                final = self.progress >= 1
                measure = final or self.step % args.tau_every == 0
                if measure or self.step % args.log_every == 0:
                    log.write(**self._row(mean, mix, rate, self.measure() if measure else None))
                    last = self._clock(last)
                if final or self.seconds - saved > args.save_seconds:
                    self.save()
                    saved = self.seconds

    def _clock(self, last: float) -> float:
        now = time.perf_counter()
        self.seconds += now - last
        return now

    def _show(self, bar, mean: dict) -> None:
        left = self.seconds * (1 - self.progress) / max(self.progress, 1e-9) / 60
        bar.n = 100 * self.progress
        bar.set_postfix_str(
            f"step {self.step}, {mean['speed']:,.0f} tokens/s, loss {mean['loss']:.3f}, "
            f"{left:.0f} min left",
            refresh=False,
        )
        bar.update(0)

    def _row(self, mean: dict, mix: float, rate: float, tau: Tau | None) -> dict:
        row = {
            "step": self.step, "seconds": round(self.seconds, 1), "loss": round(mean["loss"], 4),
            "base_accuracy": round(mean["base"], 4), "mix": round(mix, 4), "lr": rate,
            "tokens_per_second": round(mean["speed"]),
        }  # fmt: skip
        if self.head is not None:
            row["final_accuracy"] = round(mean["final"], 4)
        if tau is not None:
            row["tau_base"] = {k: round(v, 3) for k, v in tau.base.items()}
            row["tau"] = {k: round(v, 3) for k, v in tau.corrected.items()}
        return row

    def measure(self) -> Tau:
        """Free-running tau on the held-out texts; the weights are kept if it is the best."""
        drafter = self.modules["drafter"]
        tau = free_running_tau(drafter, self.head, self.target, self.held, self.lanes)
        if tau.mean > self.best["tau"]:
            self.best = {"tau": tau.mean, "step": self.step, "weights": self._weights()}
        return tau


def _smooth(mean: dict, new: dict) -> dict:
    return {k: v if k not in mean else 0.95 * mean[k] + 0.05 * v for k, v in new.items()}
