"""The slot of a layer that moves information along time, and what it remembers while it streams."""

from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from lightconv.mixers.check import check_count, check_input


class State(NamedTuple):
    """What a causal mixer keeps of the past.

    tensors  batch first, allocated once by `start`; their meaning is the mixer's own
    position the time of the next input; all rows advance together
    """

    tensors: tuple[Tensor, ...]
    position: int


class Mixer(nn.Module):
    """Moves information along time: [B, T, D] -> [B, T, D].

    A mixer writes `forward`, `allocate` and `advance`; `start` and `step` are the same for all.
    """

    settings: tuple[str, ...] = ("causal",)  # the constructor's keywords, for print(mixer)

    def __init__(self, dim: int, causal: bool) -> None:
        super().__init__()
        check_count("dim", dim)
        self.dim = dim
        self.causal = causal

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """The whole sequence.

        x       [B, T, D]
        padding [B, T] bool, True where there is nothing
        returns [B, T, D]; what it holds at padding has no meaning
        """
        raise NotImplementedError

    def start(
        self,
        batch: int,
        max_len: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state before the first position of `batch` sequences of at most `max_len`.

        Device and dtype are those of the parameters unless given.
        """
        self._require_causal()
        like = next(self.parameters(), torch.empty(0))
        device = like.device if device is None else torch.device(device)
        return State(self.allocate(batch, max_len, device, dtype or like.dtype), 0)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The next n positions: what `forward` gives them, without any dropout.

        x       [B, n, D]: one position or a chunk of any length
        returns [B, n, D] and the state to pass next time

        The state given may be overwritten, unless gradients are being recorded.
        """
        self._require_causal()
        check_input(self.dim, x)
        tensors, position = state
        if tensors[0].shape[0] != x.shape[0]:
            raise ValueError(
                f"x has {x.shape[0]} rows but the state has {tensors[0].shape[0]}; "
                "use start(batch, ...) or reorder(state, rows)"
            )
        out, tensors = self.advance(x, tensors, position)
        return out, State(tensors, position + x.shape[1])

    def allocate(
        self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        """The tensors of the state, each [B, ...] with the batch first."""
        raise NotImplementedError

    def advance(
        self, x: Tensor, tensors: tuple[Tensor, ...], position: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """x [B, n, D] of times position, position + 1, ... -> [B, n, D] and the new tensors."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in self.settings)
        return ", ".join([str(self.dim), *values])

    def _require_causal(self) -> None:
        if not self.causal:
            raise ValueError(
                f"{type(self).__name__} with causal=False is a centred layer: it looks ahead and "
                "cannot be streamed; build it with causal=True"
            )


S = TypeVar("S")


def reorder(state: S, rows: Tensor) -> S:
    """The states of those rows: permuted, repeated or left out.

    state   a State, or tuples, lists and dicts of them, or anything with a method `reorder(rows)`
    rows    [B'] int64
    returns the same structure with batch B'; every tensor that steps write is a copy
    """
    return cast(S, _select(state, rows))


def _select(node: Any, rows: Tensor) -> Any:
    if isinstance(node, Tensor):
        return node.index_select(0, rows)
    if hasattr(node, "reorder"):
        return node.reorder(rows)
    if isinstance(node, dict):
        return {key: _select(value, rows) for key, value in node.items()}
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return type(node)(*(_select(value, rows) for value in node))
    if isinstance(node, (tuple, list)):
        return type(node)(_select(value, rows) for value in node)
    if node is None or isinstance(node, (int, torch.SymInt)):
        return node
    # A leaf passed through unseen would keep the rows of other sequences.
    raise ValueError(
        "state must be made of tensors, integers, None, tuples, lists and dicts, "
        f"got {type(node).__name__}"
    )


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A projection [..., inputs] -> [..., outputs]: xavier-uniform weight, zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def records_gradients(*tensors: Tensor) -> bool:
    """Whether autograd watches any of them, so that none may be overwritten."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
