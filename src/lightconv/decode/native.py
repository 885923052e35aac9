"""Search with an engine in C++: sentences join and leave at any step, without Python per token.

csrc/search.h has the loop, and csrc/program.h its tables; `beam.Running` is its definition.
"""

import ctypes
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from lightconv.data.vocabulary import EOS, PAD, UNK
from lightconv.decode.beam import Hypothesis
from lightconv.decode.engine import Engine, EngineState
from lightconv.decode.options import Options
from lightconv.decode.rules import PENALTIES
from lightconv.ops import program
from lightconv.ops.library import INTEGER, NUMBER, POINTER, POOL, call, members

if TYPE_CHECKING:
    from lightconv.decode.search import Request

_WORDS = 128  # of an output, that tables have room for at first


class SearchTask(ctypes.Structure):
    """csrc/program.h's Search, field for field."""

    _fields_ = (
        *members(POINTER, "run scores"),
        ("V", INTEGER),
        ("table", POINTER),
        *members(INTEGER, "width room draws top_k"),
        *members(NUMBER, "temperature top_p"),
        *members(INTEGER, "eos block"),
        ("forbidden", POINTER),
        *members(INTEGER, "forbidden_count prefixes"),
        *members(POINTER, "prefix length least most seeds found found_lengths found_places"),
        *members(POINTER, "found_words found_sums tokens positions sentences places totals"),
        *members(POINTER, "words sums"),
        *(("steps", INTEGER), ("seconds", NUMBER), ("left", INTEGER), ("leavers", POINTER)),
    )


# Tables and their dimensions: sentences, rows, width, room for words, prefixes, layers, choice.
_TABLES = dict.fromkeys(("length", "least", "most", "seeds", "found", "leavers", "lengths"), "S")
_TABLES |= {"found_lengths": "SW", "found_places": "SW", "found_words": "SWT", "found_sums": "SWT"}
_TABLES |= {"sources": "SL", "prefix": "SP", "table": "SC", "words": "RT", "sums": "RT"}
_ROWS = ("tokens", "positions", "sentences", "places", "totals", "words", "sums")
_TABLES |= dict.fromkeys(_ROWS[:5], "R")
_KINDS: dict[str, Any] = dict.fromkeys(("totals", "sums", "found_sums"), np.float64)
_KINDS |= {"seeds": np.uint64} | dict.fromkeys(
    ("words", "found_words", "prefix", "table"), np.int32
)


