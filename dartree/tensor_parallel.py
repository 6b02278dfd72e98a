"""A target split within every layer, over processes that all make the same rounds.

torchrun starts one process for each device and transformers gives each a share of every layer's
heads and MLP. All processes make the same drafts from the same numbers; embedding and lm_head are
whole in each of them, since drafting reads them.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

import torch
from torch import distributed

from dartree.checks import CheckpointError
from dartree.target import KVCache, Target

TENSOR_PARALLEL = "tensor-parallel"  # a value of device_map


def tensor_parallel_options(config: Any, source: str) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` that split a Qwen3 model over the processes of torchrun.

    Raises CheckpointError where there is one process only, where heads cannot be shared out
    evenly, and for a transformers that does not know the plan used here.
    """
    try:
        from transformers.distributed import DistributedConfig

        known = "tp_size" in DistributedConfig.__dataclass_fields__
    except ImportError:
        known = False
    if not known:
        raise CheckpointError("device_map tensor-parallel needs transformers 5.24 or newer.")
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size < 2:
        raise CheckpointError(
            "device_map tensor-parallel needs one process for each device: torchrun "
            "--nproc_per_node N -m dartree paper ..."
        )
    heads = config.num_attention_heads, config.num_key_value_heads
    if any(count % size for count in heads):
        raise CheckpointError(
            f"{source} has {heads[0]} heads and {heads[1]} key-value heads, which {size} processes "
            "cannot share evenly."
        )
    whole = dict.fromkeys(("model.embed_tokens", "lm_head"), "replicate")
    return {"distributed_config": DistributedConfig(tp_size=size, tp_plan=whole)}


def is_split(model: Any) -> bool:
    """Whether the layers of a model are split over processes."""
    return hasattr(model.model.layers[0].self_attn.k_proj.weight, "to_local")  # a DTensor


class SplitTarget(Target):
    """A Target for a model whose layers are split over processes, all making the same round."""

    @property
    def processes(self) -> int:
        """Processes that share the layers."""
        return distributed.get_world_size()

    def without_taps(self) -> SplitTarget:
        return SplitTarget(self.model)

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for this process's heads."""
        heads = self.config.num_key_value_heads // self.processes
        return KVCache(self.config, capacity, self.dtype, self.device, kv_heads=heads)

    def _forward(self, cache, ids, positions, mask, last_only: bool = False):
        """As in one process; RuntimeError in place of waiting for ever where rows differ."""
        rows = torch.stack([ids, positions]).cpu().numpy().tobytes()
        mine = torch.tensor([zlib.crc32(rows)], device=self.device)
        every = [torch.empty_like(mine) for _ in range(self.processes)]
        distributed.all_gather(every, mine)
        if any(int(other) != int(mine) for other in every):
            raise RuntimeError("the processes of a tensor-parallel target drafted different trees.")
        return super()._forward(cache, ids, positions, mask, last_only)


def leave() -> None:
    """Close the connections between processes, if there are any."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
