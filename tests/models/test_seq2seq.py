"""The whole model: stepping is forward, padding is nothing, rows follow, sizes are the paper's."""

import dataclasses

import pytest
import torch
from torch import Tensor

from lightconv.mixers import MIXERS, reorder
from lightconv.models import (
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    LightConvConfig,
    MixerConfig,
    Seq2Seq,
    Seq2SeqConfig,
)

PAD, EOS = 1, 2

# Two different layers of each kind; the widest kernel is longer than most of the lengths below.
LAYERS: dict[str, tuple[MixerConfig, ...]] = {
    "attention": (AttentionConfig(heads=2), AttentionConfig(heads=4, window=3)),
    "conv": (ConvConfig(kernel=3), ConvConfig(kernel=2)),
    "lightconv": (LightConvConfig(kernel=3, heads=2), LightConvConfig(kernel=9, heads=4, glu=True)),
    "dynamicconv": (
        DynamicConvConfig(kernel=4, heads=2, glu=True),
        DynamicConvConfig(kernel=9, heads=4),
    ),
    "average": (AverageConfig(ffn_dim=12), AverageConfig(ffn_dim=8)),
}
LAYERS["mixed"] = tuple(layers[0] for layers in LAYERS.values())

every_kind = pytest.mark.parametrize("kind", LAYERS)


def build(kind: str, dtype: torch.dtype = torch.float64, **changes: object) -> Seq2Seq:
    config = Seq2SeqConfig(
        dim=8,
        ffn_dim=12,
        source_heads=2,
        encoder=LAYERS[kind],
        decoder=LAYERS[kind],
        source_vocab=15,
        target_vocab=17,
        dropout=0.1,
    )
    torch.manual_seed(0)
    model = Seq2Seq(dataclasses.replace(config, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def tokens(B: int, T: int, vocab: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab, (B, T), generator=generator)


def source_batch() -> Tensor:
    source = tokens(3, 6, 15)
    source[1, 4:] = PAD
    source[2, :3] = PAD
    return source


def test_every_mixer_is_tested() -> None:
    assert set(LAYERS) == {*MIXERS, "mixed"}


@every_kind
@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=str)
def test_stepping_equals_forward_at_every_length(
    kind: str, pre_norm: bool, dtype: torch.dtype, atol: float
) -> None:
    model = build(kind, dtype, pre_norm=pre_norm)
    source, target_in = source_batch(), tokens(3, 12, 17, seed=1)
    target_in[:, 0] = EOS
    with torch.inference_mode():
        memory = model.encode(source)
        for length in range(1, 13):
            whole = model(source, target_in[:, :length])
            for size in (1, 2, 5):
                state = model.start(memory, length)
                parts = []
                for chunk in target_in[:, :length].split(size, dim=1):
                    logits, state = model.step(chunk, state)
                    parts.append(logits)
                assert state.position == length
                torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=atol)


@every_kind
def test_source_padding_changes_nothing(kind: str) -> None:
    model = build(kind)
    source, target_in = source_batch(), tokens(3, 4, 17)
    together = model(source, target_in)
    for b in range(3):
        alone = source[b : b + 1, source[b] != PAD]
        torch.testing.assert_close(
            model(alone, target_in[b : b + 1])[0], together[b], rtol=0, atol=1e-10
        )


@every_kind
def test_what_follows_in_the_target_changes_nothing(kind: str) -> None:
    model = build(kind)
    source, target_in = source_batch(), tokens(3, 8, 17)
    other = target_in.clone()
    other[:, 5:] = PAD
    torch.testing.assert_close(
        model(source, other)[:, :5], model(source, target_in)[:, :5], rtol=0, atol=1e-10
    )


@every_kind
def test_the_state_follows_its_row(kind: str) -> None:
    model = build(kind)
    source, target_in = source_batch(), tokens(3, 7, 17)
    rows = torch.tensor([2, 0, 0, 1, 2])
    with torch.inference_mode():
        whole = model(source, target_in)
        state = model.start(model.encode(source), 7)
        _, state = model.step(target_in[:, :4], state)
        logits, _ = model.step(target_in[rows, 4:], reorder(state, rows))
    torch.testing.assert_close(logits, whole[rows, 4:], rtol=0, atol=1e-10)


