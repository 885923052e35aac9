"""A corpus: text by split, read anew as often as one likes, and how to prepare it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lightconv.data.config import FilterConfig, PipelineConfig, TaskConfig

# One text for each side: (source, target), or (text,) for language modelling.
Example = tuple[str, ...]
Reader = Callable[[], Iterator[Example]]

SPLITS = ("train", "valid", "test")
# Stands between the sentences of a summary, as a word of its own: what measures take apart.
SENTENCE_BREAK = "¶"


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What `lightconv prepare` needs; each reader begins at the beginning when called."""

    task: TaskConfig
    splits: Mapping[str, Reader]
    pipeline: PipelineConfig
    filters: FilterConfig = field(default_factory=FilterConfig)
    # Whether the owners have normalised and tokenised the texts as the pipeline would.
    tokenized: bool = False
    # The owners' file of BPE codes, for both sides, in place of codes that are learned.
    codes: Path | None = None
    # About how many examples a split has, where that is known before it is read.
    examples: Mapping[str, int] = field(default_factory=dict)
    # What was read, for the record: file or index -> SHA-256.
    digests: Mapping[str, str] = field(default_factory=dict)
