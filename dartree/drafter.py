"""The block-diffusion drafter (DFlash, arXiv 2602.06036): one forward, n path-blind marginals.

A block is the anchor token followed by mask tokens. Every layer lets the block attend, without
a causal mask, to itself and to features of the target at all positions before the anchor. The
features enter as keys and values of every layer, through the same projections as the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from dartree.settings import TreeSettings

KV = tuple[torch.Tensor, torch.Tensor]  # keys and values


@dataclass(frozen=True)
class DrafterConfig:
    """Shape of a drafter and its head; ``configs.py`` reads it from the public formats."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    # True: row i predicts position anchor + i + 1; False: row i predicts its own position.
    shift_label: bool = False
    head: str = "none"  # "none", "domino" or "markov"
    emb_dim: int = 0
    gru_hidden_dim: int = 0
    pure_draft_prefix_len: int = 0
    markov_rank: int = 0
    markov_head_type: str = "vanilla"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = True

    @property
    def drafts(self) -> int:
        """n: draft positions per block."""
        return self.block_size if self.shift_label else self.block_size - 1

    @property
    def row_offset(self) -> int:
        """Row of the block's output that predicts draft 1."""
        return 0 if self.shift_label else 1


@dataclass
class Block:
    """What one drafter forward gives for the n tokens after the anchor.

    hidden [n, H]
        Drafter output after its final norm; row i belongs to draft i + 1.
    base_logits [n, V]
        The target's lm_head applied to ``hidden``: marginals, blind to the other drafts.
    """

    anchor: int
    position: int  # absolute position of the anchor
    hidden: torch.Tensor
    base_logits: torch.Tensor

    @property
    def drafts(self) -> int:
        """n: draft positions of the block."""
        return self.hidden.shape[0]

    def anchor_ids(self) -> torch.Tensor:
        """The anchor as ids [1], where the block lies."""
        return torch.tensor([self.anchor], device=self.hidden.device)

    def limits(self, settings: TreeSettings) -> TreeSettings:
        """``settings`` clamped to what this block can give."""
        return settings.clamped(self.drafts, self.base_logits.shape[1])


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in fp32 as Qwen3 does."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * F.rms_norm(x.float(), x.shape[-1:], eps=self.eps).to(x.dtype)


