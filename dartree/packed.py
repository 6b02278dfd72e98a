"""Linear layers with weights laid out for oneDNN: faster on a CPU for one row and for many.

The weights stay where they are, a second copy is laid out in blocks. What it gives on one
processor is measured in ``data/benchmarks/README.md``.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 32  # what the layout is chosen for; other counts, 1 included, work as well
MOST_BYTES = 2**30  # of weights that are packed without being asked to: the copy doubles them


class PackedLinear(nn.Linear):
    """An ``nn.Linear`` with a packed copy of its weight, for inference in fp32 on the CPU.

    Graphs have a layout of their own and autograd knows no packed weights: both use the plain one.
    """

    def __init__(self, linear: nn.Linear) -> None:
        shape = linear.in_features, linear.out_features
        super().__init__(*shape, bias=linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self._packed: torch.Tensor | None = None
        self._made_of: tuple[int, int] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in] to [..., out]."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return F.linear(x, self.weight, self.bias)
        version = 0 if self.weight.is_inference() else self.weight._version
        made_of = self.weight.data_ptr(), version
        if self._made_of != made_of:  # the first time, or the weight was changed in place
            self._packed, self._made_of = self._pack(), made_of
        if self._packed is None:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")

    def _pack(self) -> torch.Tensor | None:
        """The weight in oneDNN's layout; None where it was moved or cast to what has none."""
        if reason(self.weight):
            return None
        return torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), ROWS)

    def __getstate__(self) -> dict:
        # The layout can neither be copied nor saved: a copy packs again.
        return {**super().__getstate__(), "_packed": None, "_made_of": None}


def reason(weight: torch.Tensor) -> str | None:
    """Why a weight like this cannot be packed, in one sentence; None where it can."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return f"packing is for float32 on cpu, got {weight.dtype} on {weight.device}."
    if not torch.backends.mkldnn.is_available():
        return "packing needs a torch built with oneDNN (mkldnn); this one has none."
    return None


def pack(models: Iterable[nn.Module], asked: bool = False) -> bool:
    """Pack the linear layers of ``models`` in place; returns whether any are packed.

    Layers that weigh more than MOST_BYTES in all are packed only if ``asked`` for. What cannot be
    packed (on a GPU, in another dtype than fp32, or with a torch without oneDNN) stays as it is,
    or, if ``asked`` for, raises ValueError.
    """
    models = list(models)
    places = {
        (module, name): child
        for model in models
        for module in model.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear
    }
    why = next(filter(None, (reason(linear.weight) for linear in places.values())), None)
    if why and asked:
        raise ValueError(why)
    weight = sum(linear.weight.nbytes for linear in places.values())
    if why or (weight > MOST_BYTES and not asked):
        return False
    for (module, name), linear in places.items():
        setattr(module, name, PackedLinear(linear))
    return any(isinstance(module, PackedLinear) for model in models for module in model.modules())
