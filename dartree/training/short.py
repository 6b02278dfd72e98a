"""A correction head trained in a minute, on a drafter body that stays as it is.

The body's output does not change, so it is computed once.  The head's matrix to the vocabulary is
the target's own embedding table, compressed to the head's rank, and stays as well: a few thousand
tokens are too few to learn rows for all words, but enough to learn which direction to correct in.
Loss, optimiser and measure are those of ``dartree train drafter``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from dartree.checks import CheckpointError, positive, positive_int
from dartree.decode import generate
from dartree.drafter import DrafterConfig
from dartree.heads import DominoHead, Head, NoCorrection
from dartree.settings import TreeSettings
from dartree.stack import Pairing, Stack, load_stack
from dartree.training import corpus, regenerate
from dartree.training.batched_heads import head_middle, output_matrix
from dartree.training.blocks import (
    block_forward,
    context_of,
    make_blocks,
    sample_anchors,
    weighted_loss,
)
from dartree.training.common import DOMAINS
from dartree.training.drafter import HEADS, export
from dartree.training.forward import BatchedTarget, states_of
from dartree.training.heldout import Tau, free_running_tau
from dartree.training.optimiser import Optimiser
from dartree.training.regenerate import Text

GAMMA = 7.0  # decay length of the position weights for blocks of 16


def training_prompts(per_domain: int, seed: int = 0) -> list[dict[str, str]]:
    """Prompts of the training part of the corpus, ``per_domain`` of each domain."""
    per_domain = positive_int("per_domain", per_domain)
    return [
        row
        for domain in DOMAINS
        for row in corpus.samples(domain, per_domain, seed, held=False)
    ]  # fmt: skip


def answered(stack: Stack, rows: Sequence[dict[str, Any]], max_new_tokens: int = 96) -> list[Text]:
    """The target's own greedy answers to ``rows``: what a drafter has to imitate."""
    prompts = [stack.encode(row["prompt"]) for row in rows]
    target, stops = BatchedTarget(stack.target.model), set(stack.stop_ids())
    return regenerate.answered(target, rows, prompts, max_new_tokens=max_new_tokens, stop_ids=stops)


@dataclass(frozen=True)
class Rows:
    """A blocks of n drafts behind a frozen body.

    hidden [A, n, H]
        The body's output.
    prefix, labels [A, n]
        The token that the head has read last, and the token it has to name.
    weights [A, n]
        0 where there is no label.
    """

    hidden: torch.Tensor
    prefix: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


def head_config(body: DrafterConfig) -> DrafterConfig:
    """The body's config with a Domino head of the bundled drafters' size."""
    domino = {**HEADS["domino"], "shift_label": body.shift_label,
              "emb_dim": min(HEADS["domino"]["emb_dim"], body.hidden_size)}  # fmt: skip
    return replace(body, head="domino", markov_rank=0, enable_confidence_head=False, **domino)


def compressed(table: torch.Tensor, rank: int) -> torch.Tensor:
    """[V, rank] of ``table`` [V, H]: its rows in the ``rank`` directions that hold most of it."""
    left, sizes, _ = torch.linalg.svd(table.float(), full_matrices=False)
    return left[:, :rank] * sizes[:rank]


