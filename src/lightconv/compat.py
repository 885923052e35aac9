"""The two functions of the package causal-conv1d, of any width, on CPU and GPU, with gradients.

Same names, arguments and shapes, channels first. `install()` makes `import causal_conv1d` find
them, so that models written for that package run packed sequences where it cannot be installed.
"""

import sys
import types
from importlib.machinery import ModuleSpec

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.console import tell
from lightconv.ops import final_state, lightconv


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """activation(conv(x) + bias), each channel with its own causal kernel.

    x                [B, D, T]
    weight, bias     [D, K], [D]
    seq_idx          [B, T] integers: each run of equal ones is a sequence of its own, of negative
                     ones padding, whose output is zero
    initial_states   [B, D, K - 1]: inputs before x, oldest first; not with seq_idx
    final_states_out [B, D, K - 1]: written with what is returned as final states
    activation       None, "silu" or "swish"
    returns          [B, D, T]; with return_final_states also the final states [B, D, K - 1]
    """
    _check("causal_conv1d_fn", x, weight)
    rows, K = x.transpose(1, 2), weight.shape[1]
    weight = weight.to(torch.promote_types(x.dtype, weight.dtype))
    if seq_idx is not None:
        if initial_states is not None or return_final_states:
            raise ValueError(
                "causal_conv1d_fn: seq_idx goes with neither initial_states nor "
                "return_final_states; use lightconv.ops.lightconv with cu_seqlens for both"
            )
        if seq_idx.shape != rows.shape[:2] or seq_idx.is_floating_point():
            raise ValueError(
                f"causal_conv1d_fn: seq_idx must be integers of shape {list(rows.shape[:2])}, "
                f"got {seq_idx.dtype} of shape {list(seq_idx.shape)}"
            )
        first = torch.ones_like(seq_idx[:, :1], dtype=torch.bool)
        begins = torch.cat([first, seq_idx[:, 1:] != seq_idx[:, :-1]], dim=1)
        cu_seqlens = F.pad(begins.flatten().nonzero().squeeze(1), (0, 1), value=seq_idx.numel())
        flat = rows.reshape(1, -1, rows.shape[2])
        out = lightconv(
            flat, weight, K - 1, cu_seqlens=cu_seqlens, bias=bias, activation=activation
        )
        out = out.view(rows.shape).masked_fill((seq_idx < 0).unsqueeze(-1), 0.0)
        return out.transpose(1, 2)
    state = None if initial_states is None else initial_states.transpose(1, 2)
    out = lightconv(
        rows, weight, K - 1, bias=bias, activation=activation, initial_state=state
    ).transpose(1, 2)
    if not return_final_states:
        return out
    final = final_state(rows, K - 1, initial_state=state).transpose(1, 2)
    return out, final if final_states_out is None else final_states_out.copy_(final)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """The next positions of `causal_conv1d_fn`; conv_state is updated in place.

    x                  [B, D] or [B, D, n]
    conv_state         [B or more, D, S], S >= K - 1: the last S inputs, oldest first
    cache_seqlens      [B]: conv_state is a ring instead, time t in slot t % S, and these are the
                       times of x's first position
    conv_state_indices [B]: rows of conv_state that belong to x
    returns            the shape of x
    """
    one = x.dim() == 2
    inputs = x.unsqueeze(-1) if one else x
    _check("causal_conv1d_update", inputs, weight)
    n, K, S = inputs.shape[2], weight.shape[1], conv_state.shape[2]
    rows = conv_state if conv_state_indices is None else conv_state[conv_state_indices.long()]
    if rows.shape[:2] != inputs.shape[:2] or K - 1 > S:
        raise ValueError(
            f"causal_conv1d_update: conv_state must have shape {list(inputs.shape[:2])} and at "
            f"least {K - 1} positions, got {list(rows.shape)}"
        )
    slots = None
    if cache_seqlens is not None:
        slots = (torch.arange(S, device=x.device) + cache_seqlens[:, None]) % S
        slots = slots.unsqueeze(1).expand_as(rows)
    past = rows if slots is None else rows.gather(2, slots)
    recent = torch.cat([past, inputs.to(past.dtype)], dim=2)
    out = causal_conv1d_fn(
        inputs, weight, bias, None, past[..., S - K + 1 :].to(x.dtype), activation=activation
    )
    assert isinstance(out, Tensor)
    with torch.no_grad():
        new = recent[..., n:]
        if slots is not None:  # recent[S + i] is of time cache_seqlens + i, in slot slots[i % S]
            new = rows.scatter(2, slots.roll(-n, 2), new)
        if conv_state_indices is None:
            conv_state.copy_(new)
        else:
            conv_state[conv_state_indices.long()] = new.to(conv_state.dtype)
    return out.squeeze(-1) if one else out


def install() -> None:
    """Registers this module as `causal_conv1d` for the process; call it before a model's import."""
    found = sys.modules.get("causal_conv1d")
    if found is not None and found.__spec__ is not _SPEC:
        raise RuntimeError("causal_conv1d is imported already; call install() before")
    late = [
        name
        for name, module in sys.modules.items()
        if name.startswith("transformers.models.") and hasattr(module, "causal_conv1d_fn")
    ]
    if found is None and late:
        raise RuntimeError(f"{late[0]} chose its convolution already; call install() before")
    module = types.ModuleType("causal_conv1d", __doc__)
    module.__spec__ = _SPEC
    module.causal_conv1d_fn = causal_conv1d_fn  # type: ignore[attr-defined]
    module.causal_conv1d_update = causal_conv1d_update  # type: ignore[attr-defined]
    sys.modules["causal_conv1d"] = module
    tell("lightconv: import causal_conv1d now gives lightconv.compat, in this process")


_SPEC = ModuleSpec("causal_conv1d", None, origin=__name__)


def _check(op: str, x: Tensor, weight: Tensor) -> None:
    if x.dim() != 3:
        raise ValueError(f"{op}: x must have shape [B, D, T], got {list(x.shape)}")
    if weight.dim() != 2 or weight.shape[0] != x.shape[1] or weight.shape[1] < 1:
        raise ValueError(
            f"{op}: weight must have shape [D, K] with D = {x.shape[1]}, got {list(weight.shape)}"
        )
