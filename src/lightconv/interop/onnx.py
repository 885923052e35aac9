"""ONNX: the operators as ONNX's own, and models as files of an encoder and a step.

Extra `onnx`: onnx and onnxscript write the files, onnxruntime runs them.
"""

import shutil
from collections.abc import Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from lightconv.data.pipeline import PIPELINE_FILES
from lightconv.data.vocabulary import SPECIALS
from lightconv.files import new_folder
from lightconv.mixers import State
from lightconv.models.folder import ModelFolder
from lightconv.models.layers import DecoderState, SourceState
from lightconv.models.lm import LanguageModelState
from lightconv.models.seq2seq import Seq2SeqState

V = Any  # a value of a graph of ONNX
ENCODER_FILE, STEP_FILE = "encoder.onnx", "step.onnx"
FLOAT, DOUBLE, TO_THE_END = 1, 11, 2**62  # ONNX's numbers


def translations() -> dict[Any, Any]:
    """The `custom_translation_table` of torch.onnx.export(..., dynamo=True) for these layers.

    >>> table = translations()
    >>> torch.onnx.export(layer, (x,), "layer.onnx", dynamo=True, custom_translation_table=table)
    """
    try:
        op: Any = import_module("onnxscript").opset18
    except ImportError as error:
        raise ModuleNotFoundError("ONNX needs onnxscript: pip install 'lightconv[onnx]'") from error

    def wide(x: V) -> int:
        return DOUBLE if int(x.dtype) == DOUBLE else FLOAT

    def dynamicconv(
        x: V, weight: V, left: int, softmax: bool, ends: V = None, p: float = 0.0, seed: V = None
    ) -> V:
        """ops/reference.py, a tap at a time: x [B, T, D], weight [B, T, H, K]."""
        refuse(ends, p)
        H, K = weight.shape[2:]
        padded = op.Reshape(pad(x, left, K), [0, 0, H, x.shape[2] // H])
        weight = op.Cast(weight, to=wide(x))
        weight = op.Softmax(weight, axis=-1) if softmax else weight
        out = None
        for j in range(K):
            tap = op.Slice(weight, [j], [j + 1], [3])
            term = op.Mul(tap, op.Slice(padded, [j], [j - K + 1 or TO_THE_END], [1]))
            out = term if out is None else op.Add(out, term)
        return op.CastLike(op.Reshape(out, [0, 0, x.shape[2]]), x)

    def lightconv(x: V, weight: V, left: int, ends: V = None, p: float = 0.0, seed: V = None) -> V:
        """x [B, T, D], weight [H, K]: Conv with a group for every channel."""
        refuse(ends, p)
        (H, K), D = weight.shape, x.shape[2]
        each = op.Unsqueeze(op.Cast(weight, to=wide(x)), [1])
        each = op.Reshape(op.Expand(each, [H, D // H, K]), [D, 1, K])
        channels = op.Transpose(pad(x, left, K), perm=[0, 2, 1])
        out = op.Conv(channels, each, group=D, kernel_shape=[K])
        return op.CastLike(op.Transpose(out, perm=[0, 2, 1]), x)

    def residual(x: V, inner: V, weight: V, bias: V, eps: float, p: float, seed: V = None) -> V:
        """ops/residual.py without dropout; its second and third result serve gradients alone."""
        refuse(None, p)
        total = op.Add(x, inner)
        out, *_ = op.LayerNormalization(total, weight, bias, epsilon=eps)
        return out, total, op.Identity(total)

    def roll(x: V, shifts: Sequence[V], dims: Sequence[int]) -> V:
        """torch's own translation takes no shift that is a variable, as of a ring buffer."""
        for shift, dim in zip(shifts, dims, strict=True):
            places = op.Range(0, x.shape[dim], 1)
            x = op.Gather(x, op.Mod(op.Sub(places, shift), [x.shape[dim]]), axis=dim)
        return x

    def pad(x: V, left: int, K: int) -> V:
        # Less than 0 takes away.
        return op.Pad(op.Cast(x, to=wide(x)), [0, left, 0, 0, K - 1 - left, 0])

    def refuse(ends: V, p: float) -> None:
        if ends is not None or p:
            raise NotImplementedError("ONNX has no cu_seqlens and no dropout: export after eval()")

    functions = {"dynamicconv": dynamicconv, "lightconv": lightconv, "residual": residual}
    table = {getattr(torch.ops.lightconv, name).default: f for name, f in functions.items()}
    return table | {torch.ops.aten.roll.default: roll}


class Encoder(nn.Module):
    """Source tokens [B, S] -> its padding [B, S] and each decoder layer's keys and values."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        memory = self.model.encode(source)
        sources = [layer.source.start(memory.output) for layer in self.model.decoder]
        return memory.padding, *(each for pair in sources for each in pair)


class Step(nn.Module):
    """`step` of a model with a state of plain tensors: tokens [N, n] -> scores [N, n, V], past."""

    def __init__(self, model: Any, counts: Sequence[int]) -> None:
        super().__init__()
        self.model, self.counts = model, counts

    def forward(
        self, tokens: Tensor, position: int, past: list[Tensor], source: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """past: tensors of all mixers, as many of each as `counts` says; source: as of Encoder."""
        every = iter(past)
        states = [State(tuple(next(every) for _ in range(n)), position) for n in self.counts]
        if not source:
            scores, new = self.model.step(tokens, LanguageModelState(tuple(states)))
            return scores, *(each for state in new.layers for each in state.tensors)
        pairs = map(SourceState, source[1::2], source[2::2])
        layers = tuple(map(DecoderState, states, pairs))
        scores, new = self.model.step(tokens, Seq2SeqState(layers, source[0]))
        return scores, *(each for layer in new.layers for each in layer.mixer.tensors)


def export(folder: ModelFolder, target: str | Path) -> list[str]:
    """Writes step.onnx, encoder.onnx of a sequence-to-sequence model, and the text pipeline.

    Batch, lengths and the position are free. Inputs `past_*` of the step are zeros at first, then
    the outputs `new_*` of the step before; `padding` and `source_*` are outputs of the encoder.
    """
    model: Any = folder.load()
    layers = model.decoder if folder.pairs else model.layers
    batch, tokens = {0: Dim("batch")}, torch.full((3, 4), SPECIALS)
    options: dict[str, Any] = {"dynamo": True, "verbose": False, "external_data": False}
    options["custom_translation_table"] = translations()
    with new_folder(Path(target)) as made, torch.enable_grad():  # steps then return new states
        source: list[Tensor] = []
        given: list[str] = []
        lengths = {**batch, 1: Dim("source_length")}
        if folder.pairs:
            encoder = Encoder(model)
            source = [each.detach() for each in encoder(tokens)]
            given = ["padding", *(f"source_{i}" for i in range(len(source) - 1))]
            torch.onnx.export(
                encoder,
                (tokens,),
                made / ENCODER_FILE,
                input_names=["source"],
                output_names=given,
                dynamic_shapes=(lengths,),
                **options,
            )
        most = Dim("max_len")
        states = [[layer.mixer.start(3, n).tensors for layer in layers] for n in (7, 9)]
        past, longer = (list(chain.from_iterable(each)) for each in states)
        torch.onnx.export(
            Step(model, list(map(len, states[0]))),
            (tokens, 1, past, source),
            made / STEP_FILE,
            input_names=["tokens", "position", *(f"past_{i}" for i in range(len(past))), *given],
            output_names=["scores", *(f"new_{i}" for i in range(len(past)))],
            dynamic_shapes=(
                {**batch, 1: Dim("length")},
                Dim.DYNAMIC,
                [
                    batch if a.shape == b.shape else {**batch, 1: most}
                    for a, b in zip(past, longer, strict=True)
                ],
                [lengths for _ in source],
            ),
            **options,
        )
        for path in (folder.path / name for name in PIPELINE_FILES):
            if path.exists():
                shutil.copyfile(path, made / path.name)
        return sorted(path.name for path in made.iterdir())
