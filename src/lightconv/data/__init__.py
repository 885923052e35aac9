"""From text to batches of tokens; free of models."""

from typing import TYPE_CHECKING

from lightconv.data.config import (
    BPEConfig,
    BytesConfig,
    FilterConfig,
    PipelineConfig,
    PrepareConfig,
    SideConfig,
    TaskConfig,
    WordsConfig,
)
from lightconv.data.vocabulary import (
    BOS,
    EOS,
    PAD,
    SPECIALS,
    UNK,
    Vocabularies,
    Vocabulary,
    load_vocabularies,
)
from lightconv.lazy import lazy

if TYPE_CHECKING:
    from lightconv.data.batches import Batch, Batches, BatchPlan, Pairs, Position, Sentences
    from lightconv.data.loader import Loader
    from lightconv.data.pipeline import Pipeline
    from lightconv.data.prepared import Prepared
    from lightconv.data.store import Store, StoreWriter
    from lightconv.data.text import Corpus

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "SPECIALS",
    "UNK",
    "BPEConfig",
    "Batch",
    "BatchPlan",
    "Batches",
    "BytesConfig",
    "Corpus",
    "FilterConfig",
    "Loader",
    "Pairs",
    "Pipeline",
    "PipelineConfig",
    "Position",
    "PrepareConfig",
    "Prepared",
    "Sentences",
    "SideConfig",
    "Store",
    "StoreWriter",
    "TaskConfig",
    "Vocabularies",
    "Vocabulary",
    "WordsConfig",
    "load_vocabularies",
]

__getattr__ = lazy(
    __name__,
    {
        "batches": ["Batch", "BatchPlan", "Batches", "Pairs", "Position", "Sentences"],
        "loader": ["Loader"],
        "pipeline": ["Pipeline"],
        "prepared": ["Prepared"],
        "store": ["Store", "StoreWriter"],
        "text": ["Corpus"],
    },
)
