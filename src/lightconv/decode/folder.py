"""The text pipeline of a model folder, also of one that has only vocabularies and codes."""

from pathlib import Path

from lightconv.data.codes import PAIR_CODES, SHARED_CODES
from lightconv.data.config import BPEConfig, PipelineConfig, SideConfig, WordsConfig
from lightconv.data.pipeline import PIPELINE_FILE, Pipeline
from lightconv.data.vocabulary import load_vocabularies
from lightconv.decode.options import read_settings

# The language of a text nobody named.
UNKNOWN = "und"


def load_pipeline(folder: str | Path) -> Pipeline:
    """What turns text into the ids of this model; ValueError if the folder does not have it.

    An imported model has no steps, so its texts are words with spaces between them, as they were
    when it was trained; codes beside its vocabularies cut the words.
    """
    settings = read_settings(folder)
    folder = settings.folder
    if (folder / PIPELINE_FILE).exists():
        return Pipeline.load(folder)
    try:
        vocabularies = load_vocabularies(folder)
    except ValueError as error:
        raise ValueError(
            f"{error}. Without it the model reads ids only; `lightconv train` and `lightconv "
            "import` keep it"
        ) from None
    sides = 2 if settings.pairs else 1
    codes = any((folder / name).exists() for name in (SHARED_CODES, *PAIR_CODES))
    merges = sum(map(len, vocabularies))
    config = PipelineConfig(
        sides=(SideConfig(lang=UNKNOWN),) * sides,
        subword=BPEConfig(merges=merges) if codes else WordsConfig(),
    )
    return Pipeline.load(folder, config)
