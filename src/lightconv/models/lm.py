"""Language model: whole texts (`forward`) or a few tokens at a time (`step`)."""

from typing import Any, NamedTuple

from torch import Tensor, nn

from lightconv.mixers import State
from lightconv.models.config import LanguageModelConfig
from lightconv.models.embedding import Output, build_embedding, embed
from lightconv.models.layers import BaseModel, PlainLayer, final_norm


class LanguageModelState(NamedTuple):
    """State after some tokens of N texts: a pytree, batch first."""

    layers: tuple[State, ...]

    @property
    def position(self) -> int:
        """Number of tokens stepped so far."""
        return self.layers[0].position


class LanguageModel(BaseModel):
    """Tokens -> scores of the next token.

    Padding stands on the right, where no real position sees it, so nothing is masked.
    """

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = build_embedding(config.vocab, config)
        # An adaptive configuration decides itself what is tied.
        tied = config.tie_output or config.adaptive is not None
        self.output: Output = self.embedding.output(tied=tied)
        plain = (PlainLayer(config, mixer, causal=True) for mixer in config.layers)
        self.layers: Any = nn.ModuleList(plain)
        self.norm = final_norm(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the token after every position.

        tokens  [B, T] int64, padded on the right
        returns [B, T, V]: logits, or log-probabilities of an adaptive output
        """
        return self.output.scores(self.features(tokens))

    def features(self, tokens: Tensor) -> Tensor:
        """Input of the output layer: tokens [B, T] int64, padded on the right -> [B, T, D]."""
        x = embed(self.embedding, tokens, self.config)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.norm(x)
        return out

    def start(self, batch: int, max_len: int, **options: Any) -> LanguageModelState:
        """State before the first token of `batch` texts of at most `max_len` tokens.

        options  device and dtype of the state, as of `Mixer.start`
        """
        self.require_eval()
        mixers = (layer.mixer for layer in self.layers)
        return LanguageModelState(tuple(each.start(batch, max_len, **options) for each in mixers))

    def step(self, tokens: Tensor, state: LanguageModelState) -> tuple[Tensor, LanguageModelState]:
        """Steps the next n tokens of N texts.

        tokens  [N, n] int64 without padding
        returns scores [N, n, V] of the token after each, and the next state; the state given may
                be overwritten unless gradients are recorded
        """
        x = embed(self.embedding, tokens, self.config, state.position)
        layers = []
        for layer, past in zip(self.layers, state.layers, strict=True):
            x, new = layer.step(x, past)
            layers.append(new)
        return self.output.scores(self.norm(x)), LanguageModelState(tuple(layers))
