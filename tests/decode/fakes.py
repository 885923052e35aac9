"""A pipeline of five words, and searches that need no model."""

from collections.abc import Sequence

import torch

from lightconv.data import EOS
from lightconv.data.config import PipelineConfig, SideConfig, WordsConfig
from lightconv.data.pipeline import Pipeline
from lightconv.data.vocabulary import Vocabularies, Vocabulary
from lightconv.decode.beam import Hypothesis
from lightconv.models import AdaptiveConfig, DynamicConvConfig, LanguageModel, LanguageModelConfig

WORDS = ("a", "b", "c", "d", ".")


def words_pipeline(sides: int = 2, lang: str = "en") -> Pipeline:
    """a is 4, b 5, c 6, d 7 and the full stop 8, on all sides."""
    vocabulary = Vocabulary.of(WORDS)
    config = PipelineConfig(sides=(SideConfig(lang=lang),) * sides, subword=WordsConfig())
    return Pipeline(config, [], Vocabularies(vocabulary, vocabulary))


# The engine does not support an output in bands.
BANDS = AdaptiveConfig(cutoffs=(6,), factor=2)


def words_model(bands: AdaptiveConfig | None = None) -> LanguageModel:
    """A language model of the five words, untrained."""
    torch.manual_seed(0)
    layers = (DynamicConvConfig(kernel=3, heads=2),)
    config = LanguageModelConfig(dim=8, ffn_dim=8, layers=layers, vocab=9, adaptive=bands)
    return LanguageModel(config).eval()


class Reverse:
    """Says every source backwards, after its prefix; the second best output is the source."""

    def __init__(self) -> None:
        self.batches: list[list[list[int]]] = []
        self.numbers: list[list[int]] = []

    def __call__(
        self,
        sources: Sequence[Sequence[int]],
        numbers: Sequence[int],
        prefixes: Sequence[Sequence[int]] | None = None,
        /,
    ) -> list[list[Hypothesis]]:
        self.batches.append([list(source) for source in sources])
        self.numbers.append(list(numbers))
        return [
            [
                Hypothesis(
                    [*prefix, *reversed(source), EOS],
                    -float(len(source)),
                    [-1.0] * (len(prefix) + len(source) + 1),
                ),
                Hypothesis([*source, EOS], -9.0, [-3.0] * (len(source) + 1)),
            ]
            for source, prefix in zip(sources, prefixes or [()] * len(sources), strict=True)
        ]
