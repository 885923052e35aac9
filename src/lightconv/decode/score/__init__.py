"""How likely a model finds texts that are there already."""

from typing import TYPE_CHECKING

from lightconv.lazy import lazy

if TYPE_CHECKING:
    from lightconv.decode.score.scorer import Scored, Scorer, token_logprobs

__all__ = ["Scored", "Scorer", "token_logprobs"]

__getattr__ = lazy(__name__, {"scorer": ["Scored", "Scorer", "token_logprobs"]})
