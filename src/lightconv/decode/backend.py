"""Decoding backends: the C++ engine, PyTorch, or several models as one.

backend = choose_backend([model], Options())
state = backend.start(backend.encode(source), max_len)
beam_search(backend.step, state, first, reorder=backend.reorder, ...)
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lightconv import mixers
from lightconv.decode.beam import StepFunction
from lightconv.decode.engine import Engine
from lightconv.decode.options import Options
from lightconv.decode.shortlist import Shortlist
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.ops.check import accumulate_dtype
from lightconv.ops.products import choose, using

Model = Seq2Seq | LanguageModel


class Backend(Protocol):
    """A model to search; `name` is "native" or "torch", `pairs` is sequence to sequence."""

    name: str
    pairs: bool
    device: torch.device

    def encode(self, source: Tensor, /) -> Any:
        """Encodes source [B, S] int64, padded. A shortlist also needs the words of prefixes."""

    def start(self, source: Any, max_len: int, /) -> Any:
        """The state before the first token of encoded sources, or of that many texts."""

    def step(self, tokens: Tensor, state: Any, /) -> tuple[Tensor, Any]:
        """Scores [N, n, V] of what follows tokens [N, n], and the next state."""

    def step_attending(self, tokens: Tensor, state: Any, /) -> tuple[Tensor, Any, Tensor]:
        """As `step`, with the attention [N, n, S] to the source."""

    def read(self, texts: Sequence[Sequence[int]], state: Any, /) -> Any:
        """The state after each row has read its text, all of one length."""

    def reorder(self, state: Any, rows: Tensor, /) -> Any:
        """The state of those rows [N'] int64."""


class TorchBackend:
    """A model stepped by PyTorch."""

    name = "torch"

    def __init__(self, model: Model) -> None:
        self.pairs = isinstance(model, Seq2Seq)
        self.device = next(model.parameters()).device
        library = choose() if self.device.type == "cpu" else "default"
        self.start: Any = using(library)(model.start)
        self.step: Any = using(library)(model.step)
        self.reorder: Any = mixers.reorder
        # A language model has neither.
        self.encode: Any = None
        self.step_attending: Any = None
        if isinstance(model, Seq2Seq):
            self.encode = using(library)(model.encode)
            self.step_attending = using(library)(model.step_attending)

    def read(self, texts: Sequence[Sequence[int]], state: Any) -> Any:
        tokens = torch.tensor(texts, dtype=torch.int64, device=self.device)
        return self.step(tokens, state)[1] if tokens.shape[1] else state


class Ensemble:
    """Several backends or models as one: the mean of their probabilities.

    A state is the tuple of their states.
    """

    def __init__(self, backends: Sequence[Backend | Model]) -> None:
        self.backends: list[Backend] = [
            TorchBackend(each) if isinstance(each, nn.Module) else each for each in backends
        ]
        names = {each.name for each in self.backends}
        self.name = "native" if names == {"native"} else "torch"
        self.pairs = self.backends[0].pairs
        self.device = self.backends[0].device
        self.step: Any = ensemble_steps([each.step for each in self.backends])
        self.step_attending: Any = ensemble_steps([each.step_attending for each in self.backends])

    def encode(self, source: Tensor) -> tuple[Any, ...]:
        """Encodes source [B, S] int64, padded, with each model."""
        return tuple(each.encode(source) for each in self.backends)

    def start(self, sources: tuple[Any, ...] | int, max_len: int) -> tuple[Any, ...]:
        each = (sources,) * len(self.backends) if isinstance(sources, int) else sources
        pairs = zip(self.backends, each, strict=True)
        return tuple(backend.start(source, max_len) for backend, source in pairs)

    def read(self, texts: Sequence[Sequence[int]], states: tuple[Any, ...]) -> tuple[Any, ...]:
        pairs = zip(self.backends, states, strict=True)
        return tuple(backend.read(texts, state) for backend, state in pairs)

    def reorder(self, states: tuple[Any, ...], rows: Tensor) -> tuple[Any, ...]:
        """The states of those rows [N'] int64."""
        pairs = zip(self.backends, states, strict=True)
        return tuple(backend.reorder(state, rows) for backend, state in pairs)


def ensemble_steps(steps: Sequence[StepFunction[Any]]) -> StepFunction[tuple[Any, ...]]:
    """A step that averages the probabilities of several; its state is the tuple of their states.

    Each of `steps` returns scores [N, n, V] of the same vocabulary for tokens [N, n]. If all return
    attention, the result is their mean.
    """
    if not steps:
        raise ValueError("an ensemble needs at least one step")

    def step(tokens: Tensor, states: tuple[Any, ...]) -> Any:
        results = [each(tokens, state) for each, state in zip(steps, states, strict=True)]
        # Attention is the third column, unless a step returns none.
        scores, after, *attention = zip(*results, strict=False)
        sizes = {each.shape[-1] for each in scores}
        if len(sizes) > 1:
            raise ValueError(
                f"the models of an ensemble must have one vocabulary, got {sorted(sizes)} words"
            )
        logprobs = [each.log_softmax(-1, dtype=accumulate_dtype(each.dtype)) for each in scores]
        mean = torch.stack(logprobs).logsumexp(0) - math.log(len(logprobs))
        return mean, after, *(torch.stack(looks).mean(0) for looks in attention)

    return step


def choose_backend(
    models: Sequence[Model],
    options: Options,
    *,
    shortlist: Shortlist | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Backend:
    """The C++ engine if it supports the models and the search, else PyTorch.

    shortlist  of the words of outputs, only for one model
    tell       called with the reason if engine="auto" is PyTorch; for "native" that is a ValueError
    """
    engine, quantize, asked = options.text.engine, options.text.quantize, options.text.asked
    if shortlist is not None and len(models) > 1:
        raise ValueError("a shortlist is for one model, got an ensemble. Omit one of them")
    found: list[Backend] = []
    for model in models:
        reason = Engine.supports(model) if engine != "torch" else "engine='torch'"
        if options.decode.coverage > 0.0:
            reason = "coverage needs to know the attention"
        if reason is None:
            found.append(Engine(model, None if quantize == "none" else quantize, shortlist))
            continue
        if asked:
            raise ValueError(f"{asked} cannot run this model: {reason}. Omit it to run in torch")
        if engine == "auto":
            tell(f"decoding in torch, not in the C++ engine: {reason}")
        found.append(TorchBackend(model))
    return found[0] if len(found) == 1 else Ensemble(found)
