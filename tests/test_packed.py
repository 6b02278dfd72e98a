"""Packed linear layers: the same function, and the same text."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dartree
from dartree import packed
from dartree.packed import PackedLinear, pack
from tests.reference import prompt, random_stack


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (2, 1, 24), (17, 24), (2, 65, 24)], ids=str)
def test_it_is_the_linear_layer(shape, bias):
    linear = nn.Linear(24, 40, bias=bias)
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(PackedLinear(linear)(x), linear(x), atol=1e-5, rtol=1e-5)


def test_training_code_answers_on_a_packed_target():
    """Batched answers read the sizes of the target's linear layers."""
    from dartree.training.forward import BatchedTarget, answer

    stack = random_stack(dtype=torch.float32)
    plain = dartree.generate(stack, prompt(6), method="ar", max_new_tokens=8, stop=[])
    assert pack([stack.target.model, stack.drafter])
    target = BatchedTarget(stack.target.model)
    (ours,) = answer(target, [prompt(6)], max_new_tokens=8, stop_ids=set())
    assert ours == plain.token_ids


@torch.no_grad()
def test_a_changed_weight_is_packed_again():
    linear = PackedLinear(nn.Linear(24, 40))
    x = torch.randn(5, 24)
    linear(x)
    linear.weight.mul_(2)
    torch.testing.assert_close(linear(x), nn.functional.linear(x, linear.weight, linear.bias))
    linear.weight.data = torch.randn(40, 24)
    torch.testing.assert_close(linear(x), nn.functional.linear(x, linear.weight, linear.bias))
    twin = copy.deepcopy(linear)
    twin.weight.zero_()
    torch.testing.assert_close(twin(x), linear.bias.expand(5, 40))
    assert linear.double()(x.double()).dtype == torch.float64


def test_gradients_flow_as_through_the_linear_layer():
    linear = nn.Linear(24, 40)
    x = torch.randn(5, 24)
    linear(x).sum().backward()
    wanted, linear.weight.grad = linear.weight.grad, None
    PackedLinear(linear)(x).sum().backward()
    torch.testing.assert_close(linear.weight.grad, wanted)


@pytest.mark.parametrize("method", ["ar", "dflash", "dartree"])
def test_packed_models_write_the_same_text(method):
    options = {"max_new_tokens": 30, "stop": []}
    plain = dartree.generate(random_stack(dtype=torch.float32), prompt(6), method="ar", **options)
    stack = random_stack(dtype=torch.float32)
    assert pack([stack.target.model, stack.drafter])
    for model in (stack.target.model, stack.drafter):
        kinds = {type(m) for m in model.modules()}
        assert PackedLinear in kinds and nn.Linear not in kinds
    settings = dartree.TreeSettings(width=4, candidates=6, budget=24)
    out = dartree.generate(stack, prompt(6), method=method, settings=settings, **options)
    assert out.token_ids == plain.token_ids


def test_where_it_cannot_work_it_is_left_out_or_refused_when_asked_for():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double())
    assert not pack([model])
    assert type(model[0]) is nn.Linear
    with pytest.raises(ValueError, match="float32 on cpu, got torch.float64"):
        pack([model], asked=True)


def test_whether_anything_is_packed():
    assert not pack([nn.Sequential(nn.ReLU())])
    model = nn.Sequential(nn.Linear(8, 8))
    assert pack([model]) and pack([model])


def test_heavy_weights_are_packed_only_when_asked_for(monkeypatch):
    monkeypatch.setattr(packed, "MOST_BYTES", 100)
    model = nn.Sequential(nn.Linear(8, 8))
    assert not pack([model])
    assert pack([model], asked=True)


@pytest.mark.parametrize(("asked", "found"), [(None, True), (True, True), (False, False)])
def test_a_stack_says_whether_it_is_packed(asked, found):
    stack = dartree.load_stack("tiny", pack=asked)
    assert stack.packed is found
    assert isinstance(stack.target.model.lm_head, PackedLinear) is found
    assert dartree.generate(stack, "2+2=", max_new_tokens=2).to_dict()["packed"] is found


def test_half_precision_is_not_packed():
    assert not dartree.load_stack("tiny", dtype="bfloat16").packed
    with pytest.raises(ValueError, match="packing is for float32 on cpu"):
        dartree.load_stack("tiny", dtype="bfloat16", pack=True)
