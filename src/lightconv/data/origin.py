"""What decides how a corpus is prepared, and so what a prepared folder is: plain values."""

from dataclasses import dataclass, field
from hashlib import file_digest

from lightconv import __version__
from lightconv.data.config import FilterConfig, PipelineConfig, TaskConfig
from lightconv.data.corpus import Corpus


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """What `lightconv prepare --set` can change."""

    pipeline: PipelineConfig
    filters: FilterConfig


@dataclass(frozen=True, kw_only=True)
class Origin:
    """From what a prepared folder was made: with the same origin it is the same."""

    task: TaskConfig
    pipeline: PipelineConfig
    filters: FilterConfig
    # Whether the texts came normalised and tokenised as the pipeline would do it.
    tokenized: bool = False
    # SHA-256 of the owners' file of codes.
    codes: str | None = None
    # What was read: file or index -> SHA-256.
    inputs: dict[str, str] = field(default_factory=dict)
    # The version that prepared it.
    lightconv: str = __version__


def find_origin(corpus: Corpus, config: PrepareConfig) -> Origin:
    """The origin of a corpus that is prepared so."""
    return Origin(
        task=corpus.task,
        pipeline=config.pipeline,
        filters=config.filters,
        tokenized=corpus.tokenized,
        codes=_codes_digest(corpus, config),
        inputs=dict(corpus.digests),
    )


def _codes_digest(corpus: Corpus, config: PrepareConfig) -> str | None:
    # Who sets other subwords wants codes to be learned.
    if corpus.codes is None or config.pipeline.subword != corpus.pipeline.subword:
        return None
    with corpus.codes.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
