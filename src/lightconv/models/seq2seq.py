"""The encoder-decoder model: whole sentences (`forward`) or a few tokens at a time (`step`)."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from lightconv.models.config import Seq2SeqConfig
from lightconv.models.embedding import TokenEmbedding, add_positions
from lightconv.models.layers import DecoderLayer, DecoderState, EncoderLayer


class Memory(NamedTuple):
    """The encoded source: output [B, S, D] and padding [B, S] bool."""

    output: Tensor
    padding: Tensor


class Seq2SeqState(NamedTuple):
    """A decoder in the middle of N sentences: a pytree, batch first in every tensor."""

    layers: tuple[DecoderState, ...]
    padding: Tensor
    position: int


class Seq2Seq(nn.Module):
    """Source and target tokens to logits; the mixers are those of the configuration."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        dim, pad = config.dim, config.pad
        self.source_embedding = TokenEmbedding(config.source_vocab, dim, pad)
        self.target_embedding = (
            self.source_embedding
            if config.share_embeddings == "all"
            else TokenEmbedding(config.target_vocab, dim, pad)
        )
        self.output = (
            TokenEmbedding(config.target_vocab, dim, pad)
            if config.share_embeddings == "none"
            else self.target_embedding
        )
        self.encoder = nn.ModuleList(EncoderLayer(config, mixer) for mixer in config.encoder)
        self.decoder = nn.ModuleList(DecoderLayer(config, mixer) for mixer in config.decoder)
        # Pre-norm layers leave their sum as it is, so each stack ends with a norm of its own.
        self.encoder_norm = nn.LayerNorm(dim) if config.pre_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(dim) if config.pre_norm else nn.Identity()

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """The logits of every target position.

        source    [B, S] int64, padded on either side
        target_in [B, T] int64, begins with EOS, padded on the right
        returns   [B, T, V]
        """
        memory = self.encode(source)
        x = self._embed(self.target_embedding, target_in)
        for layer in self.decoder:
            x = layer(x, memory.output, memory.padding)
        return self.output.logits(self.decoder_norm(x))

    def encode(self, source: Tensor) -> Memory:
        """source [B, S] int64, padded on either side."""
        padding = source == self.config.pad
        x = self._embed(self.source_embedding, source)
        for layer in self.encoder:
            x = layer(x, padding)
        return Memory(self.encoder_norm(x), padding)

    def start(self, memory: Memory, max_len: int) -> Seq2SeqState:
        """The state before the first token; `max_len` tokens will be stepped at most."""
        if self.training:
            raise ValueError("stepping knows no dropout: call eval() before start()")
        layers = tuple(_decoder(layer).start(memory.output, max_len) for layer in self.decoder)
        return Seq2SeqState(layers, memory.padding, 0)

    def step(self, tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        """The next n tokens of N sentences: tokens [N, n] -> logits [N, n, V], next state."""
        x = self._embed(self.target_embedding, tokens, state.position)
        layers = []
        for layer, past in zip(self.decoder, state.layers, strict=True):
            x, new = _decoder(layer).step(x, past, state.padding)
            layers.append(new)
        logits = self.output.logits(self.decoder_norm(x))
        return logits, Seq2SeqState(tuple(layers), state.padding, state.position + tokens.shape[1])

    def _embed(self, embedding: TokenEmbedding, tokens: Tensor, position: int = 0) -> Tensor:
        pad = self.config.pad
        x = add_positions(embedding(tokens), tokens == pad, pad, position)
        return F.dropout(x, self.config.dropout, self.training)


def _decoder(layer: nn.Module) -> DecoderLayer:
    assert isinstance(layer, DecoderLayer)
    return layer
