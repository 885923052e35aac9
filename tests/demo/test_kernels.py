"""Kernels for pictures, against kernels computed by hand from parameters and inputs."""

import math

import torch

from lightconv.demo.kernels import dynamic_kernels, learned_kernels
from lightconv.models import (
    DynamicConvConfig,
    LanguageModel,
    LanguageModelConfig,
    LightConvConfig,
    Seq2Seq,
    Seq2SeqConfig,
)

LIGHT = LightConvConfig(kernel=3, heads=2, glu=True)
DYNAMIC = DynamicConvConfig(kernel=5, heads=4, glu=True, dropconnect=0.5)


def model() -> Seq2Seq:
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        dim=16,
        ffn_dim=8,
        source_heads=2,
        encoder=(LIGHT, DYNAMIC),
        decoder=(DYNAMIC, LIGHT),
        source_vocab=20,
        target_vocab=20,
        pre_norm=True,
    )
    return Seq2Seq(config).eval()


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value) for value in values]
    return [power / sum(powers) for power in powers]


def test_learned_kernels_are_the_softmax_of_the_weights() -> None:
    built = model()
    found = learned_kernels(built)
    assert [each.layer for each in found] == ["encoder 1", "decoder 2"]
    assert [each.left for each in found] == [1, 2]  # centred, and causal
    for each, mixer in zip(found, (built.encoder[0].mixer, built.decoder[1].mixer), strict=True):
        want = [softmax(row) for row in mixer.weight.tolist()]
        torch.testing.assert_close(
            torch.tensor(each.weights), torch.tensor(want), atol=1e-5, rtol=0
        )


def test_dynamic_kernels_are_those_of_the_layer() -> None:
    """The layer computed step by step: its kernels, applied to its input, give its output."""
    built = model()
    ids = [4, 9, 7, 5, 11, 2]
    (found,) = dynamic_kernels(built, ids)
    assert (found.layer, found.left) == ("encoder 2", 2)
    weights = torch.tensor(found.weights)  # [H, T, K]
    assert weights.shape == (4, 6, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 6), atol=1e-4, rtol=0)

    mixer = built.encoder[1].mixer
    inputs = []
    handle = mixer.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    outputs = []
    other = mixer.register_forward_hook(lambda module, args, out: outputs.append(out))
    with torch.no_grad():
        built.encode(torch.tensor([ids]))
        handle.remove()
        other.remove()
        x, gate = mixer.in_proj(inputs[0][0]).chunk(2, dim=-1)
        x = x * torch.sigmoid(gate)  # [T, D]
        mixed = torch.zeros_like(x)
        for t in range(6):
            for d in range(16):
                for k in range(5):
                    if 0 <= t + k - 2 < 6:
                        mixed[t, d] += weights[d // 4, t, k] * x[t + k - 2, d]
        want = mixer.out_proj(mixed)
    torch.testing.assert_close(outputs[0][0], want, atol=1e-4, rtol=1e-4)


def test_nothing_stays_behind() -> None:
    built = model()
    dynamic_kernels(built, [4, 5, 2])
    assert not any(module._forward_hooks for module in built.modules())


def test_a_language_model_has_kernels_too() -> None:
    torch.manual_seed(0)
    config = LanguageModelConfig(dim=16, ffn_dim=8, layers=(LIGHT, DYNAMIC), vocab=20)
    built = LanguageModel(config).eval()
    (learned,) = learned_kernels(built)
    (dynamic,) = dynamic_kernels(built, [2, 4, 5])
    assert (learned.layer, dynamic.layer, dynamic.left) == ("layer 1", "layer 2", 4)
