"""Bulk translation on a Ray cluster: actors of Ray Data, each with an engine of its own.

    import ray
    from ray.data.checkpoint import CheckpointConfig
    from lightconv.ray import read_lines, translate

    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig("key", "/shared/done")   # what a rerun skips
    translate(read_lines("/shared/in.de"), "/shared/my-model").write_parquet("/shared/out")

Ray restarts actors that die and gives their blocks to others.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.files import replace_file

if TYPE_CHECKING:
    import ray.data

BLOCK = 2048  # lines of a block: what a dead actor has to do again


def translate(
    dataset: "ray.data.Dataset",
    model: str | Path,
    *,
    column: str = "text",
    to: str = "translation",
    workers: int | None = None,
    block: int = BLOCK,
    **options: Any,
) -> "ray.data.Dataset":
    """The dataset with the best output for each text of a column, when it is run.

    model    folder that every node can read
    workers  actors of one core each; default: one for each core of the cluster but two, for
             reading, writing and skipping what is done
    options  as of `TextModel.answers`, such as beam=4, quantize="int8"
    """
    import ray.data

    cores = int(ray.cluster_resources().get("CPU", 1)) if ray.is_initialized() else 2
    return dataset.repartition(target_num_rows_per_block=block).map_batches(
        _Engine,
        fn_constructor_kwargs={"model": str(model), "names": (column, to), "options": options},
        batch_format="pyarrow",
        batch_size=block,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=workers or max(1, cores - 2)),
    )


def read_lines(paths: str | Iterable[str]) -> "ray.data.Dataset":
    """Lines of text files: columns `text` and `key`, the path and the number of the line."""
    import pyarrow
    import ray.data
    from ray.data.datasource import FileBasedDatasource

    class Lines(FileBasedDatasource):  # type: ignore[misc]
        def _read_stream(self, f: Any, path: str) -> Iterator[Any]:
            text = f.readall().decode()  # "\n" alone ends a line
            lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
            keys = [f"{path}:{number:012d}" for number in range(1, len(lines) + 1)]
            if text:
                yield pyarrow.table({"key": keys, "text": lines})

    names = [paths] if isinstance(paths, str) else list(paths)
    return ray.data.read_datasource(Lines([str(Path(each).absolute()) for each in names]))


def write_lines(folder: str | Path, path: str | Path, column: str = "translation") -> int:
    """Writes a column of Parquet files as lines of a text file, sorted by key; returns how many."""
    import pyarrow
    from pyarrow import parquet

    parts = sorted(Path(folder).glob("*.parquet"))
    if not parts:
        raise ValueError(f"{folder} has no Parquet files")
    tables = [parquet.read_table(part, columns=["key", column]) for part in parts]
    lines = pyarrow.concat_tables(tables).sort_by("key")[column]
    replace_file(Path(path), "".join(f"{line}\n" for line in lines.to_pylist()).encode())
    return len(lines)


class _Engine:
    """An actor: a model and its decoder, for one thread."""

    def __init__(self, model: str, names: tuple[str, str], options: dict[str, Any]) -> None:
        import torch

        from lightconv.decode.text import load

        torch.set_num_threads(1)
        self._model, self._names, self._options = load(model), names, options

    def __call__(self, batch: Any) -> Any:
        import pyarrow

        column, to = self._names
        texts = [text or "" for text in batch[column].to_pylist()]
        found = [answer.text for answer in self._model.answers(texts, **self._options)]
        return batch.append_column(to, pyarrow.array(found, pyarrow.string()))
