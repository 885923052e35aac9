"""The mixer: the slot of a layer that moves information along time, with a state for streams."""

from inspect import signature
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lightconv.ops.check import check_boundaries

Device = torch.device | str | None
Dtype = torch.dtype | None
Made = dict[str, Any]  # keywords of a constructor: device and dtype of new parameters
Past = tuple[Tensor, ...]  # tensors of a state


class State(NamedTuple):
    """The past of a causal mixer."""

    tensors: Past  # batch first, allocated once by `start`; the mixer's own business
    position: int  # the time of the next input; all rows advance together


class Mixer(nn.Module):
    """Moves information along time: [B, T, D] -> [B, T, D].

    A subclass defines `mix`, `allocate` and `advance`, and `reset_parameters` if not all of its
    parameters are projections; `forward`, `start` and `step` are the same for all.
    """

    packs = False  # True if `mix` takes cu_seqlens; otherwise packed sequences are padded for it

    def __init__(self, dim: int, causal: bool) -> None:
        super().__init__()
        self.check_counts(dim=dim)
        self.dim = dim
        self.causal = causal

    def forward(
        self,
        x: Tensor,
        padding: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Mixes whole sequences: a padded batch, packed ones, or a jagged NestedTensor.

        x          [B, T, D]; [1, N, D] with cu_seqlens; NestedTensor (layout=torch.jagged)
        padding    [B, T] bool, True at padding; `key_padding_mask` is another name of it
        cu_seqlens [S + 1] int32 or int64: sequence s is x[0, cu_seqlens[s] : cu_seqlens[s + 1]]
        options    of the class
        returns    like x, undefined at padding
        """
        if key_padding_mask is not None:
            if padding is not None:
                self.refuse("padding and key_padding_mask are one argument; give one")
            padding = key_padding_mask
        if x.is_nested:
            if padding is not None or cu_seqlens is not None or x.layout != torch.jagged:
                self.refuse(
                    "a NestedTensor takes neither padding nor cu_seqlens and has "
                    f"layout=torch.jagged, got {x.layout}"
                )
            jagged: Any = x.contiguous()
            options = {key: v.contiguous().values().unsqueeze(0) for key, v in options.items()}
            flat = self.forward(jagged.values().unsqueeze(0), None, jagged.offsets(), **options)
            return torch.nested.nested_tensor_from_jagged(flat.squeeze(0), jagged.offsets())
        self.check_input(x, padding)
        if cu_seqlens is None:
            return self.mix(x, padding, **options)
        if padding is not None:
            self.refuse(
                "padding with cu_seqlens would be ignored: packed sequences have none; give one "
                "of them"
            )
        if self.packs:
            return self.mix(x, None, **{"cu_seqlens": cu_seqlens, **options})
        if x.shape[0] != 1:
            self.refuse(f"with cu_seqlens the batch must be 1, got {list(x.shape)}")
        check_boundaries(cu_seqlens, x.shape[1])
        lengths = cu_seqlens.diff().tolist()
        if not sum(lengths):
            return self.mix(x, None, **options)
        rows = pad_sequence(x.squeeze(0).split(lengths), batch_first=True)
        real = torch.arange(rows.shape[1], device=x.device) < cu_seqlens.diff().unsqueeze(1)
        return self.mix(rows, ~real, **options)[real].unsqueeze(0)

    def mix(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """x [B, T, D], padding [B, T] bool -> [B, T, D]; arguments are checked by `forward`."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Initialises all parameters anew, as the constructor does; for a layer built on "meta"."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                reset_linear(module)

    def start(
        self, batch: int, max_len: int, *, device: Device = None, dtype: Dtype = None
    ) -> State:
        """The state before the first position of `batch` sequences of at most `max_len`.

        Device and dtype are those of the parameters unless given.
        """
        self._require_causal()
        like = next(self.parameters(), torch.empty(0))
        device = like.device if device is None else device
        like = torch.empty(0, device=device, dtype=dtype or like.dtype)
        return State(self.allocate(batch, max_len, like), 0)

    def step(self, x: Tensor, state: State, **options: Any) -> tuple[Tensor, State]:
        """The next n positions, equal to those of `forward` without dropout.

        x       [B, n, D]: one position or a chunk of any length
        options of the class
        returns [B, n, D] and the state to pass next time

        The state given may be overwritten, unless gradients are being recorded.
        """
        self._require_causal()
        self.check_input(x)
        tensors, position = state
        if tensors[0].shape[0] != x.shape[0]:
            self.refuse(
                f"x has {x.shape[0]} rows but the state has {tensors[0].shape[0]}; "
                "use start(batch, ...) or reorder(state, rows)"
            )
        out, tensors = self.advance(x, tensors, position, **options)
        return out, State(tensors, position + x.shape[1])

    def allocate(self, batch: int, max_len: int, like: Tensor) -> Past:
        """The tensors of the state, batch first: [B, ...] of the dtype and device of `like`."""
        raise NotImplementedError

    def advance(self, x: Tensor, tensors: Past, position: int) -> tuple[Tensor, Past]:
        """x [B, n, D] of times position, position + 1, ... -> [B, n, D] and the new tensors."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Arguments of the constructor, which are attributes of the same names."""
        names = [name for name in signature(type(self)).parameters if hasattr(self, name)]
        return ", ".join([str(self.dim), *(f"{n}={getattr(self, n)!r}" for n in names[1:])])

    def _require_causal(self) -> None:
        if not self.causal:
            raise ValueError(
                f"{type(self).__name__} with causal=False is a centred layer: it looks ahead and "
                "cannot be streamed; build it with causal=True"
            )

    # --- checks: errors name the class that the user built ----------------------------------------

    def check_counts(self, **counts: int) -> None:
        """Raises ValueError unless every one is an integer of at least 1."""
        for name, value in counts.items():
            if not isinstance(value, int) or value < 1:
                self.refuse(f"{name}={value!r} must be an integer of at least 1")

    def check_heads(self, heads: int, dim: int) -> None:
        """Raises ValueError unless heads divides dim."""
        self.check_counts(heads=heads)
        if dim % heads != 0:
            self.refuse(f"heads={heads} does not divide dim={dim}")

    def check_probability(self, name: str, value: float) -> None:
        """Raises ValueError unless 0 <= value < 1."""
        if not 0.0 <= value < 1.0:
            self.refuse(f"{name}={value!r} must be in [0, 1)")

    def check_input(self, x: Tensor, padding: Tensor | None = None) -> None:
        """Raises ValueError unless x is [B, T, dim] and padding a bool [B, T]."""
        if x.dim() != 3 or x.shape[2] != self.dim:
            self.refuse(f"x must have shape [B, T, D] with D={self.dim}, got {list(x.shape)}")
        if padding is None:
            return
        if padding.dtype != torch.bool:
            self.refuse(f"padding must be bool, True at padding, got {padding.dtype}")
        if padding.shape != x.shape[:2]:
            wanted = list(x.shape[:2])
            self.refuse(f"padding must have shape [B, T] = {wanted}, got {list(padding.shape)}")

    def refuse(self, why: str) -> NoReturn:
        raise ValueError(f"{type(self).__name__}: {why}")


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


def reset_linear(layer: nn.Linear) -> None:
    """Xavier-uniform weight, zero bias."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def linear(inputs: int, outputs: int, **options: Any) -> nn.Linear:
    """A projection [..., inputs] -> [..., outputs]: xavier-uniform weight, zero bias."""
    layer = nn.Linear(inputs, outputs, **options)
    reset_linear(layer)
    return layer
