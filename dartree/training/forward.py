"""The frozen target over whole batches: answers for training and tapped features.

Decoding uses :class:`dartree.target.Target`, one sequence at a time. Training needs many
sequences at once, so the same weights are read here layer by layer, with a left-padded batch and
preallocated key and value buffers. Nothing is shared between calls but the weights: several
threads may run forwards on one ``BatchedTarget``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F

from dartree.drafter import rotate


class BatchCache:
    """Keys and values of R left-padded sequences, each [layers, R, kv_heads, capacity, head_dim].

    All rows share ``length``: padding stands on the left, so every row writes the same column.
    """

    def __init__(self, target: BatchedTarget, rows: int, capacity: int) -> None:
        attention = target.body.layers[0].self_attn
        kv_heads = attention.k_proj.out_features // attention.head_dim
        shape = (len(target.body.layers), rows, kv_heads, capacity, attention.head_dim)
        self.keys = torch.empty(shape, dtype=target.dtype)
        self.values = torch.empty(shape, dtype=target.dtype)
        self.length = 0

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple:
        """Store [R, kv_heads, T, head_dim] behind ``length``; return everything up to there."""
        end = self.length + keys.shape[2]
        self.keys[layer, :, :, self.length : end] = keys
        self.values[layer, :, :, self.length : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all sequences but ``rows`` [R']."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]


class BatchedTarget:
    """A Qwen3ForCausalLM for inference on batches, in ``dtype``.

    The model is copied where the dtype differs; gradients are never recorded.
    """

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        if dtype is not None and model.lm_head.weight.dtype != dtype:
            model = copy.deepcopy(model).to(dtype)
        self.model = model.eval()
        self.body = model.model
        self.config = model.config

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.model.lm_head.weight.dtype

    @property
    def embedding(self) -> torch.Tensor:
        """Input embedding table [V, H]."""
        return self.body.embed_tokens.weight

    @torch.no_grad()
    def forward(
        self,
        ids: torch.Tensor,  # [R, T]
        pads: torch.Tensor,  # [R] padding columns on the left
        cache: BatchCache | None = None,
        taps: tuple[int, ...] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Final hidden states [R, T, H] and features [R, T, taps * H] (None without taps).

        Tap id i reads ``hidden_states[i + 1]`` of transformers: -1 is the embedding output, the
        last layer's id the state after the final norm.
        """
        start = 0 if cache is None else cache.length
        x = self.body.embed_tokens(ids)  # [R, T, H]
        mask, positions = self._mask(pads, start, ids.shape[1])
        rope = self.body.rotary_emb(x, positions)
        states = {-1: x} if -1 in taps else {}
        for i, layer in enumerate(self.body.layers):
            x = x + self._attend(layer, i, x, rope, mask, cache)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if i in taps:
                states[i] = x
        x = self.body.norm(x)
        if len(self.body.layers) - 1 in taps:
            states[len(self.body.layers) - 1] = x
        if cache is not None:
            cache.length = start + ids.shape[1]
        features = torch.cat([states[t] for t in taps], dim=-1) if taps else None
        return x, features

    def _attend(self, layer, index: int, x, rope, mask, cache) -> torch.Tensor:
        attention = layer.self_attn
        h = layer.input_layernorm(x)
        q, k, v = (
            projection(h).unflatten(-1, (-1, attention.head_dim))  # [R, T, heads, head_dim]
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q = rotate(attention.q_norm(q).transpose(1, 2), *rope)
        k, v = rotate(attention.k_norm(k).transpose(1, 2), *rope), v.transpose(1, 2)
        if cache is not None:
            k, v = cache.write(index, k, v)
        # The query heads of one key head are laid out as further query rows: no copy of k, v.
        rows, kv_heads, group = q.shape[0], k.shape[1], q.shape[1] // k.shape[1]
        q = q.reshape(rows, kv_heads, -1, attention.head_dim)  # [R, kv_heads, group * T, head_dim]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.repeat(1, 1, group, 1))
        out = out.reshape(rows, kv_heads * group, -1, attention.head_dim)
        return attention.o_proj(out.transpose(1, 2).flatten(2))

    def _mask(self, pads: torch.Tensor, start: int, count: int) -> tuple:
        """Additive mask [R, 1, T, start + T] and positions [R, T] of the new columns."""
        columns = torch.arange(start + count)
        rows = columns[start:]
        causal = columns <= rows[:, None]  # [T, start + T]
        visible = causal & (columns >= pads[:, None, None])  # [R, T, start + T]
        visible = visible | (columns == rows[:, None])  # a padding row sees itself: no NaN
        mask = torch.zeros(visible.shape, dtype=self.dtype).masked_fill_(~visible, float("-inf"))
        return mask[:, None], (rows - pads[:, None]).clamp(min=0)


def left_pad(sequences: list[list[int]], fill: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [R, T] with padding on the left, and the number of padding columns [R]."""
    width = max(len(s) for s in sequences)
    ids = torch.tensor([[fill] * (width - len(s)) + list(s) for s in sequences])
    return ids, torch.tensor([width - len(s) for s in sequences])


def states_of(
    target: BatchedTarget, sequences: list[list[int]], taps: tuple[int, ...]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Last hidden states [T, H] and tapped features [T, taps * H] of each, in one batch."""
    ids, pads = left_pad(sequences)
    hidden, features = target.forward(ids, pads, taps=taps)
    return [(hidden[i, int(pad) :], features[i, int(pad) :]) for i, pad in enumerate(pads)]


@torch.no_grad()
def answer(
    target: BatchedTarget,
    prompts: list[list[int]],
    *,
    max_new_tokens: int,
    stop_ids: set[int],
    temperatures: list[float] | None = None,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """New tokens for every prompt, the stop token included; temperature 0 is greedy.

    Finished rows leave the batch once they are a third of it, so that long answers do not pay
    for short ones.
    """
    ids, pads = left_pad(prompts)
    cache = BatchCache(target, len(prompts), ids.shape[1] + max_new_tokens)
    heat = torch.tensor(temperatures or [0.0] * len(prompts))
    owners, stops = torch.arange(len(prompts)), torch.tensor(sorted(stop_ids))
    answers: list[list[int]] = [[] for _ in prompts]
    done = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(max_new_tokens):
        hidden, _ = target.forward(ids, pads, cache)
        tokens = _choose(target.model.lm_head(hidden[:, -1]), heat, generator)  # [R]
        for row in (~done).nonzero()[:, 0].tolist():
            answers[int(owners[row])].append(int(tokens[row]))
        done |= torch.isin(tokens, stops)
        if done.all():
            break
        ids = tokens[:, None]
        if int(done.sum()) * 3 > len(done):
            rows = (~done).nonzero()[:, 0]
            cache.keep(rows)
            ids, pads, heat, owners, done = (t[rows] for t in (ids, pads, heat, owners, done))
    return answers


def _choose(logits: torch.Tensor, heat: torch.Tensor, generator) -> torch.Tensor:
    tokens = logits.argmax(-1)
    sampled = heat > 0
    if bool(sampled.any()):
        probabilities = (logits[sampled].float() / heat[sampled, None]).softmax(-1)
        tokens[sampled] = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    return tokens
