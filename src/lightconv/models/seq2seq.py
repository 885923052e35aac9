"""The encoder-decoder model: whole sentences (`forward`) or a few tokens at a time (`step`)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lightconv.mixers import reorder
from lightconv.models.adaptive import Output, build_embedding
from lightconv.models.config import Seq2SeqConfig
from lightconv.models.embedding import embed
from lightconv.models.layers import (
    BaseModel,
    DecoderLayer,
    DecoderState,
    EncoderLayer,
    final_norm,
    require_eval,
)


class Memory(NamedTuple):
    """The encoded source: output [B, S, D] and padding [B, S] bool."""

    output: Tensor
    padding: Tensor


class Seq2SeqState(NamedTuple):
    """A decoder in the middle of N outputs: a pytree, batch first in every tensor.

    What belongs to the source, its padding among it, is there once for all outputs of a sentence:
    B rows, where N is a multiple of B and the first N / B outputs are those of the first.
    """

    layers: tuple[DecoderState, ...]
    padding: Tensor

    @property
    def position(self) -> int:
        """How many tokens came before."""
        return self.layers[0].mixer.position

    def reorder(self, rows: Tensor) -> "Seq2SeqState":
        """The state of those rows [N']; what is said of `mixers.reorder`."""
        B, N = len(self.padding), len(self.layers[0].mixer.tensors[0])
        kept = _sources(rows // max(N // max(B, 1), 1), B)
        if kept is None:
            padding, sources = self.padding, [layer.source for layer in self.layers]
        else:
            padding = reorder(self.padding, kept)
            sources = [reorder(layer.source, kept) for layer in self.layers]
        pasts = [reorder(layer.mixer, rows) for layer in self.layers]
        layers = tuple(map(DecoderState, pasts, sources))
        return Seq2SeqState(layers, padding)


class Seq2Seq(BaseModel):
    """Source and target tokens to scores; the mixers are those of the configuration."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = build_embedding(config.source_vocab, config)
        self.target_embedding = (
            self.source_embedding
            if config.share_embeddings == "all"
            else build_embedding(config.target_vocab, config)
        )
        self.output: Output = self.target_embedding.output(tied=config.share_embeddings != "none")
        self.encoder = nn.ModuleList(EncoderLayer(config, mixer) for mixer in config.encoder)
        self.decoder = nn.ModuleList(DecoderLayer(config, mixer) for mixer in config.decoder)
        self.encoder_norm = final_norm(config)
        self.decoder_norm = final_norm(config)

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """The scores of every target position.

        source    [B, S] int64, padded on either side
        target_in [B, T] int64, begins with EOS, padded on the right
        returns   [B, T, V]: logits, or log-probabilities of an adaptive output
        """
        return self.output.scores(self.features(source, target_in))

    def features(self, source: Tensor, target_in: Tensor) -> Tensor:
        """What the output reads at every target position: [B, T, D]; arguments as of `forward`."""
        memory = self.encode(source)
        x = embed(self.target_embedding, target_in, self.config)
        for layer in self.decoder:
            x = layer(x, memory.output, memory.padding)
        out: Tensor = self.decoder_norm(x)
        return out

    def encode(self, source: Tensor) -> Memory:
        """source [B, S] int64, padded on either side."""
        padding = source == self.config.pad
        x = embed(self.source_embedding, source, self.config)
        for layer in self.encoder:
            x = layer(x, padding)
        return Memory(self.encoder_norm(x), padding)

    def start(self, memory: Memory, max_len: int) -> Seq2SeqState:
        """The state before the first token; `max_len` tokens will be stepped at most."""
        require_eval(self)
        layers = tuple(_decoder(layer).start(memory.output, max_len) for layer in self.decoder)
        return Seq2SeqState(layers, memory.padding)

    def step(self, tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        """The next n tokens of N sentences, none of them padding.

        tokens  [N, n] int64
        returns the scores [N, n, V] of what follows each, and the next state

        The state given may be overwritten, unless gradients are being recorded.
        """
        x = embed(self.target_embedding, tokens, self.config, state.position)
        layers = []
        for layer, past in zip(self.decoder, state.layers, strict=True):
            x, new = _decoder(layer).step(x, past, state.padding)
            layers.append(new)
        scores = self.output.scores(self.decoder_norm(x))
        return scores, Seq2SeqState(tuple(layers), state.padding)

    def step_attending(
        self, tokens: Tensor, state: Seq2SeqState, layer: int = -1
    ) -> tuple[Tensor, Seq2SeqState, Tensor]:
        """As `step`, and where that layer of the decoder looks in the source.

        The third result is [N, n, S], the mean of the heads; every row sums to one.
        """
        if not -len(self.decoder) <= layer < len(self.decoder):
            raise ValueError(f"layer={layer} must be one of {len(self.decoder)} decoder layers")
        chosen = self.decoder[layer]
        x = embed(self.target_embedding, tokens, self.config, state.position)
        layers = []
        for each, past in zip(self.decoder, state.layers, strict=True):
            if each is chosen:
                x, new, attention = _decoder(each).step_attending(x, past, state.padding)
            else:
                x, new = _decoder(each).step(x, past, state.padding)
            layers.append(new)
        scores = self.output.scores(self.decoder_norm(x))
        return scores, Seq2SeqState(tuple(layers), state.padding), attention


def _sources(wanted: Tensor, B: int) -> Tensor | None:
    """Which of B sources to keep, when the rows of a state want these [N']; None: all as they are.

    Neighbours that want the same one share it, if every source is wanted by as many.
    """
    kept, counts = torch.unique_consecutive(wanted, return_counts=True)
    if not bool((counts == counts[:1]).all()):
        kept = wanted
    everything = torch.arange(B, device=kept.device)
    return None if torch.equal(kept, everything) else kept


def _decoder(layer: nn.Module) -> DecoderLayer:
    assert isinstance(layer, DecoderLayer)
    return layer
