"""Encoder-decoder model: whole sentences (`forward`) or a few tokens at a time (`step`)."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightconv.mixers import reorder
from lightconv.models.config import Seq2SeqConfig
from lightconv.models.embedding import Output, build_embedding, embed
from lightconv.models.layers import BaseModel, DecoderLayer, DecoderState, PlainLayer, final_norm


class Memory(NamedTuple):
    """Encoded source: output [B, S, D] and padding [B, S] bool."""

    output: Tensor
    padding: Tensor


class Seq2SeqState(NamedTuple):
    """State of the decoder after some tokens of N outputs: a pytree, batch first.

    Tensors of the source have B rows, one per sentence: N is a multiple of B, and the first N / B
    outputs belong to the first sentence.
    """

    layers: tuple[DecoderState, ...]
    padding: Tensor

    @property
    def position(self) -> int:
        """Number of tokens stepped so far."""
        return self.layers[0].mixer.position

    def reorder(self, rows: Tensor) -> "Seq2SeqState":
        """State of those rows [N'], as `mixers.reorder`."""
        B, N = len(self.padding), len(self.layers[0].mixer.tensors[0])
        wanted = rows // max(N // max(B, 1), 1)
        # Neighbours share a source if every source has the same number of rows.
        kept, counts = torch.unique_consecutive(wanted, return_counts=True)
        if not bool((counts == counts[:1]).all()):
            kept = wanted
        padding, sources = self.padding, [layer.source for layer in self.layers]
        if not torch.equal(kept, torch.arange(B, device=kept.device)):
            padding, sources = reorder(padding, kept), [reorder(each, kept) for each in sources]
        pasts = [reorder(layer.mixer, rows) for layer in self.layers]
        return Seq2SeqState(tuple(map(DecoderState, pasts, sources)), padding)


class Seq2Seq(BaseModel):
    """Source and target tokens -> scores of the next target token."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = build_embedding(config.source_vocab, config)
        self.target_embedding = self.source_embedding
        if config.share_embeddings != "all":
            self.target_embedding = build_embedding(config.target_vocab, config)
        self.output: Output = self.target_embedding.output(tied=config.share_embeddings != "none")
        plain = (PlainLayer(config, mixer, causal=False) for mixer in config.encoder)
        self.encoder: Any = nn.ModuleList(plain)
        self.decoder: Any = nn.ModuleList(DecoderLayer(config, mixer) for mixer in config.decoder)
        self.encoder_norm = final_norm(config)
        self.decoder_norm = final_norm(config)

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Scores of every target position.

        source    [B, S] int64, padded on either side
        target_in [B, T] int64, begins with EOS, padded on the right
        returns   [B, T, V]: logits, or log-probabilities of an adaptive output
        """
        return self.output.scores(self.features(source, target_in))

    def features(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Input of the output layer [B, T, D]; arguments as of `forward`."""
        memory = self.encode(source)
        x = embed(self.target_embedding, target_in, self.config)
        for layer in self.decoder:
            x = layer(x, memory.output, memory.padding)
        out: Tensor = self.decoder_norm(x)
        return out

    def encode(self, source: Tensor) -> Memory:
        """source [B, S] int64, padded on either side -> output [B, S, D] and padding."""
        padding = source == self.config.pad
        x = embed(self.source_embedding, source, self.config)
        for layer in self.encoder:
            x = layer(x, padding)
        return Memory(self.encoder_norm(x), padding)

    def start(self, memory: Memory, max_len: int) -> Seq2SeqState:
        """State before the first of at most `max_len` tokens."""
        self.require_eval()
        layers = tuple(layer.start(memory.output, max_len) for layer in self.decoder)
        return Seq2SeqState(layers, memory.padding)

    def step(self, tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        """Steps the next n tokens of N outputs.

        tokens  [N, n] int64 without padding
        returns scores [N, n, V] of the token after each, and the next state; the state given may
                be overwritten unless gradients are recorded
        """
        return self._step(tokens, state, None)[:2]

    def step_attending(
        self, tokens: Tensor, state: Seq2SeqState, layer: int = -1
    ) -> tuple[Tensor, Seq2SeqState, Tensor]:
        """As `step`, and the attention weights [N, n, S] of a layer, the mean of its heads."""
        if not -len(self.decoder) <= layer < len(self.decoder):
            raise ValueError(f"layer={layer} must be one of {len(self.decoder)} decoder layers")
        return self._step(tokens, state, self.decoder[layer])

    def _step(
        self, tokens: Tensor, state: Seq2SeqState, chosen: nn.Module | None
    ) -> tuple[Tensor, Seq2SeqState, Any]:
        x = embed(self.target_embedding, tokens, self.config, state.position)
        layers, attention = [], None
        for layer, past in zip(self.decoder, state.layers, strict=True):
            attending = layer is chosen
            x, new, weights = layer.step(x, past, state.padding, attending=attending)
            attention = weights if attending else attention
            layers.append(new)
        scores = self.output.scores(self.decoder_norm(x))
        return scores, Seq2SeqState(tuple(layers), state.padding), attention
