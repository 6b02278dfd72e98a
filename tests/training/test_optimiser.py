"""Muon and AdamW side by side: who gets what, and states that go on where they stopped."""

from __future__ import annotations

import copy

import torch
from torch import nn

from dartree.training.optimiser import Optimiser


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.ModuleDict({
        "embed_tokens": nn.Embedding(11, 8), "map": nn.Linear(8, 6), "norm": nn.LayerNorm(6),
        "prefix_gru": nn.GRU(6, 4),
    })  # fmt: skip


def gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_only_matrices_between_hidden_states_are_muons():
    model = small()
    optimiser = Optimiser(model.named_parameters(), 1e-2, 0.1)
    adam, muon = optimiser.parts  # one matrix: nothing is left for a second half
    assert [p is model["map"].weight for g in muon.param_groups for p in g["params"]] == [True]
    decayed, plain = (g["params"] for g in adam.param_groups)
    assert {p.dim() for p in decayed} == {2} and {p.dim() for p in plain} == {1}
    held = sum(len(g["params"]) for part in optimiser.parts for g in part.param_groups)
    assert held == len(list(model.parameters()))


def test_a_muon_step_is_orthogonal_whatever_the_size_of_the_gradient():
    """The update's singular values are all near one another (Newton-Schulz, Jordan et al. 2024)."""
    for size in (1e-4, 1e4):
        layer = nn.Linear(32, 16, bias=False)
        optimiser = Optimiser([("map.weight", layer.weight)], 1e-2, 0.0)
        before = layer.weight.detach().clone()
        layer.weight.grad = size * torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
        optimiser.step(step=200, progress=0.0)
        values = torch.linalg.svdvals(before - layer.weight.detach())
        assert values.max() / values.min() < 2.5
        assert layer.weight.grad is None or not layer.weight.grad.any()


def test_a_restored_state_goes_on_as_if_nothing_had_happened():
    one, two = small(), small()
    first = Optimiser(one.named_parameters(), 1e-2, 0.1)
    for step in range(3):
        gradients(one, step)
        first.step(step, step / 6)
    state = copy.deepcopy(first.state_dict())  # as a file would hold it
    two.load_state_dict(one.state_dict())
    second = Optimiser(two.named_parameters(), 1e-2, 0.1)
    second.load_state_dict(state)
    for step in range(3, 6):
        for model, optimiser in ((one, first), (two, second)):
            gradients(model, step)
            optimiser.step(step, step / 6)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)
