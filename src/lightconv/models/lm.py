"""The language model: whole texts (`forward`) or a few tokens at a time (`step`)."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lightconv.mixers import State
from lightconv.models.adaptive import Output, build_embedding
from lightconv.models.config import LanguageModelConfig
from lightconv.models.embedding import embed
from lightconv.models.layers import BaseModel, CausalLayer, final_norm, require_eval


class LanguageModelState(NamedTuple):
    """A model in the middle of N texts: a pytree, batch first in every tensor."""

    layers: tuple[State, ...]

    @property
    def position(self) -> int:
        """How many tokens came before."""
        return self.layers[0].position


class LanguageModel(BaseModel):
    """Tokens to scores of the next one; the mixers are those of the configuration.

    Padding stands on the right only: no real position sees it, so none of it is masked.
    """

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = build_embedding(config.vocab, config)
        # An adaptive configuration says itself what is tied.
        tied = config.tie_output or config.adaptive is not None
        self.output: Output = self.embedding.output(tied=tied)
        self.layers = nn.ModuleList(CausalLayer(config, mixer) for mixer in config.layers)
        self.norm = final_norm(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """The scores of what follows every position.

        tokens  [B, T] int64, padded on the right
        returns [B, T, V]: logits, or log-probabilities of an adaptive output
        """
        return self.output.scores(self.features(tokens))

    def features(self, tokens: Tensor) -> Tensor:
        """What the output reads: tokens [B, T] int64, padded on the right -> [B, T, D]."""
        x = embed(self.embedding, tokens, self.config)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.norm(x)
        return out

    def start(
        self,
        batch: int,
        max_len: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> LanguageModelState:
        """The state before the first token of `batch` texts of at most `max_len` tokens.

        Device and dtype are those of the parameters unless given.
        """
        require_eval(self)
        return LanguageModelState(
            tuple(
                _causal(layer).mixer.start(batch, max_len, device=device, dtype=dtype)
                for layer in self.layers
            )
        )

    def step(self, tokens: Tensor, state: LanguageModelState) -> tuple[Tensor, LanguageModelState]:
        """The next n tokens of N texts, none of them padding.

        tokens  [N, n] int64
        returns the scores [N, n, V] of what follows each, and the next state

        The state given may be overwritten, unless gradients are being recorded.
        """
        x = embed(self.embedding, tokens, self.config, state.position)
        layers = []
        for layer, past in zip(self.layers, state.layers, strict=True):
            x, new = _causal(layer).step(x, past)
            layers.append(new)
        return self.output.scores(self.norm(x)), LanguageModelState(tuple(layers))


def _causal(layer: nn.Module) -> CausalLayer:
    assert isinstance(layer, CausalLayer)
    return layer
