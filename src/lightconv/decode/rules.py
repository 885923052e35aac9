"""Rules of what may follow a hypothesis, and penalties of finished ones, on log-probabilities.

A length is the number of tokens with EOS. Nothing here runs Python for a single hypothesis, and a
rule that is off costs nothing.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv import ops
from lightconv.ops.check import accumulate_dtype

if TYPE_CHECKING:
    from lightconv.decode.shortlist import Chosen

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
    """Rows [r] and words [r] that would repeat an n-gram of tokens [N, t]; None if none would.

    Rows of fewer than t tokens have -1 before them.
    """
    t = tokens.shape[1]
    if n == 0 or t < n:
        return None
    grams = tokens.unfold(1, n, 1)  # [N, t - n + 1, n]
    last = tokens[:, None, t - n + 1 :]
    same = ((grams[..., :-1] == last) & (last >= 0)).all(-1) & (grams[..., -1] >= 0)
    rows, places = same.nonzero(as_tuple=True)
    return (rows, grams[rows, places, -1]) if len(rows) > 0 else None


class Rules:
    """The words that may come next in each of B sentences; arguments as of `beam_search`.

    A row's length is the time since its sentence began.
    """

    def __init__(
        self,
        first: Tensor,
        eos: int,
        max_len: Lengths,
        min_len: Lengths = 1,
        forbidden: Sequence[int] = (),
        block_ngrams: int = 0,
        prefix: Sequence[Sequence[int]] | None = None,
        time: int = 0,
        read: Sequence[int] = (),
    ) -> None:
        B, device = len(first), first.device
        self.eos = eos
        self.chosen: Chosen | None = None  # None: logits are those of all words
        self.begin = torch.full((B,), time, device=device)
        if read:  # so many words of their prefixes
            self.begin -= torch.tensor(read, device=device)
        self.seeds = torch.zeros_like(self.begin)
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
        self.seeds = torch.tensor(signed, dtype=torch.int64, device=self.begin.device)
        return self

    def _note(self) -> None:
        # Python ints: most steps skip a rule without reading a tensor.
        self._first_limit = min((self.begin + self.max_len).tolist(), default=0)
        self._last_min = max((self.begin + self.min_len).tolist(), default=0)
        self._last_prefix = max(self.begin.tolist(), default=0) + self.prefix.shape[1]

    def take(self, sentences: Tensor) -> None:
        """Only those sentences stay."""
        for name in ("begin", "max_len", "min_len", "seeds", "prefix"):
            setattr(self, name, getattr(self, name)[sentences])
        self._note()

    def join(self, other: "Rules") -> None:
        """Those of another for its sentences, behind these."""
        wide = max(self.prefix.shape[1], other.prefix.shape[1])
        both = (
            F.pad(each, (0, wide - each.shape[1]), value=-1) for each in (self.prefix, other.prefix)
        )
        self.prefix = torch.cat(list(both))
        for name in ("begin", "max_len", "min_len", "seeds"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        self._note()

    def best(
        self, logits: Tensor, time: int, sentences: Tensor, tokens: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor]:
        """The best continuations of each row.

        logits    [N, V], or those of the words `chosen`
        time      of the next word; rows that began at 0 will have that length
        sentences [N] int64: the sentence of each row
        tokens    [N, t]: the rows so far, without the first input, the last words last, -1 before
                  them; None is enough while no n-grams are blocked
        returns   log-probabilities [N, k] and words [N, k], among them the `count` best allowed
                  ones (or all there are); words that are not allowed have -inf
        """
        V = logits.shape[1]
        only = self._forced(time, sentences)
        if only is not None and bool((only >= 0).all()):
            return self._logprobs(logits, self.chosen).gather(1, only[:, None]), only[:, None]
        # `spare` extra candidates guarantee `count` allowed ones without a full scan.
        banned = None if tokens is None else repeats(tokens, self.block_ngrams)
        early = time < self._last_min
        spare = len(self.forbidden) + early
        if banned is not None:
            spare += int(banned[0].bincount().max())
        values, words = ops.topk_logprobs(logits, min(count + spare, V))
        if self.chosen is not None:
            words = self.chosen.words.gather(1, words).long()
        if banned is not None:
            rows, taken = banned
            found, places = (words[rows] == taken[:, None]).nonzero(as_tuple=True)
            values[rows[found], places] = -torch.inf
        if len(self.forbidden) == 1:
            values = values.masked_fill(words == self.forbidden, -torch.inf)
        elif len(self.forbidden) > 1:
            values = values.masked_fill((words[..., None] == self.forbidden).any(-1), -torch.inf)
        if early:
            short = (self.begin + self.min_len > time)[sentences]
            values = values.masked_fill((words == self.eos) & short[:, None], -torch.inf)
        if only is not None:  # in the company of others, whose bits stay
            rows = (only >= 0).nonzero()[:, 0]
            chosen = self.chosen and self.chosen._replace(words=self.chosen.words[rows])
            values[rows], words[rows] = -torch.inf, 0
            words[rows, 0] = only[rows]
            values[rows, :1] = self._logprobs(logits[rows], chosen).gather(1, words[rows, :1])
        return values, words

    def all(self, logits: Tensor, time: int, sentences: Tensor, tokens: Tensor | None) -> Tensor:
        """Log-probabilities [N, V] of all words, -inf for those not allowed; as for `best`."""
        logprobs = self._logprobs(logits, self.chosen)
        words = self._forced(time, sentences)
        if words is not None:
            rows = (words >= 0).nonzero()[:, 0]
            only = rows, words[rows]
            kept = logprobs[only]
        logprobs.index_fill_(1, self.forbidden, -torch.inf)
        if tokens is not None and (banned := repeats(tokens, self.block_ngrams)) is not None:
            logprobs[banned] = -torch.inf
        if time < self._last_min:
            short = (self.begin + self.min_len > time)[sentences]
            logprobs[:, self.eos].masked_fill_(short, -torch.inf)
        if words is not None:
            logprobs.index_fill_(0, rows, -torch.inf)
            logprobs[only] = kept
        return logprobs

    @staticmethod
    def _logprobs(logits: Tensor, chosen: "Chosen | None") -> Tensor:
        """Log-probabilities [N, V] of all words."""
        found = logits.log_softmax(-1, dtype=accumulate_dtype(logits.dtype))
        return found if chosen is None else chosen.spread(found)

    def _forced(self, time: int, sentences: Tensor) -> Tensor | None:
        """The only word that may come next [N], -1 where any may; None if any may everywhere."""
        forced = None
        if time <= self._last_prefix and self.prefix.shape[1]:
            place = (time - 1 - self.begin)[sentences]
            inside = place < self.prefix.shape[1]
            forced = self.prefix[sentences, place.where(inside, 0)].where(inside, -1)
        if time >= self._first_limit:
            ends = torch.where((self.begin + self.max_len)[sentences] <= time, self.eos, -1)
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
