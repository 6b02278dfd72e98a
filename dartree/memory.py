"""How much memory a stack needs, from its configurations alone: nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dartree.checkpoints import empty_drafter
from dartree.checks import CheckpointError, first_line, positive_int
from dartree.drafter import DrafterConfig
from dartree.heads import TABLE_BYTES
from dartree.native import MOST_BEST, whole
from dartree.packed import MOST_BYTES
from dartree.settings import TreeSettings


@dataclass(frozen=True)
class Estimate:
    """Bytes by part.

    target, drafter, head
        Weights; the drafter shares the target's embedding and lm_head.
    packed
        The second copy of linear layers in oneDNN's layout (:mod:`dartree.packed`); 0 where
        there is none.
    head_tables
        What the head derives from its weights once: the joint matrix [M + 3G, G], and the GRU
        table [V, 3G] where it is small enough to be kept.
    fused
        Copies of the head's weights for fused steps (:mod:`dartree.fused`) and their memory; 0
        where there are none.
    table_left_out
        The GRU table where it is not: its rows are computed as they are needed.
    cache
        Keys and values for ``context`` rows and one tree; the drafter's share counts twice, since
        its buffers grow by doubling.
    round_peak
        Largest sum of temporary tensors of one round: the larger of expanding (n rows of base
        logits, gathered rows of the head [n, K, M], W states, W x K scores) and verifying
        (1 + B rows of logits, the mask, activations of one layer).
    prefill_peak
        The same for one forward over a prompt as long as the context.
    """

    target: int
    drafter: int
    head: int
    packed: int
    head_tables: int
    fused: int
    table_left_out: int
    cache: int
    round_peak: int
    prefill_peak: int

    @property
    def total(self) -> int:
        """Weights, tables and cache, and the larger peak."""
        weights = self.target + self.drafter + self.head + self.packed
        fixed = weights + self.head_tables + self.fused + self.cache
        return fixed + max(self.round_peak, self.prefill_peak)


def estimate(
    target: dict[str, Any],
    drafter: DrafterConfig,
    settings: TreeSettings,
    context: int,
    value_bytes: int = 2,
    may_pack: bool = True,
    beside: DrafterConfig | None = None,
    may_fuse: bool = True,
) -> Estimate:
    """Memory of a target (its config.json) with a drafter, for ``context`` tokens in all.

    ``value_bytes``: 2 for bf16 and fp16, 4 for fp32. ``may_pack``: whether, in fp32, linear layers
    are packed where they weigh no more than MOST_BYTES, and steps fused, as on a CPU; ``may_fuse``:
    and whether steps are. ``beside``: a second drafter, for `dflash` and `ddtree`: it counts for
    that limit alone, and for no part.
    Raises ValueError for a context below 1.
    """
    context = positive_int("context", context)
    used = settings.clamped(drafter.drafts, drafter.vocab_size)
    nodes = min(used.budget, sum(used.level_sizes()))
    with torch.device("meta"):
        model = _target_model(target)
    body, head = empty_drafter(drafter)
    head_values = _parameters(head) if isinstance(head, nn.Module) else 0
    linear = value_bytes * (_linear(model) + _linear(body))
    limited = linear + (value_bytes * _linear(empty_drafter(beside)[0]) if beside else 0)
    packed = may_pack and value_bytes == 4 and limited <= MOST_BYTES
    wide, hidden = drafter.gru_hidden_dim, drafter.hidden_size
    joint = value_bytes * (drafter.emb_dim + 3 * wide) * wide
    gates = value_bytes * drafter.vocab_size * 3 * wide
    kept = gates if gates <= TABLE_BYTES else 0
    fused = may_fuse and may_pack and value_bytes == 4 and kept == gates
    c = model.config
    row = c.num_hidden_layers * c.num_key_value_heads * c.head_dim
    drafter_row = drafter.num_hidden_layers * drafter.num_key_value_heads * drafter.head_dim
    row += 2 * drafter_row  # its buffers grow by doubling
    rows = context + nodes + drafter.block_size
    taps = len(drafter.target_layer_ids)
    return Estimate(
        target=value_bytes * _parameters(model),
        drafter=value_bytes * _parameters(body),
        head=value_bytes * head_values,
        packed=linear if packed else 0,
        head_tables=joint + kept,
        fused=_fused(drafter, used) if fused else 0,
        table_left_out=gates - kept,
        cache=value_bytes * 2 * row * rows,
        round_peak=_base_logits(drafter, value_bytes)
        + max(
            _expand(drafter, used, value_bytes),
            _forward(c, 1 + nodes, 1 + nodes, context, taps, value_bytes),
        ),
        prefill_peak=_forward(c, context, 1, 0, taps, value_bytes) + value_bytes * context * hidden,
    )


def target_bytes(target: dict[str, Any], value_bytes: int = 2) -> int:
    """Bytes of a target's weights, by its config.json; tied tables count once."""
    with torch.device("meta"):
        return value_bytes * _parameters(_target_model(target))


