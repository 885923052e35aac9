"""The optimisers, all of them torch's own, in their fused forms: one pass over the parameters."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from lightconv.train.config import AdamConfig, NesterovConfig, OptimizerConfig


def adam(parameters: Iterable[nn.Parameter], lr: float, config: AdamConfig) -> torch.optim.AdamW:
    """Adam with decoupled weight decay, which is what AdamW names; at zero it is Adam."""
    return torch.optim.AdamW(
        parameters,
        lr=lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def nesterov(
    parameters: Iterable[nn.Parameter], lr: float, config: NesterovConfig
) -> torch.optim.SGD:
    """Nesterov's momentum; the momentum keeps gradients, so a changed rate acts at once."""
    parameters = list(parameters)
    return torch.optim.SGD(
        parameters,
        lr=lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=True,
        # Sharded parameters have no fused form of this one.
        fused=not any(hasattr(parameter, "full_tensor") for parameter in parameters),
    )


# Each takes the configuration of its kind.
OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter], float, Any], torch.optim.Optimizer]] = {
    AdamConfig.kind: adam,
    NesterovConfig.kind: nesterov,
}


def build_optimizer(
    parameters: Iterable[nn.Parameter], lr: float, config: OptimizerConfig
) -> torch.optim.Optimizer:
    """The optimiser that `config` describes, with `lr` until somebody sets another one."""
    return OPTIMIZERS[config.kind](parameters, lr, config)