def fresh_head(config: DrafterConfig, table: torch.Tensor, seed: int) -> DominoHead:
    """A head that corrects nothing yet: random GRU, first layer 0, frozen compressed output."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = DominoHead(config)
    first, last = head.embed_proj[0].weight, head.embed_proj[2].weight
    with torch.no_grad():
        first.zero_()
        last.copy_(compressed(table, last.shape[1]))
    last.requires_grad_(False)
    return head


@torch.no_grad()
def frozen_rows(pairing: Pairing, texts: Sequence[Text], anchors: int, seed: int = 0) -> Rows:
    """What the body of ``pairing`` says about ``anchors`` random blocks of every text."""
    config, target = pairing.drafter.config, BatchedTarget(pairing.target.model)
    generator, table = torch.Generator().manual_seed(seed), pairing.target.embedding
    parts = []
    for text in texts:
        places = sample_anchors(text.supervised, anchors, generator)
        blocks = make_blocks(config, text.ids, text.supervised, places, GAMMA)
        _, features = states_of(target, [text.ids.tolist()], config.target_layer_ids)[0]
        owners = torch.zeros_like(places)
        hidden = block_forward(
            pairing.drafter, F.embedding(blocks.ids, table), context_of([features]), places, owners
        )
        parts.append((hidden[:, config.row_offset :], blocks.prefix, blocks.labels, blocks.weights))
    return Rows(*(torch.cat(column) for column in zip(*parts, strict=True)))


def train_head(
    pairing: Pairing,
    rows: Rows,
    *,
    steps: int = 150,
    batch: int = 64,
    learning_rate: float = 2e-3,
    seed: int = 0,
    measure: Callable[[Head], Tau] | None = None,
    measure_every: int = 50,
) -> tuple[DominoHead, list[dict[str, Any]]]:
    """A Domino head for the frozen body of ``pairing``, and the log of its training.

    It starts as no correction at all, and is teacher-forced: row i has read tokens 0..i of the
    truth. A log row holds step, loss, base_accuracy and final_accuracy (teacher-forced) and, from
    ``measure``, the free-running tau and tau_base. ``batch`` counts blocks.
    """
    steps, batch = positive_int("steps", steps), positive_int("batch", batch)
    rate = positive("learning_rate", learning_rate)
    table = pairing.target.embedding
    head = fresh_head(head_config(pairing.drafter.config), table, seed)
    trained = [(name, p) for name, p in head.named_parameters() if p.requires_grad]
    optimiser = Optimiser(trained, rate, 0.01)
    generator, log = torch.Generator().manual_seed(seed), []
    for step in range(1, steps + 1):
        chosen = torch.randperm(len(rows.hidden), generator=generator)[:batch]
        loss, base, final = _loss(head, rows, chosen, table)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in trained], 1.0)
        optimiser.step(step - 1, step / steps, warmup=max(1, steps // 10))
        row = {"step": step, "loss": float(loss.detach()), "base_accuracy": base,
               "final_accuracy": final}  # fmt: skip
        if measure and (step == 1 or step % measure_every == 0 or step == steps):
            tau = measure(head)
            row |= {"tau": tau.corrected, "tau_base": tau.base}
        log.append(row)
    head.requires_grad_(False).eval().attach(table)
    return head, log


def _loss(head: DominoHead, rows: Rows, chosen: torch.Tensor, table: torch.Tensor) -> tuple:
    """Mean weighted loss of some blocks, and the share of right rows without and with the head."""
    hidden, kept = rows.hidden[chosen], rows.weights[chosen] > 0
    middle = head_middle(head, hidden, rows.prefix[chosen], table)
    weights = rows.weights[chosen][kept]
    loss, hits = weighted_loss(
        hidden[kept], middle[kept], table, output_matrix(head), rows.labels[chosen][kept],
        weights, mix=0.0,
    )  # fmt: skip
    base, final = (hits / int(kept.sum())).tolist()
    return loss / weights.sum(), base, final


def chain_tau(pairing: Pairing, texts: Sequence[Text], head: Head | None = None) -> Tau:
    """Free-running tau of a pairing's chain on ``texts``, with its head or another one."""
    used: Any = pairing.head if head is None else head
    if isinstance(used, NoCorrection):
        used = None
    target = BatchedTarget(pairing.target.model)
    threads = torch.get_num_threads()
    try:
        return free_running_tau(pairing.drafter, used, target, list(texts))
    finally:
        torch.set_num_threads(threads)


def export_head(pairing: Pairing, head: DominoHead, folder: str | Path) -> Path:
    """Body and head as a checkpoint folder in the public format, in bfloat16."""
    config = head_config(pairing.drafter.config)
    tensors = {**pairing.drafter.state_dict(), **head.state_dict()}
    export(config, tensors, Path(folder))
    return Path(folder)


# Checkpoints with something wrong, to hear what the loader says.


def altered(
    folder: str | Path, place: str | Path, *, config: dict | None = None, drop: str | None = None
) -> Path:
    """A copy of a checkpoint at ``place`` with other values in its config, or a tensor less.

    A name that lies in ``dflash_config`` is changed there; ``None`` removes a name.
    """
    folder, place = Path(folder), Path(place)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    inner = raw.get("dflash_config", {})
    for name, value in (config or {}).items():
        owner = inner if name in inner else raw
        owner.pop(name, None)
        if value is not None:
            owner[name] = value
    tensors = load_file(folder / "model.safetensors")
    if drop is not None and tensors.pop(drop, None) is None:
        raise ValueError(f"drop must name a tensor of {folder}, got {drop!r}.")
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return place


def complaint(target: str | Path, drafter: str | Path) -> str | None:
    """What the loader says about a pair of checkpoints; None where it loads them."""
    try:
        load_stack(target=target, drafter=drafter)
    except CheckpointError as error:
        said = str(error)
        for folder in (drafter, target):
            said = said.replace(str(folder), Path(folder).name)
        return said
    return None


# The same decoding loop on other parts.


def with_head(stack: Stack, head: Head, label: str) -> Stack:
    """``stack`` with another head on the body of its main drafter."""
    main = Pairing(stack.target, stack.drafter, head, label)
    return replace(stack, name=label, main=main)


def tau_table(
    stacks: dict[str, Stack],
    prompts: Sequence[Any],
    methods: Sequence[str],
    settings: TreeSettings | None = None,
    max_new_tokens: int = 96,
) -> dict[str, dict[str, float]]:
    """stack -> method -> tau of ``generate``, pooled over ``prompts``."""
    table: dict[str, dict[str, float]] = {name: {} for name in stacks}
    for name, stack in stacks.items():
        for method in methods:
            runs = generate(
                stack, list(prompts), method=method, settings=settings,
                max_new_tokens=max_new_tokens,
            )  # fmt: skip
            tokens = sum(sum(run.accepted_per_round) for run in runs)
            table[name][method] = tokens / max(1, sum(run.rounds for run in runs))
    return table
