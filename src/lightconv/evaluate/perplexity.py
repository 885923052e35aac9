"""Perplexity from the sum of a model's log-probabilities: arithmetic only, no model."""

import math

from lightconv.evaluate.signature import Score, Signature


def compute_perplexity(
    log_prob: float, *, lines: int, subwords: int, words: int, eos: bool = True
) -> Score:
    """The value is per word; parts: per word and per subword, bits of each, what was counted.

    log_prob: natural logarithms, summed over all tokens that count.
    lines: texts, each with one EOS. subwords, words: of all lines, EOS not among them.
    eos: whether `log_prob` has the EOS of each line; they count as a word and a subword then.
    """
    _check(log_prob, lines, subwords, words, eos)
    ends = lines if eos else 0
    counted = {"subword": subwords + ends, "word": words + ends}
    nats = {unit: -log_prob / count for unit, count in counted.items()}
    parts: dict[str, float] = {
        **{f"per_{unit}": _exp(nat) for unit, nat in nats.items()},
        **{f"bits_per_{unit}": nat / math.log(2.0) for unit, nat in nats.items()},
        **{f"{unit}s": count for unit, count in counted.items()},
        "log_prob": float(log_prob),
    }
    fields = {"unit": "word", "base": "e", "eos": "counted" if eos else "left-out", "lines": lines}
    return Score(parts["per_word"], parts, Signature("perplexity", fields))


def _check(log_prob: float, lines: int, subwords: int, words: int, eos: bool) -> None:
    if math.isnan(log_prob) or log_prob > 0.0:
        raise ValueError(
            f"log_prob={log_prob}, expected a sum of logarithms of probabilities, at most 0. "
            "Is it a loss? Turn its sign"
        )
    if lines < 1:
        raise ValueError(f"lines={lines}, expected at least one")
    least = 0 if eos else 1
    for name, count in {"words": words, "subwords": subwords}.items():
        if count < least:
            raise ValueError(f"{name}={count}, expected at least {least} with eos={eos}")
    if subwords < words:
        raise ValueError(f"subwords={subwords}, expected at least as many as words={words}")


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
