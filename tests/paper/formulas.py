"""Parameter counts from the paper's formulas alone: d width, f feed-forward width, V rows."""

from itertools import pairwise

from lightconv.models.config import (
    AdaptiveConfig,
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    LightConvConfig,
    MixerConfig,
    ModelConfig,
    Seq2SeqConfig,
)


def ffn(d: int, f: int) -> int:
    return 2 * d * f + f + d


def attention(d: int) -> int:
    return 4 * d * d + 4 * d


def mixer(layer: MixerConfig, d: int) -> int:
    match layer:
        case AttentionConfig():
            return attention(d)
        case ConvConfig(kernel=K):
            return K * d * d
        case DynamicConvConfig(kernel=K, heads=H, glu=glu):
            return (3 if glu else 2) * (d * d + d) + H * K * d
        case LightConvConfig(kernel=K, heads=H, glu=glu):
            return (3 if glu else 2) * (d * d + d) + H * K
        case AverageConfig(ffn_dim=f):
            return ffn(d, f) + (2 * d) ** 2 + 2 * d


def adaptive(config: AdaptiveConfig, V: int, d: int) -> int:
    """Tied bands; a projection of each for the input, of each but the first for the output."""
    ends = [0, *config.cutoffs, V]
    bands = [(end - start, d // 4**i) for i, (start, end) in enumerate(pairwise(ends))]
    words = sum(rows * width + width * d for rows, width in bands)
    return words + sum(d * width for _, width in bands[1:]) + 2 * d


def parameters(model: ModelConfig) -> int:
    d, f = model.dim, model.ffn_dim
    norm = 2 * d
    if isinstance(model, Seq2SeqConfig):
        s, t = model.source_vocab, model.target_vocab
        rows = {"all": s, "decoder": s + t, "none": s + 2 * t}[model.share_embeddings]
        encoder = sum(mixer(layer, d) + ffn(d, f) + 2 * norm for layer in model.encoder)
        decoder = sum(
            mixer(layer, d) + attention(d) + ffn(d, f) + 3 * norm for layer in model.decoder
        )
        return rows * d + encoder + decoder
    words = model.vocab * d
    if model.adaptive is not None:
        words = adaptive(model.adaptive, model.vocab, d)
    return words + sum(mixer(layer, d) + ffn(d, f) + 2 * norm for layer in model.layers)
