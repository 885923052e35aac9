"""The optimisers against their formulas, under a changing rate."""

import typing

import pytest
import torch
from torch import Tensor, nn

from lightconv.train import OPTIMIZERS, AdamConfig, NesterovConfig, build_optimizer
from lightconv.train.config import OptimizerConfig

RATES = [0.1, 0.2, 0.05, 0.4, 0.01]


def gradients() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(7, generator=generator, dtype=torch.float64) for _ in RATES]


def run(config: OptimizerConfig) -> Tensor:
    parameter = nn.Parameter(torch.ones(7, dtype=torch.float64))
    optimizer = build_optimizer([parameter], 1.0, config)
    for rate, gradient in zip(RATES, gradients(), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def test_every_kind_has_a_function() -> None:
    assert set(OPTIMIZERS) == {config.kind for config in typing.get_args(OptimizerConfig)}


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_decays_beside_the_gradient(decay: float) -> None:
    x = torch.ones(7, dtype=torch.float64)
    m = v = torch.zeros(7, dtype=torch.float64)
    for t, (rate, g) in enumerate(zip(RATES, gradients(), strict=True), 1):
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        x = x - rate * decay * x
        x = x - rate * (m / (1 - 0.8**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-3)
    config = AdamConfig(betas=(0.8, 0.95), eps=1e-3, weight_decay=decay)
    torch.testing.assert_close(run(config), x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_nesterov_looks_ahead(decay: float) -> None:
    x = torch.ones(7, dtype=torch.float64)
    momentum = torch.zeros(7, dtype=torch.float64)
    for rate, gradient in zip(RATES, gradients(), strict=True):
        g = gradient + decay * x
        momentum = 0.9 * momentum + g
        x = x - rate * (g + 0.9 * momentum)
    config = NesterovConfig(momentum=0.9, weight_decay=decay)
    torch.testing.assert_close(run(config), x, rtol=0, atol=1e-14)
