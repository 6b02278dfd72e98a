"""A target on several devices, layer by layer (``device_map``).

accelerate's hooks move what goes from one layer to the next; here the rest is kept together: one
cache for each device, taps and the embedding table on the device of lm_head, where drafts are made.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import cached_property
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch

from dartree.drafter import KV
from dartree.target import KVCache, Target
from dartree.tensor_parallel import SplitTarget, is_split


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
    if is_split(model):
        return SplitTarget(model, tap_ids)
    places = {*layer_devices(model), model.lm_head.weight.device}
    places.add(model.model.embed_tokens.weight.device)
    return Target(model, tap_ids) if len(places) == 1 else SpreadTarget(model, tap_ids)


class SpreadKVCache:
    """What :class:`KVCache` offers, over one of them for each device."""

    is_compileable = False

    def __init__(
        self, config: Any, capacity: int, dtype: torch.dtype, devices: Sequence[torch.device]
    ) -> None:
        self._parts: dict[torch.device, KVCache] = {}
        self._layers = [(device, devices[:i].count(device)) for i, device in enumerate(devices)]
        for device in dict.fromkeys(devices):
            here = devices.count(device)
            self._parts[device] = KVCache(config, capacity, dtype, device, layers=here)

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


# The embedding table of each model as it was copied: every drafter has a target of its own.
_TABLES: MutableMapping[Any, ReferenceType[torch.Tensor]] = WeakKeyDictionary()


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

    def without_taps(self) -> SpreadTarget:
        return SpreadTarget(self.model, devices=self._devices)

    @cached_property
    def embedding(self) -> torch.Tensor:
        """Input embedding table [V, H] on the device of lm_head, where drafts embed their tokens.

        Copied there once, in place of every round, and only for those who draft: all targets
        around a model share the copy.
        """
        shared = _TABLES.get(self.model)
        table = None if shared is None else shared()
        if table is None:
            table = self.model.model.embed_tokens.weight.to(self.device)
            _TABLES[self.model] = ref(table)
        return table

    def new_cache(self, capacity: int) -> SpreadKVCache:  # type: ignore[override]  # used alike
        """An empty cache with room for ``capacity`` rows on every device."""
        return SpreadKVCache(self.config, capacity, self.dtype, self._devices)
