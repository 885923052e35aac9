"""From token ids to hypotheses: the one place where texts meet the search.

    search = PairSearch(model, Finder(DecodeConfig(beam=4)))
    best = search([[5, 6, 7]], [0])[0][0]       # ids without EOS in, a hypothesis out

What a `DecodeConfig` says becomes arguments of `beam_search` or `sample` here and nowhere else.
"""

import time
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from lightconv.data.batches import BatchPlan
from lightconv.data.vocabulary import EOS, PAD, UNK
from lightconv.decode.beam import Hypothesis, StepFunction, beam_options, beam_search
from lightconv.decode.config import DecodeConfig
from lightconv.decode.options import SampleConfig, TextOptions
from lightconv.decode.rules import PENALTIES
from lightconv.decode.runner import Runner, options_of
from lightconv.decode.sampling import sample
from lightconv.models import LanguageModel, Seq2Seq

Ids = Sequence[int]


class Search(Protocol):
    """What finds outputs."""

    def __call__(
        self,
        sources: Sequence[Ids],
        numbers: Sequence[int],
        prefixes: Sequence[Ids] | None = None,
        /,
    ) -> list[list[Hypothesis]]:
        """For the ids of some sources without EOS, and their numbers, hypotheses, best first.

        prefixes  what the outputs of each begin with
        """


class Finder(NamedTuple):
    """How hypotheses are found: a search, or with `sampling` that many `samples`."""

    config: DecodeConfig
    sampling: SampleConfig | None = None
    samples: int = 1

    def options(self, lengths: Sequence[int]) -> dict[str, Any]:
        """What the search is told for sources of those lengths, EOS counted."""
        return beam_options(self.config, lengths, eos=EOS, pad=PAD, unknown=UNK)

    def find(
        self,
        step: StepFunction[Any],
        state: Any,
        first: Tensor,
        options: dict[str, Any],
        numbers: Sequence[int],
    ) -> list[list[Hypothesis]]:
        """For each of B rows, with the options of `options` and those of the caller."""
        if self.sampling is None:
            return beam_search(step, state, first, **options)
        drawn = {name: value for name, value in options.items() if name not in _SEARCHED}
        return sample(
            step,
            state,
            first,
            seeds=[derive_seed(self.sampling.seed, number) for number in numbers],
            samples=self.samples,
            temperature=self.sampling.temperature,
            top_k=self.sampling.top_k,
            top_p=self.sampling.top_p,
            **drawn,
        )


# What is said to a search and not to `sample`.
_SEARCHED = ("beam", "coverage", "padding")


class PairSearch:
    """Sources to targets; `runner` steps in the place of the model."""

    def __init__(self, model: Seq2Seq, finder: Finder, runner: Runner | None = None) -> None:
        self.model = model
        self.finder = finder
        self.runner: Any = model if runner is None else runner

    def __call__(
        self,
        sources: Sequence[Ids],
        numbers: Sequence[int],
        prefixes: Sequence[Ids] | None = None,
        /,
    ) -> list[list[Hypothesis]]:
        """A batch: ids without EOS -> the hypotheses of each, which end with EOS."""
        runner, finder = self.runner, self.finder
        options = finder.options([len(source) + 1 for source in sources]) | options_of(runner)
        _check_lengths(options, numbers, prefixes)
        if prefixes is not None:
            options["prefix"] = prefixes
        with torch.inference_mode():
            source = pad_right([[*source, EOS] for source in sources], device_of(self.model))
            memory = runner.encode(source)
            state = runner.start(memory, max(options["max_len"]))
            first = source.new_full((len(sources),), EOS)
            step: StepFunction[Any] = runner.step
            if finder.config.coverage > 0.0:
                step, options["padding"] = runner.step_attending, source == PAD
            return finder.find(step, state, first, options, numbers)


