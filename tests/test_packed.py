"""Packed linear layers: the same function, and the same text."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dartree
from dartree.packed import PackedLinear, packed_stack
from tests.reference import prompt, random_stack


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (2, 1, 24), (17, 24), (2, 65, 24)], ids=str)
def test_it_is_the_linear_layer(shape, bias):
    linear = nn.Linear(24, 40, bias=bias)
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(PackedLinear(linear)(x), linear(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["ar", "dflash", "dartree"])
def test_a_packed_stack_writes_the_same_text(method):
    options = {"max_new_tokens": 30, "stop": []}
    plain = dartree.generate(random_stack(dtype=torch.float32), prompt(6), method="ar", **options)
    stack = packed_stack(random_stack(dtype=torch.float32))
    for model in (stack.target.model, stack.drafter):
        kinds = {type(m) for m in model.modules()}
        assert PackedLinear in kinds and nn.Linear not in kinds
    settings = dartree.TreeSettings(width=4, candidates=6, budget=24)
    out = dartree.generate(stack, prompt(6), method=method, settings=settings, **options)
    assert out.token_ids == plain.token_ids


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="float32 on cpu, got torch.float64"):
        packed_stack(random_stack(dtype=torch.float64))
