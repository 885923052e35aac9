"""Kernels against kernels computed by hand, and the sides of the comparison with attention."""

import math

import pytest
import torch

from lightconv.demo import measure
from lightconv.demo.measure import (
    CONV,
    FUSED,
    PLAIN,
    dynamic_kernels,
    learned_kernels,
    measure_growth,
    peak_bytes,
)
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
    assert [each["layer"] for each in found] == ["encoder 1", "decoder 2"]
    assert [each["left"] for each in found] == [1, 2]  # centred, and causal
    for each, mixer in zip(found, (built.encoder[0].mixer, built.decoder[1].mixer), strict=True):
        want = torch.tensor([softmax(row) for row in mixer.weight.tolist()])
        torch.testing.assert_close(torch.tensor(each["weights"]), want, atol=1e-5, rtol=0)


def test_dynamic_kernels_are_those_of_the_layer() -> None:
    """The layer computed step by step: its kernels, applied to its input, give its output."""
    built = model()
    ids = [4, 9, 7, 5, 11, 2]
    (found,) = dynamic_kernels(built, ids)
    assert (found["layer"], found["left"]) == ("encoder 2", 2)
    weights = torch.tensor(found["weights"])  # [H, T, K]
    assert weights.shape == (4, 6, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4, 6), atol=1e-4, rtol=0)

    mixer = built.encoder[1].mixer
    calls = []
    handle = mixer.register_forward_hook(lambda module, args, out: calls.append((args[0], out)))
    with torch.no_grad():
        built.encode(torch.tensor([ids]))
        handle.remove()
        ((given, output),) = calls
        x, gate = mixer.in_proj(given[0]).chunk(2, dim=-1)
        x = x * torch.sigmoid(gate)  # [T, D]
        mixed = torch.zeros_like(x)
        for t in range(6):
            for d in range(16):
                for k in range(5):
                    if 0 <= t + k - 2 < 6:
                        mixed[t, d] += weights[d // 4, t, k] * x[t + k - 2, d]
        want = mixer.out_proj(mixed)
    torch.testing.assert_close(output[0], want, atol=1e-4, rtol=1e-4)
    assert not any(module._forward_hooks for module in built.modules())


def test_a_language_model_has_kernels_too() -> None:
    config = LanguageModelConfig(dim=16, ffn_dim=8, layers=(LIGHT, DYNAMIC), vocab=20)
    built = LanguageModel(config).eval()
    (learned,) = learned_kernels(built)
    (dynamic,) = dynamic_kernels(built, [2, 4, 5])
    found = (learned["layer"], dynamic["layer"], dynamic["left"])
    assert found == ("layer 1", "layer 2", 4)


# --- The operator against attention


def test_both_attentions_are_the_same() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 9, measure.D) for _ in range(3))
    fused, plain = measure.fused_attention(q, k, v), measure.textbook_attention(q, k, v)
    torch.testing.assert_close(fused, plain, atol=1e-5, rtol=1e-4)
    # The first position sees itself alone.
    torch.testing.assert_close(plain[:, 0], v[:, 0])


@pytest.mark.parametrize("length, tokens", [(16, 32), (64, 64)])
def test_a_length(length: int, tokens: int) -> None:
    row = measure_growth(length, tokens=32)
    assert (row["length"], row["tokens"]) == (length, tokens)
    assert set(row["microseconds"]) == {CONV, FUSED, PLAIN}
    assert all(value > 0 for value in row["microseconds"].values())


def test_a_matrix_that_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_BYTES", 1e5)
    assert set(measure_growth(64, tokens=64)["microseconds"]) == {CONV, FUSED}


def test_memory_of_a_call() -> None:
    found = peak_bytes(lambda: torch.ones(4_000_000))
    if found is None:
        pytest.skip("this system does not report it")
    assert 15e6 < found < 40e6
