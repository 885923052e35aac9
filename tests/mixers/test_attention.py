"""Attention and averaged attention against their definitions, pair by pair of positions."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lightconv.mixers import Attention, Average
from lightconv.mixers.attention import attend, key_mask

from .examples import DIM, Example, both_directions, noise, padded_or_full, stream


def visible(length: int, causal: bool, window: int | None, padding: Tensor) -> Tensor:
    """[B, T, T]: may position t see position s?"""
    if window is None:
        most, least = length, 0 if causal else -length
    else:
        most = window - 1 if causal else window // 2
        least = most - (window - 1)
    back = torch.arange(length)[:, None] - torch.arange(length)
    return (least <= back) & (back <= most) & ~padding[:, None]


def pad(length: int, padded: bool) -> Tensor:
    """[3, length]: none, at the end, at the start; none at all unless `padded`."""
    padding = torch.zeros(3, length, dtype=torch.bool)
    if padded:
        padding[1, length // 2 :] = True
        padding[2, : length // 3] = True
    return padding


def definition(mixer: Attention, x: Tensor, padding: Tensor) -> Tensor:
    """Head by head, row by row of the softmax; rows without any key are zero."""
    q, k, v = (x @ mixer.in_proj.weight.T + mixer.in_proj.bias).split(mixer.dim, dim=-1)
    R = mixer.dim // mixer.heads
    mask = visible(x.shape[1], mixer.causal, mixer.window, padding)
    parts = []
    for head in range(mixer.heads):
        columns = slice(head * R, (head + 1) * R)
        scores = q[..., columns] @ k[..., columns].transpose(1, 2) / math.sqrt(R)
        weights = scores.exp() * mask
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
        parts.append(weights @ v[..., columns])
    return torch.cat(parts, dim=-1) @ mixer.out_proj.weight.T + mixer.out_proj.bias


def check_definition(define: Any, mixer: Any, length: int, padded: bool, error: float) -> None:
    x, padding = noise(3, length, DIM), pad(length, padded)
    out = mixer(x, padding) if padded else mixer(x)
    expected = define(mixer, x, padding)
    torch.testing.assert_close(out[~padding], expected[~padding], atol=error, rtol=error)


@both_directions
@pytest.mark.parametrize("window", [None, 1, 2, 3, 4, 7, 16, 17, 50])
@padded_or_full
def test_equals_definition(causal: bool, window: int | None, padded: bool) -> None:
    torch.manual_seed(0)
    mixer = Attention(DIM, heads=2, causal=causal, window=window).double()
    # Around the shortest block of 16 queries, and several blocks.
    for length in (1, 2, 6, 15, 16, 17, 32, 33, 41):
        check_definition(definition, mixer, length, padded, 1e-10)


@pytest.mark.parametrize("window", [None, 3])
@both_directions
def test_a_row_of_padding_is_finite(window: int | None, causal: bool) -> None:
    mixer = Attention(DIM, heads=2, causal=causal, window=window)
    padding = torch.tensor([[False] * 5, [True] * 5])
    x = torch.full((2, 5, DIM), torch.nan)
    x[0] = 1.0
    out = mixer(x, padding)
    assert out.isfinite().all()
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


@pytest.mark.parametrize("window", [None, 1, 3, 20])
@both_directions
def test_every_query_may_look_somewhere(
    window: int | None, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a kernel makes of an empty softmax is its own affair (zero or NaN), so none is asked.
    masks = []

    def spy(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *rest: object, **more: object) -> Tensor:
        masks.append(mask)
        return torch.zeros_like(q)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    padding = torch.ones(4, 37, dtype=torch.bool)
    padding[0] = padding[1, 20:] = padding[2, :5] = False
    Attention(DIM, heads=2, causal=causal, window=window)(torch.zeros(4, 37, DIM), padding)
    (mask,) = masks
    assert mask.any(-1).all()


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_memory_grows_with_the_length_not_its_square() -> None:
    T, window = 3000, 15
    x = noise(1, T, DIM, dtype=torch.float32)
    padding = torch.zeros(1, T, dtype=torch.bool)
    for causal in (True, False):
        mixer = Attention(DIM, heads=1, causal=causal, window=window)
        with LargestTensor() as largest:
            mixer(x, padding).sum().backward()
        assert largest.elements <= T * 5 * window < T * T / 10
    # Plain causal attention needs no mask.
    mixer = Attention(DIM, heads=1, causal=True)
    with LargestTensor() as largest, torch.no_grad():
        mixer(x[:, :500])
    assert largest.elements <= 3 * 500 * DIM


@pytest.mark.parametrize("window", [None, 4])
def test_a_step_without_gradients_keeps_a_past_with_them(window: int | None) -> None:
    """The past is overwritten in a copy, also if only the past has a gradient."""
    mixer = Attention(DIM, 4, causal=True, window=window).double().requires_grad_(False)
    x = noise(2, 6, DIM).requires_grad_()
    out, state = mixer.step(x[:, :3], mixer.start(2, 6))
    mixer.step(x[:, 3:].detach(), state)
    (found,) = torch.autograd.grad(out.sum(), x)
    (want,) = torch.autograd.grad(mixer(x[:, :3]).sum(), x)
    torch.testing.assert_close(found, want, atol=1e-10, rtol=1e-10)


@torch.no_grad()
def test_only_a_window_goes_beyond_max_len() -> None:
    mixer = Attention(DIM, heads=2, causal=True)
    x = torch.zeros(1, 43, DIM)
    for sizes in ([5], [4, 1], [1] * 5, [2, 0, 3]):
        with pytest.raises(ValueError, match=r"position 4 is beyond max_len=4"):
            stream(mixer.step, x[:, :5], sizes, mixer.start(1, 4))
    mixer = Attention(DIM, heads=2, causal=True, window=3)
    assert stream(mixer.step, x, [1, 2, 9, 1, 30], mixer.start(1, 4)).shape == x.shape


def test_attend_serves_source_target_attention() -> None:
    q, k, v = noise(2, 3, DIM), noise(2, 5, DIM, seed=2), noise(2, 5, DIM, seed=3)
    padding = torch.tensor([[False] * 5, [False, False, True, True, True]])
    out = attend(q, k, v, 1, mask=key_mask(padding))
    for b, length in ((0, 5), (1, 2)):
        weights = (q[b] @ k[b, :length].T / math.sqrt(DIM)).softmax(-1)
        torch.testing.assert_close(out[b], weights @ v[b, :length])


# --- averaged attention ---------------------------------------------------------------------------


def average_definition(mixer: Average, x: Tensor, padding: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            if padding[b, t]:
                continue
            end = t + 1 if mixer.causal else None
            mean = x[b, :end][~padding[b, :end]].mean(0)
            hidden = (mixer.hidden.weight @ mean + mixer.hidden.bias).clamp(min=0.0)
            g = mixer.output.weight @ hidden + mixer.output.bias
            gates = mixer.gate.weight @ torch.cat([x[b, t], g]) + mixer.gate.bias
            i, f = (1 / (1 + torch.exp(-gates))).split(mixer.dim)
            out[b, t] = i * x[b, t] + f * g
    return out


@both_directions
@padded_or_full
def test_average_equals_definition(causal: bool, padded: bool) -> None:
    mixer = Example("average", {"ffn_dim": 12}).build(causal)
    for length in (1, 2, 7):
        check_definition(average_definition, mixer, length, padded, 1e-12)


def test_average_of_half_precision_sums_in_float32() -> None:
    # 4,000 ones: a bfloat16 sum would stop at 256, and the mean with it.
    mixer = Average(DIM, ffn_dim=4, causal=True).bfloat16().eval()
    state = mixer.start(1, 4000)
    assert state.tensors[0].dtype == torch.float32
    ones = torch.ones(1, 4000, DIM, dtype=torch.bfloat16)
    with torch.no_grad():
        whole = mixer(ones)
        assert torch.equal(whole[:, 0], whole[:, -1])
        for chunk in ones.split(400, dim=1):
            out, state = mixer.step(chunk, state)
    assert (state.tensors[0] == 4000.0).all()
    assert torch.equal(out[:, -1], whole[:, -1])
    assert mixer.double().start(1, 9).tensors[0].dtype == torch.float64
