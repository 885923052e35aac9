"""Inference on the CPU as two programs: encode sources, step hypotheses."""

import ctypes
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightconv.decode import compiler
from lightconv.decode.compiler import Buffer, Program
from lightconv.models import LanguageModel, Seq2Seq, Seq2SeqConfig
from lightconv.models.embedding import TokenEmbedding, sinusoids
from lightconv.models.layers import DecoderLayer, Layer
from lightconv.ops import program
from lightconv.ops.library import POOL, native

_ROWS_ENCODED_AT_ONCE = 1024  # their buffers stay in the cache
_ROWS_READ_AT_ONCE = 192  # of hypotheses that read several tokens
_WORK_FOR_THREADS = 1 << 20  # multiplications below which waking a thread costs more


class EngineSource(NamedTuple):
    """Encoded sentences, laid end to end.

    Keys and values are [rows, 2D] of each decoder layer, those of a sentence [heads, 2, its rows,
    D / heads]; float32, or int8 behind the bytes of their scales [heads, 2, its rows].
    """

    offsets: Tensor  # [B + 1] int64: sentence b is rows offsets[b] .. offsets[b + 1]
    keys_values: tuple[Tensor, ...]
    longest: int  # rows of the longest sentence

    def addresses(self) -> Tensor:
        """Of each sentence in each layer: [B, layers] int64."""
        begin = torch.tensor([each.data_ptr() for each in self.keys_values])
        sizes = torch.tensor([each.stride(0) * each.itemsize for each in self.keys_values])
        return begin + self.offsets[:-1, None] * sizes

    def take(self, rows: Sequence[int]) -> "EngineSource":
        """Those neighbouring sentences alone."""
        offsets = self.offsets[rows[0] : rows[-1] + 2]
        begin, lengths = int(offsets[0]), offsets.diff()
        parts = tuple(each[begin : int(offsets[-1])] for each in self.keys_values)
        return EngineSource(offsets - begin, parts, int(lengths.max()))


class EngineState:
    """N hypotheses, each after `positions` tokens; belongs to one search and one thread.

    Rows of a history stay where they were written. A hypothesis is a row of a table of its
    ancestors: reordering, repeating and dropping hypotheses changes only that table. The clock is
    common to all, so hypotheses of any position go together: each knows how far back its past is.
    """

    def __init__(
        self, decoder: Program, source: EngineSource | None, batch: int, max_len: int
    ) -> None:
        self.decoder = decoder
        self.positions = torch.zeros(batch, dtype=torch.int64)
        self.oldest = 0  # at least the largest of them
        self.sentences = torch.arange(batch)  # [N], the source sentence of each
        self.sources = [] if source is None else [source] * batch  # keeps their memory alive
        self.addresses = torch.empty(0) if source is None else source.addresses()
        self.lengths = torch.empty(0) if source is None else source.offsets.diff()
        self.longest = 1 if source is None else source.longest
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
        rings = [min(ring or max_len, max_len) for ring, _ in self.decoder.memories]
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

    def reorder(self, rows: Tensor) -> None:
        self.ancestors = self.ancestors.index_select(0, rows)
        self.sentences = self.sentences.index_select(0, rows)
        self.positions = self.positions.index_select(0, rows)

    def join(self, other: "EngineState") -> None:
        """Takes the hypotheses of another state behind its own; `other` is used up."""
        used, self.sentences = self.sentences.unique(return_inverse=True)
        if self.sources or other.sources:
            self.sources = [self.sources[b] for b in used.tolist()] + other.sources
            self.addresses = torch.cat([self.addresses[used], other.addresses])
            self.lengths = torch.cat([self.lengths[used], other.lengths])
            self.longest = int(self.lengths.max())
        own, rows = len(self.positions), len(self.positions) + len(other.positions)
        self.oldest = max([other.oldest, *self.positions.tolist()])
        if other.max_len > self.max_len or rows > self.slots:
            self.resize(max(self.max_len, other.max_len), max(self.slots, rows))
        self.sentences = torch.cat([self.sentences, other.sentences + len(used)])
        self.ancestors = torch.cat(
            [self.ancestors, self.ancestors.new_zeros(rows - own, self.span)]
        )
        self._adopt(other, own)
        self.positions = torch.cat([self.positions, other.positions])

    def _adopt(self, other: "EngineState", own: int) -> None:
        """Copies the past of another state's hypotheses to slots that ours no longer need."""
        ago = torch.arange(1, min(self.span, other.span, other.oldest) + 1)  # [A]
        if len(ago) == 0:
            return
        taken = torch.zeros(len(ago), self.slots + 1, dtype=torch.bool)
        mine = self.ancestors[:own, (self.time - ago) % self.span].long()  # [own, A]
        taken.scatter_(1, mine.where(self.positions[:, None] >= ago, self.slots).T, True)
        free = (
            taken[:, :-1].byte().argsort(dim=1, stable=True)[:, : len(other.positions)]
        )  # [A, new]
        self.ancestors[own:, (self.time - ago) % self.span] = free.T.int()
        theirs = other.ancestors[:, (other.time - ago) % other.span].long()
        for new, old in zip(self.histories, other.histories, strict=True):
            n = min(len(new), len(old), len(ago))
            to = (self.time - ago[:n, None]) % len(new)
            new[to, free[:n]] = old[(other.time - ago[:n, None]) % len(old), theirs.T[:n]]

    def nbytes(self) -> int:
        """Memory of the hypotheses, without the source."""
        return self.ancestors.nbytes + sum(history.nbytes for history in self.histories)


