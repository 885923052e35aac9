"""The configuration of a model of the original: sizes from its tensors, the rest from arguments."""

import re
from collections.abc import Mapping

from torch import Tensor

from lightconv.interop.arguments import Arguments
from lightconv.interop.layouts import need
from lightconv.models.config import (
    AdaptiveConfig,
    AttentionConfig,
    DynamicConvConfig,
    LanguageModelConfig,
    LightConvConfig,
    MixerConfig,
    ModelConfig,
    Normalize,
    Seq2SeqConfig,
    ShareEmbeddings,
)

State = Mapping[str, Tensor]


def model_config(args: Arguments, state: State) -> ModelConfig:
    """An encoder-decoder model if there are tensors of an encoder, else a language model."""
    args.check_supported()
    is_pair = any(name.startswith("encoder.") for name in state)
    return seq2seq_config(args, state) if is_pair else language_model_config(args, state)


def seq2seq_config(args: Arguments, state: State) -> Seq2SeqConfig:
    """state: tensors by common names."""
    if args.counts("adaptive_softmax_cutoff") is not None:
        raise ValueError("argument adaptive_softmax_cutoff is supported in language models only")
    source_vocab, dim = matrix(state, "encoder.embed_tokens.weight")
    target_vocab, target_dim = matrix(state, "decoder.embed_tokens.weight")
    if target_dim != dim:
        raise ValueError(f"decoder_embed_dim={target_dim} must be encoder_embed_dim={dim}")
    ffn_dim = matrix(state, "encoder.layers.0.fc1.weight")[0]
    if matrix(state, "decoder.layers.0.fc1.weight")[0] != ffn_dim:
        raise ValueError(f"decoder_ffn_embed_dim must be encoder_ffn_embed_dim={ffn_dim}")
    check_widths(args, "encoder", dim)
    check_widths(args, "decoder", dim)
    pre_norm = args.flag("decoder_normalize_before")
    if args.flag("encoder_normalize_before") != pre_norm:
        raise ValueError("encoder_normalize_before and decoder_normalize_before must be the same")
    return Seq2SeqConfig(
        dim=dim,
        ffn_dim=ffn_dim,
        source_heads=args.count("decoder_attention_heads"),
        encoder=mixers(args, state, "encoder", dim),
        decoder=mixers(args, state, "decoder", dim),
        source_vocab=source_vocab,
        target_vocab=target_vocab,
        share_embeddings=shared(args),
        dropout=args.share("dropout"),
        input_dropout=args.share("input_dropout"),
        activation_dropout=args.share("activation_dropout", "relu_dropout"),
        attention_dropout=args.share("attention_dropout"),
        pre_norm=pre_norm,
        final_norm=ends_with_norm(state, pre_norm, "encoder", "decoder"),
    )


def language_model_config(args: Arguments, state: State) -> LanguageModelConfig:
    """state: tensors by common names."""
    adaptive = adaptive_config(args, state)
    if adaptive is None:
        vocab, dim = matrix(state, "decoder.embed_tokens.weight")
    else:
        dim = matrix(state, "decoder.embed_tokens.embeddings.0.1.weight")[0]
        bands = [f"decoder.embed_tokens.embeddings.{i}.0.weight" for i in range(len(state))]
        vocab = sum(matrix(state, name)[0] for name in bands if name in state)
    check_widths(args, "decoder", dim)
    pre_norm = args.flag("decoder_normalize_before")
    return LanguageModelConfig(
        dim=dim,
        ffn_dim=matrix(state, "decoder.layers.0.fc1.weight")[0],
        layers=mixers(args, state, "decoder", dim),
        vocab=vocab,
        tie_output=adaptive is not None or args.flag("share_decoder_input_output_embed", False),
        adaptive=adaptive,
        dropout=args.share("dropout"),
        input_dropout=args.share("input_dropout"),
        activation_dropout=args.share("activation_dropout", "relu_dropout"),
        pre_norm=pre_norm,
        final_norm=ends_with_norm(state, pre_norm, "decoder"),
    )


