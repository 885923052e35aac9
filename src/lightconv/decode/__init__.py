"""Decoding: search, sampling, backends, texts."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from lightconv.decode.options import DecodeConfig
from lightconv.lazy import lazy

if TYPE_CHECKING:
    from lightconv.decode.backend import Ensemble, ensemble_steps
    from lightconv.decode.beam import Hypothesis, beam_options, beam_search
    from lightconv.decode.sampling import sample

__all__ = [
    "DecodeConfig",
    "Ensemble",
    "Hypothesis",
    "beam_options",
    "beam_search",
    "ensemble_steps",
    "sample",
]

__getattr__ = lazy(
    __name__,
    {
        "backend": ["Ensemble", "ensemble_steps"],
        "beam": ["Hypothesis", "beam_options", "beam_search"],
        "sampling": ["sample"],
    },
)

# The module `lightconv.decode.ensemble` of 0.1.0.
ensemble = sys.modules[f"{__name__}.ensemble"] = ModuleType(f"{__name__}.ensemble")
vars(ensemble)["__getattr__"] = __getattr__
