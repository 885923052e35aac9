"""The plain convolution against torch's own."""

import pytest
import torch
import torch.nn.functional as F

from lightconv.mixers import Conv

from .examples import DIM, noise


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "centred"])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 9])
def test_equals_conv1d(kernel: int, causal: bool) -> None:
    mixer = Conv(DIM, kernel=kernel, causal=causal).double()
    left = kernel - 1 if causal else kernel // 2
    weight = mixer.weight.permute(1, 2, 0)  # [K, out, in] -> [out, in, K]
    for length in (1, 3, 12):
        x = noise(2, length, DIM)
        padded = F.pad(x.transpose(1, 2), (left, kernel - 1 - left))
        expected = F.conv1d(padded, weight).transpose(1, 2)
        torch.testing.assert_close(mixer(x), expected, atol=1e-12, rtol=1e-12)


def test_initialisation_is_that_of_conv1d() -> None:
    torch.manual_seed(0)
    kernel, dim = 5, 64
    ours = Conv(dim, kernel=kernel).weight
    theirs = torch.nn.init.xavier_uniform_(torch.empty(dim, dim, kernel))
    bound = (6 / (2 * dim * kernel)) ** 0.5
    assert ours.abs().max() <= bound
    torch.testing.assert_close(ours.abs().max(), theirs.abs().max(), rtol=0.01, atol=0.0)
    torch.testing.assert_close(ours.std(), theirs.std(), rtol=0.05, atol=0.0)
