"""Token batches; nothing here knows a model."""

from typing import TYPE_CHECKING

from lightconv.data.config import TaskConfig
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
    from lightconv.data.examples import Blocks, Pairs, Sentences
    from lightconv.data.loader import Loader
    from lightconv.data.manifest import verify_manifest, write_manifest
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
    "Batch",
    "BatchPlan",
    "Batches",
    "Blocks",
    "Loader",
    "Pairs",
    "Pipeline",
    "Position",
    "Prepared",
    "Sentences",
    "Store",
    "StoreWriter",
    "Synthetic",
    "TaskConfig",
    "Vocabularies",
    "Vocabulary",
    "load_vocabularies",
    "verify_manifest",
    "write_manifest",
]

__getattr__ = lazy(
    __name__,
    {
        "batches": ["Batch", "Batches"],
        "examples": ["Blocks", "Pairs", "Sentences"],
        "loader": ["Loader"],
        "manifest": ["verify_manifest", "write_manifest"],
        "pipeline": ["Pipeline"],
        "plan": ["BatchPlan", "Position"],
        "prepared": ["Prepared"],
        "store": ["Store", "StoreWriter"],
        "synthetic": ["TASKS", "Synthetic"],
    },
)
