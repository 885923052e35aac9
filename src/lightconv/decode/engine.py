"""Inference on the CPU as two programs: encode sources, step hypotheses."""

import ctypes
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
_WORK_FOR_THREADS = 1 << 20  # multiplications below which waking a thread costs more


class EngineSource(NamedTuple):
    """Encoded sentences, laid end to end.

    Keys and values are [rows, 2D] of each decoder layer, those of a sentence [heads, 2, its rows,
    D / heads]; float32, or int8 behind the bytes of their scales [heads, 2, its rows].
    """

    offsets: Tensor  # [B + 1] int64: sentence b is rows offsets[b] .. offsets[b + 1]
    keys_values: tuple[Tensor, ...]
    longest: int  # rows of the longest sentence


class EngineState:
    """N hypotheses after `position` tokens; belongs to one search and one thread.

    Rows of a history stay where they were written. A hypothesis is a row of a table of its
    ancestors: reordering, repeating and dropping hypotheses changes only that table.
    """

    def __init__(
        self, decoder: Program, source: EngineSource | None, batch: int, max_len: int
    ) -> None:
        self.decoder = decoder
        self.source = source
        self.max_len = max_len
        self.position = 0
        rings = [ring for ring, _ in decoder.memories]
        self.rings = torch.tensor([min(ring or max_len, max_len) for ring in rings])
        self.span = max([1, *self.rings.tolist()])
        self.is_bounded = any(ring is None or ring > max_len for ring in rings)
        self.sentences = torch.arange(batch)  # [N], the source sentence of each
        # [N, span]: the row each was at time t, in column t % span.
        self.ancestors = torch.zeros(batch, self.span, dtype=torch.int32)
        self.slots = 0
        self.histories: list[Tensor] = []  # per memory [ring, slots, width]: time t at t % ring
        self.workspace = torch.empty(0)

    def make_room(self) -> None:
        """Grows workspace and histories to the number of rows."""
        rows = len(self.sentences)
        if self.workspace.numel() < rows * self.decoder.columns:
            self.workspace = torch.empty(rows * self.decoder.columns)
        if rows <= self.slots:
            return
        grown = []
        for (_, width), ring in zip(self.decoder.memories, self.rings.tolist(), strict=True):
            grown.append(POOL.empty(torch.Size([ring, rows, width]), torch.float32))
        for new, old in zip(grown, self.histories, strict=False):
            filled = min(self.position, len(old))
            new[:filled, : self.slots] = old[:filled]
        self.histories, self.slots = grown, rows

    def nbytes(self) -> int:
        """Memory of the hypotheses, without the source."""
        return self.ancestors.nbytes + sum(history.nbytes for history in self.histories)


class Engine:
    """Backend in C++: a compiled model, with float32 or int8 linear layers.

    The weights are read once; later changes of the model do not reach the engine. `step` and
    `reorder` consume their state: use the one returned.
    """

    name = "native"
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
            self._decoder, x = self._compile(*stack)
            output: Any = model.output
            self._vocab = len(output.weight)
            to = self._decoder.buffer("scores", 1)._replace(size=self._vocab, width=self._vocab)
            self._decoder.linear(x, output.weight, None, to, output=1)
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
        last = state.position + n - 1
        if state.is_bounded and last >= state.max_len:
            raise ValueError(
                f"position {last} is beyond max_len={state.max_len}; start with a larger max_len"
            )
        if n == 1:
            return self._step(tokens[:, 0].contiguous(), state)[:, None], state
        scores = [self._step(column.contiguous(), state) for column in tokens.unbind(1)]
        return torch.stack(scores, 1), state

    def _step(self, tokens: Tensor, state: EngineState) -> Tensor:
        """tokens [N] int64 -> scores [N, V]."""
        state.make_room()
        source, position, workspace = state.source, state.position, state.workspace.data_ptr()
        scores = torch.empty(len(tokens), self._vocab)
        histories = program.addresses(state.histories)
        task = program.Task(time=position, slots=state.slots, span=state.span)
        task.ancestors = state.ancestors.data_ptr()
        task.histories, task.rings = ctypes.addressof(histories), state.rings.data_ptr()
        task.longest, task.workspace = max(self._decoder.widest, state.span), workspace
        if source is not None:
            sources = program.addresses(list(source.keys_values))
            task.sentences = state.sentences.data_ptr()
            task.offsets, task.sources = source.offsets.data_ptr(), ctypes.addressof(sources)
            task.longest = max(task.longest, source.longest)
        self._run(self._decoder, task, tokens, position + 1, [scores])
        state.position += 1
        return scores

    def step_attending(self, tokens: Tensor, state: EngineState) -> Any:
        raise ValueError("the engine does not return attention weights; decode in torch")

    def reorder(self, state: EngineState, rows: Tensor) -> EngineState:
        """The state of those rows: permuted, repeated or dropped; rows [N'] int64."""
        state.ancestors = state.ancestors.index_select(0, rows)
        state.sentences = state.sentences.index_select(0, rows)
        return state

    def _run(
        self, compiled: Program, task: program.Task, tokens: Tensor, n: int, outputs: list[Tensor]
    ) -> None:
        """Runs a program over tokens [rows], at positions below n."""
        rows, to, waves = len(tokens), program.addresses(outputs), self._sinusoids(n)
        task.program, task.count = ctypes.addressof(compiled.code), len(compiled.instructions)
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
