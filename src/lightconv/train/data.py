"""Data of a run: updates of batches in an order that can be resumed, and validation data."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from lightconv.data import Batch, Batches, Loader, Pairs, Position, Sentences, Store
from lightconv.data.pipeline import PIPELINE_FILES
from lightconv.data.prepared import Prepared, is_prepared
from lightconv.data.store import PAIR
from lightconv.files import digest, inside, named
from lightconv.train.config import TrainConfig
from lightconv.train.distributed import Group


class TrainingData(Protocol):
    """The interface of a run's data.

    pairs    True if an example is a source and a target, False if it is a text
    sizes    number of ids of source and target
    digests  of all that is read, by name; a run is resumed only with equal ones
    """

    pairs: bool
    sizes: tuple[int, int]
    digests: dict[str, str]

    def updates(self, position: Position, config: TrainConfig, group: Group) -> Loader:
        """The batches of this rank from `position` on, in lists of one update each."""

    def tokens_per_update(self, config: TrainConfig) -> tuple[float, float]:
        """Means over an epoch: target tokens and batches of all ranks for one update."""

    def validation(self, config: TrainConfig, group: Group) -> Iterable[Batch]:
        """This rank's share of the validation data."""

    def files(self) -> Mapping[str, bytes | Path]:
        """Files for the model folder: vocabulary, codes, pipeline."""


class PreparedData:
    """A folder of `lightconv prepare`: splits `train` and `valid`, vocabulary, tokeniser.

    task  what it was prepared for; None if the folder has nothing but splits
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        # Opening it checks that all files are of one preparation, and that none is cut.
        self.task = Prepared.open(self.folder).task if is_prepared(self.folder) else None
        self._train, self._valid = (Store(self.folder, name) for name in ("train", "valid"))
        for store in (self._train, self._valid):
            if not len(store):
                raise ValueError(
                    f"{self.folder} has no examples in the split {store.split!r}, expected some. "
                    "Run `lightconv prepare` with other texts or filters"
                )
        if (self._valid.sides, self._valid.vocab) != (self._train.sides, self._train.vocab):
            raise ValueError(
                f"prepared data ({self.folder}): train and valid have other sides or vocabularies, "
                "expected the same. Run `lightconv prepare` again"
            )
        self._planned: dict[int, Batches] = {}
        self.pairs = self._train.sides == PAIR
        self.sizes = (self._train.vocab[0], self._train.vocab[-1])
        self.digests = {"train": self._train.digest, "valid": self._valid.digest}
        self.digests |= {name: digest(path) for name, path in self.files().items()}

    def updates(self, position: Position, config: TrainConfig, group: Group) -> Loader:
        return Loader(
            self._batches(config),
            position,
            tokens_per_update=self._enough(config),
            batches_per_update=config.batches_per_update,
            rank=group.rank,
            ranks=group.size,
        )

    def tokens_per_update(self, config: TrainConfig) -> tuple[float, float]:
        epoch = self._batches(config).plan.epoch(config.seed, 0)
        bounds = epoch.updates(tokens=self._enough(config), batches=config.batches_per_update)
        return float(epoch.tokens.sum()) / (len(bounds) - 1), len(epoch) / (len(bounds) - 1)

    def validation(self, config: TrainConfig, group: Group) -> Iterator[Batch]:
        examples = self._examples(self._valid)
        batches = Batches(examples, max_tokens=config.max_tokens, too_long="alone")
        return batches.by_length(rank=group.rank, ranks=group.size)

    def verify(self) -> None:
        """Reads everything once; ValueError names a damaged file."""
        for store in (self._train, self._valid):
            store.verify()

    def files(self) -> dict[str, Path]:
        present = [name for name in PIPELINE_FILES if (self.folder / name).exists()]
        return {name: inside(self.folder, name) for name in present}

    def _enough(self, config: TrainConfig) -> int:
        """Target tokens that end an update; 0 if it has a number of batches.

        The batch that reaches a number goes beyond it by half a batch on average, so half a batch
        less is asked for.
        """
        if config.batches_per_update:
            return 0
        tokens = self._batches(config).plan.by_length().tokens
        return max(1, config.tokens_per_update - int(tokens.sum()) // len(tokens) // 2)

    def _batches(self, config: TrainConfig) -> Batches:
        if config.max_tokens not in self._planned:
            with named(f"{self.folder}, split train"):
                plan = Batches(self._examples(self._train), max_tokens=config.max_tokens)
            self._planned[config.max_tokens] = plan
        return self._planned[config.max_tokens]

    def _examples(self, store: Store) -> Pairs | Sentences:
        return Pairs(store) if self.pairs else Sentences(store)
