"""What `lightconv.load` returns: a model that also takes text.

    model = lightconv.load("my-model")
    model.translate(["Guten Morgen."])              # a list of texts
    for answer in model.answers(lines, beam=4):     # an iterator, for streams of any length
        print(answer.text, answer.outputs[0].score)

Models themselves know nothing but ids. These are subclasses that find the pipeline in the folder
they were loaded from, when a text is first given to them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lightconv.config import from_dict, to_dict
from lightconv.data.corpus import SENTENCE_BREAK
from lightconv.data.pipeline import Pipeline
from lightconv.decode.alignment import align
from lightconv.decode.answer import Answer
from lightconv.decode.config import DecodeConfig
from lightconv.decode.folder import check_ensemble, load_pipeline
from lightconv.decode.options import (
    FolderSettings,
    SampleConfig,
    TextOptions,
    check_n_best,
    find_model,
    read_settings,
)
from lightconv.decode.runner import Runner, choose_runners
from lightconv.decode.score.scorer import Scored, Scorer
from lightconv.decode.search import Finder, PairSearch, PromptSearch
from lightconv.decode.translator import Translator, check_texts
from lightconv.models import LanguageModel, ModelConfig, Seq2Seq, Seq2SeqConfig
from lightconv.models import folder as model_folder

Model = Seq2Seq | LanguageModel

_TEXT_OPTIONS = tuple(field.name for field in fields(TextOptions))
_SAMPLE_OPTIONS = tuple(field.name for field in fields(SampleConfig))


class TextMethods:
    """Text methods of a loaded model.

    Options are fields of `DecodeConfig` and `TextOptions`; with `sample=True`, outputs are drawn at
    random, and those of `SampleConfig` are options too. `ensemble` are other models of the same
    words, the mean of whose probabilities is searched.
    """

    # Where it was loaded from.
    folder: Path
    _pipeline: Pipeline | None = None
    # The last one, and what it was made for.
    _runner: tuple[Any, Runner] | None = None

    @property
    def pipeline(self) -> Pipeline:
        """From text to ids and back."""
        if self._pipeline is None:
            self._pipeline = load_pipeline(self.folder)
        return self._pipeline

    def translate(self, texts: Sequence[str], **options: Any) -> list[str]:
        """The best output for each text."""
        self._require(pairs=True, method="translate")
        return [answer.text for answer in self.answers(texts, **options)]

    def summarize(self, texts: Sequence[str], **options: Any) -> list[str]:
        """The best summary of each text; of one that is too long, the start is read."""
        self._require(pairs=True, method="summarize")
        options = {"too_long": "start"} | options
        return [join_sentences(answer.text) for answer in self.answers(texts, **options)]

    def generate(self, prompts: Sequence[str], **options: Any) -> list[str]:
        """Each prompt with what follows it; an empty one begins a text."""
        self._require(pairs=False, method="generate")
        options = {"answer_empty": True} | options
        return [answer.text for answer in self.answers(prompts, **options)]

    def answers(
        self, texts: Iterable[str], *, prefixes: Iterable[str] | None = None, **options: Any
    ) -> Iterator[Answer]:
        """All about the outputs for each text, in their order.

        `texts` may be endless: they are taken a window at a time. `prefixes` are words that the
        output of each begins with.
        """
        if prefixes is not None:
            self._require(pairs=True, method="begin outputs with prefixes")
        return self.translator(**options).answers(texts, prefixes)

    def translator(
        self,
        *,
        sample: bool = False,
        ensemble: "Sequence[TextModel]" = (),
        **options: Any,
    ) -> Translator:
        """What answers texts with these options: `answers` makes one for each call."""
        names = _SAMPLE_OPTIONS if sample else ()
        drawn = {name: options.pop(name) for name in names if name in options}
        sampling: SampleConfig | None = from_dict(SampleConfig, drawn) if sample else None
        decode, text = split_options(read_settings(self.folder), options)
        models = [_model(self), *_others(self, ensemble)]
        runner = self._find_runner(models, text, decode)
        return build_translator(models, self.pipeline, decode, text, sampling, runner=runner)

    def _find_runner(
        self, models: Sequence[Model], text: TextOptions, decode: DecodeConfig
    ) -> Runner:
        """What steps the models: the last one as long as no parameter has changed since."""
        versions = tuple(
            (each.data_ptr(), each._version) for model in models for each in model.parameters()
        )
        key = (text.engine, text.quantize, decode.coverage > 0.0, versions)
        if self._runner is None or self._runner[0] != key:
            self._runner = key, choose_runners(models, text, decode)
        return self._runner[1]

    def score(
        self, texts: Sequence[str], targets: Sequence[str] | None = None, **options: Any
    ) -> list[Scored]:
        """The log-probability of each text, or of each target given its source."""
        settings = read_settings(self.folder)
        if settings.pairs != (targets is not None):
            wanted = "sources and targets" if settings.pairs else "texts alone"
            raise ValueError(f"{self.folder} scores {wanted}, expected score({_CALLS[wanted]})")
        decode, text = split_options(settings, options)
        sides = [list(check_texts(side)) for side in (texts, targets) if side is not None]
        if len({len(side) for side in sides}) > 1:
            raise ValueError(
                f"{len(sides[0])} sources and {len(sides[1])} targets, expected as many"
            )
        return Scorer(_model(self), self.pipeline, decode, text).score(*sides)

    def _require(self, *, pairs: bool, method: str) -> None:
        if isinstance(self, Seq2Seq) != pairs:
            other = "translate or summarize" if isinstance(self, Seq2Seq) else "generate"
            raise ValueError(f"{self.folder} cannot {method}, expected {other} of such a model")


_CALLS = {"sources and targets": "sources, targets", "texts alone": "texts"}


class TextSeq2Seq(TextMethods, Seq2Seq):
    """A `Seq2Seq` that takes text."""


class TextLanguageModel(TextMethods, LanguageModel):
    """A `LanguageModel` that takes text."""


TextModel = TextSeq2Seq | TextLanguageModel


def load(
    folder: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> TextModel:
    """The model in a folder, in evaluation mode, with methods for text.

    `lightconv.models.folder.load` says more; the text pipeline is read when it is first needed.
    """
    folder = find_model(folder)
    model = model_folder.load(folder, device, dtype, make=_make)
    assert isinstance(model, TextSeq2Seq | TextLanguageModel)
    model.folder = folder
    return model


def _make(config: ModelConfig) -> TextModel:
    return TextSeq2Seq(config) if isinstance(config, Seq2SeqConfig) else TextLanguageModel(config)


def build_translator(
    models: Sequence[Model],
    pipeline: Pipeline,
    decode: DecodeConfig,
    text: TextOptions,
    sampling: SampleConfig | None = None,
    *,
    runner: Runner | None = None,
    **hooks: Any,
) -> Translator:
    """The translator of models of either kind, which `runner` steps; hooks: `warn` and `show`."""
    if sampling is None:
        check_n_best(text.n_best, decode.beam)
    finder = Finder(decode, sampling, samples=text.n_best)
    pairs = [model for model in models if isinstance(model, Seq2Seq)]
    if pairs:
        if text.alignments:
            hooks["align"] = partial(align, pairs)
        return Translator(PairSearch(pairs[0], finder, runner), pipeline, text, **hooks)
    if text.alignments:
        raise ValueError("alignments are for sources and targets, but this is a language model")
    assert isinstance(models[0], LanguageModel)
    search = PromptSearch(models[0], finder, runner)
    return Translator(search, pipeline, text, continues=True, **hooks)


def split_options(
    settings: FolderSettings, options: dict[str, Any]
) -> tuple[DecodeConfig, TextOptions]:
    """Keywords as a search and text options, over what the model's folder says."""
    ours = {name: value for name, value in options.items() if name in _TEXT_OPTIONS}
    rest = {name: value for name, value in options.items() if name not in _TEXT_OPTIONS}
    decode: DecodeConfig = from_dict(DecodeConfig, to_dict(settings.decode) | rest)
    if not settings.pairs:
        ours = {"too_long": "end"} | ours
    text: TextOptions = from_dict(TextOptions, ours)
    return decode, text


def join_sentences(summary: str) -> str:
    """A summary without the marks between its sentences."""
    return " ".join(word for word in summary.split(" ") if word != SENTENCE_BREAK)


def _others(first: TextMethods, ensemble: Sequence[TextModel]) -> list[Model]:
    """The other models of an ensemble; ValueError unless they go with the first."""
    if isinstance(ensemble, torch.nn.Module | str | Path):
        raise ValueError("ensemble is one model, expected a list of models. Put it into brackets")
    for place, other in enumerate(ensemble):
        if not isinstance(other, TextMethods):
            kind = type(other).__name__
            raise ValueError(f"ensemble[{place}] is {kind}, expected what lightconv.load returns")
        if isinstance(other, Seq2Seq) != isinstance(first, Seq2Seq):
            raise ValueError(f"ensemble[{place}] is another kind of model than {first.folder}")
    if ensemble:
        check_ensemble([first.folder, *(other.folder for other in ensemble)])
    return [_model(other) for other in ensemble]


def _model(model: object) -> Model:
    assert isinstance(model, Seq2Seq | LanguageModel)
    return model
