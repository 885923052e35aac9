"""From text to token batches; nothing here knows a model."""

from typing import TYPE_CHECKING

from lightconv.data.config import (
    BPEConfig,
    BytesConfig,
    FilterConfig,
    PipelineConfig,
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
    from lightconv.data.batches import Batch, Batches
    from lightconv.data.corpus import Corpus
    from lightconv.data.examples import Blocks, Pairs, Sentences
    from lightconv.data.loader import Loader
    from lightconv.data.origin import PrepareConfig
    from lightconv.data.pipeline import Pipeline
    from lightconv.data.plan import BatchPlan, Position
    from lightconv.data.prepared import Prepared
    from lightconv.data.store import Store, StoreWriter
    from lightconv.data.synthetic import TASKS, Synthetic

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "SPECIALS",
    "TASKS",
    "UNK",
    "BPEConfig",
    "Batch",
    "BatchPlan",
    "Batches",
    "Blocks",
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
    "Synthetic",
    "TaskConfig",
    "Vocabularies",
    "Vocabulary",
    "WordsConfig",
    "load_vocabularies",
]

__getattr__ = lazy(
    __name__,
    {
        "batches": ["Batch", "Batches"],
        "corpus": ["Corpus"],
        "examples": ["Blocks", "Pairs", "Sentences"],
        "loader": ["Loader"],
        "origin": ["PrepareConfig"],
        "pipeline": ["Pipeline"],
        "plan": ["BatchPlan", "Position"],
        "prepared": ["Prepared"],
        "store": ["Store", "StoreWriter"],
        "synthetic": ["TASKS", "Synthetic"],
    },
)
