"""Averaged attention against an explicit loop."""

import pytest
import torch
from torch import Tensor

from lightconv.mixers import Average

from .examples import DIM, Example, noise


def definition(mixer: Average, x: Tensor, padding: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            times = range(t + 1) if mixer.causal else range(x.shape[1])
            seen = [x[b, s] for s in times if not padding[b, s]]
            if padding[b, t]:
                continue
            mean = torch.stack(seen).mean(0)
            hidden = (mixer.hidden.weight @ mean + mixer.hidden.bias).clamp(min=0.0)
            g = mixer.output.weight @ hidden + mixer.output.bias
            gates = mixer.gate.weight @ torch.cat([x[b, t], g]) + mixer.gate.bias
            i, f = (1 / (1 + torch.exp(-gates))).split(mixer.dim)
            out[b, t] = i * x[b, t] + f * g
    return out


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_equals_definition(causal: bool, padded: bool) -> None:
    mixer = Example("average", {"ffn_dim": 12}).build(causal)
    assert isinstance(mixer, Average)
    for length in (1, 2, 7):
        x = noise(3, length, DIM)
        padding = torch.zeros(3, length, dtype=torch.bool)
        if padded:
            padding[1, length // 2 :] = True
            padding[2, : length // 3] = True
        out = mixer(x, padding) if padded else mixer(x)
        expected = definition(mixer, x, padding)
        torch.testing.assert_close(out[~padding], expected[~padding], atol=1e-12, rtol=1e-12)


def test_half_precision_sums_in_float32() -> None:
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


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    mixer = Average(DIM, ffn_dim=64, causal=True, dropout=0.5)
    x = noise(2, 6, DIM, dtype=torch.float32)
    assert not torch.equal(mixer(x), mixer(x))
    mixer.eval()
    assert torch.equal(mixer(x), mixer(x))
