"""An exponential average of a model's parameters over its updates."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lightconv.train.state import shard


class EMA:
    """average <- d * average + (1 - d) * parameter, where d rises to `decay`.

    d = min(decay, (1 + n) / (10 + n)) after n updates: the start is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = model
        self.decay = decay
        self.tensors: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in model.named_parameters()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After update number `step`, from 1 on."""
        decay = min(self.decay, (1 + step) / (10 + step))
        parameters = [parameter.detach() for parameter in self.model.parameters()]
        torch._foreach_lerp_(list(self.tensors.values()), parameters, 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averaged parameters as long as this is open."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Takes the averages that `tensors` had before."""
        for name, tensor in self.tensors.items():
            tensor.copy_(shard(tensors[name], tensor))

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self.model.named_parameters():
            average = self.tensors[name]
            if hasattr(parameter, "full_tensor"):  # sharded: its memory is known elsewhere too
                kept = parameter.detach().clone()
                parameter.copy_(average)
                average.copy_(kept)
            else:
                parameter.data, self.tensors[name] = average, parameter.data
