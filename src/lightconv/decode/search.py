"""Search from token ids to hypotheses.

search = ModelSearch(TorchBackend(model), Options(decode=DecodeConfig(beam=4)))
best = search([[5, 6, 7]], [0])[0][0]       # ids without EOS in, a hypothesis out
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv.config import to_dict
from lightconv.data.vocabulary import EOS, PAD, UNK
from lightconv.decode.backend import Backend
from lightconv.decode.beam import Hypothesis, beam_options, beam_search
from lightconv.decode.options import DecodeConfig, Options, TextOptions
from lightconv.decode.rules import PENALTIES
from lightconv.decode.sampling import sample

Ids = Sequence[int]
Rows = Sequence[Ids]
# Hypotheses of each source, best first.
Found = list[list[Hypothesis]]
# Sources without EOS, their numbers in the input (draws depend on them, errors name them) and the
# ids that their outputs begin with -> hypotheses.
Search = Callable[[Rows, Sequence[int], Rows | None], Found]


@dataclass(eq=False)
class ModelSearch:
    """Search with a model: targets of sources, or continuations of prompts."""

    backend: Backend
    options: Options

    def __call__(
        self, sources: Rows, numbers: Sequence[int], prefixes: Rows | None = None
    ) -> Found:
        if self.backend.pairs:
            return self._search(sources, numbers, prefixes)
        if prefixes is not None:
            raise ValueError("a language model continues its prompt, expected no prefix beside it")
        found: Found = [[] for _ in sources]
        # All rows of a state have one position, so only prompts of one length form a batch.
        for length in sorted({len(prompt) for prompt in sources}):
            rows = [row for row, prompt in enumerate(sources) if len(prompt) == length]
            chosen = [sources[row] for row in rows], [numbers[row] for row in rows]
            for row, hypotheses in zip(rows, self._search(*chosen), strict=True):
                found[row] = hypotheses
        return found

    def _search(self, sources: Rows, numbers: Sequence[int], prefixes: Rows | None = None) -> Found:
        backend, sampling = self.backend, self.options.sampling
        keywords = self._keywords(sources, numbers, prefixes)
        longest, step = max(keywords["max_len"]), backend.step
        with torch.inference_mode():
            if backend.pairs:
                source = pad_right([[*source, EOS] for source in sources], backend.device)
                state = backend.start(backend.encode(source), longest)
                first = source.new_full((len(sources),), EOS)
                if self.options.decode.coverage > 0.0 and sampling is None:
                    keywords["padding"] = source == PAD
                    return beam_search(backend.step_attending, state, first, **keywords)
            else:
                tokens = pad_right([[EOS, *prompt] for prompt in sources], backend.device)
                state = backend.start(len(sources), tokens.shape[1] + longest)
                first = tokens[:, -1]
                if tokens.shape[1] > 1:
                    _, state = step(tokens[:, :-1], state)
            search = beam_search if sampling is None else sample
            return search(step, state, first, **keywords)

    def _keywords(
        self, sources: Rows, numbers: Sequence[int], prefixes: Rows | None
    ) -> dict[str, Any]:
        """Keywords of the search; ValueError, with the line, if no output has a valid length."""
        lengths = [len(source) + 1 for source in sources]
        found = beam_options(self.options.decode, lengths, eos=EOS, pad=PAD, unknown=UNK)
        limits = zip(numbers, found["min_len"], found["max_len"], strict=True)
        for row, (number, least, most) in enumerate(limits):
            if least > most:
                raise ValueError(
                    f"line {number}: at least {least} tokens, and at most {most}, expected room "
                    "for an output. Change min_len, min_len_ratio, max_len_plus or max_len_ratio"
                )
            if prefixes is not None and len(prefixes[row]) >= most:
                raise ValueError(
                    f"line {number}: a prefix of {len(prefixes[row])} tokens, expected fewer than "
                    f"the {most} an output may have. Raise max_len_plus"
                )
        found |= {"prefix": prefixes, "reorder": self.backend.reorder}
        if self.options.sampling is not None:
            del found["beam"], found["coverage"]
            found |= to_dict(self.options.sampling) | {"samples": self.options.text.n_best}
            seed = found.pop("seed")
            found["seeds"] = [derive_seed(seed, number) for number in numbers]
        return found


def derive_seed(seed: int, number: int) -> int:
    """64 bits for one text."""
    return int.from_bytes(sha256(f"{seed} {number}".encode()).digest()[:8], "little")


def rank(
    hypotheses: Sequence[Hypothesis], old: DecodeConfig, new: DecodeConfig
) -> list[Hypothesis]:
    """The hypotheses of a search with length penalty `old`, as one with `new` returns them."""
    scored = []
    for each in hypotheses:
        total, length = sum(each.logprobs), len(each.tokens)
        rest = each.score - normalize(total, length, old)
        scored.append(each._replace(score=normalize(total, length, new) + rest))
    return sorted(scored, key=lambda each: -each.score)


def normalize(total: float, length: int, config: DecodeConfig) -> float:
    """The score of an output: its log-probability over the penalty of its length, EOS counted."""
    return total / PENALTIES[config.length_penalty](length, config.alpha)


class Searched(NamedTuple):
    """The result for one source, by its row, and the number, time and size of its batch."""

    row: int
    hypotheses: list[Hypothesis]
    batch: int
    seconds: float
    sentences: int


def search_batches(
    search: Search,
    sources: Rows,
    options: TextOptions,
    numbers: Sequence[int] | None = None,
    prefixes: Rows | None = None,
) -> Iterator[Searched]:
    """Searches every source once, in batches of similar length; arguments as of `Search`."""
    batches = batch_by_length([sources], options.max_tokens, options.max_sentences)
    for number, rows in enumerate(batches):
        begin = time.perf_counter()
        found = search(
            [sources[row] for row in rows],
            rows if numbers is None else [numbers[row] for row in rows],
            None if prefixes is None else [prefixes[row] for row in rows],
        )
        seconds = time.perf_counter() - begin
        for row, hypotheses in zip(rows, found, strict=True):
            yield Searched(row, hypotheses, number, seconds, len(rows))


def batch_by_length(sides: Sequence[Rows], max_tokens: int, max_sentences: int) -> list[list[int]]:
    """Rows in batches of similar length, the longest first; sides have ids without EOS."""
    lengths = [[len(ids) + 1 for ids in row] for row in zip(*sides, strict=True)]

    def key(row: int) -> tuple[int, int]:
        longest, ahead = max(lengths[row]), lengths[row][0] - lengths[row][-1]
        # Up and down in turns: neighbours are near each other on the shorter side too.
        return longest, ahead if longest % 2 else -ahead

    batches: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=key):
        room = min(max_tokens // max(lengths[row]), max_sentences)
        if not batches or len(batches[-1]) >= max(room, 1):
            batches.append([])
        batches[-1].append(row)
    return batches[::-1]


def pad_right(rows: Rows, device: torch.device) -> Tensor:
    """[B, longest] int64."""
    longest = max(map(len, rows))
    padded = [[*row, *[PAD] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.int64, device=device)
