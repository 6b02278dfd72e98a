"""The training of drafter and head: what a step is, its loss, and tau as the measure."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from dartree.checkpoints import load_drafter
from dartree.drafter import DFlashDrafter, DrafterConfig
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
from dartree.training.heldout import free_running_tau
from dartree.training.loop import HALVES, Gradients, Run, sample_numbers
from dartree.training.regenerate import Text

PACK = 4  # sequences a graph: fewer casts of the weights, larger matrix products
CONFIDENCE_STRIDE = 4  # every fourth row trains the confidence head, enough for so small a head
WARMUP = 100  # steps, or a tenth of a shorter run
Item = tuple[Text, Blocks]
States = tuple[torch.Tensor, torch.Tensor]  # last hidden states [T, H], features [T, taps * H]


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


def start_from(body: DFlashDrafter, folder: Path) -> None:
    """Copies the body of a finished drafter of the same shape; its head is left out."""
    other, _ = load_drafter(folder, torch.float32, "cpu")
    for name in ("hidden_size", "num_hidden_layers", "target_layer_ids", "block_size",
                 "shift_label"):  # fmt: skip
        ours, theirs = getattr(body.config, name), getattr(other.config, name)
        if ours != theirs:
            raise ValueError(
                f"init is {folder}, a drafter with {name} {theirs}; this one has {ours}"
            )
    body.load_state_dict(other.state_dict())


class DrafterRun(Run):
    """The training of a drafter and its head on the target's own answers."""

    def __init__(
        self, args: argparse.Namespace, config: DrafterConfig, target: BatchedTarget,
        texts: list[Text], held: list[Text], folder: Path, name: str, lanes: int = 1,
        bf16: bool = False,
    ) -> None:  # fmt: skip
        modules = new_modules(config, args.seed)
        self.drafter = cast(DFlashDrafter, modules["drafter"])
        self.head: Any = modules["head"] if config.head != "none" else None
        # The drafter's output goes through the target's lm_head: start on the target's scale.
        self.drafter.norm.weight.data.copy_(target.body.norm.weight)
        if args.init:
            start_from(self.drafter, args.init)
        warmup = min(WARMUP, args.steps // 10) if args.steps else WARMUP
        super().__init__(args, folder, name, modules, weight_decay=0.01, warmup=warmup,
                         measure_every=args.tau_every, lanes=lanes)  # fmt: skip
        self.config, self.target, self.texts, self.held = config, target, texts, held
        self.bf16, self.mix = bf16, 1.0
        self.embedding = target.embedding.detach().float()  # [V, H]
        self.best = {"tau": 0.0, "step": 0, "weights": self._weights()}
        if args.resume:
            self.resume()

    def best_weights(self) -> dict[str, torch.Tensor]:
        """Tensors of the best step, under their public names."""
        return self.best["weights"]

    def _weights(self) -> dict[str, torch.Tensor]:
        return {
            name: tensor.detach().clone()
            for module in self.model.children()
            for name, tensor in module.state_dict().items()
        }

    @property
    def done(self) -> float:
        return self.step / self.args.steps if self.args.steps else 0.0

    def fixed(self) -> dict[str, Any]:
        shape = {name: str(value) for name, value in vars(self.config).items()}
        names = ("seed", "batch", "anchors", "gamma", "learning_rate")
        run = {name: getattr(self.args, name) for name in names}
        return {**run, **shape, "sequences": len(self.texts)}

    def _items(self) -> list[Item]:
        """Texts and blocks of this step: a function of the seed and the step's number alone."""
        args, count = self.args, len(self.texts)

        def shuffled(turn: int) -> torch.Tensor:
            generator = torch.Generator().manual_seed(args.seed * 7919 + turn)
            return torch.randperm(count, generator=generator)

        generator = torch.Generator().manual_seed(args.seed * 1_000_003 + self.step)
        items = []
        for number in sample_numbers(self.step, args.batch, count, shuffled):
            text = self.texts[number]
            anchors = sample_anchors(text.supervised, args.anchors, generator)
            blocks = make_blocks(self.config, text.ids, text.supervised, anchors, args.gamma)
            items.append((text, blocks))
        return items

    def halves(self) -> tuple[list[list[Item]], tuple[float, int]]:
        """Items; the sum of the whole step's weights, and the number of its rows."""
        items = self._items()
        self.mix = max(0.0, 1.0 - self.progress)
        size = -(-len(items) // HALVES)
        total = float(sum(blocks.weights.sum() for _, blocks in items))
        return [items[i : i + size] for i in range(0, len(items), size)], (total, _rows(items))

    def lane(
        self, half: list[Item], whole: tuple[float, int]
    ) -> tuple[Gradients, dict[str, float]]:
        total, rows = whole
        ids = [text.ids.tolist() for text, _ in half]
        states = states_of(self.target, ids, self.config.target_layer_ids)
        sums: Any = None
        loss, hits = 0.0, torch.zeros(2)
        for start in range(0, len(half), PACK):
            parts = [blocks for _, blocks in half[start : start + PACK]]
            value, right = self._loss(states[start : start + PACK], parts)
            grads = torch.autograd.grad(value / total, self.parameters)
            sums = list(grads) if sums is None else torch._foreach_add(sums, grads)
            loss, hits = loss + float(value.detach()) / total, hits + right
        base, final = (hits / rows).tolist()
        return sums, {"loss": loss, "base": base, "final": final, "tokens": _rows(half)}

    def _loss(self, states: list[States], parts: list[Blocks]) -> tuple:
        """Weighted loss sum of some texts' blocks, and their correct rows [2]."""
        blocks, owners = join_blocks(parts)
        context = context_of([features.float() for _, features in states])
        kept = blocks.weights > 0
        output: Any = None
        middle: Any = None
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            embeddings = F.embedding(blocks.ids, self.embedding)
            hidden = block_forward(self.drafter, embeddings, context, blocks.anchors, owners)
            hidden = hidden[:, self.config.row_offset :]  # [A, n, H]
            if self.head is not None:
                output = output_matrix(self.head)
                middle = head_middle(self.head, hidden, blocks.prefix, self.embedding)[kept].float()
        hidden, weights = hidden[kept].float(), blocks.weights[kept]
        loss, hits = weighted_loss(
            hidden, middle, self.embedding, output, blocks.labels[kept], weights, self.mix,
            torch.bfloat16 if self.bf16 else torch.float32,
        )  # fmt: skip
        if self.config.enable_confidence_head:
            truth = torch.cat([
                last[(p.anchors[:, None] + torch.arange(self.config.drafts))[p.weights > 0]]
                for (last, _), p in zip(states, parts, strict=True)
            ])  # fmt: skip
            some = slice(None, None, CONFIDENCE_STRIDE)
            loss = loss + confidence_loss(
                self.head, hidden[some], middle[some], truth[some], self.embedding, weights[some]
            )
        return loss, hits

    def row(self, mean: dict[str, float]) -> dict[str, Any]:
        row = {"base_accuracy": round(mean["base"], 4), "mix": round(self.mix, 4)}
        return row if self.head is None else {**row, "final_accuracy": round(mean["final"], 4)}

    def measure(self) -> dict[str, Any]:
        """Free-running tau on the held-out texts; the weights are kept if it is the best."""
        tau = free_running_tau(self.drafter, self.head, self.target, self.held, self.lanes)
        if tau.mean > self.best["tau"]:
            self.best = {"tau": tau.mean, "step": self.step, "weights": self._weights()}
        taus = {"tau_base": tau.base, "tau": tau.corrected}
        return {name: {d: round(v, 3) for d, v in values.items()} for name, values in taus.items()}


def _rows(items: list[Item]) -> int:
    """Rows that are trained on."""
    return int(sum((blocks.weights > 0).sum() for _, blocks in items))
