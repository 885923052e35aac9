"""The text pipeline of a model folder, also of one that has only vocabularies and codes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from lightconv.data.config import BPEConfig, PipelineConfig, SideConfig, WordsConfig
from lightconv.data.pipeline import PIPELINE_FILE, Pipeline
from lightconv.data.prepared import PIPELINE_FILES
from lightconv.data.subword import CONTINUES, PAIR_CODES, SHARED_CODES
from lightconv.data.vocabulary import load_vocabularies
from lightconv.decode.options import read_settings

# The language of a text nobody named.
UNKNOWN = "und"


def load_pipeline(folder: str | Path) -> Pipeline:
    """What turns text into the ids of this model; ValueError if the folder does not have it.

    An imported model has no steps, so its texts are words with spaces between them, as they were
    when it was trained; codes beside its vocabularies cut the words. Without codes, texts must be
    cut already if the vocabulary has marks where words were cut; outputs are put together.
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
    marked = not codes and any(
        token.endswith(CONTINUES) for each in vocabularies for token in each.tokens
    )
    return (MarkedPipeline if marked else Pipeline).load(folder, config)


class MarkedPipeline(Pipeline):
    """Of a model whose texts were cut by codes that are not there: `un@@ believ@@ able`."""

    def decode_words(self, side: int, ids: Iterable[int]) -> str:
        """Words, the pieces of each put together."""
        return _join(super().decode_words(side, ids))


def _join(text: str) -> str:
    return f"{text} ".replace(f"{CONTINUES} ", "").removesuffix(" ")


def check_ensemble(folders: Sequence[Path]) -> None:
    """Raises ValueError unless all models read and write the same tokens."""
    first, *others = folders
    for other in others:
        for name in PIPELINE_FILES:
            ours, theirs = (_contents(folder / name) for folder in (first, other))
            if ours != theirs:
                raise ValueError(
                    f"ensemble ({other}): its {name} is not that of {first}, expected the same. "
                    "Models of an ensemble are trained on the same prepared data"
                )


def _contents(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
