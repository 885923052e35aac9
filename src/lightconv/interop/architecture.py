"""Configuration of a fairseq model: sizes from its tensors, the rest from its arguments."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor

from lightconv.interop.pickles import content, settings
from lightconv.models.config import (
    AdaptiveConfig,
    AttentionConfig,
    DynamicConvConfig,
    LanguageModelConfig,
    LightConvConfig,
    MixerConfig,
    ModelConfig,
    Seq2SeqConfig,
    ShareEmbeddings,
)

State = Mapping[str, Tensor]
# Arguments that change the computation without changing a tensor, and the value supported here.
SUPPORTED: Mapping[str, Any] = {
    **dict.fromkeys(("encoder_learned_pos", "decoder_learned_pos"), False),
    **dict.fromkeys(("no_token_positional_embeddings", "no_scale_embedding"), False),
    **dict.fromkeys(("layernorm_embedding", "character_embeddings"), False),
    **dict.fromkeys(("no_cross_attention", "cross_self_attention"), False),
    **dict.fromkeys(("encoder_layers_to_keep", "decoder_layers_to_keep")),
    "activation_fn": "relu",
}


@dataclass(frozen=True)
class Arguments:
    """Arguments of a fairseq model by name; each method names the expected type in its error."""

    values: Mapping[str, Any]

    @classmethod
    def of_checkpoint(cls, checkpoint: Mapping[str, Any]) -> "Arguments":
        """From `args` until v0.10, from `cfg.model` and `cfg.task` since then."""
        found = settings(checkpoint.get("args"))
        if not found:
            parts = content(checkpoint.get("cfg"))
            for part in ("task", "model") if isinstance(parts, Mapping) else ():
                found |= settings(parts.get(part))
        if not found:
            raise ValueError("the checkpoint has neither 'args' nor 'cfg' with a 'model' in it")
        return cls(found)

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false, also as text."""
        value = self._get(name, default)
        words = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}
        if str(value) not in words:
            self._refuse(name, value, "true or false")
        return words[str(value)]

    def count(self, name: str) -> int:
        """A whole number of at least 1."""
        value = self._get(name, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._refuse(name, value, "a whole number of at least 1")
        return value

    def counts(self, name: str) -> list[int] | None:
        """Whole numbers: a list, or text such as `[3, 7]` or `3,7`; None if not given."""
        value = self.values.get(name)
        if isinstance(value, str):
            parts = value.strip("[]() ").split(",")
            value = [int(p) if p.strip().isdecimal() and len(p) < 20 else p for p in parts]
        if value is None:
            return None
        if not isinstance(value, list) or any(type(item) is not int or item < 1 for item in value):
            self._refuse(name, self.values[name], "a list of whole numbers of at least 1")
        return value

    def number(self, name: str, default: float) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, value, "a number")
        return float(value)

    def share(self, *names: str) -> float:
        """A probability: the first of these arguments that is given and not zero, else zero."""
        for name in names:
            value = self.number(name, 0.0)
            if not 0.0 <= value < 1.0:
                self._refuse(name, value, "a number in [0, 1)")
            if value:
                return value
        return 0.0

    def word(self, name: str) -> str | None:
        """Text that is not empty, or None."""
        value = self.values.get(name)
        return value if isinstance(value, str) and value else None

    def check_same(self, name: str, wanted: object, why: str = " by the weights") -> None:
        """Raises ValueError if the argument is given and differs, by default from the tensors."""
        value = self.values.get(name)
        if value is not None and value != wanted:
            self._refuse(name, value, f"{wanted}{why}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"the checkpoint does not give argument {name}, which is needed")
        return value

    def _refuse(self, name: str, value: Any, expected: str) -> NoReturn:
        raise ValueError(f"argument {name}={repr(value)[:60]}, expected {expected}")


def model_config(args: Arguments, state: State) -> ModelConfig:
    """Configuration of an encoder-decoder model, or of a language model without encoder."""
    for name, wanted in SUPPORTED.items():
        args.check_same(name, wanted, "; other values are not supported")
    is_pair = any(name.startswith("encoder.") for name in state)
    return seq2seq_config(args, state) if is_pair else language_model_config(args, state)


def seq2seq_config(args: Arguments, state: State) -> Seq2SeqConfig:
    if args.counts("adaptive_softmax_cutoff") is not None:
        raise ValueError("argument adaptive_softmax_cutoff is supported in language models only")
    source_vocab, dim = matrix(state, "encoder.embed_tokens.weight")
    target_vocab, target_dim = matrix(state, "decoder.embed_tokens.weight")
    if target_dim != dim:
        raise ValueError(f"decoder_embed_dim={target_dim} must be encoder_embed_dim={dim}")
    ffn_dim = matrix(state, "encoder.layers.0.fc1.weight")[0]
    if matrix(state, "decoder.layers.0.fc1.weight")[0] != ffn_dim:
        raise ValueError(f"decoder_ffn_embed_dim must be encoder_ffn_embed_dim={ffn_dim}")
    share: ShareEmbeddings = "none"
    if args.flag("share_decoder_input_output_embed", False):
        share = "decoder"
    if args.flag("share_all_embeddings", False):
        share = "all"
    return Seq2SeqConfig(
        dim=dim,
        ffn_dim=ffn_dim,
        source_heads=args.count("decoder_attention_heads"),
        encoder=mixers(args, state, "encoder", dim),
        decoder=mixers(args, state, "decoder", dim),
        source_vocab=source_vocab,
        target_vocab=target_vocab,
        share_embeddings=share,
        attention_dropout=args.share("attention_dropout"),
        **frame(args, state, "encoder", "decoder"),
    )


def language_model_config(args: Arguments, state: State) -> LanguageModelConfig:
    adaptive = adaptive_config(args, state)
    if adaptive is None:
        vocab, dim = matrix(state, "decoder.embed_tokens.weight")
    else:
        dim = matrix(state, "decoder.embed_tokens.embeddings.0.1.weight")[0]
        bands = [f"decoder.embed_tokens.embeddings.{i}.0.weight" for i in range(len(state))]
        vocab = sum(matrix(state, name)[0] for name in bands if name in state)
    return LanguageModelConfig(
        dim=dim,
        ffn_dim=matrix(state, "decoder.layers.0.fc1.weight")[0],
        layers=mixers(args, state, "decoder", dim),
        vocab=vocab,
        tie_output=adaptive is not None or args.flag("share_decoder_input_output_embed", False),
        adaptive=adaptive,
        **frame(args, state, "decoder"),
    )


def frame(args: Arguments, state: State, *sides: str) -> dict[str, Any]:
    """Dropout and norms, the same in every stack; old pre-norm models have none at their end."""
    pre_norm = args.flag("decoder_normalize_before")
    if any(args.flag(f"{side}_normalize_before") != pre_norm for side in sides):
        raise ValueError("encoder_normalize_before and decoder_normalize_before must be the same")
    found = {side: f"{side}.layer_norm.weight" in state for side in sides}
    if len(set(found.values())) != 1 or (found["decoder"] and not pre_norm):
        raise ValueError(f"a norm after the last layer in some places only: {found}")
    return {
        "dropout": args.share("dropout"),
        "input_dropout": args.share("input_dropout"),
        "activation_dropout": args.share("activation_dropout", "relu_dropout"),
        "pre_norm": pre_norm,
        "final_norm": found["decoder"],
    }


def adaptive_config(args: Arguments, state: State) -> AdaptiveConfig | None:
    """Bands of the input and the output, which must have the same cutoffs."""
    cutoffs = args.counts("adaptive_softmax_cutoff")
    if args.flag("adaptive_input", False) != (cutoffs is not None):
        raise ValueError("adaptive_input needs adaptive_softmax_cutoff, and vice versa")
    if cutoffs is None:
        return None
    if args.counts("adaptive_input_cutoff") != cutoffs:
        raise ValueError(f"adaptive_input_cutoff must be adaptive_softmax_cutoff={cutoffs}")
    factor = args.number("adaptive_softmax_factor", 4.0)
    if args.number("adaptive_input_factor", 4.0) != factor or factor != int(factor):
        raise ValueError(f"adaptive_input_factor must be adaptive_softmax_factor={factor}, whole")
    # The last cutoff may be the size of the vocabulary.
    bands = sum(name.endswith(".0.weight") for name in state if ".embed_tokens.embed" in name)
    return AdaptiveConfig(
        cutoffs=tuple(cutoffs[: bands - 1]),
        factor=int(factor),
        tie_words=args.flag("tie_adaptive_weights", False),
        tie_projections=args.flag("tie_adaptive_proj", False),
        dropout=args.share("adaptive_softmax_dropout"),
    )


def mixers(args: Arguments, state: State, side: str, dim: int) -> tuple[MixerConfig, ...]:
    """Mixers of a stack by its tensors; ValueError if an argument differs."""
    numbers = [re.match(rf"{side}\.layers\.(\d{{1,6}})\.", name) for name in state]
    layers = len({found[1] for found in numbers if found})
    args.check_same(f"{side}_layers", layers)
    for name in ("embed_dim", "input_dim", "output_dim", "conv_dim"):
        args.check_same(f"{side}_{name}", dim)
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
    prefix = f"{side}.layers.{place}"
    heads = args.count(f"{side}_attention_heads")
    if f"{prefix}.self_attn.q_proj.weight" in state:
        return AttentionConfig(heads=heads, dropout=args.share("attention_dropout"))
    glu = matrix(state, f"{prefix}.linear1.weight")[0] == 2 * dim
    args.check_same(f"{side}_glu", glu)
    normalize = "softmax" if args.flag("weight_softmax", True) else "none"
    common: dict[str, Any] = {"glu": glu, "normalize": normalize}
    common["dropconnect"] = args.share("weight_dropout")
    if f"{prefix}.conv.weight" in state:
        found, kernel = matrix(state, f"{prefix}.conv.weight")
        args.check_same(f"{side}_attention_heads", found)
        args.check_same(f"{side}_conv_type", "lightweight")
        return LightConvConfig(kernel=kernel, heads=found, **common)
    name = f"{prefix}.conv.weight_linear.weight"
    rows = matrix(state, name)[0]
    if rows % heads != 0:
        raise ValueError(f"tensor {name} has {rows} rows, expected a multiple of {heads} heads")
    args.check_same(f"{side}_conv_type", "dynamic")
    return DynamicConvConfig(kernel=rows // heads, heads=heads, **common)


def need(state: State, name: str) -> Tensor:
    """The tensor of that name; ValueError if it is missing."""
    if name not in state:
        raise ValueError(f"the checkpoint lacks tensor {name}")
    return state[name]


def matrix(state: State, name: str) -> tuple[int, int]:
    """Shape of a tensor with two dimensions; ValueError for another."""
    shape = need(state, name).shape
    if len(shape) != 2:
        raise ValueError(f"tensor {name} has shape {list(shape)}, expected two dimensions")
    return shape[0], shape[1]
