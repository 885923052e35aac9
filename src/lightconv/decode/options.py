"""Decoding options as plain values, read without torch.

`Options.of` builds them from keywords; the command line and Python use the same names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args, get_type_hints

from lightconv.config import check_counts, check_from_zero, check_positive, from_dict, to_dict
from lightconv.models.config import ModelConfig
from lightconv.models.folder import CONFIG_FILE, RUN_CHECKPOINTS, RUN_MODEL, ModelFolder

EngineName = Literal["auto", "native", "torch"]
Quantization = Literal["none", "int8", "bf16"]

LONGEST = 1 << 20  # tokens of an output
# Bounds of the search of a folder, which decides about the time and memory of its reader: steps of
# layers for a text of `SOURCE` tokens, candidates that are sorted, numbers that states hold, and
# those that all steps read.
SOURCE, STEPS, SORTED, HELD, READ = 128, 1 << 14, 1 << 21, 1 << 26, 1 << 35


def _check_literals(config: object) -> None:
    for name, hint in get_type_hints(type(config)).items():
        known, value = get_args(hint), getattr(config, name)
        if known and value not in known:
            raise ValueError(f"{name}={value!r} must be one of {', '.join(known)}")


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Beam search; lengths count EOS."""

    beam: int = 5
    length_penalty: Literal["power", "stepwise"] = "power"  # "stepwise": Wu et al. (2016)
    alpha: float = 1.0  # exponent of the length penalty
    coverage: float = 0.0  # weight of Wu et al.'s coverage penalty; 0 turns it off
    min_len: int = 1  # at least this, and min_len_ratio * source length, tokens
    min_len_ratio: float = 0.0
    max_len_ratio: float = 0.0  # at most this * source length + max_len_plus tokens
    max_len_plus: int = 200
    block_ngrams: int = 0  # no n-gram of this length occurs twice; 0 allows any
    allow_unknown: bool = True  # whether the token for unknown words may be in an output

    def __post_init__(self) -> None:
        _check_literals(self)
        check_counts(self, "beam", most=1000)
        check_counts(self, "min_len", most=LONGEST)
        check_from_zero(self, "max_len_plus", most=LONGEST)
        check_from_zero(
            self, "coverage", "min_len_ratio", "max_len_ratio", "block_ngrams", most=100
        )
        check_from_zero(self, "alpha", most=10)
        # With a ratio the limit depends on the source, so only the search can check it.
        if self.max_len_ratio == 0.0 and self.min_len > self.max_len_plus:
            raise ValueError(
                f"min_len={self.min_len} must not be above max_len_plus={self.max_len_plus}"
            )


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """Outputs drawn at random instead of a search."""

    temperature: float = 1.0
    top_k: int = 0  # only the most probable words may be drawn; 0 means all
    top_p: float = 1.0  # of these, the most probable that together have this probability
    seed: int = 0  # the draws of a text depend on this and on the number of the text

    def __post_init__(self) -> None:
        check_positive(self, "temperature", most=1e6)
        check_from_zero(self, "top_k")
        check_from_zero(self, "seed", most=(1 << 63) - 1)
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p={self.top_p} must be in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Batches, windows, long texts, and the backend."""

    n_best: int = 1  # outputs of each text, best first
    max_tokens: int = 4096  # of a batch: sentences times the longest of them
    max_sentences: int = 64  # of a batch
    max_source: int = 1024  # tokens of a source
    # A longer source is answered in parts, or only its start or end is read.
    too_long: Literal["parts", "start", "end"] = "parts"
    strict: bool = False  # whether a longer source is an error
    window: int = 1024  # texts of a stream that are sorted by length and answered together
    answer_empty: bool = False  # whether an empty text is answered too
    alignments: bool = False  # whether outputs have the source token of each of their tokens
    subwords: bool = False  # whether outputs are left as subwords, a space between them
    engine: EngineName = "auto"  # "native": C++; "torch": PyTorch; "auto": the first that can
    quantize: Quantization = "none"  # whether the engine's linear layers compute in 8 or 16 bits
    shortlist: bool = False  # whether outputs have only words of the model folder's shortlist
    draft: str = (
        ""  # a faster model of the same vocabulary: it proposes words, outputs are the same
    )

    def __post_init__(self) -> None:
        _check_literals(self)
        check_counts(self, "n_best", "max_tokens", "max_sentences", "max_source", "window")
        if self.asked and self.engine == "torch":
            raise ValueError(f"{self.asked} needs the C++ engine, got engine='torch'")

    @property
    def asked(self) -> str:
        """The option that needs the C++ engine, or nothing."""
        asked = ["shortlist"] * self.shortlist
        asked += [f"quantize={self.quantize!r}"] * (self.quantize != "none")
        asked += ["engine='native'"] * (self.engine == "native")
        return ["", *asked, *[f"draft={self.draft!r}"] * bool(self.draft)][-1]


# Fields of all three, by which options are known.
NAMES = [each.name for one in (DecodeConfig, TextOptions, SampleConfig) for each in fields(one)]


@dataclass(frozen=True, kw_only=True)
class Options:
    """All options of decoding; `sampling` None means beam search."""

    decode: DecodeConfig = field(default_factory=DecodeConfig)
    text: TextOptions = field(default_factory=TextOptions)
    sampling: SampleConfig | None = None

    def __post_init__(self) -> None:
        if self.decode.coverage > 0.0 and self.text.asked:
            raise ValueError(
                f"coverage={self.decode.coverage:g} runs in torch only, got {self.text.asked}. "
                "Omit one of them"
            )
        n_best, beam = self.text.n_best, self.decode.beam
        if self.text.draft and (beam > 1 or self.sampling is not None or self.text.shortlist):
            got = "sample" if self.sampling is not None else f"beam={beam}"
            got = "shortlist" if self.text.shortlist else got
            raise ValueError(
                f"draft={self.text.draft!r} is for greedy search among all words, got {got}. Use "
                "--beam 1 alone, or omit --draft"
            )
        if self.sampling is None and n_best > beam:
            raise ValueError(
                f"n_best={n_best} must not be above beam={beam}. Use --beam {n_best}, or fewer "
                "outputs"
            )

    @classmethod
    def of(
        cls, decode: DecodeConfig, values: Mapping[str, Any], *, pairs: bool, sample: bool = False
    ) -> Self:
        """Options from fields by name; those of the search that are not named are of `decode`.

        Of a text that is too long, a language model (not `pairs`) reads the end.
        """
        text = {"too_long": "parts" if pairs else "end"} | _take(TextOptions, values)
        drawn = _take(SampleConfig, values)
        if drawn and not sample:
            raise ValueError(
                f"{next(iter(drawn))} is for random outputs, expected sample (--sample)"
            )
        rest = {name: value for name, value in values.items() if name not in (text | drawn)}
        return cls(
            decode=_covered(from_dict(DecodeConfig, to_dict(decode) | rest), pairs=pairs),
            text=from_dict(TextOptions, text),
            sampling=from_dict(SampleConfig, drawn) if sample else None,
        )


def _take(config: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: values[each.name] for each in fields(config) if each.name in values}


def _covered(decode: DecodeConfig, *, pairs: bool) -> DecodeConfig:
    if decode.coverage > 0.0 and not pairs:
        raise ValueError(f"coverage={decode.coverage:g} needs a source, a language model has none")
    return decode


def read_decode(folder: Path, tables: Mapping[str, Any], model: ModelConfig) -> DecodeConfig:
    """The search of a model folder or a run: the `decode` table of its configuration."""
    try:
        found: DecodeConfig = from_dict(DecodeConfig, tables.get("decode", {}), "decode")
        *source, layers = model.stacks.values()
        _covered(found, pairs=bool(source))
        length, beam = found.max_len_ratio * SOURCE + found.max_len_plus, found.beam
        # Keys and values, or the input of a kernel.
        held = beam * model.dim * 2 * sum(each.held or length for each in layers)
        steps = (len(layers) + 4) * length
        absurd = steps > STEPS or beam**2 * length > SORTED or held > HELD or held * length > READ
        if absurd:
            raise ValueError(
                f"decode: beam={beam} and {length:g} tokens for a text of {SOURCE} take minutes or "
                f"gigabytes in {len(layers)} layers of {model.dim}, expected a smaller beam or "
                "shorter outputs. Edit the file if you trust it"
            )
        return found
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None


def find_model(path: str | Path) -> ModelFolder:
    """The model folder at a path, that of a run, or a checkpoint of a run that has not ended."""
    path = Path(path)
    checkpoints = path / RUN_CHECKPOINTS
    if checkpoints.is_dir() and not (path / RUN_MODEL / CONFIG_FILE).is_file():
        from lightconv.train.run import Run, RunModel

        if Run.open(path).checkpoints().steps():
            return RunModel(path)
    return ModelFolder(path)
