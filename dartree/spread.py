"""A target on several devices: layer by layer (``device_map``), or split within every layer.

Layer by layer, accelerate's hooks move what goes from one to the next; here the rest is kept
together: one cache for each device, taps and the embedding table on the device of lm_head, where
drafts are made.

Tensor parallel, torchrun starts one process for each device and transformers gives each a share of
every layer's heads and MLP. All processes make the same drafts from the same numbers; embedding
and lm_head are whole in each of them, since drafting reads them.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed

from dartree.checks import CheckpointError
from dartree.drafter import KV
from dartree.target import KVCache, Target

TENSOR_PARALLEL = "tensor-parallel"  # a value of device_map


def layer_devices(model: Any) -> list[torch.device]:
    """Where each decoder layer computes; offloaded weights are elsewhere in between."""
    devices = []
    for layer in model.model.layers:
        hook = getattr(layer, "_hf_hook", None)
        device = getattr(hook, "execution_device", None)
        devices.append(next(layer.parameters()).device if device is None else torch.device(device))
    return devices


def target_of(model: Any, tap_ids: tuple[int, ...]) -> Target:
    """The Target that fits a model: spread where its layers or its tables are apart."""
    if _is_split(model):
        return SplitTarget(model, tap_ids)
    places = {*layer_devices(model), model.lm_head.weight.device}
    places.add(model.model.embed_tokens.weight.device)
    return Target(model, tap_ids) if len(places) == 1 else SpreadTarget(model, tap_ids)


def _shape(config, **changes: int) -> SimpleNamespace:
    """What :class:`KVCache` reads of a config, some of it changed."""
    names = ("num_hidden_layers", "num_key_value_heads", "num_attention_heads", "hidden_size")
    found = {name: getattr(config, name) for name in names}
    return SimpleNamespace(**found | {"head_dim": getattr(config, "head_dim", None)} | changes)


class SpreadKVCache:
    """What :class:`KVCache` offers, over one of them for each device."""

    is_compileable = False

    def __init__(
        self, config: Any, capacity: int, dtype: torch.dtype, devices: Sequence[torch.device]
    ) -> None:
        self._parts: dict[torch.device, KVCache] = {}
        self._layers = [(device, devices[:i].count(device)) for i, device in enumerate(devices)]
        for device in dict.fromkeys(devices):
            shape = _shape(config, num_hidden_layers=devices.count(device))
            self._parts[device] = KVCache(shape, capacity, dtype, device)

    @property
    def length(self) -> int:
        """Committed rows, the same on every device."""
        return next(iter(self._parts.values())).length

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_, **__) -> KV:
        """As :meth:`KVCache.update`, on the layer's own device."""
        device, index = self._layers[layer_idx]
        return self._parts[device].update(key, value, index)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Committed rows."""
        return self.length

    def commit(self, rows: torch.Tensor) -> None:
        """As :meth:`KVCache.commit`, on every device."""
        for device, part in self._parts.items():
            part.commit(rows.to(device))


class SpreadTarget(Target):
    """A Target for a model that accelerate has spread over devices."""

    def __init__(
        self,
        model: Any,
        tap_ids: tuple[int, ...] = (),
        devices: Sequence[torch.device] | None = None,
    ) -> None:
        super().__init__(model, tap_ids)
        self._devices = list(devices or layer_devices(model))
        # Drafts embed their tokens where lm_head is; a copy once, in place of one every round.
        self._embedding = model.model.embed_tokens.weight.to(self.device)

    def without_taps(self) -> SpreadTarget:
        return SpreadTarget(self.model, devices=self._devices)

    def _hook(self, tap: int) -> Callable[[Any, Any, Any], None]:
        keep = super()._hook(tap)

        def keep_here(module: Any, args: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            keep(module, args, value.to(self.device))

        return keep_here

    @property
    def embedding(self) -> torch.Tensor:
        """Input embedding table [V, H] on the device of lm_head."""
        return self._embedding

    def new_cache(self, capacity: int) -> SpreadKVCache:  # type: ignore[override]  # used alike
        """An empty cache with room for ``capacity`` rows on every device."""
        return SpreadKVCache(self.config, capacity, self.dtype, self._devices)


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


def _is_split(model: Any) -> bool:
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
        shape = _shape(self.config, num_key_value_heads=heads)
        return KVCache(shape, capacity, self.dtype, self.device)

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
