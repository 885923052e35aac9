"""The processes that train together. This one is alone; several ranks are a subclass."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)
Compute = Callable[[Callable[[], bool]], float]


class Group:
    """Communication between ranks; every rank calls the same methods in the same order.

    rank      number of this process, from 0 on; rank 0 writes
    size      number of ranks
    lockstep  True if all ranks must run the model equally often, because each has a part of it
    """

    rank: int = 0
    size: int = 1
    lockstep: bool = False

    def prepare(self, model: nn.Module) -> None:
        """Shards the model, if the group does; called before an optimiser is built."""

    def sum(self, values: Tensor) -> Tensor:
        """values [n] float64 -> their sums over all ranks [n], on the same device."""
        return values

    def agree(self, code: int) -> int:
        """The largest `code` of any rank; also a barrier."""
        return code

    def tell(self, text: str | None) -> str | None:
        """The text of the first rank that has one, on every rank; None if none has."""
        return text

    def first(self, compute: Compute, stop: Callable[[], bool]) -> float:
        """The result of rank 0 on every rank; the others wait, however long it takes.

        compute  called on rank 0 with a function that is true once any rank wants to stop
        stop     true once this rank wants to stop
        """
        return compute(stop)

    def together(self, items: Iterable[T]) -> Iterator[T | None]:
        """The items of this rank; in lockstep None follows while other ranks still have some."""
        yield from items

    def sum_gradients(self, model: nn.Module) -> None:
        """Makes each gradient its sum over all ranks; None counts as zero.

        Called once per update, after every rank has accumulated the gradients of all its batches:
        a rank that retries a batch keeps nobody waiting inside a backward pass.
        """

    def norm(self, model: nn.Module) -> Tensor:
        """The norm of the whole gradient [], after `sum_gradients`; the same on every rank."""
        return torch.nn.utils.get_total_norm(gradients(model))

    def whole(self, model: M) -> M | None:
        """The model with all of its parameters; None on ranks above 0 if it is sharded."""
        return model


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def gather(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sharded tensors as a whole on the CPU of rank 0, empty on other ranks; others as they are."""

    def whole(tensor: Tensor) -> Tensor:
        if not hasattr(tensor, "full_tensor"):
            return tensor
        full: Tensor = tensor.full_tensor()
        return full.cpu() if torch.distributed.get_rank() == 0 else full.new_empty(0)

    return {name: whole(tensor) for name, tensor in tensors.items()}


def shard(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part of `whole` if `like` is sharded, else all of it."""
    if not hasattr(like, "full_tensor"):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)