def drafter_bytes(drafter: DrafterConfig, value_bytes: int = 2, packed: bool = False) -> int:
    """Bytes of the weights of a drafter and its head, and of the packed copy where there is one."""
    body, head = empty_drafter(drafter)
    values = sum(_parameters(part) for part in (body, head) if isinstance(part, nn.Module))
    return value_bytes * (values + packed * _linear(body))


def _target_model(target: dict[str, Any]) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    try:
        return Qwen3ForCausalLM(Qwen3Config(**target))
    except Exception as error:  # configs of the wrong types raise many kinds; one sentence serves
        raise CheckpointError(
            f"the target's config.json does not describe a Qwen3 model: {first_line(error)}"
        ) from None


def _parameters(module: nn.Module) -> int:
    """Values of a module; tied tables count once."""
    return sum(p.numel() for p in module.parameters())


def _linear(module: nn.Module) -> int:
    """Values of the weights of all linear layers: what :func:`dartree.packed.pack` copies."""
    return sum(m.weight.numel() for m in module.modules() if isinstance(m, nn.Linear))


def _base_logits(drafter: DrafterConfig, value_bytes: int) -> int:
    """The marginals [n, V], which stay until the round is over."""
    return value_bytes * drafter.drafts * drafter.vocab_size


def _expand(drafter: DrafterConfig, used: TreeSettings, value_bytes: int) -> int:
    """fp32 base logits, the head's gathered rows, states of one depth, scores of one depth."""
    base = 4 * drafter.drafts * drafter.vocab_size
    width = drafter.emb_dim or drafter.markov_rank
    rows = value_bytes * drafter.drafts * used.candidates * width
    states = 8 * used.width * (width + 4 * drafter.gru_hidden_dim)
    seen = drafter.vocab_size if used.normalise == "vocabulary" else used.candidates
    return base + rows + states + 3 * 4 * used.width * seen


def _forward(c: Any, rows: int, logit_rows: int, past: int, taps: int, value_bytes: int) -> int:
    """One target forward (sdpa): taps, activations of one layer, logits, the mask of a tree."""
    attention = c.num_attention_heads * c.head_dim
    layer = 3 * c.hidden_size + 2 * attention + 3 * c.intermediate_size
    values = rows * (layer + 2 * taps * c.hidden_size) + logit_rows * c.vocab_size
    if logit_rows > 1:
        # With a mask, keys and values of a layer are repeated for all heads, and the mask once.
        values += (past + rows) * (2 * attention + 2 * rows)
    return value_bytes * values


def _fused(drafter: DrafterConfig, settings: TreeSettings) -> int:
    """Bytes that a fused head keeps for `dartree`: fp32, and sizes in whole panels."""
    if max(settings.width, settings.candidates) > MOST_BEST:
        return 0
    h, v = drafter.hidden_size, drafter.vocab_size
    if drafter.head == "domino":
        g, m = drafter.gru_hidden_dim, drafter.emb_dim
        state, middle = whole(g), whole(m)
        copies = h * middle + state * (middle + 3 * state)
        copies += v * (3 * state * (state > g) + middle * (middle > m))
    elif drafter.head == "markov" and drafter.markov_head_type == "vanilla":
        state, middle = 0, whole(drafter.markov_rank)
        copies = 2 * v * middle * (middle > drafter.markov_rank)
    else:
        return 0
    rows = 1 + 2 * max(settings.level_sizes())
    return 4 * (copies + rows * (middle + 4 * state) + (settings.depth or 0) * middle + v)


def table(need: Estimate) -> str:
    """One line: the parts that matter, and their sum."""
    weights = need.target + need.drafter + need.head
    left_out = need.table_left_out
    note = f" (a table V x 3G of {gib(left_out)} is not kept)" if left_out else ""
    packed = f", on a CPU a packed copy {gib(need.packed)}" if need.packed else ""
    fused = f", on a CPU fused steps {gib(need.fused)}" if need.fused else ""
    return (
        f"{gib(need.total)} in all: weights {gib(weights)} (target {gib(need.target)}, drafter "
        f"{gib(need.drafter)}, head {gib(need.head)}){packed}, "
        f"head tables {gib(need.head_tables)}{note}{fused}, cache {gib(need.cache)}, "
        f"peak of a round {gib(need.round_peak)}, of the prefill {gib(need.prefill_peak)}"
    )


def gib(count: int) -> str:
    """Bytes for people: GiB from a tenth of one on, else MiB."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 / 10 else f"{count / 2**20:.1f} MiB"
