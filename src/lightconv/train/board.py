"""TensorBoard files, for those who look at runs that way."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BOARD_FOLDER = "tensorboard"
# What is no curve.
_PLAIN = ("kind", "step", "seconds")


class Board:
    """Writes log entries as curves `train/loss`, `valid/nll`, ...; steps from `step` on are new."""

    def __init__(self, folder: Path, step: int = 0) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ValueError(
                "--tensorboard needs the package tensorboardX. Install it with "
                "pip install 'lightconv[tensorboard]'"
            ) from None
        self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Adds every number of an entry to its curve."""
        for name, value in {**entry, **entry.get("metric", {})}.items():
            if name not in _PLAIN and isinstance(value, int | float):
                self._writer.add_scalar(f"{entry['kind']}/{name}", value, entry["step"])

    def close(self) -> None:
        """Ends writing."""
        self._writer.close()
