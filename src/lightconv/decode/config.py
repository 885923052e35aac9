"""How an output is searched for, as plain values: readable without torch."""

from dataclasses import dataclass
from typing import Literal

from lightconv.config import check_counts, check_from_zero

LengthPenalty = Literal["power", "stepwise"]


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Beam search; lengths count EOS."""

    beam: int = 5
    # "power": sum / length ** alpha; "stepwise": the one of Wu et al. (2016).
    length_penalty: LengthPenalty = "power"
    alpha: float = 1.0
    # Times Wu et al.'s coverage penalty is added to the score; 0 needs no attention weights.
    coverage: float = 0.0
    # At least min_len, and min_len_ratio * source length, tokens.
    min_len: int = 1
    min_len_ratio: float = 0.0
    # At most max_len_ratio * source length + max_len_plus tokens.
    max_len_ratio: float = 0.0
    max_len_plus: int = 200
    # No n-gram of this length comes twice; 0 allows any.
    block_ngrams: int = 0
    # Whether the word for all unknown words may be in an output.
    allow_unknown: bool = True

    def __post_init__(self) -> None:
        check_counts(self, "beam", "min_len")
        check_from_zero(self, "alpha", "coverage", "block_ngrams")
        check_from_zero(self, "min_len_ratio", "max_len_ratio", "max_len_plus")
        # With a ratio the limit depends on the source, so only a search can tell.
        if self.max_len_ratio == 0.0 and self.min_len > self.max_len_plus:
            raise ValueError(
                f"min_len={self.min_len} must not be above max_len_plus={self.max_len_plus}"
            )
