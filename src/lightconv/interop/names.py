"""Our names of parameters and the original's, by the common names of `layouts`."""

from collections.abc import Iterator

from lightconv.interop.layouts import HEAD, TAIL
from lightconv.models.config import (
    LanguageModelConfig,
    LightConvConfig,
    MixerConfig,
    ModelConfig,
    Seq2SeqConfig,
)

W = "weight"
# Our name of a parameter, and the names of what it is made of, one below the other.
Pairs = Iterator[tuple[str, tuple[str, ...]]]


def parameter_sources(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Where each parameter of a model comes from."""
    if isinstance(config, LanguageModelConfig):
        return dict(_language_model_sources(config))
    return dict(_seq2seq_sources(config))


def _seq2seq_sources(config: Seq2SeqConfig) -> Pairs:
    yield "source_embedding.weight", ("encoder.embed_tokens.weight",)
    if config.share_embeddings != "all":
        yield "target_embedding.weight", ("decoder.embed_tokens.weight",)
    if config.share_embeddings == "none":
        yield "output.weight", ("decoder.output_projection.weight",)
    for side, mixers in (("encoder", config.encoder), ("decoder", config.decoder)):
        for place, mixer in enumerate(mixers):
            yield from _layer_sources(f"{side}.{place}", f"{side}.layers.{place}", mixer)
        if config.pre_norm and config.final_norm:
            yield from _both(f"{side}_norm", f"{side}.layer_norm")
    for place in range(len(config.decoder)):
        ours, theirs = f"decoder.{place}.source", f"decoder.layers.{place}.encoder_attn"
        yield from _both(f"{ours}.q_proj", f"{theirs}.q_proj")
        yield from _both(f"{ours}.kv_proj", f"{theirs}.k_proj", f"{theirs}.v_proj")
        yield from _both(f"{ours}.out_proj", f"{theirs}.out_proj")
        yield from _both(f"{ours}_residual.norm", f"decoder.layers.{place}.source_norm")


def _language_model_sources(config: LanguageModelConfig) -> Pairs:
    if config.adaptive is None:
        yield "embedding.weight", ("decoder.embed_tokens.weight",)
        if not config.tie_output:
            yield "output.weight", ("decoder.output_projection.weight",)
    else:
        yield f"output.classes.{W}", (f"{HEAD}.class_proj.{W}",)
        for band in range(len(config.adaptive.cutoffs) + 1):
            inputs = f"decoder.embed_tokens.embeddings.{band}"
            yield f"embedding.words.{band}.{W}", (f"{inputs}.0.{W}",)
            yield f"embedding.projections.{band}.{W}", (f"{inputs}.1.{W}",)
            if not config.adaptive.tie_words:
                yield f"output.words.{band}.{W}", (_band_words(band),)
            if not config.adaptive.tie_projections and band > 0:
                yield f"output.projections.{band - 1}.{W}", (f"{TAIL}.{band - 1}.0.{W}",)
    for place, mixer in enumerate(config.layers):
        yield from _layer_sources(f"layers.{place}", f"decoder.layers.{place}", mixer)
    if config.pre_norm and config.final_norm:
        yield from _both("norm", "decoder.layer_norm")


def _band_words(band: int) -> str:
    """The matrix of a band of the output."""
    return f"{HEAD}.word_proj.{W}" if band == 0 else f"{TAIL}.{band - 1}.2.{W}"


def _layer_sources(ours: str, theirs: str, mixer: MixerConfig) -> Pairs:
    if mixer.kind == "attention":
        attention = f"{theirs}.self_attn"
        parts = (f"{attention}.{part}_proj" for part in "qkv")
        yield from _both(f"{ours}.mixer.in_proj", *parts)
        yield from _both(f"{ours}.mixer.out_proj", f"{attention}.out_proj")
    else:
        yield from _both(f"{ours}.mixer.in_proj", f"{theirs}.linear1")
        yield from _both(f"{ours}.mixer.out_proj", f"{theirs}.linear2")
        if isinstance(mixer, LightConvConfig):
            yield f"{ours}.mixer.weight", (f"{theirs}.conv.weight",)
        else:
            yield f"{ours}.mixer.kernel_proj.weight", (f"{theirs}.conv.weight_linear.weight",)
    yield from _both(f"{ours}.mixer_residual.norm", f"{theirs}.mixer_norm")
    yield from _both(f"{ours}.ffn.hidden", f"{theirs}.fc1")
    yield from _both(f"{ours}.ffn.output", f"{theirs}.fc2")
    yield from _both(f"{ours}.ffn_residual.norm", f"{theirs}.ffn_norm")


def _both(ours: str, *theirs: str) -> Pairs:
    """Weight and bias of a linear layer or a norm."""
    for kind in (W, "bias"):
        yield f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs)


def tied_names(config: ModelConfig) -> dict[str, str]:
    """Tensors that may stand in a checkpoint as copies of others, and of which."""
    ties: dict[str, str] = {}
    if isinstance(config, Seq2SeqConfig):
        if config.share_embeddings == "all":
            ties["decoder.embed_tokens.weight"] = "encoder.embed_tokens.weight"
        if config.share_embeddings != "none":
            ties["decoder.output_projection.weight"] = "decoder.embed_tokens.weight"
    elif config.adaptive is None:
        if config.tie_output:
            ties["decoder.output_projection.weight"] = "decoder.embed_tokens.weight"
    else:
        for band in range(len(config.adaptive.cutoffs) + 1):
            inputs = f"decoder.embed_tokens.embeddings.{band}"
            if config.adaptive.tie_words:
                ties[_band_words(band)] = f"{inputs}.0.{W}"
            if config.adaptive.tie_projections and band > 0:
                ties[f"{TAIL}.{band - 1}.0.{W}"] = f"{inputs}.1.{W}"
    return ties