class EngineSearch:
    """Beam search or sampling of sentences with an engine; `spare` as of `Engine.start`."""

    def __init__(self, engine: Engine, options: Options, spare: int = 0) -> None:
        decode, sampling = options.decode, options.sampling
        self._engine, self._rows, self._draws = engine, 0, sampling is not None
        self._penalty: Callable[[int], float] = partial(
            PENALTIES[decode.length_penalty], alpha=decode.alpha
        )
        self._places: dict[Any, int] = {}  # of the sentences, by key
        self._kept: dict[int, tuple[Any, Any]] = {}  # key and source of each place
        self._free: list[int] = []
        self._state = EngineState(engine.decoder, None, 0, 1, spare)
        self._state.oldest = 1 << 60  # more than any: what is there stays
        self._forbidden = np.array([PAD] if decode.allow_unknown else [PAD, UNK])
        self._run = engine.task()
        self._task = SearchTask(
            run=ctypes.addressof(self._run),
            V=engine.vocab,
            width=decode.beam if sampling is None else options.text.n_best,
            draws=self._draws,
            eos=EOS,
            block=decode.block_ngrams,
            forbidden=self._forbidden.ctypes.data,
            forbidden_count=len(self._forbidden),
        )
        if sampling is not None:
            self._task.top_k, self._task.top_p = sampling.top_k, sampling.top_p
            self._task.temperature = sampling.temperature
        self._tables: dict[str, NDArray[Any]] = {}
        self._sizes = dict.fromkeys("SRTPLC", 0) | {"W": self._task.width}

    def __len__(self) -> int:
        return len(self._places)

    @property
    def length(self) -> int:
        """Words of the hypotheses of the first sentence."""
        return int(self._tables["length"][self._tables["sentences"][0]])

    def _make_room(self, max_len: int = 0, **wanted: int) -> None:
        """Tables of at least those sizes, and a past of at least `max_len` tokens."""
        sizes, state, run, task = self._sizes, self._state, self._run, self._task
        new = {name: size for name, size in wanted.items() if size > sizes[name]}
        if not new and max_len <= state.max_len:
            return
        sizes |= new
        for name, dims in _TABLES.items():
            if new.keys().isdisjoint(dims):
                continue
            shape = [sizes[each] for each in dims]
            grown = np.full(shape, -(name == "prefix"), _KINDS.get(name, np.int64))
            if name in self._tables:
                grown[tuple(map(slice, self._tables[name].shape))] = self._tables[name]
            self._tables[name] = grown
            for struct in (run, task):
                if hasattr(struct, name) and grown.size:
                    setattr(struct, name, grown.ctypes.data)
        task.room, task.prefixes = sizes["T"], sizes["P"]
        run.layers = sizes["L"]
        if sizes["C"]:
            task.V = run.width = sizes["C"]
            run.choice = run.layers - 4
        if "R" in new or "C" in new:
            rows = sizes["R"]
            self._scores = POOL.empty(torch.Size([rows, task.V]), torch.float32)
            self._outputs = program.addresses([self._scores])
            self._workspace = torch.empty(rows * state.decoder.columns)
            task.scores, run.outputs = self._scores.data_ptr(), ctypes.addressof(self._outputs)
            run.workspace = self._workspace.data_ptr()
        if sizes["R"] > state.slots or max_len > state.max_len:
            state.time = run.time
            state.ancestors = F.pad(state.ancestors, (0, 0, 0, sizes["R"] - len(state.ancestors)))
            state.resize(max(max_len, state.max_len), sizes["R"])
            self._histories = state.fill(run)

    def add(self, requests: "Sequence[Request]", seeds: Sequence[int] = ()) -> None:
        """Sentences join; `seeds` of their draws, of 64 bits."""
        engine, n, t = self._engine, len(requests), self._tables
        starts = self._task.width if self._draws else 1
        prefixes = [each.prefix for each in requests]
        least, most = zip(*(each.limits for each in requests), strict=True)
        source, other, begun = None, None, [torch.empty(0)] * n
        if engine.pairs:
            source = engine.encode_ids([[*each.source, EOS] for each in requests], prefixes)
            given = [[EOS, *each[:-1]] for each in prefixes]  # to be read now, but for the last
        else:
            given = [[EOS, *each.source] for each in requests]
        read = max(map(len, given))
        if read > 1:
            other = engine.start(n if source is None else source, read)
            if source is None:
                other = engine.read([each[:-1] for each in given], other)
            else:
                other, begun = engine.read_prefixes(given, other)
        if len(self._free) < n:
            S = max(8, 2 * self._sizes["S"], len(self) + n)
            self._free += range(self._sizes["S"], S)
            self._make_room(S=S, R=S * self._task.width, T=_WORDS)
        sizes = {"P": max(map(len, prefixes))}
        if source is not None:
            addresses, words = source.addresses(), source.words()
            sizes |= {"L": addresses.shape[1], "C": words.shape[1]}
        self._make_room(max(most) + (0 if engine.pairs else read), T=sizes["P"], **sizes)
        at = np.array([self._free.pop() for _ in requests])
        t["length"][at], t["found"][at] = [len(each) for each in begun], 0
        t["least"][at], t["most"][at] = least, most
        if len(seeds):
            t["seeds"][at] = seeds
        for place, request in zip(at.tolist(), requests, strict=True):
            self._kept[place], self._places[request.key] = (request.key, source), place
            if self._sizes["P"]:
                t["prefix"][place] = -1
                t["prefix"][place, : len(request.prefix)] = request.prefix
        if source is not None:
            t["lengths"][at], t["sources"][at] = np.diff(source.offsets), addresses
            t["table"][at, : words.shape[1]] = words
            self._run.longest = max(self._run.longest, source.longest)
        first, self._rows = self._rows, self._rows + n * starts
        rows = slice(first, self._rows)
        t["sentences"][rows], t["places"][rows] = at.repeat(starts), [*range(starts)] * n
        t["tokens"][rows] = np.repeat([each[-1] for each in given], starts)
        t["totals"][rows] = t["positions"][rows] = 0
        for b, logprobs in enumerate(begun if read > 1 else ()):
            if k := len(logprobs):
                rows = slice(first + b * starts, first + (b + 1) * starts)
                t["words"][rows, :k], sums = prefixes[b][:k], logprobs.double().cumsum(0)
                t["sums"][rows, :k], t["totals"][rows] = sums, sums[-1]
        if other is not None:
            other.reorder(torch.arange(n).repeat_interleave(starts))
            positions = torch.from_numpy(t["positions"])
            self._state.time = self._run.time
            self._state.adopt(other, positions[:first])
            positions[first : self._rows] = other.positions

    def advance(self, steps: int = 1, seconds: float = 0.0) -> list[tuple[Any, list[Hypothesis]]]:
        """Steps for `seconds`, or if 0 until sentences leave; the keys and outputs of these."""
        engine, run, t, rows = self._engine, self._run, self._tables, self._rows
        if not rows:
            return []
        longest = int(t["length"].max())
        if longest + steps > self._sizes["T"]:
            self._make_room(T=2 * (longest + steps))
        self._waves = engine.sinusoids(int(t["positions"][:rows].max()) + steps)
        run.sinusoids, run.rows = self._waves.data_ptr(), rows
        run.threads = engine.threads(engine.decoder, rows)
        return self._search(steps, seconds)

    def _search(self, steps: int, seconds: float = 0.0) -> list[tuple[Any, list[Hypothesis]]]:
        """As `advance`, with room for those steps."""
        self._task.steps, self._task.seconds, t = steps, seconds, self._tables
        call("lightconv_search", POINTER(self._engine.address), ctypes.byref(self._task))
        self._rows = self._run.rows
        return [self._leave(place) for place in t["leavers"][: self._task.left].tolist()]

    def _leave(self, place: int) -> tuple[Any, list[Hypothesis]]:
        """The key and the outputs of a sentence, best first or by the numbers of draws."""
        key, t = self._forget(place), self._tables
        some = place, slice(int(t["found"][place]))
        lengths = t["found_lengths"][some].tolist()
        used = *some, slice(max(lengths, default=0))
        found = []
        for n, words, sums in zip(
            lengths, t["found_words"][used].tolist(), t["found_sums"][used].tolist(), strict=True
        ):
            logprobs = [after - before for before, after in pairwise((0.0, *sums[:n]))]
            found.append(Hypothesis(words[:n], sums[n - 1] / self._penalty(n), logprobs))
        if self._draws:
            return key, [found[n] for n in t["found_places"][some].argsort()]
        # Of equal scores the one that ended first comes first.
        return key, sorted(found, key=lambda h: -h.score)

    def _forget(self, place: int) -> Any:
        key = self._kept.pop(place)[0]
        del self._places[key]
        self._free.append(place)
        self._tables["length"][place] = 0
        return key

    def cancel(self, keys: Collection[Any]) -> None:
        """Those of the sentences that are here leave without outputs."""
        places = [self._places[key] for key in keys if key in self._places]
        stays = ~np.isin(self._tables["sentences"][: self._rows], places)
        rows = slice(int(stays.sum()))
        for name in _ROWS:
            self._tables[name][rows] = self._tables[name][: self._rows][stays]
        ancestors = self._state.ancestors
        ancestors[rows] = ancestors[: self._rows][torch.from_numpy(stays)]
        self._rows = rows.stop
        for place in places:
            self._forget(place)

    def best_so_far(self, key: Any) -> list[int]:
        """Tokens of the first hypothesis of a sentence."""
        t, place = self._tables, self._places[key]
        row = int((t["sentences"][: self._rows] == place).argmax())
        found: list[int] = t["words"][row, : t["length"][place]].tolist()
        return found
