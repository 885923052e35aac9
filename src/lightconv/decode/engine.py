"""Inference on the CPU as two programs: encode sources, step hypotheses."""

import ctypes
import math
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lightconv.decode import compiler
from lightconv.decode.compiler import Buffer, Program
from lightconv.decode.shortlist import Shortlist
from lightconv.models import LanguageModel, Seq2Seq, Seq2SeqConfig
from lightconv.models.embedding import TokenEmbedding, sinusoids
from lightconv.models.layers import DecoderLayer, Layer
from lightconv.ops import program
from lightconv.ops.library import POOL, native

_ROWS_ENCODED_AT_ONCE = 1024  # their buffers stay in the cache
_ROWS_READ_AT_ONCE = 192  # of hypotheses that read several tokens
_WORK_FOR_THREADS = 1 << 20  # multiplications below which waking a thread costs more
_ROWS_MEASURED = 4, 16  # with one thread, all threads and callers, so many steps each
_STEPS_MEASURED = 2
_ALL = 1 << 60


class ChosenRows(NamedTuple):
    """The words that outputs of a sentence consist of, and their rows of the output's matrix."""

    words: Tensor  # [n] int64
    weights: dict[str, Tensor]

    def addresses(self) -> list[int]:
        """As `Run.choice` in csrc/program.h."""
        found = [self.weights.get(name) for name in ("weight", "scale", "offset")]
        return [*(0 if each is None else each.data_ptr() for each in found), len(self.words)]


class EngineSource(NamedTuple):
    """Encoded sentences, laid end to end.

    Keys and values are [rows, 2D] of each decoder layer, those of a sentence [heads, 2, its rows,
    D / heads]; float32, or int8 behind the bytes of their scales [heads, 2, its rows].
    """

    offsets: NDArray[Any]  # [B + 1] int64: sentence b is rows offsets[b] .. offsets[b + 1]
    keys_values: tuple[Tensor, ...]
    longest: int  # rows of the longest sentence
    choices: Sequence[ChosenRows] = ()  # of each sentence, with a shortlist

    def addresses(self) -> NDArray[Any]:
        """Of each sentence in each layer, and of its choice: [B, layers (+ 4)] int64."""
        begin = [each.data_ptr() for each in self.keys_values]
        size = self.keys_values[0].stride(0) * self.keys_values[0].itemsize
        found = self.offsets[:-1, None] * size + begin
        if self.choices:
            found = np.concatenate([found, [each.addresses() for each in self.choices]], 1)
        return found

    def words(self) -> NDArray[Any]:
        """[B, W] int32, filled up with zeros; W is 0 without a shortlist."""
        most = _round_up(max((len(each.words) for each in self.choices), default=0))
        found = np.zeros((len(self.offsets) - 1, most), np.int32)
        for row, each in zip(found, self.choices, strict=False):
            row[: len(each.words)] = each.words
        return found


def _align(texts: Sequence[Sequence[int]], state: "EngineState") -> tuple[Tensor, Tensor]:
    """Tokens [N, n] and which are real [N, n]: the last ones stand together, at one time."""
    n = max(map(len, texts), default=0)
    state.check(n)
    if any(len(text) < n for text in texts) and state.oldest > 0:
        raise ValueError("texts of several lengths need a state that has read nothing yet")
    tokens = torch.tensor([[0] * (n - len(text)) + [*text] for text in texts])
    lengths = torch.tensor([len(text) for text in texts])
    return tokens, torch.arange(n) >= n - lengths[:, None]