class Rotary(nn.Module):
    """Rotary position embedding in the half-split layout of Qwen3."""

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta
        self._inverse: torch.Tensor | None = None

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """cos and sin [..., T, head_dim] for ``positions`` [..., T]."""
        if self._inverse is None or self._inverse.device != positions.device:
            # Not a buffer: a cast of the module to bf16 must leave the frequencies exact.
            steps = torch.arange(0, self.head_dim, 2, dtype=torch.float32)
            self._inverse = (1.0 / self.theta ** (steps / self.head_dim)).to(positions.device)
        angles = positions[..., None].float() * self._inverse  # [..., T, head_dim / 2]
        angles = torch.cat([angles, angles], dim=-1)  # [..., T, head_dim]
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate ``x`` [..., heads, T, head_dim] by cos and sin [..., T, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.unsqueeze(-3) + torch.cat([-second, first], dim=-1) * sin.unsqueeze(-3)


class DrafterAttention(nn.Module):
    """Queries from the block, keys and values from [context features ; block]."""

    def __init__(self, c: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        self.grouped = c.num_attention_heads != c.num_key_value_heads
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self.head_dim))

    def queries(self, x: torch.Tensor, rope: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """[A, heads, L, head_dim] for block hiddens [A, L, H]."""
        return rotate(self.q_norm(self._split(self.q_proj(x))).transpose(-2, -3), *rope)

    def keys_values(self, x: torch.Tensor, rope: tuple[torch.Tensor, ...]) -> KV:
        """Keys and values, each [A, kv_heads, T, head_dim], of block or context [A, T, H]."""
        keys = rotate(self.k_norm(self._split(self.k_proj(x))).transpose(-2, -3), *rope)
        return keys, self._split(self.v_proj(x)).transpose(-2, -3)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[A, L, H]; bidirectional unless ``mask`` says otherwise."""
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=self.grouped)
        return self.o_proj(out.transpose(-2, -3).flatten(-2))


class DrafterMLP(nn.Module):
    """SwiGLU, as in Qwen3."""

    def __init__(self, c: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DrafterLayer(nn.Module):
    """A Qwen3 layer whose attention also reads the context; the context is not normed here."""

    def __init__(self, c: DrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = DrafterAttention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = DrafterMLP(c)


class DFlashDrafter(nn.Module):
    """The drafter's body; parameter names are those of the public checkpoints.

    Embedding and lm_head are the target's and not held here.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        width = len(config.target_layer_ids) * config.hidden_size
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        layers = (DrafterLayer(config) for _ in range(config.num_hidden_layers))
        # A ModuleList does not know the type of its items.
        self.layers: Sequence[DrafterLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Rotary(config.head_dim, config.rope_theta)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.fc.weight.dtype

    def new_cache(self) -> DrafterCache:
        """An empty context cache."""
        return DrafterCache(self)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """Context [..., T, H] from tapped target features [..., T, taps * H]."""
        return self.hidden_norm(self.fc(features.to(self.dtype)))

    def block_ids(self, anchor: int, device: torch.device) -> torch.Tensor:
        """The drafter's input [1, L]: the anchor, then mask tokens."""
        size = self.config.block_size
        ids = torch.full((1, size), self.config.mask_token_id, dtype=torch.long, device=device)
        ids[0, 0] = anchor
        return ids

    def run(
        self,
        x: torch.Tensor,
        rope: tuple[torch.Tensor, ...],
        extend: Callable[[int, KV], KV],
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states [A, L, H] of embedded blocks ``x`` [A, L, H], after the final norm.

        ``extend``: from a layer's number and the blocks' own keys and values to all that they
        attend to, each [A, kv_heads, T, head_dim]. ``mask``: additive, to [A, heads, L, T].
        """
        for i, layer in enumerate(self.layers):
            attention = layer.self_attn
            h = layer.input_layernorm(x)
            keys, values = extend(i, attention.keys_values(h, rope))
            x = x + attention.attend(attention.queries(h, rope), keys, values, mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)

    def forward(
        self,
        block_embeddings: torch.Tensor,  # [A, L, H]
        context: torch.Tensor,  # [1, T, H]
        block_positions: torch.Tensor,  # [A, L]
        context_positions: torch.Tensor,  # [T]
        mask: torch.Tensor | None = None,  # additive [A, 1, L, T + L]
    ) -> torch.Tensor:
        """Hidden states [A, L, H] of A blocks that share one context, without any cache.

        Used for training and replay: block a may see only the context that ``mask`` lets it see.
        """
        x = block_embeddings.to(self.dtype)
        block_rope = self.rotary(block_positions, x.dtype)
        context_rope = self.rotary(context_positions[None], x.dtype)

        def behind_context(i: int, own: KV) -> KV:
            shared = self.layers[i].self_attn.keys_values(context, context_rope)
            keys, values = (
                torch.cat([s.expand(len(o), -1, -1, -1), o], dim=-2)
                for s, o in zip(shared, own, strict=True)
            )
            return keys, values

        return self.run(x, block_rope, behind_context, mask)


@dataclass
class DrafterCache:
    """Context keys and values of every drafter layer, in buffers that grow by doubling.

    Only context rows are kept from round to round: the block's own rows are written behind
    them for the length of one forward and then forgotten ("cut back").
    """

    drafter: DFlashDrafter
    length: int = 0  # context positions absorbed so far
    _keys: list[torch.Tensor] = field(default_factory=list)
    _values: list[torch.Tensor] = field(default_factory=list)

    def reserve(self, rows: int, device: torch.device) -> None:
        """Make room for ``rows`` rows per layer."""
        c = self.drafter.config
        have = self._keys[0].shape[2] if self._keys else 0
        if rows <= have:
            return
        shape = (1, c.num_key_value_heads, max(rows, 2 * have), c.head_dim)
        for store in (self._keys, self._values):
            fresh = [
                torch.empty(shape, dtype=self.drafter.dtype, device=device)
                for _ in range(c.num_hidden_layers)
            ]
            for old, new in zip(store, fresh, strict=False):
                new[:, :, : self.length] = old[:, :, : self.length]
            store[:] = fresh

    @torch.no_grad()
    def absorb(self, features: torch.Tensor) -> None:
        """Append target features [T, taps * H] of the next T committed positions."""
        count = features.shape[0]
        if count == 0:
            return
        end = self.length + count
        self.reserve(end + self.drafter.config.block_size, features.device)
        context = self.drafter.fuse(features)[None]  # [1, T, H]
        positions = torch.arange(self.length, end, device=features.device)[None]
        rope = self.drafter.rotary(positions, context.dtype)
        for i, layer in enumerate(self.drafter.layers):
            keys, values = layer.self_attn.keys_values(context, rope)
            self._keys[i][:, :, self.length : end] = keys
            self._values[i][:, :, self.length : end] = values
        self.length = end

    @torch.no_grad()
    def forward_block(self, block_embeddings: torch.Tensor) -> torch.Tensor:
        """Hidden states [L, H] of one block [1, L, H] that starts right after the context."""
        x = block_embeddings.to(self.drafter.dtype)
        end = self.length + x.shape[1]
        self.reserve(end, x.device)
        positions = torch.arange(self.length, end, device=x.device)[None]
        rope = self.drafter.rotary(positions, x.dtype)
        return self.drafter.run(x, rope, self._write_block)[0]  # [L, H]

    def _write_block(self, i: int, own: KV) -> KV:
        end = self.length + own[0].shape[2]
        keys, values = self._keys[i][:, :, :end], self._values[i][:, :, :end]
        keys[:, :, self.length :], values[:, :, self.length :] = own
        return keys, values
