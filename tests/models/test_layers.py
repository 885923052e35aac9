"""The order of a layer's parts, and what its state holds."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv import ops
from lightconv.mixers.attention import attend
from lightconv.models import AttentionConfig, DynamicConvConfig
from lightconv.models.layers import DecoderLayer, PlainLayer, SourceAttention
from lightconv.ops.attention import attention

from .examples import pair_config

MIXER = DynamicConvConfig(kernel=3, heads=2)
CONFIG = pair_config((MIXER,))
REAL = torch.zeros(2, 5, dtype=torch.bool)
either_norm = pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def stir(layer: torch.nn.Module) -> None:
    """Parameters that are neither zero nor one, so that each of them matters."""
    torch.manual_seed(0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)


@either_norm
@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "language model"])
def test_plain_layer(pre_norm: bool, causal: bool) -> None:
    config = dataclasses.replace(CONFIG, pre_norm=pre_norm)
    layer = PlainLayer(config, MIXER, causal=causal).double().eval()
    stir(layer)
    assert layer.mixer.causal is causal
    x = noise(2, 5, 8)
    first, last = layer.mixer_residual.norm, layer.ffn_residual.norm
    if pre_norm:
        y = x + layer.mixer(first(x), REAL)
        z = y + layer.ffn.output(layer.ffn.hidden(last(y)).relu())
    else:
        y = first(x + layer.mixer(x, REAL))
        z = last(y + layer.ffn.output(layer.ffn.hidden(y).relu()))
    torch.testing.assert_close(layer(x, REAL), z)
    if causal:
        stepped, state = layer.step(x, layer.mixer.start(2, 5))
        torch.testing.assert_close(stepped, z)
        assert state.position == 5


@either_norm
def test_decoder_layer(pre_norm: bool) -> None:
    layer = DecoderLayer(dataclasses.replace(CONFIG, pre_norm=pre_norm), MIXER).double()
    stir(layer)
    x, memory = noise(2, 4, 8), noise(2, 5, 8)
    source = layer.source.start(memory)
    first, middle, last = (
        each.norm for each in (layer.mixer_residual, layer.source_residual, layer.ffn_residual)
    )
    if pre_norm:
        y = x + layer.mixer(first(x))
        z = y + layer.source(middle(y), source, REAL)
        w = z + layer.ffn(last(z))
    else:
        y = first(x + layer.mixer(x))
        z = middle(y + layer.source(y, source, REAL))
        w = last(z + layer.ffn(z))
    torch.testing.assert_close(layer(x, memory, REAL), w)


# Position of the probability among the arguments.
PLACES = {"dropout": 1, "dropout_add": 2, "dropout_add_norm": 4}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The probability of every dropout that acts, in the order they come; nothing is dropped."""
    found: list[float] = []

    def record(name: str, place: int) -> None:
        real = getattr(ops, name)

        def recorded(*args: Any, **kwargs: Any) -> Tensor:
            found.extend(p for p in args[place : place + 1] if p > 0.0)
            out: Tensor = real(*args[:place], 0.0, **kwargs)
            return out

        monkeypatch.setattr(ops, name, recorded)

    def recorded_attention(*args: Any, dropout: float, **kwargs: Any) -> Tensor:
        found.append(dropout)
        return attention(*args, **kwargs)

    for name, place in PLACES.items():
        record(name, place)
    monkeypatch.setattr("lightconv.mixers.attention.attention", recorded_attention)
    return found


@either_norm
def test_dropouts_come_in_their_order(seen: list[float], pre_norm: bool) -> None:
    rates = {"dropout": 0.1, "input_dropout": 0.2, "activation_dropout": 0.3}
    config = pair_config((MIXER,), attention_dropout=0.4, pre_norm=pre_norm, **rates)
    mixer = AttentionConfig(heads=2, dropout=0.5)
    x, memory = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    layer = DecoderLayer(config, mixer)
    layer(x, memory, REAL)
    assert seen == [0.2, 0.5, 0.1, 0.4, 0.1, 0.3, 0.1]
    seen.clear()
    PlainLayer(config, mixer, causal=False)(memory, REAL)
    assert seen == [0.2, 0.5, 0.1, 0.3, 0.1]
    seen.clear()
    layer.eval()(x, memory, REAL)
    assert seen == []


def test_source_attention_is_attention_over_the_projected_memory() -> None:
    layer = SourceAttention(8, heads=2).double()
    stir(layer)
    x, memory = noise(2, 4, 8), noise(2, 5, 8)
    padding = REAL.clone()
    padding[1, 3:] = True
    keys, values = layer.kv_proj(memory).split(8, dim=-1)
    out = layer(x, layer.start(memory), padding)
    for b, real in enumerate([5, 3]):
        alone = attend(
            layer.q_proj(x[b : b + 1]), keys[b : b + 1, :real], values[b : b + 1, :real], 2
        )
        torch.testing.assert_close(out[b : b + 1], layer.out_proj(alone))


def test_source_attention_starts_like_self_attention() -> None:
    torch.manual_seed(0)
    layer = SourceAttention(128, heads=2)
    for weight in (layer.q_proj.weight, layer.kv_proj.weight):
        assert weight.abs().max().item() == pytest.approx((6 / (128 + 3 * 128)) ** 0.5, rel=0.01)


def test_the_source_is_projected_once_per_sentence() -> None:
    layer = DecoderLayer(CONFIG, MIXER).eval()
    calls: list[torch.Size] = []
    layer.source.kv_proj.register_forward_hook(lambda _, __, out: calls.append(out.shape))
    state = layer.start(torch.randn(2, 5, 8), 10)
    assert state.source.keys.shape == (2, 5, 8)
    for _ in range(4):
        _, state, _ = layer.step(torch.randn(2, 1, 8), state, REAL)
    assert len(calls) == 1


def test_other_projections_start_xavier_uniform_without_bias_to_either_side() -> None:
    torch.manual_seed(0)
    config = dataclasses.replace(CONFIG, dim=128, ffn_dim=64)
    layer = DecoderLayer(config, MIXER)
    for linear in (layer.mixer.in_proj, layer.mixer.out_proj, layer.ffn.hidden, layer.ffn.output):
        bound = (6 / sum(linear.weight.shape)) ** 0.5
        assert linear.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
        assert linear.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)
        assert torch.all(linear.bias == 0.0)
    for norm in (layer.mixer_residual.norm, layer.source_residual.norm, layer.ffn_residual.norm):
        assert torch.all(norm.weight == 1.0)
        assert torch.all(norm.bias == 0.0)
