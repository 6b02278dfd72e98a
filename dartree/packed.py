"""Linear layers with weights laid out for oneDNN: faster on a CPU where a forward has many rows.

The weights stay where they are, a second copy is laid out in blocks. What it gives on one
processor is measured in ``data/benchmarks/README.md``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dartree.stack import Stack

ROWS = 64  # what the layout is chosen for; other counts work and gain less


class PackedLinear(nn.Module):
    """An ``nn.Linear`` for inference: x [..., in] to [..., out] in fp32 on the CPU."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in] to [..., out]."""
        # One row is faster with the plain weight, and a graph has a layout of its own.
        if x.shape[-2] == 1 or torch.compiler.is_compiling():
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")


def packed_stack(stack: Stack) -> Stack:
    """Pack the linear layers of ``stack``'s target and drafters, in place; returns ``stack``.

    Raises ValueError where that cannot work: on a GPU, in another dtype than fp32, or with a torch
    without oneDNN.
    """
    if stack.target.device.type != "cpu" or stack.target.dtype != torch.float32:
        raise ValueError(
            f"packing is for float32 on cpu, got {stack.target.dtype} on {stack.target.device}."
        )
    if not torch.backends.mkldnn.is_available():
        raise ValueError("packing needs a torch built with oneDNN (mkldnn); this one has none.")
    models = [stack.target.model, stack.drafter]
    if stack.marginal is not None:
        models += [stack.marginal.target.model, stack.marginal.drafter]
    for model in models:
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, PackedLinear(child))
    return stack
