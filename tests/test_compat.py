"""lightconv.compat against the definition of a causal convolution, and inside real models."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightconv.compat import causal_conv1d_fn, causal_conv1d_update

D = 6


def define(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    """x [D, T] of one sequence, position by position."""
    K = weight.shape[1]
    out = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for j in range(K):
            if t - K + 1 + j >= 0:
                out[:, t] += weight[:, j] * x[:, t - K + 1 + j]
    out = out if bias is None else out + bias[:, None]
    return out / (1 + torch.exp(-out)) if silu else out


def make(T: int, K: int, B: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(T * 31 + K)
    return (
        torch.randn(B, D, T, dtype=torch.float64),
        torch.randn(D, K, dtype=torch.float64),
        torch.randn(D, dtype=torch.float64),
    )


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize(("T", "K"), [(1, 1), (2, 4), (9, 4), (12, 7), (5, 1)])
def test_sequences_and_their_states(T: int, K: int, silu: bool) -> None:
    x, weight, bias = make(T, K)
    whole = torch.stack([define(row, weight, bias, silu) for row in x])
    activation = "silu" if silu else None
    assert torch.allclose(causal_conv1d_fn(x, weight, bias, activation=activation), whole)
    for cut in {0, 1, T // 2, T}:
        first, state = causal_conv1d_fn(
            x[..., :cut], weight, bias, return_final_states=True, activation=activation
        )
        room = torch.full_like(state, torch.nan)
        second, last = causal_conv1d_fn(
            x[..., cut:], weight, bias, None, state, True, room, activation
        )
        assert torch.allclose(torch.cat([first, second], -1), whole)
        past = torch.nn.functional.pad(x, (K - 1, 0))[..., T:]
        assert last is room and torch.equal(room, past)


@pytest.mark.parametrize("K", [1, 3, 7])
def test_packed_sequences_do_not_see_each_other(K: int) -> None:
    x, weight, bias = make(11, K)
    seq_idx = torch.tensor([[0] * 5 + [1] * 1 + [2] * 5, [3] * 9 + [-1] * 2], dtype=torch.int32)
    x.requires_grad_()
    out = causal_conv1d_fn(x, weight, bias, seq_idx, activation="silu")
    wanted = torch.zeros_like(x)
    for b, i in [(0, 0), (0, 1), (0, 2), (1, 3)]:
        at = seq_idx[b] == i
        wanted[b, :, at] = define(x[b][:, at], weight, bias, True)
    assert isinstance(out, Tensor) and torch.allclose(out, wanted)
    grads = [torch.autograd.grad(each.square().sum(), x)[0] for each in (out, wanted)]
    assert torch.allclose(*grads)


@pytest.mark.parametrize("ring", [False, True])
@pytest.mark.parametrize(("K", "S", "n"), [(4, 3, 1), (4, 5, 2), (1, 2, 1), (3, 2, 5), (4, 4, 9)])
def test_updates_equal_the_whole(K: int, S: int, n: int, ring: bool) -> None:
    x, weight, bias = make(3 * n, K)
    whole = torch.stack([define(row, weight, bias, True) for row in x])
    states, rows = torch.zeros(5, D, S, dtype=torch.float64), torch.tensor([3, 1])
    states[[0, 2, 4]] = torch.nan
    outs = []
    for i in range(0, 3 * n, n):
        lengths = torch.full((2,), i, dtype=torch.int32) if ring else None
        part = x[..., i] if n == 1 else x[..., i : i + n]
        out = causal_conv1d_update(part, states, weight, bias, "silu", lengths, rows)
        assert out.shape == part.shape
        outs.append(out.unsqueeze(-1) if n == 1 else out)
    assert torch.allclose(torch.cat(outs, -1), whole)
    recent = torch.nn.functional.pad(x, (S, 0))[..., -S:]
    assert torch.equal(states[rows], recent.roll(3 * n % S, -1) if ring else recent)


def test_half_precision() -> None:
    x, weight, bias = make(9, 4)
    out = causal_conv1d_fn(x.bfloat16(), weight.float(), bias.float(), activation="silu")
    exact = torch.stack([define(row.bfloat16().double(), weight, bias, True) for row in x])
    assert isinstance(out, Tensor) and out.dtype == torch.bfloat16
    assert torch.allclose(out.double(), exact, atol=0.02, rtol=0.01)


BAD = {
    "x must have shape": lambda x, w: causal_conv1d_fn(x[0], w),
    "weight must have shape": lambda x, w: causal_conv1d_fn(x, w[1:]),
    "seq_idx must be": lambda x, w: causal_conv1d_fn(x, w, seq_idx=torch.zeros(2, 3)),
    "seq_idx goes with": lambda x, w: causal_conv1d_fn(
        x, w, seq_idx=torch.zeros(2, 9, dtype=torch.int32), return_final_states=True
    ),
    "activation must be": lambda x, w: causal_conv1d_fn(x, w, activation="gelu"),
    "conv_state must have": lambda x, w: causal_conv1d_update(x, x[..., :2].clone(), w),
}


@pytest.mark.parametrize("said", BAD)
def test_bad_arguments(said: str) -> None:
    x, weight, _ = make(9, 4)
    with pytest.raises(ValueError, match=said):
        BAD[said](x, weight)


@pytest.mark.parametrize("model", ["lfm2", "mamba"])
def test_inside_a_model(model: str) -> None:
    """A process each: `install` is for a process, before the model is imported."""
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed (extra: compat)")
    script = Path(__file__).parent / "compat_model.py"
    run = [sys.executable, str(script), model]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "import causal_conv1d now gives lightconv.compat" in done.stderr
