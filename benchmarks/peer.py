"""CTranslate2 with a Transformer of given sizes and random weights, for benchmarks of decoding.

The model is written with the library's own specification and quantised by the library. It runs with
its best settings for this kind of machine: one thread for one sentence, two workers of one thread
each for batches (several threads per worker are slower on virtual cores).
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lightconv.models import Seq2SeqConfig

MISSING = "CTranslate2 is missing: pip install 'lightconv[bench]'"


def available() -> bool:
    """True if the library is installed."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError:
        return False
    return True


def words(size: int) -> list[str]:
    """A vocabulary with the special words of the library."""
    return ["<unk>", "<s>", "</s>", *(f"w{i}" for i in range(size - 3))]


def specification(config: Seq2SeqConfig) -> Any:
    """A post-norm Transformer of config's sizes, one self-attention layer per layer."""
    from ctranslate2.specs import TransformerSpec

    heads = config.source_heads
    layers = (len(config.encoder), len(config.decoder))
    spec = TransformerSpec.from_config(layers, heads, pre_norm=False)
    D, F = config.dim, config.ffn_dim
    _fill(spec.encoder.embeddings[0], config.source_vocab, D)
    _fill(spec.decoder.embeddings, config.target_vocab, D)
    _fill(spec.decoder.projection, config.target_vocab, D)
    for stack in (spec.encoder, spec.decoder):
        stack.scale_embeddings = True
        for layer in stack.layer:
            _attention(layer.self_attention, D, 3)
            if hasattr(layer, "attention"):
                _attention(layer.attention, D, 1, 2)
            _fill(layer.ffn.linear_0, F, D, bias=True)
            _fill(layer.ffn.linear_1, D, F, bias=True)
            _norm(layer.ffn.layer_norm, D)
    spec.register_source_vocabulary(words(config.source_vocab))
    spec.register_target_vocabulary(words(config.target_vocab))
    spec.validate()
    return spec


def _fill(linear: Any, outputs: int, inputs: int, bias: bool = False) -> None:
    linear.weight = (torch.randn(outputs, inputs) * inputs**-0.5).numpy()
    if bias:
        linear.bias = torch.zeros(outputs).numpy()


def _norm(norm: Any, dim: int) -> None:
    norm.gamma, norm.beta = torch.ones(dim).numpy(), torch.zeros(dim).numpy()


def _attention(attention: Any, dim: int, *parts: int) -> None:
    """Fills the projections; `parts` are the widths of all but the last, in units of dim."""
    for linear, width in zip(attention.linear, (*parts, 1), strict=True):
        _fill(linear, width * dim, dim, bias=True)
    _norm(attention.layer_norm, dim)


def save(config: Seq2SeqConfig, compute_type: str, folder: Path) -> Path:
    """A model of config's sizes in a new folder, quantised by the library itself."""
    spec = specification(config)
    spec.optimize(quantization=None if compute_type == "float32" else compute_type)
    folder.mkdir(parents=True)
    spec.save(str(folder))
    return folder


class Peer:
    """Translates random sentences of `length` words into exactly `length` words."""

    def __init__(
        self, folder: Path, compute_type: str, batch: int, workers: int | None = None
    ) -> None:
        import ctranslate2

        self.batch = batch
        self.workers = workers or (1 if batch == 1 else 2)
        self.translator = ctranslate2.Translator(
            str(folder),
            device="cpu",
            compute_type=compute_type,
            inter_threads=self.workers,
            intra_threads=1 if workers is None else max(1, (os.cpu_count() or 1) // workers),
        )

    def call(self, beam: int, length: int, count: int = 0) -> tuple[Callable[[], object], int]:
        """The call to time, and its number of sentences: a batch for each worker."""
        count = count or self.batch * self.workers
        source = [[f"w{(7 * i + 13 * j) % 1000}" for j in range(length)] for i in range(count)]

        def run() -> object:
            found = self.translator.translate_batch(
                source,
                beam_size=beam,
                max_batch_size=self.batch,
                min_decoding_length=length,
                max_decoding_length=length,
            )
            assert all(len(each.hypotheses[0]) == length for each in found)
            return found

        return run, count