@every_kind
def test_every_parameter_gets_a_gradient(kind: str) -> None:
    model = build(kind, dropout=0.0, pre_norm=True).train()
    model(source_batch(), tokens(3, 7, 17)).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0.0, name


def test_stepping_in_training_mode_is_refused() -> None:
    model = build("dynamicconv").train()
    memory = model.encode(source_batch())
    with pytest.raises(ValueError, match=r"call eval\(\)"):
        model.start(memory, 5)


def test_dropout_acts_in_training_only() -> None:
    model = build("dynamicconv", dropout=0.5)
    source, target_in = source_batch(), tokens(3, 4, 17)
    assert torch.equal(model(source, target_in), model(source, target_in))
    model.train()
    assert not torch.equal(model(source, target_in), model(source, target_in))


@pytest.mark.parametrize("share, matrices", [("none", 3), ("decoder", 2), ("all", 1)])
def test_shared_embeddings_are_one_matrix(share: str, matrices: int) -> None:
    model = build("conv", source_vocab=17, share_embeddings=share)
    places = (model.source_embedding, model.target_embedding, model.output)
    assert len({id(place.weight) for place in places}) == matrices
    assert sum(p.shape == (17, 8) for p in model.parameters()) == matrices


# --- the exact numbers of parameters --------------------------------------------------------------

ENCODER_KERNELS = (3, 7, 15, 31, 31, 31, 31)
DECODER_KERNELS = ENCODER_KERNELS[:6]


def convolutions(
    config: type[LightConvConfig] | type[DynamicConvConfig],
    kernels: tuple[int, ...],
    *,
    heads: int,
    glu: bool = False,
) -> tuple[MixerConfig, ...]:
    return tuple(config(kernel=kernel, heads=heads, glu=glu) for kernel in kernels)


def iwslt(encoder: tuple[MixerConfig, ...], decoder: tuple[MixerConfig, ...]) -> Seq2SeqConfig:
    return Seq2SeqConfig(
        dim=512,
        ffn_dim=1024,
        source_heads=4,
        encoder=encoder,
        decoder=decoder,
        source_vocab=8848,
        target_vocab=6632,
    )


def wmt(encoder: tuple[MixerConfig, ...], decoder: tuple[MixerConfig, ...]) -> Seq2SeqConfig:
    return Seq2SeqConfig(
        dim=1024,
        ffn_dim=4096,
        source_heads=16,
        encoder=encoder,
        decoder=decoder,
        source_vocab=32768,
        target_vocab=32768,
        share_embeddings="all",
    )


SIZES = {
    "iwslt-attention": (
        iwslt((AttentionConfig(heads=4),) * 6, (AttentionConfig(heads=4),) * 6),
        42_864_640,
    ),
    "iwslt-lightconv": (
        iwslt(
            convolutions(LightConvConfig, ENCODER_KERNELS, heads=4),
            convolutions(LightConvConfig, DECODER_KERNELS, heads=4),
        ),
        38_139_436,
    ),
    "iwslt-dynamicconv": (
        iwslt(
            convolutions(DynamicConvConfig, ENCODER_KERNELS, heads=4),
            convolutions(DynamicConvConfig, DECODER_KERNELS, heads=4),
        ),
        38_685_184,
    ),
    "wmt-attention": (
        wmt((AttentionConfig(heads=16),) * 6, (AttentionConfig(heads=16),) * 6),
        209_911_808,
    ),
    "wmt-lightconv": (
        wmt(
            convolutions(LightConvConfig, ENCODER_KERNELS, heads=16, glu=True),
            convolutions(LightConvConfig, DECODER_KERNELS, heads=16),
        ),
        202_569_904,
    ),
    "wmt-dynamicconv": (
        wmt(
            convolutions(DynamicConvConfig, ENCODER_KERNELS, heads=16, glu=True),
            convolutions(DynamicConvConfig, DECODER_KERNELS, heads=16, glu=True),
        ),
        213_237_760,
    ),
    "wmt-conv": (wmt((ConvConfig(kernel=3),) * 7, (ConvConfig(kernel=3),) * 6), 208_823_296),
    "wmt-average": (
        wmt((AverageConfig(ffn_dim=4096),) * 6, (AverageConfig(ffn_dim=4096),) * 6),
        310_611_968,
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameter_counts_are_exact(name: str) -> None:
    config, expected = SIZES[name]
    with torch.device("meta"):
        model = Seq2Seq(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
