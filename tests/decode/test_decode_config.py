"""The ranges of a search's configuration."""

import math
from typing import Any

import pytest

from lightconv.decode import DecodeConfig


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"beam": 0}, "^beam=0 must be at least 1$"),
        ({"min_len": 0}, "^min_len=0 must be at least 1$"),
        ({"alpha": -0.5}, "^alpha=-0.5 must be at least 0$"),
        ({"alpha": math.nan}, "^alpha=nan must be at least 0$"),
        ({"coverage": -0.1}, "^coverage=-0.1 must be at least 0$"),
        ({"min_len_ratio": -0.5}, "^min_len_ratio=-0.5 must be at least 0$"),
        ({"max_len_ratio": -1.0}, "^max_len_ratio=-1.0 must be at least 0$"),
        ({"max_len_ratio": math.inf}, "^max_len_ratio=inf must be at least 0$"),
        ({"max_len_plus": -1}, "^max_len_plus=-1 must be at least 0$"),
        ({"block_ngrams": -3}, "^block_ngrams=-3 must be at least 0$"),
        ({"min_len": 201}, "^min_len=201 must not be above max_len_plus=200$"),
        ({"max_len_plus": 0}, "^min_len=1 must not be above max_len_plus=0$"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecodeConfig(**changes)


def test_borders_are_allowed() -> None:
    DecodeConfig(beam=1, min_len=200, alpha=0.0, block_ngrams=0)
    DecodeConfig(max_len_ratio=1.5, max_len_plus=0, min_len=5)
