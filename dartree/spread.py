"""A target whose layers lie on several devices (``device_map``): cache rows stay where layers are.

accelerate's hooks move what goes from layer to layer; here the rest is kept together: one cache
for each device, taps and the embedding table on the device of lm_head, where drafts are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch

from dartree.target import KVCache, Target


def layer_devices(model) -> list[torch.device]:
    """Where each decoder layer computes; offloaded weights are elsewhere in between."""
    devices = []
    for layer in model.model.layers:
        hook = getattr(layer, "_hf_hook", None)
        device = getattr(hook, "execution_device", None)
        devices.append(next(layer.parameters()).device if device is None else torch.device(device))
    return devices


def target_of(model, tap_ids: tuple[int, ...]) -> Target:
    """The Target that fits a model: spread where its layers or its tables are apart."""
    places = {*layer_devices(model), model.lm_head.weight.device}
    places.add(model.model.embed_tokens.weight.device)
    return Target(model, tap_ids) if len(places) == 1 else SpreadTarget(model, tap_ids)


class SpreadKVCache:
    """What :class:`KVCache` offers, over one of them for each device."""

    is_compileable = False

    def __init__(self, config, capacity: int, dtype, devices: Sequence[torch.device]) -> None:
        self._parts: dict[torch.device, KVCache] = {}
        self._layers = [(device, devices[:i].count(device)) for i, device in enumerate(devices)]
        for device in dict.fromkeys(devices):
            shape = SimpleNamespace(
                num_hidden_layers=devices.count(device),
                num_key_value_heads=config.num_key_value_heads,
                num_attention_heads=config.num_attention_heads,
                hidden_size=config.hidden_size,
                head_dim=getattr(config, "head_dim", None),
            )
            self._parts[device] = KVCache(shape, capacity, dtype, device)

    @property
    def length(self) -> int:
        """Committed rows, the same on every device."""
        return next(iter(self._parts.values())).length

    def update(self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_, **__):
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

    def truncate_to(self, length: int) -> None:
        """As :meth:`KVCache.truncate_to`, on every device."""
        for part in self._parts.values():
            part.truncate_to(length)


class SpreadTarget(Target):
    """A Target for a model that accelerate has spread over devices."""

    def __init__(self, model, tap_ids: tuple[int, ...] = (), devices=None) -> None:
        super().__init__(model, tap_ids)
        self._devices = list(devices or layer_devices(model))
        # Drafts embed their tokens where lm_head is; a copy once, in place of one every round.
        self._embedding = model.model.embed_tokens.weight.to(self.device)

    def without_taps(self) -> SpreadTarget:
        return SpreadTarget(self.model, devices=self._devices)

    def _hook(self, tap: int):
        keep = super()._hook(tap)

        def keep_here(module, args, output) -> None:
            value = output[0] if isinstance(output, tuple) else output
            keep(module, args, value.to(self.device))

        return keep_here

    @property
    def embedding(self) -> torch.Tensor:
        """Input embedding table [V, H] on the device of lm_head."""
        return self._embedding

    def new_cache(self, capacity: int) -> SpreadKVCache:
        """An empty cache with room for ``capacity`` rows on every device."""
        return SpreadKVCache(self.config, capacity, self.dtype, self._devices)
