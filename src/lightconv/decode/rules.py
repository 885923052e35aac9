"""Rules of what may follow a hypothesis, and penalties of finished ones, on log-probabilities.

A length is the number of tokens with EOS. Nothing here runs Python for a single hypothesis.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lightconv.ops.check import accumulate_dtype

Lengths = int | Sequence[int] | Tensor

# Length, alpha -> divisor of the sum of log-probabilities; "stepwise" is of Wu et al. (2016).
PENALTIES: dict[str, Callable[..., float]] = {
    "power": lambda length, alpha: float(length**alpha),
    "stepwise": lambda length, alpha: float(((5 + length) / 6) ** alpha),
}


def coverage_penalty(attention: Tensor, padding: Tensor) -> Tensor:
    """sum_i log min(sum_t attention[t, i], 1) over the real source positions i (Wu et al., 2016).

    attention [M, T, S], zero where a hypothesis has ended
    padding   [M, S] bool
    returns   [M], at most 0
    """
    seen = attention.double().sum(1).masked_fill(padding, 1.0)
    # The smallest float instead of 0: a position without attention must not cost infinitely much.
    return seen.clamp(min=torch.finfo(torch.float32).tiny, max=1.0).log().sum(-1)


def repeats(tokens: Tensor, n: int) -> tuple[Tensor, Tensor] | None:
    """Rows [r] and words [r] that would repeat an n-gram of tokens [N, t]; None if none would."""
    t = tokens.shape[1]
    if n == 0 or t < n:
        return None
    grams = tokens.unfold(1, n, 1)  # [N, t - n + 1, n]
    last = tokens[:, None, t - n + 1 :]
    same = (grams[..., :-1] == last).all(-1)
    rows, places = same.nonzero(as_tuple=True)
    return (rows, grams[rows, places, -1]) if len(rows) > 0 else None


class Rules:
    """The words that may come next in each of B sentences; arguments as of `beam_search`."""

    def __init__(
        self,
        first: Tensor,
        eos: int,
        max_len: Lengths,
        min_len: Lengths = 1,
        forbidden: Sequence[int] = (),
        block_ngrams: int = 0,
        prefix: Sequence[Sequence[int]] | None = None,
    ) -> None:
        B, device = len(first), first.device
        self.eos = eos
        self.seeds = torch.zeros(B, dtype=torch.int64, device=device)
        self.max_len = _lengths("max_len", max_len, B, device)
        self.min_len = _lengths("min_len", min_len, B, device)
        each = zip(self.min_len.tolist(), self.max_len.tolist(), strict=True)
        for b, (low, high) in enumerate(each):
            if not 1 <= low <= high:
                raise ValueError(
                    f"min_len and max_len must rise from 1, got {low} and {high} (sentence {b})"
                )
        if eos in forbidden:
            raise ValueError(f"forbidden must not have EOS ({eos}): nothing could end")
        if block_ngrams < 0:
            raise ValueError(f"block_ngrams must be at least 0, got {block_ngrams}")
        self.forbidden = torch.tensor(sorted(set(forbidden)), dtype=torch.int64, device=device)
        self.block_ngrams = block_ngrams
        self.prefix = _prefix(prefix, eos, self.max_len)
        self._note()

    def seeded(self, seeds: Sequence[int]) -> "Rules":
        """These, with a seed of 64 bits for the draws of each sentence."""
        # The same 64 bits as signed numbers.
        signed = [(seed + 2**63) % 2**64 - 2**63 for seed in seeds]
        self.seeds = torch.tensor(signed, dtype=torch.int64, device=self.seeds.device)
        return self

    def _note(self) -> None:
        # Python ints: most steps skip a rule without reading a tensor.
        self._first_limit = min(self.max_len.tolist(), default=0)
        self._last_min = max(self.min_len.tolist(), default=0)

    def take(self, sentences: Tensor) -> None:
        """Only those sentences stay."""
        for name in ("max_len", "min_len", "seeds", "prefix"):
            setattr(self, name, getattr(self, name)[sentences])
        self._note()

    def allow(
        self, logits: Tensor, length: int, sentences: Tensor, tokens: Tensor | None
    ) -> Tensor:
        """Log-probabilities [N, V] of all words, -inf for those that are not allowed.

        logits    [N, V]
        length    of each row with the next word
        sentences [N] int64: the sentence of each row
        tokens    [N, length - 1]: the rows so far, without the first input; None is enough while no
                  n-grams are blocked
        """
        logprobs = logits.log_softmax(-1, dtype=accumulate_dtype(logits.dtype))
        words = self._forced(length, sentences)
        if words is not None:
            rows = (words >= 0).nonzero()[:, 0]
            only = rows, words[rows]
            kept = logprobs[only]
        logprobs.index_fill_(1, self.forbidden, -torch.inf)
        if tokens is not None and (banned := repeats(tokens, self.block_ngrams)) is not None:
            logprobs[banned] = -torch.inf
        if length < self._last_min:
            short = (self.min_len > length)[sentences]
            logprobs[:, self.eos].masked_fill_(short, -torch.inf)
        if words is not None:
            logprobs.index_fill_(0, rows, -torch.inf)
            logprobs[only] = kept
        return logprobs

    def _forced(self, length: int, sentences: Tensor) -> Tensor | None:
        """The only word that may come next [N], -1 where any may; None if any may everywhere."""
        forced = None
        if length <= self.prefix.shape[1]:
            forced = self.prefix[sentences, length - 1]
        if length >= self._first_limit:
            ends = torch.where(self.max_len[sentences] <= length, self.eos, -1)
            forced = ends if forced is None else torch.where(forced >= 0, forced, ends)
        return None if forced is None or bool((forced < 0).all()) else forced


def _lengths(name: str, lengths: Lengths, B: int, device: torch.device) -> Tensor:
    found = torch.as_tensor(lengths, dtype=torch.int64, device=device)
    if found.dim() > 0 and found.shape != (B,):
        raise ValueError(f"{name} must be one number or {B}, got {list(found.shape)}")
    return found.expand(B)


def _prefix(prefix: Sequence[Sequence[int]] | None, eos: int, max_len: Tensor) -> Tensor:
    """[B, P] int64, -1 after the end of each."""
    B = len(max_len)
    if prefix is not None and len(prefix) != B:
        raise ValueError(f"prefix must be given for each of {B} sentences, got {len(prefix)}")
    if not prefix:
        return max_len.new_zeros(B, 0)
    for b, (words, limit) in enumerate(zip(prefix, max_len.tolist(), strict=True)):
        if eos in words[:-1] or any(word < 0 for word in words):
            raise ValueError(f"prefix {b} must be words, EOS only as the last, got {list(words)}")
        if len(words) > limit or (len(words) == limit and words[-1] != eos):
            raise ValueError(
                f"prefix {b} of {len(words)} tokens leaves no room for EOS in max_len={limit}"
            )
    rows = [torch.tensor(words, dtype=torch.int64, device=max_len.device) for words in prefix]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
