"""Search for the best output of a model."""

from typing import TYPE_CHECKING

from lightconv.decode.config import DecodeConfig
from lightconv.lazy import lazy

if TYPE_CHECKING:
    from lightconv.decode.beam import beam_options, beam_search
    from lightconv.decode.ensemble import ensemble_steps
    from lightconv.decode.sampling import sample
    from lightconv.decode.trace import Hypothesis

__all__ = [
    "DecodeConfig",
    "Hypothesis",
    "beam_options",
    "beam_search",
    "ensemble_steps",
    "sample",
]

__getattr__ = lazy(
    __name__,
    {
        "beam": ["beam_options", "beam_search"],
        "ensemble": ["ensemble_steps"],
        "sampling": ["sample"],
        "trace": ["Hypothesis"],
    },
)