def adaptive_config(args: Arguments, state: State) -> AdaptiveConfig | None:
    """Bands at the input and at the output, which must be cut at the same places."""
    cutoffs = args.counts("adaptive_softmax_cutoff")
    if args.flag("adaptive_input", False) != (cutoffs is not None):
        raise ValueError("adaptive_input needs adaptive_softmax_cutoff, and the other way round")
    if cutoffs is None:
        return None
    if args.counts("adaptive_input_cutoff") != cutoffs:
        raise ValueError(f"adaptive_input_cutoff must be adaptive_softmax_cutoff={cutoffs}")
    factor = args.number("adaptive_softmax_factor", 4.0)
    if args.number("adaptive_input_factor", 4.0) != factor or factor != int(factor):
        raise ValueError(f"adaptive_input_factor must be adaptive_softmax_factor={factor}, whole")
    # The last cutoff may be the size of the vocabulary, which goes without saying.
    bands = sum(name.endswith(".0.weight") for name in state if ".embed_tokens.embed" in name)
    return AdaptiveConfig(
        cutoffs=tuple(cutoffs[: bands - 1]),
        factor=int(factor),
        tie_words=args.flag("tie_adaptive_weights", False),
        tie_projections=args.flag("tie_adaptive_proj", False),
        dropout=args.share("adaptive_softmax_dropout"),
    )


def mixers(args: Arguments, state: State, side: str, dim: int) -> tuple[MixerConfig, ...]:
    """One per layer, as its tensors say; arguments that say otherwise are an error."""
    numbers = [re.match(rf"{side}\.layers\.(\d{{1,6}})\.", name) for name in state]
    layers = len({found[1] for found in numbers if found})
    args.check_same(f"{side}_layers", layers)
    found = tuple(mixer(args, state, side, place, dim) for place in range(layers))
    kernels = [layer.kernel for layer in found if not isinstance(layer, AttentionConfig)]
    given = args.counts(f"{side}_kernel_size_list")
    if kernels and given is not None and given not in (kernels, kernels[:1]):
        raise ValueError(f"{side}_kernel_size_list={given}, but the weights have {kernels}")
    if side == "encoder" and any(kernel % 2 == 0 for kernel in kernels):
        raise ValueError(f"encoder kernels {kernels}: the original cannot run even ones")
    return found


def mixer(
    args: Arguments, state: State, side: str, place: int, dim: int
) -> AttentionConfig | LightConvConfig | DynamicConvConfig:
    """The mixer of one layer."""
    prefix = f"{side}.layers.{place}"
    heads = args.count(f"{side}_attention_heads")
    if f"{prefix}.self_attn.q_proj.weight" in state:
        return AttentionConfig(heads=heads, dropout=args.share("attention_dropout"))
    glu = matrix(state, f"{prefix}.linear1.weight")[0] == 2 * dim
    args.check_same(f"{side}_glu", glu)
    normalize: Normalize = "softmax" if args.flag("weight_softmax", True) else "none"
    dropconnect = args.share("weight_dropout")
    if f"{prefix}.conv.weight" in state:
        found, kernel = matrix(state, f"{prefix}.conv.weight")
        args.check_same(f"{side}_attention_heads", found)
        args.check_same(f"{side}_conv_type", "lightweight")
        return LightConvConfig(
            kernel=kernel, heads=found, glu=glu, normalize=normalize, dropconnect=dropconnect
        )
    name = f"{prefix}.conv.weight_linear.weight"
    rows = matrix(state, name)[0]
    if rows % heads != 0:
        raise ValueError(f"tensor {name} has {rows} rows, which {heads} heads cannot share")
    args.check_same(f"{side}_conv_type", "dynamic")
    return DynamicConvConfig(
        kernel=rows // heads, heads=heads, glu=glu, normalize=normalize, dropconnect=dropconnect
    )


def matrix(state: State, name: str) -> tuple[int, int]:
    """The shape of a tensor that must have two dimensions."""
    shape = need(state, name).shape
    if len(shape) != 2:
        raise ValueError(f"tensor {name} has shape {list(shape)}, expected two dimensions")
    return shape[0], shape[1]


def check_widths(args: Arguments, side: str, dim: int) -> None:
    """All of these are one width here."""
    for name in ("embed_dim", "input_dim", "output_dim", "conv_dim"):
        args.check_same(f"{side}_{name}", dim)


def shared(args: Arguments) -> ShareEmbeddings:
    """Which of the three matrices are one."""
    if args.flag("share_all_embeddings", False):
        return "all"
    return "decoder" if args.flag("share_decoder_input_output_embed", False) else "none"


def ends_with_norm(state: State, pre_norm: bool, *sides: str) -> bool:
    """Whether a norm follows the last layer; old pre-norm models have none."""
    found = {side: f"{side}.layer_norm.weight" in state for side in sides}
    if len(set(found.values())) != 1 or (found[sides[0]] and not pre_norm):
        raise ValueError(f"a norm after the last layer in some places only: {found}")
    return found[sides[0]]
