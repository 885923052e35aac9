"""The mixer: the slot of a layer that moves information along time, with a state for streams."""

from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn


class State(NamedTuple):
    """The past of a causal mixer."""

    tensors: tuple[Tensor, ...]  # batch first, allocated once by `start`; the mixer's own business
    position: int  # the time of the next input; all rows advance together


class Mixer(nn.Module):
    """Moves information along time: [B, T, D] -> [B, T, D].

    A subclass defines `forward`, `allocate` and `advance`; `start` and `step` are the same for all.
    """

    settings: tuple[str, ...] = ("causal",)  # keywords of the constructor, for print(mixer)

    def __init__(self, dim: int, causal: bool) -> None:
        super().__init__()
        check_count("dim", dim)
        self.dim = dim
        self.causal = causal

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """Mixes whole sequences.

        x       [B, T, D]
        padding [B, T] bool, True at padding
        returns [B, T, D], undefined at padding
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
        """The next n positions, equal to those of `forward` without dropout.

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
    """The states of those rows, which may be permuted, repeated or omitted.

    state   a State, or tuples, lists and dicts of them, or anything with a method `reorder(rows)`
    rows    [B'] int64
    returns the same structure with batch B'; every tensor that steps overwrite is a copy
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
    # A leaf passed through unchanged would keep the rows of other sequences.
    raise ValueError(
        "state must be made of tensors, integers, None, tuples, lists and dicts, "
        f"got {type(node).__name__}"
    )


def linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    """A projection [..., inputs] -> [..., outputs]: xavier-uniform weight, zero bias if any."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


# --- checks ---------------------------------------------------------------------------------------


def check_count(name: str, value: int) -> None:
    """Raises ValueError unless value is an integer of at least 1."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} must be an integer of at least 1")


def check_heads(dim: int, heads: int) -> None:
    """Raises ValueError unless heads divides dim."""
    check_count("heads", heads)
    if dim % heads != 0:
        raise ValueError(f"heads={heads} does not divide dim={dim}")


def check_probability(name: str, value: float) -> None:
    """Raises ValueError unless 0 <= value < 1."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name}={value!r} must be in [0, 1)")


def check_input(dim: int, x: Tensor, padding: Tensor | None = None) -> None:
    """Raises ValueError unless x is [B, T, dim] and padding a bool [B, T]."""
    if x.dim() != 3 or x.shape[2] != dim:
        raise ValueError(f"x must have shape [B, T, D] with D={dim}, got {list(x.shape)}")
    if padding is None:
        return
    if padding.dtype != torch.bool:
        raise ValueError(f"padding must be bool, True at padding, got {padding.dtype}")
    if padding.shape != x.shape[:2]:
        raise ValueError(
            f"padding must have shape [B, T] = {list(x.shape[:2])}, got {list(padding.shape)}"
        )