class PromptSearch:
    """The beginnings of texts to their ends; the hypotheses do not repeat the beginnings."""

    def __init__(self, model: LanguageModel, finder: Finder, runner: Runner | None = None) -> None:
        self.model = model
        self.finder = finder
        self.runner: Any = runner or model

    def __call__(
        self,
        prompts: Sequence[Ids],
        numbers: Sequence[int],
        prefixes: Sequence[Ids] | None = None,
        /,
    ) -> list[list[Hypothesis]]:
        """A batch: ids of any length, also none -> the hypotheses of each."""
        if prefixes is not None:
            raise ValueError("a language model goes on with its prompt, expected no prefix beside")
        found: list[list[Hypothesis]] = [[] for _ in prompts]
        # All rows of a state are at one position, so only prompts of one length go together.
        for length in sorted({len(prompt) for prompt in prompts}):
            rows = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
            answers = self._run([prompts[row] for row in rows], [numbers[row] for row in rows])
            for row, hypotheses in zip(rows, answers, strict=True):
                found[row] = hypotheses
        return found

    def _run(self, prompts: list[Ids], numbers: list[int]) -> list[list[Hypothesis]]:
        runner, finder = self.runner, self.finder
        options = finder.options([len(prompt) + 1 for prompt in prompts]) | options_of(runner)
        _check_lengths(options, numbers)
        with torch.inference_mode():
            tokens = pad_right([[EOS, *prompt] for prompt in prompts], device_of(self.model))
            state = runner.start(len(prompts), tokens.shape[1] + max(options["max_len"]))
            if tokens.shape[1] > 1:
                _, state = runner.step(tokens[:, :-1], state)
            return finder.find(runner.step, state, tokens[:, -1], options, numbers)


def _check_lengths(
    options: dict[str, Any], numbers: Sequence[int], prefixes: Sequence[Ids] | None = None
) -> None:
    """Raises ValueError, which names the line, where no output could be long or short enough."""
    limits = zip(numbers, options["min_len"], options["max_len"], strict=True)
    for row, (number, least, most) in enumerate(limits):
        if least > most:
            raise ValueError(
                f"line {number}: at least {least} tokens, and at most {most}, expected room for an "
                "output. Change min_len, min_len_ratio, max_len_plus or max_len_ratio"
            )
        if prefixes is not None and len(prefixes[row]) >= most:
            raise ValueError(
                f"line {number}: a prefix of {len(prefixes[row])} tokens, expected fewer than the "
                f"{most} an output may have. Raise max_len_plus"
            )


def derive_seed(seed: int, number: int) -> int:
    """64 bits for one text."""
    return int.from_bytes(sha256(f"{seed} {number}".encode()).digest()[:8], "little")


def rank(
    hypotheses: Sequence[Hypothesis], old: DecodeConfig, new: DecodeConfig
) -> list[Hypothesis]:
    """What a search with the penalty of `new` would have found instead of that of `old`.

    A search finds the same hypotheses with any length penalty: it only says which of them is best.
    What a score has besides, such as coverage, stays.
    """
    scored = []
    for each in hypotheses:
        total, length = sum(each.logprobs), len(each.tokens)
        rest = each.score - normalize(total, length, old)
        scored.append(each._replace(score=normalize(total, length, new) + rest))
    return sorted(scored, key=lambda each: -each.score)


def normalize(total: float, length: int, config: DecodeConfig) -> float:
    """The score of an output: its log-probability over the penalty of its length, EOS counted."""
    return total / PENALTIES[config.length_penalty](length, config.alpha)


class SearchedBatch(NamedTuple):
    """How long a batch took, and how many sources it had."""

    seconds: float
    sentences: int


class Searched(NamedTuple):
    """What became of one source, by its row."""

    row: int
    hypotheses: list[Hypothesis]
    batch: SearchedBatch


def search_batches(
    search: Search,
    sources: Sequence[Ids],
    options: TextOptions,
    numbers: Sequence[int] | None = None,
    prefixes: Sequence[Ids] | None = None,
) -> Iterator[Searched]:
    """Every source once, in batches of about as long ones, the longest first.

    numbers   what the draws of each depend on, if any are made: its row unless given
    prefixes  what the outputs of each begin with
    """
    if not sources:
        return
    order = BatchPlan(
        [np.array([len(source) + 1 for source in sources])],
        max_tokens=options.max_tokens,
        max_sentences=options.max_sentences,
        too_long="alone",
    ).by_length()
    for index in range(len(order)):
        rows = [int(row) for row in order[index]]
        begin = time.perf_counter()
        begins = () if prefixes is None else ([prefixes[row] for row in rows],)
        found = search(
            [sources[row] for row in rows],
            rows if numbers is None else [numbers[row] for row in rows],
            *begins,
        )
        batch = SearchedBatch(time.perf_counter() - begin, len(rows))
        for row, hypotheses in zip(rows, found, strict=True):
            yield Searched(row, hypotheses, batch)


def pad_right(rows: Sequence[Ids], device: torch.device) -> Tensor:
    """[B, longest] int64."""
    longest = max(map(len, rows))
    padded = [[*row, *[PAD] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.int64, device=device)


def device_of(model: torch.nn.Module) -> torch.device:
    """Where its parameters are."""
    return next(model.parameters()).device
