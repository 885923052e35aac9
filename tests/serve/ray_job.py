"""A bulk translation of text to Parquet on two workers of a local Ray: MODEL TEXT OUT DONE."""

import sys

import ray
from ray.data.checkpoint import CheckpointConfig

from lightconv.ray import read_lines, translate


def main(model: str, text: str, out: str, done: str) -> None:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig("key", done, delete_checkpoint_on_success=False)
    context.enable_progress_bars = False
    translate(read_lines(text), model, workers=2, block=1000).write_parquet(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
