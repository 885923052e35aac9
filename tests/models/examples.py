"""Small models of both families, and one way to run either."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
from torch import Tensor, nn

from lightconv.models import (
    AdaptiveConfig,
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    HyenaConfig,
    LanguageModel,
    LanguageModelConfig,
    LightConvConfig,
    LowRankConvConfig,
    MixerConfig,
    Seq2Seq,
    Seq2SeqConfig,
    ShortConvConfig,
)
from tests.mixers.examples import stream

M = TypeVar("M", bound=nn.Module)

PAD, EOS = 1, 2
SOURCE_VOCAB, VOCAB = 15, 17

# Two different layers of each kind; the widest kernel is longer than most lengths in the tests.
LAYERS: dict[str, tuple[MixerConfig, ...]] = {
    "attention": (AttentionConfig(heads=2), AttentionConfig(heads=4, window=3)),
    "conv": (ConvConfig(kernel=3), ConvConfig(kernel=2)),
    "lightconv": (LightConvConfig(kernel=3, heads=2), LightConvConfig(kernel=9, heads=4, glu=True)),
    "dynamicconv": (
        DynamicConvConfig(kernel=4, heads=2, glu=True),
        DynamicConvConfig(kernel=9, heads=4),
    ),
    "average": (AverageConfig(ffn_dim=12), AverageConfig(ffn_dim=8)),
    "lowrankconv": (LowRankConvConfig(kernel=3, rank=2), LowRankConvConfig(kernel=4, dilation=2)),
    "shortconv": (ShortConvConfig(kernel=3), ShortConvConfig(kernel=2, dilation=2)),
    "hyena": (HyenaConfig(kernel=5, heads=2), HyenaConfig(kernel=16, heads=4, short=2)),
}
MIXED = ("attention", "conv", "lightconv", "dynamicconv", "average")
LAYERS["mixed"] = (*(LAYERS[kind][0] for kind in MIXED), LAYERS["attention"][1])

# Words of the tests lie in all three bands.
ADAPTIVE = AdaptiveConfig(cutoffs=(6, 10), factor=2)

every_kind = pytest.mark.parametrize("kind", LAYERS)
either_output = pytest.mark.parametrize("adaptive", [None, ADAPTIVE], ids=["plain", "adaptive"])


SIZES = {"dim": 8, "ffn_dim": 12, "source_heads": 2}


def pair_config(encoder: Any, decoder: Any = None, **changes: Any) -> Seq2SeqConfig:
    """Width 8, the layers of the encoder on both sides unless told."""
    vocab = {"source_vocab": SOURCE_VOCAB, "target_vocab": VOCAB}
    layers = {"encoder": encoder, "decoder": decoder or encoder}
    return Seq2SeqConfig(**(SIZES | vocab | layers | changes))


def seq2seq(kind: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Seq2Seq:
    config = dataclasses.replace(pair_config(LAYERS[kind]), **changes)
    torch.manual_seed(0)
    return stir(Seq2Seq(config)).to(dtype).eval()


def language_model(kind: str, dtype: torch.dtype = torch.float64, **changes: Any) -> LanguageModel:
    config = LanguageModelConfig(dim=8, ffn_dim=12, layers=LAYERS[kind], vocab=VOCAB)
    torch.manual_seed(0)
    return stir(LanguageModel(dataclasses.replace(config, **changes))).to(dtype).eval()


def stir(model: M) -> M:
    """No parameter is zero or one any more, so that each of them matters."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tokens(B: int, T: int, vocab: int = VOCAB, seed: int = 0) -> Tensor:
    """Random words, no padding among them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab, (B, T), generator=generator)


def source_batch() -> Tensor:
    """[3, 6]: whole, padded on the right, padded on the left."""
    source = tokens(3, 6, SOURCE_VOCAB)
    source[1, 4:] = PAD
    source[2, :3] = PAD
    return source


class Run(NamedTuple):
    """Either model for a batch of three.

    whole     tokens [3, T] -> scores [3, T, V]
    features  tokens [3, T] -> [3, T, D]
    start     max_len -> state
    """

    model: Any
    whole: Callable[[Tensor], Tensor]
    features: Callable[[Tensor], Tensor]
    start: Callable[[int], Any]

    def stream(self, tokens: Tensor, sizes: list[int], state: Any = None) -> Tensor:
        """The scores of `tokens`, stepped in chunks of those sizes."""
        state = self.start(tokens.shape[1]) if state is None else state
        return stream(self.model.step, tokens, sizes, state)


def run_seq2seq(kind: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Run:
    model, source = seq2seq(kind, dtype, **changes), source_batch()
    return Run(
        model,
        lambda tokens: model(source, tokens),
        lambda tokens: model.features(source, tokens),
        lambda max_len: model.start(model.encode(source), max_len),
    )


def run_language_model(kind: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Run:
    model = language_model(kind, dtype, **changes)
    return Run(model, model, model.features, lambda max_len: model.start(3, max_len))


FAMILIES: dict[str, Callable[..., Run]] = {
    "seq2seq": run_seq2seq,
    "language_model": run_language_model,
}
every_family = pytest.mark.parametrize("family", FAMILIES)
