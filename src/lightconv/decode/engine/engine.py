"""A model's inference on the CPU as two programs: encode sources, step hypotheses."""

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from lightconv.decode.engine import layers
from lightconv.decode.engine.builder import Builder, Program
from lightconv.decode.engine.state import EngineState, Source
from lightconv.models import LanguageModel, Seq2Seq, Seq2SeqConfig
from lightconv.models.embedding import TokenEmbedding, sinusoids
from lightconv.models.layers import DecoderLayer, Layer, require_eval
from lightconv.ops import program
from lightconv.ops.library import native
from lightconv.ops.memory import POOL

QUANTIZATIONS = (None, "int8")
_ROWS_ENCODED_AT_ONCE = 1024  # their buffers stay in the cache
_WORK_FOR_THREADS = 1 << 20  # multiplications below which waking a thread costs more


class Engine:
    """`model` for inference: the same start, step and reorder, float32 or int8 linear layers.

    The weights are read once; what happens to the model later does not reach the engine. A state
    that was stepped or reordered is spent: go on with the one returned.
    """

    def __init__(self, model: nn.Module, quantize: str | None = None) -> None:
        if quantize not in QUANTIZATIONS:
            raise ValueError(f"quantize must be None or 'int8', got {quantize!r}")
        if (reason := Engine.supports(model)) is not None:
            raise ValueError(f"the engine does not run this model: {reason}")
        assert isinstance(model, (Seq2Seq, LanguageModel))
        require_eval(model)
        self.config = model.config
        self.quantize = quantize
        self.nanoseconds: Tensor | None = None
        self._panels = program.panels()
        with torch.no_grad():
            if isinstance(model, Seq2Seq):
                self._encoder: Program | None = self._build_encoder(model)
                embedding, stack, norm = model.target_embedding, model.decoder, model.decoder_norm
            else:
                self._encoder = None
                embedding, stack, norm = model.embedding, model.layers, model.norm
            self._decoder = self._build_decoder(embedding, stack, norm, model.output)
        self._vocab = len(_tokens(model.output).weight)
        self._waves = torch.empty(0, model.config.dim)

    @staticmethod
    def supports(model: nn.Module) -> str | None:
        """None, or why this model cannot be compiled."""
        if type(model) not in (Seq2Seq, LanguageModel):
            return f"{type(model).__name__} is neither Seq2Seq nor LanguageModel"
        for part in model.modules():
            if isinstance(part, Layer) and type(part.mixer) not in layers.MIXERS:
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

    def _build_encoder(self, model: Seq2Seq) -> Program:
        b = Builder(self._panels, self.quantize == "int8")
        x = b.buffer("x", model.config.dim)
        layers.embed(b, _tokens(model.source_embedding), x)
        for part in model.encoder:
            layers.layer(b, _layer(part), x)
        if isinstance(model.encoder_norm, nn.LayerNorm):
            layers.norm(b, model.encoder_norm, x, x)
        for number, part in enumerate(model.decoder):
            assert isinstance(part, DecoderLayer)
            layers.keys_and_values(b, part.source, x, number)
        return b.finish()

    def _build_decoder(
        self, embedding: nn.Module, stack: nn.ModuleList, norm: nn.Module, output: nn.Module
    ) -> Program:
        b = Builder(self._panels, self.quantize == "int8")
        x = b.buffer("x", self.config.dim)
        layers.embed(b, _tokens(embedding), x)
        for number, part in enumerate(stack):
            layers.layer(b, _layer(part), x, number)
        if isinstance(norm, nn.LayerNorm):
            layers.norm(b, norm, x, x)
        weight = _tokens(output).weight.detach()
        V = weight.shape[0]
        to = b.buffer("scores", 1)._replace(size=V, width=V)
        b.linear(x, weight, None, to, output=1)
        return b.finish()

    def encode(self, source: Tensor) -> Source:
        """source [B, S] int64, padded on either side."""
        if self._encoder is None:
            raise ValueError("a language model has no source to encode")
        real = source != self.config.pad
        lengths = real.sum(1)
        if not lengths.all():
            empty = int((lengths == 0).nonzero()[0])
            raise ValueError(f"source sentence {empty} is nothing but padding; leave it out")
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        tokens = source[real]
        width, dtype = self._source_row()
        shape = torch.Size([len(tokens), width])
        outputs = [POOL.empty(shape, dtype) for _ in self._decoder_layers()]
        for first, last in _groups(offsets.tolist()):
            self._encode_group(tokens, offsets[first : last + 1], outputs)
        return Source(offsets, tuple(outputs), int(lengths.max()))

    def _encode_group(self, tokens: Tensor, offsets: Tensor, outputs: list[Tensor]) -> None:
        """Some sentences; writes their rows of `outputs`."""
        encoder = self._encoder
        assert encoder is not None
        begin, end = int(offsets[0]), int(offsets[-1])
        rows, lengths = end - begin, offsets.diff()
        begins = (offsets[:-1] - begin).repeat_interleave(lengths)
        ends = (offsets[1:] - begin).repeat_interleave(lengths)
        some = tokens[begin:end].contiguous()
        longest = int(lengths.max())
        workspace = POOL.empty(torch.Size([rows * encoder.columns]), torch.float32)
        to = program.addresses([output[begin:] for output in outputs])
        waves = self._sinusoids(longest)
        task = self._task(encoder, rows, workspace)
        task.outputs, task.tokens = ctypes.addressof(to), some.data_ptr()
        task.sinusoids = waves.data_ptr()
        task.longest = max(longest, encoder.widest)
        task.begins, task.ends = begins.data_ptr(), ends.data_ptr()
        _require_words(program.run(self._panels.engine, task), some, "source", encoder)

    def start(self, source: Source | int, max_len: int) -> EngineState:
        """The state before the first token of encoded sources, or of that many texts."""
        if isinstance(source, int):
            if self._encoder is not None:
                raise ValueError("start() needs what encode() returned")
            return EngineState(self._decoder, None, source, max_len)
        return EngineState(self._decoder, source, len(source.offsets) - 1, max_len)

    def step(self, tokens: Tensor, state: EngineState) -> tuple[Tensor, EngineState]:
        """The next n tokens of N hypotheses, none of them padding.

        tokens  [N, n] int64
        returns the scores [N, n, V] of what follows each, and the state to pass next time
        """
        if tokens.shape[0] != len(state.sentences):
            raise ValueError(
                f"tokens has {tokens.shape[0]} rows but the state has {len(state.sentences)}; "
                "use start() or reorder(state, rows)"
            )
        end = state.position + tokens.shape[1]
        if state.is_bounded and end > state.max_len:
            raise ValueError(
                f"position {end - 1} is beyond max_len={state.max_len}; start with a larger max_len"
            )
        if tokens.shape[1] == 1:
            return self._step(tokens[:, 0].contiguous(), state)[:, None], state
        scores = [self._step(column.contiguous(), state) for column in tokens.unbind(1)]
        return torch.stack(scores, 1), state

    def _step(self, tokens: Tensor, state: EngineState) -> Tensor:
        """tokens [N] int64 -> scores [N, V]."""
        state.make_room()
        rows, source = len(tokens), state.source
        scores = torch.empty(rows, self._vocab)
        task = self._task(self._decoder, rows, state.workspace)
        to, histories = program.addresses([scores]), program.addresses(state.histories)
        task.outputs, task.tokens = ctypes.addressof(to), tokens.data_ptr()
        waves = self._sinusoids(state.position + 1)
        task.sinusoids = waves.data_ptr()
        task.time, task.slots, task.span = state.position, state.slots, state.span
        task.ancestors = state.ancestors.data_ptr()
        task.histories, task.rings = ctypes.addressof(histories), state.rings.data_ptr()
        task.longest = max(self._decoder.widest, state.span)
        if source is not None:
            sources = program.addresses(list(source.keys_values))
            task.sentences = state.sentences.data_ptr()
            task.offsets, task.sources = source.offsets.data_ptr(), ctypes.addressof(sources)
            task.longest = max(task.longest, source.longest)
        unknown = program.run(self._panels.engine, task)
        _require_words(unknown, tokens, "tokens", self._decoder)
        state.position += 1
        return scores

    def reorder(self, state: EngineState, rows: Tensor) -> EngineState:
        """The state of those rows: permuted, repeated or left out; rows [N'] int64."""
        state.reorder(rows)
        return state

    def _task(self, compiled: Program, rows: int, workspace: Tensor) -> program.Task:
        threads = torch.get_num_threads() if rows * compiled.work > _WORK_FOR_THREADS else 1
        return program.Task(
            program=ctypes.addressof(compiled.instructions),
            count=len(compiled.instructions),
            rows=rows,
            threads=threads,
            workspace=workspace.data_ptr(),
            pad=self.config.pad,
            nanoseconds=None if self.nanoseconds is None else self.nanoseconds.data_ptr(),
        )

    def _sinusoids(self, positions: int) -> Tensor:
        """Of the first `positions` tokens of a sentence, at least: [positions, D]."""
        waves = self._waves
        if len(waves) < positions:
            first, count = self.config.pad + 1, max(256, 2 * positions)
            waves = sinusoids(
                torch.arange(first, first + count), self.config.dim, torch.float32
            ).contiguous()
            self._waves = waves  # in one assignment: another thread sees the old or the new
        return waves

    def _source_row(self) -> tuple[int, torch.dtype]:
        """Keys and values of one source token: how many numbers, and which."""
        assert isinstance(self.config, Seq2SeqConfig)
        numbers, scales = 2 * self.config.dim, 2 * self.config.source_heads
        if self.quantize is None:
            return numbers, torch.float32
        # Bytes; the scales among them are float32 and stand where such numbers may.
        size = torch.float32.itemsize
        return scales * size + -(-numbers // size) * size, torch.int8

    def _decoder_layers(self) -> tuple[Any, ...]:
        assert hasattr(self.config, "decoder")
        layers: tuple[Any, ...] = self.config.decoder
        return layers


def _groups(offsets: list[int]) -> list[tuple[int, int]]:
    """Ranges of sentences of about _ROWS_ENCODED_AT_ONCE rows each."""
    groups, first = [], 0
    for last in range(1, len(offsets)):
        if last == len(offsets) - 1 or offsets[last + 1] - offsets[first] > _ROWS_ENCODED_AT_ONCE:
            groups.append((first, last))
            first = last
    return groups


def _require_words(unknown: int, tokens: Tensor, name: str, compiled: Program) -> None:
    if unknown >= 0:
        words = compiled.instructions[0].I
        raise ValueError(
            f"{name} must be ids below {words}, the size of the vocabulary; got "
            f"{int(tokens[unknown])}"
        )


def _tokens(module: nn.Module) -> TokenEmbedding:
    assert isinstance(module, TokenEmbedding)
    return module


def _layer(module: nn.Module) -> Layer:
    assert isinstance(module, Layer)
    return module
