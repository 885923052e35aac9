"""Search for the best output of a model."""

from typing import TYPE_CHECKING

from lightconv.decode.config import DecodeConfig
from lightconv.lazy import lazy

if TYPE_CHECKING:
    from lightconv.decode.beam import Hypothesis, beam_search

__all__ = ["DecodeConfig", "Hypothesis", "beam_search"]

__getattr__ = lazy(__name__, {"beam": ["Hypothesis", "beam_search"]})
