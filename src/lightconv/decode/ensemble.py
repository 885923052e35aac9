"""Former place of `lightconv.decode.Ensemble`."""

from lightconv.decode.backend import Ensemble, ensemble_steps

__all__ = ["Ensemble", "ensemble_steps"]
