"""Search for the best output of a model."""

from lightconv.decode.beam import Hypothesis, beam_search

__all__ = ["Hypothesis", "beam_search"]
