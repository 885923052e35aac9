"""What a run remembers besides model, optimiser and trainer."""

from dataclasses import asdict, dataclass, field
from typing import Any

from lightconv.data import Position
from lightconv.train.trainer import Record


@dataclass
class Window:
    """Sums over the updates since the last entry in the log."""

    loss: float = 0.0
    nll: float = 0.0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, record: Record) -> None:
        """An update; one that was skipped has no loss to speak of."""
        if not record.skipped:
            self.loss += record.loss * record.tokens
            self.nll += record.nll * record.tokens
            self.tokens += record.tokens


@dataclass
class Progress:
    """Where a run is; all of it goes into checkpoints.

    position   in the data: (seed, epoch, batch)
    validated  the step of the last validation, which gave `score`: more is better
    best       the highest score so far, of step `best_step`; `stale` validations were not better
    seconds    where time went, by what was done
    """

    position: Position
    validated: int = 0
    score: float | None = None
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    tokens: int = 0
    window: Window = field(default_factory=Window)
    seconds: dict[str, float] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"position": list(self.position)}

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Progress":
        """What `values` were made of."""
        position, window = Position(*values["position"]), Window(**values["window"])
        return cls(**values | {"position": position, "window": window})
