"""The processes that train together. This one is alone; several ranks are a subclass."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)
Compute = Callable[[Callable[[], bool]], float]


class Group:
    """What the loop asks of the other ranks; every rank calls the same methods in the same order.

    rank      the number of this process, from 0 on; 0 is the one that writes
    size      how many there are
    lockstep  whether all ranks must run the model equally often, because each has a part of it
    """

    rank: int = 0
    size: int = 1
    lockstep: bool = False

    def prepare(self, model: nn.Module) -> None:
        """Called with the model before an optimiser sees it: where it is sharded."""

    def sum(self, values: Tensor) -> Tensor:
        """values [n] float64 -> their sums over all ranks [n], on the device they are on."""
        return values

    def agree(self, code: int) -> int:
        """The largest `code` of any rank; also a place where all wait for each other."""
        return code

    def tell(self, text: str | None) -> str | None:
        """The text of the first rank that has one, on every rank; None if none has."""
        return text

    def first(self, compute: Compute, stop: Callable[[], bool]) -> float:
        """What rank 0 computes, on every rank; the others wait, however long it takes.

        compute  called on rank 0 alone, with a function that says whether any rank wants to stop
        stop     whether this rank does
        """
        return compute(stop)

    def together(self, items: Iterable[T]) -> Iterator[T | None]:
        """The items of this rank; in lockstep None follows while other ranks still have some."""
        yield from items

    def sum_gradients(self, model: nn.Module) -> None:
        """Makes each gradient its sum over all ranks; None counts as zero.

        Called once for an update, when every rank has accumulated the gradients of all its batches:
        a rank that retries a batch keeps nobody waiting inside a backward pass.
        """

    def norm(self, model: nn.Module) -> Tensor:
        """The norm of the whole gradient [], after `sum_gradients`; the same on every rank."""
        return torch.nn.utils.get_total_norm(gradients(model))

    def whole(self, model: M) -> M | None:
        """The model with all of its parameters; where it is sharded, None but on rank 0."""
        return model


def gradients(model: nn.Module) -> list[Tensor]:
    """Every gradient there is."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def gather(tensor: Tensor) -> Tensor:
    """A sharded tensor as a whole on rank 0, off its device, and empty elsewhere; others as is."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    full: Tensor = tensor.full_tensor()
    return full.cpu() if torch.distributed.get_rank() == 0 else full.new_empty(0)


def gather_all(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each as of `gather`, one after the other in the same order on every rank."""
    return {name: gather(tensor) for name, tensor in tensors.items()}


def shard(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part, if `like` is sharded."""
    if not hasattr(like, "full_tensor"):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)
