"""Decoding speed of several models, comparable: interleaved rounds over the same work.

Every model decodes the same sentences with the same engine, threads, beam and batches. Outputs are
as long as their sources, so that models of one graph do the same work whatever their weights are.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightconv.decode.search import Rows
    from lightconv.models import LanguageModel, Seq2Seq

ROUNDS = 7
# Largest variation of a product's time on a quiet machine.
QUIET = 0.05
PRODUCTS = 60


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Decoding speed on a split, with at most `sentences` in a batch.

    seconds  median of the rounds; 0.1.0 measured once, while scoring, and has no rounds
    noise    variation of the time of a small product, before or after all rounds
    """

    split: str
    lines: int
    seconds: float
    tokens: int
    engine: str
    sentences: int
    beam: int | None = None
    threads: int | None = None
    rounds: tuple[float, ...] = ()
    noise: float = 0.0

    def rates(self, unit: str = "sentences/s") -> list[float]:
        """Median, lowest and highest rate in `sentences/s` or `tokens/s`."""
        count = self.lines if unit == "sentences/s" else self.tokens
        rounds = self.rounds or (self.seconds,)
        return [count / max(each, 1e-9) for each in (median(rounds), max(rounds), min(rounds))]

    def show(self, unit: str, digits: int) -> str:
        """`63.3 (62.9 to 63.5)`, with `noisy` if the machine was."""
        middle, low, high = (f"{rate:,.{digits}f}" for rate in self.rates(unit))
        return f"{middle} ({low} to {high}{', noisy' * (self.noise > QUIET)})"

    def facts(self) -> dict[str, str]:
        state = "noisy" if self.noise > QUIET else "quiet"
        return {
            "data": f"{self.lines:,} lines of {self.split}, outputs as long as their sources",
            "search": f"beam {self.beam}, batches of {self.sentences}",
            "engine": f"{self.engine}, threads {self.threads}",
            "machine": f"{state} (the time of a product varied by {self.noise:.1%})",
        }

    def origin(self) -> str:
        if not self.rounds:
            return "speed: measured once, while scoring, by lightconv 0.1: a rough figure"
        facts = ", ".join(f"{name} {text}" for name, text in self.facts().items())
        return f"speed: median (lowest to highest) of {len(self.rounds)} rounds; {facts}"


@dataclass(frozen=True)
class Speeds:
    """Speeds that were measured together, in the order of the models."""

    speeds: tuple[Speed, ...]

    def ratio(self, place: int) -> float:
        """Rate over that of the first model: median over the rounds, of two times side by side."""
        pairs = zip(self.speeds[0].rounds, self.speeds[place].rounds, strict=True)
        return median(first / max(own, 1e-9) for first, own in pairs)


def measure_noise() -> float:
    """Variation of the time of a product: from the first to the last decile, over the median."""
    import torch

    matrix = torch.ones(384, 384)
    times = []
    for _ in range(PRODUCTS):
        begin = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - begin)
    deciles = quantiles(times[PRODUCTS // 6 :], n=10)
    return (deciles[-1] - deciles[0]) / median(times)


def measure_speed(
    models: "Sequence[Seq2Seq | LanguageModel]",
    sources: "Rows",
    *,
    split: str,
    beam: int,
    batch_size: int,
    rounds: int = ROUNDS,
    show: Callable[[int], None] = lambda done: None,
    tell: Callable[[str], None] = lambda text: None,
) -> Speeds:
    """Speed of each model in `rounds` rounds after one that is not counted.

    The backend is the C++ engine if it supports all models, else PyTorch for all.

    sources    ids without EOS, of a split of that name
    batch_size sentences, whatever their lengths
    show       called with the number of rounds done
    """
    import torch

    from lightconv.decode.backend import choose_backend
    from lightconv.decode.options import DecodeConfig, Options, TextOptions
    from lightconv.decode.search import ModelSearch, search_batches

    options = Options(
        decode=DecodeConfig(beam=beam, min_len_ratio=1.0, max_len_ratio=1.0, max_len_plus=0),
        text=TextOptions(max_sentences=batch_size, max_tokens=1 << 40),
    )
    told: list[str] = []
    backends = [choose_backend([model], options, tell=told.append) for model in models]
    if not all(backend.pairs for backend in backends):
        raise ValueError("the speed of a language model is not measured, expected models of pairs")
    if told and len({backend.name for backend in backends}) > 1:
        options = replace(options, text=replace(options.text, engine="torch"))
        backends = [choose_backend([model], options) for model in models]
    for reason in told[:1]:
        tell(f"note: {reason}" + ", so all are" * (len(told) < len(models)))
    searches = [ModelSearch(backend, options) for backend in backends]
    noise, seconds, tokens = measure_noise(), [list[float]() for _ in models], 0
    for number in range(rounds + 1):
        # Every second round goes backwards, so that a drift of the machine meets all alike.
        for place in range(len(models))[:: 1 - 2 * (number % 2)]:
            begin = time.perf_counter()
            found = list(search_batches(searches[place], sources, options.text))
            seconds[place].append(time.perf_counter() - begin)
            tokens = sum(len(each.hypotheses[0].tokens) for each in found)
        show(number)
    noise = max(noise, measure_noise())
    about = Speed(
        split=split,
        lines=len(sources),
        seconds=0.0,
        tokens=tokens,
        engine=backends[0].name,
        sentences=batch_size,
        beam=beam,
        threads=torch.get_num_threads(),
        noise=noise,
    )
    counted = [tuple(each[1:]) for each in seconds]
    return Speeds(tuple(replace(about, seconds=median(each), rounds=each) for each in counted))
