"""The processes that train together. This one is alone; several ranks are a subclass."""

import torch
from torch import Tensor, nn


class Group:
    """What the loop asks of the other ranks; every rank calls the same methods in the same order.

    rank  the number of this process, from 0 on; 0 is the one that writes
    size  how many there are
    """

    rank: int = 0
    size: int = 1

    def sum(self, values: Tensor) -> Tensor:
        """values [n] float64 -> their sums over all ranks [n], on the device they are on."""
        return values

    def agree(self, code: int) -> int:
        """The largest `code` of any rank; also a place where all wait for each other."""
        return code

    def sum_gradients(self, model: nn.Module) -> None:
        """Makes each gradient its sum over all ranks; None counts as zero.

        Called once for an update, when every rank has accumulated the gradients of all its batches:
        a rank that retries a batch keeps nobody waiting inside a backward pass.
        """

    def norm(self, model: nn.Module) -> Tensor:
        """The norm of the whole gradient [], after `sum_gradients`; the same on every rank."""
        return torch.nn.utils.get_total_norm(gradients(model))


def gradients(model: nn.Module) -> list[Tensor]:
    """Every gradient there is."""
    return [p.grad for p in model.parameters() if p.grad is not None]
