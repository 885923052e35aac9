"""A corpus: texts by split, with the steps and filters that prepare them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lightconv.data.config import FilterConfig, PipelineConfig, TaskConfig

# One text for each side: (source, target), or (text,) for language modelling.
Example = tuple[str, ...]
Reader = Callable[[], Iterator[Example]]

SPLITS = ("train", "valid", "test")
# A word between the sentences of a summary; measures split there.
SENTENCE_BREAK = "¶"


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Input of `prepare`; each reader starts from the beginning when called."""

    task: TaskConfig
    splits: Mapping[str, Reader]
    pipeline: PipelineConfig
    filters: FilterConfig = field(default_factory=FilterConfig)
    # The owners have normalised and tokenised the texts as the pipeline would.
    tokenized: bool = False
    # The owners' file of BPE codes for both sides, instead of learned codes.
    codes: Path | None = None
    # Approximate numbers of examples, where they are known before reading.
    examples: Mapping[str, int] = field(default_factory=dict)
    # Inputs, for the record: file or index -> SHA-256.
    digests: Mapping[str, str] = field(default_factory=dict)
