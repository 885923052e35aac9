"""The exponential average against its formula."""

import pytest
import torch
from torch import nn

from lightconv.train.optim import EMA


def test_it_is_its_formula() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1).double()
    ema = EMA(model, decay=0.5)
    expected = model.weight.detach().clone()
    for step in range(1, 9):
        with torch.no_grad():
            model.weight += torch.randn(1, 2, dtype=torch.float64)
        ema.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach()
        torch.testing.assert_close(ema.tensors["weight"], expected, rtol=1e-12, atol=0)
    assert (1 + 8) / (10 + 8) == 0.5  # so both cases were met


def test_it_is_applied_for_a_while() -> None:
    model = nn.Linear(2, 1)
    ema = EMA(model, decay=0.9)
    average = {name: tensor.clone() for name, tensor in ema.tensors.items()}
    with torch.no_grad():
        model.weight.fill_(3.0)
    plain = model.weight.detach().clone()
    with ema.applied():
        assert torch.equal(model.weight, average["weight"])
        assert isinstance(model.weight, nn.Parameter)
    assert torch.equal(model.weight, plain)
    assert torch.equal(ema.tensors["weight"], average["weight"])
    with pytest.raises(KeyError), ema.applied():
        raise KeyError
    assert torch.equal(model.weight, plain)


def test_it_takes_back_what_was_stored() -> None:
    model = nn.Linear(2, 1)
    ema = EMA(model, decay=0.9)
    stored = {name: torch.full_like(tensor, 2.0) for name, tensor in ema.tensors.items()}
    ema.restore(stored)
    assert all(bool((tensor == 2.0).all()) for tensor in ema.tensors.values())
    assert not any(a is b for a, b in zip(stored.values(), ema.tensors.values(), strict=True))