class Engine:
    """Backend in C++: a compiled model, with float32 or int8 linear layers.

    The weights are read once; later changes of the model do not reach the engine. `step` and
    `reorder` consume their state: use the one returned.
    """

    name = "native"
    joins = True
    device = torch.device("cpu")

    def __init__(self, model: nn.Module, quantize: str | None = None) -> None:
        if quantize not in (None, "int8"):
            raise ValueError(f"quantize must be None or 'int8', got {quantize!r}")
        if (reason := Engine.supports(model)) is not None:
            raise ValueError(f"the engine does not run this model: {reason}")
        assert isinstance(model, (Seq2Seq, LanguageModel))
        model.require_eval()
        self.config = model.config
        self.pairs = isinstance(model, Seq2Seq)
        self.quantize = quantize
        self._panels = program.panels()
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
            self._decoder, self._x = self._compile(*stack)
            self._body = len(self._decoder.instructions)  # what follows scores the vocabulary
            output: Any = model.output
            self._vocab = len(output.weight)
            to = self._decoder.buffer("scores", 1)._replace(size=self._vocab, width=self._vocab)
            self._decoder.linear(self._x, output.weight, None, to, output=1)
            self._decoder.finish()
        self._waves = torch.empty(0, model.config.dim)
        self._sinusoids(1)

    @staticmethod
    def supports(model: nn.Module) -> str | None:
        """None, or the reason why this model cannot be compiled."""
        if type(model) not in (Seq2Seq, LanguageModel):
            return f"{type(model).__name__} is neither Seq2Seq nor LanguageModel"
        for part in model.modules():
            if isinstance(part, Layer) and type(part.mixer) not in compiler.MIXERS:
                return f"the mixer {type(part.mixer).__name__} runs in torch only"
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
        b = Program(self._panels, self.quantize == "int8")
        x = b.buffer("x", self.config.dim)
        compiler.embed(b, embedding, x)
        for number, part in enumerate(stack):
            compiler.layer(b, part, x, number)
        if isinstance(norm, nn.LayerNorm):
            compiler.norm(b, norm, x, x)
        return b, x

    def encode(self, source: Tensor) -> EngineSource:
        """source [B, S] int64, padded on either side."""
        encoder = self._encoder
        if encoder is None:
            raise ValueError("a language model has no source to encode")
        real = source != self.config.pad
        lengths = real.sum(1)
        if not lengths.all():
            empty = int((lengths == 0).nonzero()[0])
            raise ValueError(f"source sentence {empty} is nothing but padding; leave it out")
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        tokens = source[real]
        assert isinstance(self.config, Seq2SeqConfig)
        width, dtype = 2 * self.config.dim, torch.float32
        if self.quantize is not None:
            # Bytes; the scales among them are float32 and must be aligned.
            size = torch.float32.itemsize
            width = 2 * self.config.source_heads * size + -(-width // size) * size
            dtype = torch.int8
        shape = torch.Size([len(tokens), width])
        outputs = [POOL.empty(shape, dtype) for _ in self.config.decoder]
        starts = offsets[:-1].tolist()
        for _, group in groupby(range(len(starts)), lambda b: starts[b] // _ROWS_ENCODED_AT_ONCE):
            first, *rest = group
            bounds = offsets[first : first + len(rest) + 2]
            begin, end, some = int(bounds[0]), int(bounds[-1]), bounds.diff()
            begins = (bounds[:-1] - begin).repeat_interleave(some)
            ends = (bounds[1:] - begin).repeat_interleave(some)
            longest = int(some.max())
            workspace = POOL.empty(torch.Size([(end - begin) * encoder.columns]), torch.float32)
            task = program.Task(begins=begins.data_ptr(), ends=ends.data_ptr())
            task.longest, task.workspace = max(longest, encoder.widest), workspace.data_ptr()
            to = [output[begin:] for output in outputs]
            self._run(encoder, task, tokens[begin:end].contiguous(), longest, to)
        return EngineSource(offsets, tuple(outputs), int(lengths.max()))

    def start(self, source: EngineSource | int, max_len: int) -> EngineState:
        """The state before the first token of encoded sources, or of that many texts."""
        if isinstance(source, int):
            if self.pairs:
                raise ValueError("start() needs what encode() returned")
            return EngineState(self._decoder, None, source, max_len)
        return EngineState(self._decoder, source, len(source.offsets) - 1, max_len)

    def step(self, tokens: Tensor, state: EngineState) -> tuple[Tensor, EngineState]:
        """Scores [N, n, V] of what follows each of tokens [N, n] int64, and the next state."""
        N, n = tokens.shape
        if len(state.sentences) != N:
            raise ValueError(
                f"tokens has {N} rows but the state has {len(state.sentences)}; use start() or "
                "reorder(state, rows)"
            )
        state.check(n)
        if n != 1:
            return self._read(tokens, torch.ones_like(tokens, dtype=torch.bool), state), state
        state.make_room(N)
        scores = torch.empty(N, self._vocab)
        self._step(tokens[:, 0].contiguous(), state, state.positions, state.sentences, [scores])
        state.positions += 1
        return scores[:, None], state

    def read(self, texts: Sequence[Sequence[int]], state: EngineState) -> EngineState:
        """The state after each hypothesis has read its text; a new state, if lengths differ."""
        n = max(map(len, texts), default=0)
        state.check(n)
        if any(len(text) < n for text in texts) and state.oldest > 0:
            raise ValueError("texts of several lengths need a state that has read nothing yet")
        # The last tokens stand together, at one time.
        tokens = torch.tensor([[0] * (n - len(text)) + [*text] for text in texts])
        lengths = torch.tensor([len(text) for text in texts])
        self._read(tokens, torch.arange(n) >= n - lengths[:, None], state, scored=False)
        return state

    def _read(
        self, tokens: Tensor, real: Tensor, state: EngineState, scored: bool = True
    ) -> Tensor:
        """Reads tokens [N, n] where `real` [N, n], many at once; scores [N, n, V] if wanted."""
        N, n = tokens.shape
        found = torch.zeros(N, n if scored else 0, self._vocab)
        wide = max(1, _ROWS_READ_AT_ONCE // max(N, 1))
        for column in range(0, n, wide):
            some = real[:, column : column + wide]
            hypotheses = some.nonzero()[:, 0]
            rows, counts = len(hypotheses), some.sum(1)
            after = counts.cumsum(0)
            begins, ends = (each[hypotheses] for each in (after - counts, after))
            positions = state.positions[hypotheses] + torch.arange(rows) - begins
            state.make_room(rows)
            arrays = {"hypotheses": hypotheses, "begins": begins, "ends": ends}
            state.time += some.shape[1] - 1
            ids = tokens[:, column : column + wide][some]
            sentences = state.sentences[hypotheses]
            self._step(ids, state, positions, sentences, [], **arrays)
            state.positions += counts
            if scored:
                x = state.workspace[self._x.column * rows :][: rows * self._x.width]
                found[:, column : column + wide][some] = self._score(x.view(rows, -1))
        return found

    def _score(self, x: Tensor) -> Tensor:
        """Features [rows, width] -> scores [rows, V]."""
        rows, workspace = len(x), torch.empty(len(x) * self._decoder.columns)
        workspace[self._x.column * rows :][: x.numel()] = x.reshape(-1)
        scores = torch.empty(rows, self._vocab)
        task = program.Task(workspace=workspace.data_ptr(), longest=1)
        tokens = torch.zeros(rows, dtype=torch.int64)
        self._run(self._decoder, task, tokens, 1, [scores], self._body)
        return scores

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
        state.oldest += 1 if outputs else int(positions.max()) + 1 - state.oldest
        histories = program.addresses(state.histories)
        task = program.Task(time=state.time, slots=state.slots, span=state.span)
        task.ancestors, task.positions = state.ancestors.data_ptr(), positions.data_ptr()
        task.histories, task.rings = ctypes.addressof(histories), state.rings.data_ptr()
        task.longest = max(self._decoder.widest, state.span, state.longest)
        task.workspace, task.sentences = state.workspace.data_ptr(), sentences.data_ptr()
        if state.sources:
            task.lengths, task.layers = state.lengths.data_ptr(), state.addresses.shape[1]
            task.sources = state.addresses.data_ptr()
        for name, array in arrays.items():
            setattr(task, name, array.data_ptr())
        end = len(self._decoder.instructions) if outputs else self._body
        self._run(self._decoder, task, tokens, state.oldest, outputs, 0, end)
        state.time += 1

    def step_attending(self, tokens: Tensor, state: EngineState) -> Any:
        raise ValueError("the engine does not return attention weights; decode in torch")

    def reorder(self, state: EngineState, rows: Tensor) -> EngineState:
        """The state of those rows: permuted, repeated or dropped; rows [N'] int64."""
        state.reorder(rows)
        return state

    def callers(self, sentences: int, beam: int) -> int:
        return min(torch.get_num_threads(), max(1, sentences // 2))

    def join(self, state: EngineState, other: EngineState) -> EngineState:
        """The state of all their rows, those of `other` last, wherever each is in its text."""
        if state.decoder is not other.decoder or state.decoder is not self._decoder:
            raise ValueError("states of another engine do not join")
        state.join(other)
        return state

    def _run(
        self,
        compiled: Program,
        task: program.Task,
        tokens: Tensor,
        n: int,
        outputs: list[Tensor],
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        """Runs the instructions from begin to end over tokens [rows], at positions below n."""
        rows, to, waves = len(tokens), program.addresses(outputs), self._sinusoids(n)
        size = ctypes.sizeof(program.Instruction)
        task.program = ctypes.addressof(compiled.code) + begin * size
        task.count = (len(compiled.instructions) if end is None else end) - begin
        task.rows, task.pad = rows, self.config.pad
        task.threads = torch.get_num_threads() if rows * compiled.work > _WORK_FOR_THREADS else 1
        task.tokens, task.outputs = tokens.data_ptr(), ctypes.addressof(to)
        task.sinusoids = waves.data_ptr()
        unknown = program.run(self._panels.engine, task)
        if unknown >= 0:
            name = "source" if compiled is self._encoder else "tokens"
            raise ValueError(
                f"{name} must be ids below {compiled.instructions[0].I}, the size of the "
                f"vocabulary; got {int(tokens[unknown])}"
            )

    def _sinusoids(self, positions: int) -> Tensor:
        """Position encodings of at least `positions` tokens: [positions, D]."""
        waves = self._waves
        if len(waves) < positions:
            places = torch.arange(max(256, 2 * positions)) + self.config.pad + 1
            waves = sinusoids(places, self.config.dim, torch.float32).contiguous()
            self._waves = waves  # in one assignment: another thread sees the old or the new
        return waves