def _round_up(words: int) -> int:
    # A row of chosen words is filled up to whole vectors: its sums do not depend on its width.
    return -(-words // 64) * 64


class EngineState:
    """N hypotheses, each after `positions` tokens; belongs to one search and one thread.

    Rows of a history stay where they were written. A hypothesis is a row of a table of its
    ancestors: reordering, repeating and dropping hypotheses changes only that table. The clock is
    common to all, so hypotheses of any position go together: each knows how far back its past is.
    """

    def __init__(
        self,
        decoder: Program,
        source: EngineSource | None,
        batch: int,
        max_len: int,
        spare: int = 0,
    ) -> None:
        self.decoder, self.spare = decoder, spare
        self.positions = torch.zeros(batch, dtype=torch.int64)
        self.oldest = 0  # at least the largest of them
        self.sentences = torch.arange(batch)  # [N], the source sentence of each
        self.source = source  # keeps their memory alive
        self.addresses = self.lengths = self.table = torch.empty(batch, 0)
        self.longest = 1
        if source is not None:
            self.addresses = torch.from_numpy(source.addresses())
            self.lengths = torch.from_numpy(np.diff(source.offsets))
            # With a shortlist, the word of each score of a sentence.
            self.longest, self.table = source.longest, torch.from_numpy(source.words())
        self.slots = self.time = self.max_len = 0
        self.rings = torch.zeros(len(decoder.memories), dtype=torch.int64)
        # [N, span]: the slot each had at time t, in column t % span.
        self.ancestors = torch.zeros(batch, 0, dtype=torch.int32)
        # Per memory [ring, slots, width]: time t at t % ring.
        self.histories = [torch.empty(0, 0, width) for _, width in decoder.memories]
        self.workspace = torch.empty(0)
        self.resize(max_len, 0)

    @property
    def span(self) -> int:
        return self.ancestors.shape[1]

    @property
    def is_bounded(self) -> bool:
        """True if some layer looks back as far as `max_len`."""
        return any(ring is None or ring > self.max_len for ring, _ in self.decoder.memories)

    def resize(self, max_len: int, slots: int) -> None:
        """Makes room for outputs of that length and so many rows; keeps what is remembered."""
        self.max_len = max_len
        rings = [min((ring or max_len) + self.spare, max_len) for ring, _ in self.decoder.memories]
        time, span = self.time, max([1, *rings])
        self.time = max(time, span)  # so that no time is below zero
        for number, (ring, old) in enumerate(zip(rings, self.histories, strict=True)):
            new = POOL.empty(torch.Size([ring, slots, old.shape[2]]), torch.float32)
            ago = torch.arange(1, min(ring, len(old), self.oldest) + 1)
            new[(self.time - ago) % ring, : old.shape[1]] = old[(time - ago) % max(len(old), 1)]
            self.histories[number] = new
        ago = torch.arange(1, min(span, self.span, self.oldest) + 1)
        ancestors = self.ancestors.new_zeros(len(self.ancestors), span)
        ancestors[:, (self.time - ago) % span] = self.ancestors[:, (time - ago) % max(self.span, 1)]
        self.ancestors, self.rings, self.slots = ancestors, torch.tensor(rings), slots

    def make_room(self, rows: int) -> None:
        """Grows the workspace to the rows of a run, and histories to the hypotheses."""
        if self.workspace.numel() < rows * self.decoder.columns:
            self.workspace = torch.empty(rows * self.decoder.columns)
        if len(self.sentences) > self.slots:
            self.resize(self.max_len, len(self.sentences))

    def check(self, tokens: int) -> None:
        """ValueError if no room is left for so many tokens of each hypothesis."""
        if self.oldest + tokens > self.max_len:  # which it need not be: the oldest may have left
            self.oldest = max(self.positions.tolist(), default=0)
        if self.oldest + tokens > self.max_len and self.is_bounded:
            raise ValueError(
                f"position {self.oldest + tokens - 1} is beyond max_len={self.max_len}; start with "
                "a larger max_len"
            )

    def rewind(self, tokens: int) -> None:
        """Forgets the last tokens of each hypothesis, at most `spare` of them."""
        self.time -= tokens
        self.positions -= tokens

    def reorder(self, rows: Tensor) -> None:
        self.ancestors = self.ancestors.index_select(0, rows)
        self.sentences = self.sentences.index_select(0, rows)
        self.positions = self.positions.index_select(0, rows)

    def adopt(self, other: "EngineState", positions: Tensor) -> None:
        """Copies another state's past to slots that the first hypotheses [positions] need not."""
        own, rows = len(positions), len(positions) + len(other.positions)
        ago = torch.arange(1, min(self.span, other.span, other.oldest) + 1)  # [A]
        taken = torch.zeros(len(ago), self.slots + 1, dtype=torch.bool)
        mine = self.ancestors[:own, (self.time - ago) % self.span].long()  # [own, A]
        taken.scatter_(1, mine.where(positions[:, None] >= ago, self.slots).T, True)
        free = taken[:, :-1].byte().argsort(dim=1, stable=True)[:, : rows - own]  # [A, new]
        self.ancestors[own:rows, (self.time - ago) % self.span] = free.T.int()
        theirs = other.ancestors[:, (other.time - ago) % other.span].long()
        for new, old in zip(self.histories, other.histories, strict=True):
            n = min(len(new), len(old), len(ago))
            to = (self.time - ago[:n, None]) % len(new)
            new[to, free[:n]] = old[(other.time - ago[:n, None]) % len(old), theirs.T[:n]]

    def fill(self, task: program.Task) -> Any:
        """Tells a task about the past; keep the result as long as the task."""
        histories = program.addresses(self.histories)
        task.time, task.slots, task.span = self.time, self.slots, self.span
        task.ancestors, task.rings = self.ancestors.data_ptr(), self.rings.data_ptr()
        task.histories = ctypes.addressof(histories)
        task.longest = max(self.decoder.widest, self.span, self.longest, task.longest)
        return histories

    def nbytes(self) -> int:
        """Memory of the hypotheses, without the source."""
        return self.ancestors.nbytes + sum(history.nbytes for history in self.histories)


class Engine:
    """Backend in C++: a compiled model, with float32 or int8 linear layers.

    The weights are read once; later changes of the model do not reach the engine. `step` and
    `reorder` consume their state: use the one returned.

    quantize   None for float32, "int8", or "bf16" where the CPU has it
    shortlist  chooses the words that outputs of a sentence may consist of
    """

    name = "native"
    joins = True
    device = torch.device("cpu")

    def __init__(
        self, model: nn.Module, quantize: str | None = None, shortlist: Shortlist | None = None
    ) -> None:
        if quantize not in (None, "int8", "bf16"):
            raise ValueError(f"quantize must be None, 'int8' or 'bf16', got {quantize!r}")
        if (reason := Engine.supports(model)) is not None:
            raise ValueError(f"the engine does not run this model: {reason}")
        assert isinstance(model, (Seq2Seq, LanguageModel))
        model.require_eval()
        self.config = model.config
        self.pairs = isinstance(model, Seq2Seq)
        self.quantize = quantize
        self._panels = program.panels()
        self.address = self._panels.engine
        columns, unsigned = self._panels.columns, program.UNSIGNED_PANEL
        int8 = unsigned if columns[unsigned] else program.SIGNED_PANEL
        kinds = {"int8": int8, "bf16": program.BF16_PANEL}
        self._kind = kinds.get(str(quantize), program.FLOAT_PANEL)
        if not columns[self._kind]:
            raise ValueError("quantize='bf16' needs a CPU with AVX512-BF16. Use int8, or omit it")
        self._shortlist = shortlist
        self._encoder: Program | None = None
        with torch.no_grad():
            if isinstance(model, Seq2Seq):
                stack = model.source_embedding, model.encoder, model.encoder_norm
                self._encoder, x = self._compile(*stack)
                for number, part in enumerate(model.decoder):
                    assert isinstance(part, DecoderLayer)
                    compiler.keys_and_values(self._encoder, part.source, x, number)
                self._encoder.finish()
                stack = model.target_embedding, model.decoder, model.decoder_norm
            else:
                stack = model.embedding, model.layers, model.norm
            self.decoder, self._x = self._compile(*stack)
            self._body = len(self.decoder.instructions)  # what follows scores the vocabulary
            output: Any = model.output
            self.vocab = len(output.weight)
            to = self.decoder.buffer("scores", 1)._replace(size=self.vocab, width=self.vocab)
            self.decoder.linear(self._x, output.weight, None, to, output=1, chosen=1)
            self.decoder.finish()
            if shortlist is not None:
                shortlist.check(model)
                self._output = program.Matrix.of(output.weight.detach(), self._kind)
        self._sharing: dict[int, tuple[int, int]] = {}  # by number of threads
        self._waves = torch.empty(0, model.config.dim)
        self.sinusoids(1)

    @staticmethod
    def supports(model: nn.Module) -> str | None:
        """None, or the reason why this model cannot be compiled."""
        if type(model) not in (Seq2Seq, LanguageModel):
            return f"{type(model).__name__} is neither Seq2Seq nor LanguageModel"
        for part in model.modules():
            if isinstance(part, Layer) and (
                type(part.mixer) not in compiler.MIXERS or getattr(part.mixer, "dilation", 1) != 1
            ):
                kind = "dilated " * (type(part.mixer) in compiler.MIXERS)
                return f"the {kind}mixer {type(part.mixer).__name__} runs in torch only"
        for name in ("source_embedding", "target_embedding", "embedding", "output"):
            words = getattr(model, name, None)
            if words is not None and type(words) is not TokenEmbedding:
                return f"{name} is {type(words).__name__}, which runs in torch only"
        for name, parameter in model.named_parameters():
            if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
                return f"{name} is {parameter.dtype} on {parameter.device}, not float32 on the CPU"
        if native().library is None:
            return f"it needs the C++ kernels: {native().reason}"
        return None

    def _compile(self, embedding: Any, stack: Any, norm: Any) -> tuple[Program, Buffer]:
        """A program of embedding, layers and norm, and the buffer of its result."""
        b = Program(self._panels, self._kind)
        x = b.buffer("x", self.config.dim)
        compiler.embed(b, embedding, x)
        for number, part in enumerate(stack):
            compiler.layer(b, part, x, number)
        if isinstance(norm, nn.LayerNorm):
            compiler.norm(b, norm, x, x)
        return b, x

    def encode(self, source: Tensor, also: Sequence[Sequence[int]] = ()) -> EngineSource:
        """source [B, S] int64, padded on either side; words `also` are chosen by a shortlist."""
        return self.encode_ids([row[row != self.config.pad].tolist() for row in source], also)

    def encode_ids(
        self, source: Sequence[Sequence[int]], also: Sequence[Sequence[int]] = ()
    ) -> EngineSource:
        """As `encode`, of sentences without padding."""
        encoder = self._encoder
        if encoder is None:
            raise ValueError("a language model has no source to encode")
        lengths = [*map(len, source)]
        if 0 in lengths:
            empty = lengths.index(0)
            raise ValueError(f"source sentence {empty} is nothing but padding; leave it out")
        offsets = [0, *accumulate(lengths)]
        bounds = np.array(offsets)
        tokens = torch.from_numpy(np.array([*chain.from_iterable(source)], np.int64))
        assert isinstance(self.config, Seq2SeqConfig)
        width, dtype = 2 * self.config.dim, torch.float32
        if self.quantize == "int8":
            # Bytes; the scales among them are float32 and must be aligned.
            size = torch.float32.itemsize
            width = 2 * self.config.source_heads * size + -(-width // size) * size
            dtype = torch.int8
        shape = torch.Size([len(tokens), width])
        outputs = [POOL.empty(shape, dtype) for _ in self.config.decoder]
        for _, group in groupby(range(len(source)), lambda b: offsets[b] // _ROWS_ENCODED_AT_ONCE):
            first, *rest = group
            last, begin = first + len(rest) + 1, offsets[first]
            some, rows = lengths[first:last], offsets[last] - begin
            begins = (bounds[first:last] - begin).repeat(some)
            ends = (bounds[first + 1 : last + 1] - begin).repeat(some)
            longest = max(some)
            workspace = POOL.empty(torch.Size([rows * encoder.columns]), torch.float32)
            task = program.Task(begins=begins.ctypes.data, ends=ends.ctypes.data)
            task.longest, task.workspace = max(longest, encoder.widest), workspace.data_ptr()
            to = [output[begin:] for output in outputs]
            self._run(encoder, task, tokens[begin : begin + rows], longest, to)
        chosen = self._choose(source, also)
        return EngineSource(bounds, tuple(outputs), max(lengths, default=0), chosen)

    def _choose(
        self, source: Sequence[Sequence[int]], also: Sequence[Sequence[int]]
    ) -> list[ChosenRows]:
        if self._shortlist is None:
            return []
        found, columns = [], self._panels.columns[self._kind]
        for b, ids in enumerate(source):
            words = self._shortlist.choose(ids, also[b] if also else ())
            found.append(ChosenRows(words, self._output.take(words).pack(columns)))
        return found

    def start(self, source: EngineSource | int, max_len: int, spare: int = 0) -> EngineState:
        """The state before the first token of encoded sources, or of that many texts.

        spare  tokens that `EngineState.rewind` may take back
        """
        if isinstance(source, int):
            if self.pairs:
                raise ValueError("start() needs what encode() returned")
            return EngineState(self.decoder, None, source, max_len, spare)
        return EngineState(self.decoder, source, len(source.offsets) - 1, max_len, spare)

    def step(self, tokens: Tensor, state: EngineState) -> tuple[Tensor, EngineState]:
        """Scores [N, n, V] of what follows each of tokens [N, n] int64, and the next state.

        With a shortlist, they are those of the words `state.table[state.sentences]`.
        """
        N, n = tokens.shape
        if len(state.sentences) != N:
            raise ValueError(
                f"tokens has {N} rows but the state has {len(state.sentences)}; use start() or "
                "reorder(state, rows)"
            )
        state.check(n)
        if n != 1:
            found = self._scores(N * n, state).view(N, n, -1)
            real = torch.ones_like(tokens, dtype=torch.bool)
            for some, scores in self._read(tokens, real, state, scored=True):
                found[some] = scores
            return found, state
        state.make_room(N)
        scores = self._scores(N, state)
        state.oldest += 1
        self._step(tokens[:, 0].contiguous(), state, state.positions, state.sentences, [scores])
        state.positions += 1
        return scores[:, None], state

    def read(self, texts: Sequence[Sequence[int]], state: EngineState) -> EngineState:
        """The state after each hypothesis has read its text; a new state, if lengths differ."""
        for _ in self._read(*_align(texts, state), state, scored=False):
            pass
        return state

    def read_prefixes(
        self, texts: Sequence[Sequence[int]], state: EngineState
    ) -> tuple[EngineState, list[Tensor]]:
        """As `read`, without the last token; also the log-probabilities of all but the first."""
        tokens, real = _align(texts, state)
        found = torch.zeros(tokens.shape)
        for some, scores in self._read(tokens[:, :-1], real[:, :-1], state, scored=True):
            follows = tokens[:, 1:][some][:, None]
            if state.table.shape[1]:  # the place of each among the words of its sentence
                words = state.table[state.sentences[some.nonzero()[:, 0]]]
                follows = (words == follows).byte().argmax(1, keepdim=True)
            found[:, 1:][some] = scores.log_softmax(-1).gather(1, follows)[:, 0]
        n = tokens.shape[1]
        return state, [row[n + 1 - len(text) :] for row, text in zip(found, texts, strict=True)]

    def _read(
        self, tokens: Tensor, real: Tensor, state: EngineState, *, scored: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Reads tokens [N, n] where `real` [N, n], many at once: masks of them and their scores."""
        N, n = tokens.shape
        wide = max(1, _ROWS_READ_AT_ONCE // max(N, 1))
        for column in range(0, n, wide):
            some = real.clone()
            some[:, :column], some[:, column + wide :] = False, False
            hypotheses, counts = some.nonzero()[:, 0], some.sum(1)
            rows, after = len(hypotheses), counts.cumsum(0)
            begins, ends = (each[hypotheses] for each in (after - counts, after))
            positions = state.positions[hypotheses] + torch.arange(rows) - begins
            state.make_room(rows)
            arrays = {"hypotheses": hypotheses, "begins": begins, "ends": ends}
            state.time += min(wide, n - column) - 1
            scores = self._scores(rows if scored else 0, state)
            state.oldest = max(state.oldest, int(positions.max()) + 1)
            sentences, outputs = state.sentences[hypotheses], [scores] * scored
            self._step(tokens[some], state, positions, sentences, outputs, **arrays)
            state.positions += counts
            yield some, scores

    def _scores(self, rows: int, state: EngineState) -> Tensor:
        """Room for scores [rows, V or chosen words]."""
        if chosen := state.table.shape[1]:
            return torch.full((rows, chosen), -torch.inf)
        return torch.empty(rows, self.vocab)

    def _step(
        self,
        tokens: Tensor,
        state: EngineState,
        positions: Tensor,
        sentences: Tensor,
        outputs: list[Tensor],
        **arrays: Tensor,
    ) -> None:
        """One run over tokens [rows] at `positions`; without outputs none are scored."""
        task = program.Task(positions=positions.data_ptr(), sentences=sentences.data_ptr())
        histories, task.workspace = state.fill(task), state.workspace.data_ptr()
        if state.source is not None:
            task.lengths, task.layers = state.lengths.data_ptr(), state.addresses.shape[1]
            task.sources, task.width = state.addresses.data_ptr(), state.table.shape[1]
            task.choice = task.layers - 4 if task.width else 0
        for name, array in arrays.items():
            setattr(task, name, array.data_ptr())
        end = None if outputs else self._body
        self._run(self.decoder, task, tokens, state.oldest, outputs, end)
        del histories
        state.time += 1

    def step_attending(self, tokens: Tensor, state: EngineState) -> Any:
        raise ValueError("the engine does not return attention weights; decode in torch")

    def reorder(self, state: EngineState, rows: Tensor) -> EngineState:
        """The state of those rows: permuted, repeated or dropped; rows [N'] int64."""
        state.reorder(rows)
        return state

    def callers(self, sentences: int, beam: int) -> int:
        threads = torch.get_num_threads()
        return min(threads, sentences) if sentences * beam >= self._shared(threads)[1] else 1

    def _run(
        self,
        compiled: Program,
        task: program.Task,
        tokens: Tensor,
        n: int,
        outputs: list[Tensor],
        end: int | None = None,
    ) -> None:
        """Runs the instructions up to `end` over tokens [rows], at positions below n."""
        to, waves = program.addresses(outputs), self.sinusoids(n)
        task.program = ctypes.addressof(compiled.code)
        task.count = len(compiled.instructions) if end is None else end
        task.rows, task.pad = len(tokens), self.config.pad
        task.threads = self.threads(compiled, len(tokens))
        task.tokens, task.outputs = tokens.data_ptr(), ctypes.addressof(to)
        task.sinusoids = waves.data_ptr()
        unknown = program.run(self.address, task)
        if unknown >= 0:
            name = "source" if compiled is self._encoder else "tokens"
            raise ValueError(
                f"{name} must be ids below {compiled.instructions[0].I}, the size of the "
                f"vocabulary; got {int(tokens[unknown])}"
            )

    def threads(self, compiled: Program, rows: int) -> int:
        """Threads that are best for a run over so many rows."""
        threads = torch.get_num_threads()
        few = rows * compiled.work <= _WORK_FOR_THREADS or rows <= self._shared(threads)[0]
        return 1 if few else threads

    def task(self) -> program.Task:
        """The decoder with the scores of the vocabulary, for `EngineSearch`."""
        code = ctypes.addressof(self.decoder.code)
        return program.Task(program=code, count=len(self.decoder.instructions), pad=self.config.pad)

    def _shared(self, threads: int) -> tuple[int, int]:
        """Rows up to which one thread is as fast as all, and from which callers are faster.

        Callers are threads that each take a share of the rows. Measured once; changes no result.
        """
        if threads > 1 and threads not in self._sharing:
            self._sharing[threads] = _ALL, _ALL
            alone, shared = _ROWS_MEASURED[-1], _ALL
            for rows in reversed(_ROWS_MEASURED):
                one, every, callers = self._measure(rows, threads)
                alone = rows // 4 if every < 0.9 * one else alone
                shared = rows if callers < min(one, every) else shared
            self._sharing[threads] = alone, shared
        return self._sharing.get(threads, (_ALL, _ALL))

    def _measure(self, rows: int, threads: int) -> list[float]:
        """Seconds of steps of so many rows: with one thread, with all, and by callers."""

        def steps(rows: int) -> None:
            tokens = torch.full((rows, 1), int(self.config.pad == 0))
            state = self.start(self.encode(tokens) if self.pairs else rows, _STEPS_MEASURED)
            for _ in range(_STEPS_MEASURED):
                _, state = self.step(tokens, state)

        best = [math.inf] * 3
        for turn in range(6):
            self._sharing[threads] = 0 if turn % 3 == 1 else _ALL, _ALL
            count = threads if turn % 3 == 2 else 1
            pool = [threading.Thread(target=steps, args=(-(-rows // count),)) for _ in range(count)]
            begin = time.perf_counter()
            for each in pool:
                each.start()
            for each in pool:
                each.join()
            best[turn % 3] = min(best[turn % 3], time.perf_counter() - begin)
        return best

    def sinusoids(self, positions: int) -> Tensor:
        """Position encodings of at least `positions` tokens: [positions, D]."""
        waves = self._waves
        if len(waves) < positions:
            places = torch.arange(max(256, 2 * positions)) + self.config.pad + 1
            waves = sinusoids(places, self.config.dim, torch.float32).contiguous()
            self._waves = waves  # in one assignment: another thread sees the old or the new
        return waves
