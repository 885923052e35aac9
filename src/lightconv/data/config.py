"""Configurations of tasks, text pipelines and filters; free of torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from lightconv.config import check_counts, check_from_zero, check_names

TaskKind = Literal["translation", "language_model", "summarization"]


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """A task and the name of its corpus."""

    kind: TaskKind
    corpus: str
    source_lang: str | None = None
    target_lang: str | None = None
    # The paper's measure: its name in `evaluate`.
    metric: str

    def __post_init__(self) -> None:
        check_names(self, "corpus", "source_lang", "target_lang", "metric")


@dataclass(frozen=True, kw_only=True)
class SideConfig:
    """Steps from the text of one side (source, target or text) to words; undone after decoding."""

    lang: str
    # "moses": punctuation as the Moses scripts normalise it.
    normalize: Literal["none", "moses"] = "none"
    # "moses": its tokeniser; "jieba": Chinese words; "none": the text stays whole.
    tokenize: Literal["none", "moses", "jieba"] = "none"
    # Moses's option -a: splits words at hyphens, which become "@-@".
    split_hyphens: bool = False
    lowercase: bool = False
    # Longer texts keep their first words; None keeps all.
    truncate: int | None = None

    def __post_init__(self) -> None:
        check_names(self, "lang")
        if self.truncate is not None:
            check_counts(self, "truncate")
        if self.split_hyphens and self.tokenize != "moses":
            raise ValueError(f"split_hyphens=true needs tokenize='moses', got '{self.tokenize}'")


@dataclass(frozen=True, kw_only=True)
class BytesConfig:
    """Byte-level BPE on untokenised text: restores any Unicode."""

    kind: ClassVar[str] = "bytes"
    # Includes the 4 special tokens and the 256 bytes.
    vocab: int = 8000
    # One code, and so one vocabulary, for both sides.
    joint: bool = True

    def __post_init__(self) -> None:
        if not self.vocab >= 260:
            raise ValueError(f"vocab={self.vocab} must be at least 260: 256 bytes, 4 specials")


@dataclass(frozen=True, kw_only=True)
class BPEConfig:
    """BPE of words; a token that the next one continues ends with `@@`, as in subword-nmt."""

    kind: ClassVar[str] = "bpe"
    merges: int
    # One code, learned from both sides together.
    joint: bool = True
    # One vocabulary too; else each side has the tokens of its own training text.
    share_vocab: bool = False
    # The most frequent tokens only, special ones not counted; None keeps all.
    most: int | None = None

    def __post_init__(self) -> None:
        check_counts(self, "merges", *(() if self.most is None else ("most",)))
        if self.share_vocab and not self.joint:
            raise ValueError("share_vocab=true needs joint=true, got false")


@dataclass(frozen=True, kw_only=True)
class WordsConfig:
    """Whole words by frequency; those rarer than `min_count` are unknown."""

    kind: ClassVar[str] = "words"
    min_count: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        check_counts(self, "min_count", *(() if self.most is None else ("most",)))


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """From text to ids and back: source and target, or one text."""

    sides: tuple[SideConfig, ...]
    subword: BytesConfig | BPEConfig | WordsConfig

    def __post_init__(self) -> None:
        if not 1 <= len(self.sides) <= 2:
            raise ValueError(f"sides must be one or two, got {len(self.sides)}")


@dataclass(frozen=True, kw_only=True)
class FilterConfig:
    """Filters by length; only training examples are filtered."""

    # Unit of lengths: tokens, or words before subwords.
    unit: Literal["tokens", "words"] = "tokens"
    # 0 keeps the empty lines of a text; a pair with an empty side is always left out.
    min_len: int = 1
    max_len: int | None = None
    # The longer side over the shorter.
    max_ratio: float | None = None

    def __post_init__(self) -> None:
        check_from_zero(self, "min_len")
        if self.max_len is not None:
            check_counts(self, "max_len")
            if self.min_len > self.max_len:
                raise ValueError(f"min_len={self.min_len} must not be above max_len={self.max_len}")
        if self.max_ratio is not None and not self.max_ratio >= 1.0:
            raise ValueError(f"max_ratio={self.max_ratio} must be at least 1")


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Settings that `lightconv prepare --set` can change."""

    pipeline: PipelineConfig
    filters: FilterConfig
