"""A model sharded over the ranks (FSDP2), if it does not fit a device with its optimiser.

Each rank keeps a part of every parameter, of its gradient and of the optimiser's state. A layer is
gathered before it runs, forward and backward, and gradients are summed as they are sharded. These
are collectives: every rank runs as many passes as the others, over an empty batch if need be.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from lightconv.models import LanguageModel, Seq2Seq
from lightconv.models.folder import build_empty
from lightconv.models.tensors import fill, parameters
from lightconv.train.distributed import Replicas, gather, gradients

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)


class Shards(Replicas):
    """Ranks with a part of the model each."""

    lockstep = True
    _model: FSDPModule | None = None

    def prepare(self, model: nn.Module) -> None:
        assert isinstance(model, Seq2Seq | LanguageModel)
        mesh = init_device_mesh(self.device.type, (self.size,))
        stacks = (model.encoder, model.decoder) if isinstance(model, Seq2Seq) else (model.layers,)
        for layer in (layer for stack in stacks for layer in stack):
            fully_shard(layer, mesh=mesh)
        self._model = fully_shard(model, mesh=mesh)
        # Training calls `features` instead of `forward`. The parameters of the output stay gathered
        # until the backward pass has ended.
        register_fsdp_forward_method(model, "features")
        for module in model.modules():
            if isinstance(module, FSDPModule):
                # Sums, not means: they are divided by the number of tokens.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def together(self, items: Iterable[T]) -> Iterator[T | None]:
        left = iter(items)
        while True:
            item = next(left, None)
            if not self.agree(int(item is not None)):
                break
            yield item
        # A pass without a backward one leaves its parameters gathered.
        if self._model is not None:
            self._model.reshard()

    def sum_gradients(self, model: nn.Module) -> None:
        """Every backward pass has done it."""

    def norm(self, model: nn.Module) -> Tensor:
        total = torch.nn.utils.get_total_norm(gradients(model))
        whole: Tensor = total.full_tensor() if hasattr(total, "full_tensor") else total
        return whole

    def whole(self, model: M) -> M | None:
        """A new model with all parameters on rank 0, None elsewhere."""
        assert isinstance(model, Seq2Seq | LanguageModel)
        tensors = gather(parameters(model))
        if self.rank != 0:
            return None
        full = build_empty(model.config)
        fill(full, {name: tensor.to(self.device) for name, tensor in tensors.items()})
        return cast(M, full.eval())
