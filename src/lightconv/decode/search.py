"""Search from token ids to hypotheses.

search = ModelSearch(TorchBackend(model), Options(decode=DecodeConfig(beam=4)))
best = search([[5, 6, 7]], [0])[0][0]       # ids without EOS in, a hypothesis out
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import chain
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightconv.data.vocabulary import EOS, PAD, UNK
from lightconv.decode.backend import Backend
from lightconv.decode.beam import NO_OUTPUT, Beams, Hypothesis, Running, beam_options
from lightconv.decode.draft import DraftSearch
from lightconv.decode.engine import Engine
from lightconv.decode.native import EngineSearch
from lightconv.decode.options import DecodeConfig, Options, TextOptions
from lightconv.decode.rules import PENALTIES, Rules
from lightconv.decode.sampling import Draws

Ids = Sequence[int]
Rows = Sequence[Ids]
STEPS = 16  # of a call, of those who need not be told about each
# Hypotheses of each source, best first.
Found = list[list[Hypothesis]]
# Sources without EOS, their numbers in the input (draws depend on them, errors name them) and the
# ids that their outputs begin with -> hypotheses.
Search = Callable[[Rows, Sequence[int], Rows | None], Found]


class Request(NamedTuple):
    """A source without EOS, its number (draws depend on it) and what its output begins with."""

    key: Any
    source: Ids
    number: int = 1
    prefix: Ids = ()
    limits: tuple[int, int] = (1, 1)  # least and most tokens of its output


@dataclass(eq=False)
class ModelSearch:
    """Search with a model: targets of sources, or continuations of prompts.

    draft  engine of a faster model that proposes words, for one sentence at a time
    """

    backend: Backend
    options: Options
    draft: Engine | None = None

    def __call__(
        self, sources: Rows, numbers: Sequence[int], prefixes: Rows | None = None
    ) -> Found:
        found: Found = [[] for _ in sources]
        stream = Stream(self)
        prefixes = [()] * len(sources) if prefixes is None else prefixes
        each = list(zip(range(len(sources)), sources, numbers, prefixes, strict=True))
        # In PyTorch only prompts of one length go together.
        for one in each if self.backend.pairs else sorted(each, key=lambda one: len(one[1])):
            stream.put(*one)
        while stream:
            for searched in stream.advance(STEPS):
                found[searched.row] = searched.check(numbers[searched.row])
        return found

    @property
    def joins(self) -> bool:
        """True if sentences join a running search."""
        return isinstance(self.backend, Engine)

    def begin(self) -> "Running[Any] | EngineSearch":
        """A search without sentences."""
        backend, decode, sampling = self.backend, self.options.decode, self.options.sampling
        if isinstance(backend, Engine):
            if self.draft is not None:
                return DraftSearch(backend, self.draft, self.options)
            return EngineSearch(backend, self.options)
        covers = decode.coverage > 0.0 and sampling is None
        n_best = self.options.text.n_best
        choice = Beams(decode.beam, decode.beam) if sampling is None else Draws(n_best, sampling)
        return Running(
            backend.step_attending if covers else backend.step,
            choice,
            partial(PENALTIES[decode.length_penalty], alpha=decode.alpha),
            decode.coverage if covers else 0.0,
            backend.reorder,
        )

    def request(self, key: Any, source: Ids, number: int = 1, prefix: Ids = ()) -> Request:
        """ValueError, with the line, if no output has a valid length."""
        if len(prefix) and not self.backend.pairs:
            raise ValueError("a language model continues its prompt, expected no prefix beside it")
        options = beam_options(self.options.decode, [len(source) + 1], eos=EOS)
        least, most = options["min_len"][0], options["max_len"][0]
        if least > most:
            raise ValueError(
                f"line {number}: at least {least} tokens, and at most {most}, expected room "
                "for an output. Change min_len, min_len_ratio, max_len_plus or max_len_ratio"
            )
        if len(prefix) >= most:
            raise ValueError(
                f"line {number}: a prefix of {len(prefix)} tokens, expected fewer than "
                f"the {most} an output may have. Raise max_len_plus"
            )
        return Request(key, source, number, prefix, (least, most))

    def add(self, running: "Running[Any] | EngineSearch", requests: Sequence[Request]) -> None:
        """Lets sentences join a search; one in PyTorch must be without any."""
        backend, decode, seeds = self.backend, self.options.decode, list[int]()
        if self.options.sampling is not None:
            seed = self.options.sampling.seed
            seeds = [derive_seed(seed, each.number) for each in requests]
        if isinstance(running, EngineSearch):
            running.add(requests, seeds)
            return
        sources = [each.source for each in requests]
        least, most = zip(*(each.limits for each in requests), strict=True)
        prefixes, padding = [each.prefix for each in requests], None
        if backend.pairs:
            source = pad_right([[*source, EOS] for source in sources], backend.device)
            state = backend.start(backend.encode(source), max(most))
            first = source.new_full((len(sources),), EOS)
            padding = source == PAD if running.coverage > 0.0 else None
        else:
            prompts = [[EOS, *prompt] for prompt in sources]
            state = backend.start(len(prompts), len(prompts[0]) + max(most))
            state = backend.read([prompt[:-1] for prompt in prompts], state)
            first = torch.tensor([prompt[-1] for prompt in prompts], device=backend.device)
        rules = Rules(
            first,
            EOS,
            most,
            least,
            (PAD,) if decode.allow_unknown else (PAD, UNK),
            decode.block_ngrams,
            prefixes if any(prefixes) else None,
        )
        keys = [each.key for each in requests]
        running.begin(keys, state, first, rules.seeded(seeds) if seeds else rules, padding)


class Stream:
    """Sources that join a running search as soon as there is room, and leave it one by one.

    most        sentences at once, and `most_tokens` of their sources
    on_token    by key, called after each step with the tokens so far of its best hypothesis
    """

    def __init__(
        self,
        search: ModelSearch,
        most: int = 1 << 30,
        most_tokens: int = 1 << 30,
        waiting: "deque[Request] | None" = None,
        lock: "threading.Lock | None" = None,
    ) -> None:
        self.search, self.most_tokens = search, most_tokens
        self.most = most if search.draft is None else 1
        # Several streams may share what waits.
        self.waiting: deque[Request] = deque() if waiting is None else waiting
        self._lock = lock or threading.Lock()
        self.on_token: dict[Any, Callable[[list[int]], None]] = {}
        self._running = search.begin()
        self._since: dict[Any, tuple[Request, float]] = {}
        self._batches = 0

    def __len__(self) -> int:
        return len(self.waiting) + len(self._since)

    def put(self, key: Any, source: Ids, number: int = 1, prefix: Ids = ()) -> None:
        """Adds a source; ValueError if it can have no output."""
        self.waiting.append(self.search.request(key, source, number, prefix))

    def cancel(self, *keys: Any) -> None:
        """Those sources leave, whether they wait or run."""
        self.waiting = deque(each for each in self.waiting if each.key not in keys)
        if running := [key for key in keys if self._since.pop(key, None) is not None]:
            with torch.inference_mode():
                self._running.cancel(running)

    def _admit(self) -> None:
        running = self._running
        if len(running) and not self.search.joins:
            return
        room = self.most - len(self._since)
        # A few at a time: encoding one alone costs more.
        if room < min(len(self.waiting), max(1, self.most // 8)):
            return
        with self._lock:
            chosen = self._take(room)
        if chosen:
            now, self._batches = time.perf_counter(), self._batches + 1
            self._since |= {each.key: (each, now) for each in chosen}
            with torch.inference_mode():
                self.search.add(running, chosen)

    def _take(self, room: int) -> list[Request]:
        free, chosen = self.search.joins or self.search.backend.pairs, list[Request]()
        tokens = sum(len(each.source) + 1 for each, _ in self._since.values())
        while self.waiting and len(chosen) < room:
            size = len(self.waiting[0].source) + 1
            full = tokens + size > self.most_tokens and bool(chosen or self._since)
            alike = not chosen or size == len(chosen[0].source) + 1
            if full or not (free or alike):
                break
            chosen.append(self.waiting.popleft())
            tokens += size
        return chosen

    def advance(self, steps: int = 1, seconds: float = 0.0) -> "list[Searched]":
        """Steps for `seconds`, or if 0 until some are done: these; one step if tokens are told."""
        self._admit()
        if not len(self._running):
            return []
        with torch.inference_mode():
            together = len(self._since)
            left = self._running.advance(1 if self.on_token else steps, seconds)
            told = [
                (key, self._running.best_so_far(key))
                for key in self.on_token
                if key in self._since and key not in dict(left)
            ]
        now = time.perf_counter()
        found = [
            Searched(key, hypotheses, self._batches, now - self._since.pop(key)[1], together)
            for key, hypotheses in left
        ]
        for key, ids in told:
            if key in self.on_token:  # a callback may have cancelled it
                self.on_token[key](ids)
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
    """The result for one source, by its row, its time, and with how many it ran at its end."""

    row: Any
    hypotheses: list[Hypothesis]  # none if no output has a probability
    batch: int
    seconds: float
    sentences: int

    def check(self, number: int) -> list[Hypothesis]:
        """The hypotheses; ValueError names the line if there are none."""
        if not self.hypotheses:
            raise ValueError(NO_OUTPUT.format(f"line {number}"))
        return self.hypotheses


def search_batches(
    search: Search,
    sources: Rows,
    options: TextOptions,
    numbers: Sequence[int] | None = None,
    prefixes: Rows | None = None,
) -> Iterator[Searched]:
    """Searches every source once; arguments as of `Search`.

    Those of similar length go together. With a backend that can, they join and leave a running
    batch of each of several callers; else they are in batches.
    """
    numbers = range(len(sources)) if numbers is None else numbers
    batches = batch_by_length([sources], options.max_tokens, options.max_sentences)
    if isinstance(search, ModelSearch) and search.joins:
        begins = [()] * len(sources) if prefixes is None else prefixes
        requests = [
            search.request(row, sources[row], numbers[row], begins[row])
            for row in chain.from_iterable(batches)
        ]
        for searched in _share(search, requests, options):
            searched.check(numbers[searched.row])
            yield searched
        return
    for number, rows in enumerate(batches):
        begin = time.perf_counter()
        found = search(
            [sources[row] for row in rows],
            [numbers[row] for row in rows],
            None if prefixes is None else [prefixes[row] for row in rows],
        )
        seconds = time.perf_counter() - begin
        for row, hypotheses in zip(rows, found, strict=True):
            yield Searched(row, hypotheses, number, seconds, len(rows))


def _share(
    search: ModelSearch, requests: list[Request], options: TextOptions
) -> Iterator[Searched]:
    """The results of all requests as they come, from several callers of one thread each."""
    threads = torch.get_num_threads()
    assert isinstance(search.backend, Engine)
    callers = search.backend.callers(len(requests), search.options.decode.beam)
    most = min(options.max_sentences, -(-len(requests) // callers))
    first = requests[: callers * most]  # dealt out, so that all have long ones and short ones
    dealt = [first[caller::callers] for caller in range(callers)]
    waiting = deque([*chain.from_iterable(dealt), *requests[len(first) :]])
    lock, stop = threading.Lock(), threading.Event()
    results: SimpleQueue[Searched | BaseException | None] = SimpleQueue()

    def work() -> Iterator[Searched]:
        stream = Stream(search, most, options.max_tokens, waiting, lock)
        while stream and not stop.is_set():
            yield from stream.advance(STEPS)

    def call() -> None:
        torch.set_num_threads(1)  # of this thread, and of such as begin meanwhile
        try:
            for each in work():
                results.put(each)
            results.put(None)
        except BaseException as error:
            results.put(error)

    if callers == 1:
        yield from work()
        return
    pool = [threading.Thread(target=call, daemon=True) for _ in range(callers)]
    try:
        for each in pool:
            each.start()
        going = callers
        while going:
            found = results.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                going -= 1
            else:
                yield found
    finally:
        stop.set()
        for each in pool:
            each.join()
        torch.set_num_threads(threads)


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
