"""Loaded models: a model, its folder and its text pipeline.

model = lightconv.load("my-model")
model.translate(["Guten Morgen."])              # a list of texts
for answer in model.answers(lines, beam=4):     # an iterator, for streams of any length
    print(answer.text, answer.outputs[0].score)
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from lightconv.data.config import BPEConfig, PipelineConfig, SideConfig, WordsConfig
from lightconv.data.pipeline import PIPELINE_FILE, PIPELINE_FILES, Pipeline
from lightconv.data.subword import CONTINUES, PAIR_CODES, SHARED_CODES
from lightconv.data.vocabulary import PAD, load_vocabularies
from lightconv.decode.answer import Answer, join_sentences
from lightconv.decode.backend import Backend, Model, choose_backend
from lightconv.decode.engine import Engine
from lightconv.decode.options import Options, find_model, read_decode
from lightconv.decode.score import ScoredText, Scorer, align
from lightconv.decode.search import ModelSearch
from lightconv.decode.shortlist import Shortlist
from lightconv.decode.stream import TextStream
from lightconv.decode.translator import Translator
from lightconv.interop.hub import find_folder
from lightconv.models import ModelConfig, Seq2Seq
from lightconv.models.folder import ModelFolder

# Language of a text whose language is not known.
UNKNOWN = "und"


class TextModel:
    """A model, its folder and the methods for text.

    Attributes and calls that are not defined here are those of `model`. Options are fields of
    `DecodeConfig` and `TextOptions`; with `sample=True`, outputs are drawn at random, and fields of
    `SampleConfig` are options too. `ensemble` are other loaded models of the same vocabulary, the
    mean of whose probabilities is searched. `draft` is the path of a faster one for greedy search.
    """

    def __init__(self, folder: ModelFolder, model: Model) -> None:
        self.model = model
        self.folder = folder.path
        self.pairs = folder.pairs
        self.tables = folder.tables
        # Backends by options, and the parameters they were made for.
        self._backends: tuple[list[Any], dict[Any, Backend]] = [], {}
        self._drafts: dict[str, TextModel] = {}

    def __getstate__(self) -> dict[str, Any]:
        """State for copy and pickle; a backend holds addresses and is made anew."""
        return self.__dict__ | {"_backends": ([], {})}

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(*inputs)
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)

    def train(self, mode: bool = True) -> Self:
        self.model.train(mode)
        return self

    def eval(self) -> Self:
        return self.train(False)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        self.model.to(*args, **kwargs)
        return self

    @cached_property
    def pipeline(self) -> Pipeline:
        """From text to ids and back; read when first needed."""
        return load_pipeline(self.folder, self.model.config)

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
        """Each prompt with its continuation; an empty one begins a text."""
        self._require(pairs=False, method="generate")
        options = {"answer_empty": True} | options
        return [answer.text for answer in self.answers(prompts, **options)]

    def answers(
        self,
        texts: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        sample: bool = False,
        ensemble: "Sequence[TextModel]" = (),
        **options: Any,
    ) -> Iterator[Answer]:
        """The answer of each text, in their order.

        `texts` may be endless: they are taken a window at a time. `prefixes` are words that the
        output of each begins with.
        """
        if prefixes is not None:
            self._require(pairs=True, method="begin outputs with prefixes")
        chosen = self.options(options, sample=sample)
        return self.build_translator(chosen, ensemble).answers(texts, prefixes)

    def stream(
        self,
        *,
        sample: bool = False,
        ensemble: "Sequence[TextModel]" = (),
        warn: Callable[[str], None] = warnings.warn,
        **options: Any,
    ) -> TextStream:
        """Texts that join a running batch one by one, with an answer or an error each."""
        chosen = self.options(options, sample=sample)
        return TextStream(self.build_translator(chosen, ensemble, warn=warn))

    def options(self, values: dict[str, Any], *, sample: bool = False) -> Options:
        """Options by name, over the search of the folder."""
        decode = read_decode(self.folder, self.tables, self.model.config)
        values = values | {name: str(values[name]) for name in ("draft",) if name in values}
        return Options.of(decode, values, pairs=self.pairs, sample=sample)

    def build_translator(
        self,
        options: Options,
        ensemble: "Sequence[TextModel]" = (),
        *,
        tell: Callable[[str], None] = lambda text: None,
        **hooks: Any,
    ) -> Translator:
        """A translator; `tell` as of `choose_backend`, hooks `warn` and `show` of `Translator`."""
        models = [self.model, *_check_others(self, ensemble)]
        draft = self._find_draft(options, tell)
        if draft is not None and ensemble:
            raise ValueError("draft is for one model, got an ensemble. Omit one of them")
        if options.text.alignments:
            if not self.pairs:
                raise ValueError(
                    "alignments are for sources and targets, but this is a language model"
                )
            hooks["align"] = partial(align, [each for each in models if isinstance(each, Seq2Seq)])
        search = ModelSearch(self._find_backend(models, options, tell), options, draft)
        return Translator(search, self.pipeline, options.text, continues=not self.pairs, **hooks)

    def _find_backend(
        self, models: Sequence[Model], options: Options, tell: Callable[[str], None]
    ) -> Backend:
        """The backend of those options, as long as no parameter has changed."""
        versions = [
            (each.data_ptr(), each._version) for model in models for each in model.parameters()
        ]
        text, coverage = options.text, options.decode.coverage
        key = (text.engine, text.quantize, text.shortlist, coverage > 0.0, len(models))
        known = self._backends  # in one assignment: another thread sees the old ones or the new
        if known[0] != versions:
            known = self._backends = versions, {}
        if key not in known[1]:
            shortlist = Shortlist.read(self.folder) if text.shortlist else None
            known[1][key] = choose_backend(models, options, shortlist=shortlist, tell=tell)
        return known[1][key]

    def _find_draft(self, options: Options, tell: Callable[[str], None]) -> Engine | None:
        """The engine of the draft, in int8: its rounding changes no output."""
        path = options.text.draft
        if not path:
            return None
        if path not in self._drafts:
            self._drafts[path] = load(path)
        (model,) = _check_others(self, [self._drafts[path]], "draft")
        own = replace(options, text=replace(options.text, quantize="int8"))
        found = self._drafts[path]._find_backend([model], own, tell)
        assert isinstance(found, Engine)  # since `own.text.asked`
        return found

    def score(
        self, texts: Sequence[str], targets: Sequence[str] | None = None, **options: Any
    ) -> list[ScoredText]:
        """The log-probability of each text, or of each target given its source."""
        if self.pairs != (targets is not None):
            wanted = "sources, targets" if self.pairs else "texts"
            raise ValueError(f"{self.folder} scores {wanted}, expected score({wanted})")
        chosen = self.options(options)
        scorer = Scorer(self.model, self.pipeline, chosen.decode, chosen.text)
        return scorer.score(texts) if targets is None else scorer.score(texts, targets)

    def _require(self, *, pairs: bool, method: str) -> None:
        if self.pairs != pairs:
            other = "translate or summarize" if self.pairs else "generate"
            raise ValueError(f"{self.folder} cannot {method}, expected {other} of such a model")


def load(
    folder: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> TextModel:
    """The model of a folder, a run or `user/name` of a hub, to evaluate, with methods for text."""
    found = find_model(find_folder(folder))
    return TextModel(found, found.load(device, dtype))


def load_pipeline(folder: Path, model: ModelConfig) -> Pipeline:
    """The text pipeline of a model folder; ValueError if it has none, or one of another model."""
    found = _read_pipeline(folder, len(model.stacks))
    got = len(found.config.sides), *found.vocabularies().sizes(), PAD
    wanted = len(model.stacks), *model.vocab_sizes, model.pad
    if got != wanted:
        what = "its vocabulary has (sides, source and target tokens, id of padding)"
        raise ValueError(f"{folder}: {what} {got}, expected {wanted} by its config.json")
    return found


def _read_pipeline(folder: Path, sides: int) -> Pipeline:
    """The pipeline in the files of a folder.

    An imported model has vocabularies and perhaps codes: its texts are words with spaces between
    them. Without codes, texts must be split already if the vocabulary has continuation marks.
    """
    if (folder / PIPELINE_FILE).exists():
        return Pipeline.load(folder)
    try:
        vocabularies = load_vocabularies(folder)
    except ValueError as error:
        raise ValueError(
            f"{error}. Without it the model reads ids only; `lightconv train` and `lightconv "
            "import` keep it"
        ) from None
    codes = any((folder / name).exists() for name in (SHARED_CODES, *PAIR_CODES))
    config = PipelineConfig(
        sides=(SideConfig(lang=UNKNOWN),) * sides,
        subword=BPEConfig(merges=sum(map(len, vocabularies))) if codes else WordsConfig(),
    )
    marked = not codes and any(
        token.endswith(CONTINUES) for each in vocabularies for token in each.tokens
    )
    return (MarkedPipeline if marked else Pipeline).load(folder, config)


class MarkedPipeline(Pipeline):
    """Pipeline of texts that were split by codes that are lost: `un@@ believ@@ able`."""

    def decode_words(self, side: int, ids: Iterable[int]) -> str:
        text = super().decode_words(side, ids)
        return f"{text} ".replace(f"{CONTINUES} ", "").removesuffix(" ")


def _check_others(
    first: TextModel, ensemble: Sequence[TextModel], use: str = "ensemble"
) -> list[Model]:
    """The other models of an ensemble; ValueError unless all read and write the same tokens."""
    if isinstance(ensemble, TextModel | nn.Module | str | Path):
        raise ValueError("ensemble is one model, expected a list of models. Put it into brackets")
    for place, other in enumerate(ensemble):
        if not isinstance(other, TextModel):
            kind = type(other).__name__
            raise ValueError(f"ensemble[{place}] is {kind}, expected what lightconv.load returns")
        if other.pairs != first.pairs:
            raise ValueError(f"{use}[{place}] is another kind of model than {first.folder}")
        for name in PIPELINE_FILES:
            paths = [first.folder / name, other.folder / name]
            ours, theirs = (path.read_bytes() if path.exists() else None for path in paths)
            if ours != theirs:
                raise ValueError(
                    f"{use} ({other.folder}): its {name} is not that of {first.folder}, "
                    "expected the same. Train both on the same prepared data"
                )
    return [other.model for other in ensemble]
