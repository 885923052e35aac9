"""Checkpoints of fairseq, the original implementation: LightConv, DynamicConv and Transformer.

Translation and language models of all its versions. The imported model computes what the original
does, with one exception: for texts shorter than the kernel, the original's DynamicConv computes
another function in a forward pass than in generation; this one always computes the latter.

Every version's tensors get one set of names, and from these ours:

    2019            layer_norms.0, embed_out, one in_proj_weight for queries, keys and values
    v0.9 to v0.12   the same with q_proj, k_proj, v_proj
    CUDA            kernels [H, K] instead of [H, 1, K]
    newest          layer_norm1, output_projection

Common names follow the newest, but for the norms: mixer_norm, source_norm, ffn_norm.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lightconv.interop.architecture import Arguments, State, model_config, need
from lightconv.interop.pickles import read_pickle
from lightconv.models.config import LanguageModelConfig, MixerConfig, ModelConfig, Seq2SeqConfig
from lightconv.models.folder import build_from
from lightconv.models.layers import BaseModel

# Unused buffers, and a bias that the newest version stores but does not use.
DROPPED = re.compile(r".*\.(version|_float_tensor|conv_bias)")
RENAMED = {
    r"(encoder\.layers\.\d+)\.(layer_norms\.0|layer_norm1|self_attn_layer_norm)": r"\1.mixer_norm",
    r"(encoder\.layers\.\d+)\.(layer_norms\.1|layer_norm2|final_layer_norm)": r"\1.ffn_norm",
    r"(decoder\.layers\.\d+)\.(conv|self_attn)_layer_norm": r"\1.mixer_norm",
    r"(decoder\.layers\.\d+)\.encoder_attn_layer_norm": r"\1.source_norm",
    r"(decoder\.layers\.\d+)\.final_layer_norm": r"\1.ffn_norm",
    r"decoder\.embed_out": "decoder.output_projection.weight",
}
HEAD = "decoder.adaptive_softmax.head"
TAIL = "decoder.adaptive_softmax.tail"
W = "weight"
# Our name of a parameter, and the names of the tensors it is made of, one below the other.
Pairs = Iterator[tuple[str, tuple[str, ...]]]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Imported(NamedTuple):
    """A model, the version that wrote its tensors, and its task."""

    model: BaseModel
    layout: str
    task: dict[str, str]


def read_model(path: str | Path) -> Imported:
    """The model of a checkpoint in float32 and evaluation mode; no code in the file is run."""
    path = Path(path)
    checkpoint = read_pickle(path)
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path} is not a checkpoint of fairseq: it holds no dict")
    try:
        state = check_tensors(checkpoint.get("model"))
        args = Arguments.of_checkpoint(checkpoint)
        layout = describe_layout(state, has_cfg=not checkpoint.get("args"))
        common = common_names(state)
        config = model_config(args, common)
        tensors = our_names(config, common)
        total = sum(t.nbytes for parts in tensors.values() for t in parts)
        if total > (size := path.stat().st_size):
            raise ValueError(f"{total} bytes of tensors in {size}: they share their numbers")
        task = {"kind": "language_model"}
        if not isinstance(config, LanguageModelConfig):
            languages = ((name, args.word(name)) for name in ("source_lang", "target_lang"))
            task = {"kind": "translation", **{name: lang for name, lang in languages if lang}}
        return Imported(_build(config, tensors), layout, task)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def our_names(config: ModelConfig, state: State) -> dict[str, list[Tensor]]:
    """Tensors to concatenate for each of our parameters; ValueError if one is left over."""
    if isinstance(config, LanguageModelConfig):
        sources = dict(_language_model_sources(config))
    else:
        sources = dict(_seq2seq_sources(config))
    ties = tied_names(config)
    for copy, original in ties.items():
        if copy in state and not torch.equal(state[copy], need(state, original)):
            raise ValueError(f"tensor {copy} must be the same as {original} by the arguments")
    known = {name for names in sources.values() for name in names} | set(ties)
    unknown = [name for name in state if name not in known]
    if unknown:
        raise ValueError(
            f"tensor {unknown[0][:100]} and {len(unknown) - 1} others have no counterpart here"
        )
    return {ours: [need(state, name) for name in names] for ours, names in sources.items()}


def _build(config: ModelConfig, tensors: Mapping[str, list[Tensor]]) -> BaseModel:
    whole = {
        name: (parts[0] if len(parts) == 1 else torch.cat(parts)).float()
        for name, parts in tensors.items()
    }
    return build_from(config, whole, "the checkpoint", "its arguments")


# --- common names ---------------------------------------------------------------------------------


def describe_layout(state: State, *, has_cfg: bool) -> str:
    """The version that wrote these names, as text."""
    if any(".layer_norm1." in name or ".output_projection." in name for name in state):
        version = "newest"
    elif any(name.endswith(".in_proj_weight") for name in state):
        version = "2019 (v0.6)"
    else:
        version = "v0.12" if has_cfg else "v0.9 to v0.10"
    flat = any(name.endswith(".conv.weight") and t.dim() == 2 for name, t in state.items())
    return f"{version}, kernels of the CUDA layer" if flat else version


def common_names(state: State) -> dict[str, Tensor]:
    """Tensors by common names and in common shapes, as views."""
    if f"{HEAD}.weight" in state or f"{HEAD}.word_proj.weight" in state:
        # Without this buffer the class rows are off by one (fairseq before 0.7).
        need(state, "decoder.adaptive_softmax.version")
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if DROPPED.fullmatch(name):
            continue
        for new, part in _rename(name, tensor):
            if new in found:
                raise ValueError(f"tensor {name} is given twice, also under an older name")
            found[new] = part
    return _split_head(found)


def check_tensors(state: object) -> dict[str, Tensor]:
    """The state as a dict; ValueError unless all its values are plain contiguous tensors."""
    if not isinstance(state, Mapping):
        raise ValueError("the checkpoint has no 'model' with tensors in it")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ValueError(f"'model' has {str(name)[:80]!r}, which is not a tensor")
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise ValueError(f"tensor {name[:80]} is sparse or quantised, expected plain numbers")
        # A view can be larger than its storage, and so than the file.
        if not tensor.is_contiguous():
            raise ValueError(f"tensor {name[:80]} is a view with gaps or repetitions")
        if tensor.dtype not in DTYPES and not DROPPED.fullmatch(name):
            raise ValueError(f"tensor {name[:80]} has type {tensor.dtype}, expected float32")
    return dict(state)


def _rename(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    for old, new in RENAMED.items():
        name, count = re.subn(f"^{old}(?=$|\\.)", new, name)
        if count:
            break
    fused = re.fullmatch(r"(.*_attn)\.in_proj_(weight|bias)", name)
    if fused and tensor.shape[0] % 3 == 0:
        place, kind = fused.groups()
        thirds = zip("qkv", tensor.chunk(3), strict=True)
        return [(f"{place}.{part}_proj.{kind}", third) for part, third in thirds]
    if name.endswith(".conv.weight") and tensor.dim() == 3 and tensor.shape[1] == 1:
        return [(name, tensor.squeeze(1))]
    return [(name, tensor)]


def _split_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Splits the head of an untied adaptive softmax into words and classes, as in a tied one."""
    if f"{HEAD}.weight" not in state:
        return state
    head = state.pop(f"{HEAD}.weight")
    bands = sum(name.startswith(f"{TAIL}.") and name.endswith(".0.weight") for name in state)
    words = head.shape[0] - bands
    if head.dim() != 2 or words < 1:
        raise ValueError(f"tensor {HEAD}.weight has shape {list(head.shape)} for {bands} bands")
    state[f"{HEAD}.word_proj.weight"] = head[:words]
    state[f"{HEAD}.class_proj.weight"] = head[words:]
    return state


# --- our names ------------------------------------------------------------------------------------


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
    return f"{HEAD}.word_proj.{W}" if band == 0 else f"{TAIL}.{band - 1}.2.{W}"


def _layer_sources(ours: str, theirs: str, mixer: MixerConfig) -> Pairs:
    if mixer.kind == "attention":
        attention = f"{theirs}.self_attn"
        yield from _both(f"{ours}.mixer.in_proj", *(f"{attention}.{p}_proj" for p in "qkv"))
        yield from _both(f"{ours}.mixer.out_proj", f"{attention}.out_proj")
    else:
        yield from _both(f"{ours}.mixer.in_proj", f"{theirs}.linear1")
        yield from _both(f"{ours}.mixer.out_proj", f"{theirs}.linear2")
        if mixer.kind == "lightconv":
            yield f"{ours}.mixer.weight", (f"{theirs}.conv.weight",)
        else:
            yield f"{ours}.mixer.kernel_proj.weight", (f"{theirs}.conv.weight_linear.weight",)
    yield from _both(f"{ours}.mixer_residual.norm", f"{theirs}.mixer_norm")
    yield from _both(f"{ours}.ffn.hidden", f"{theirs}.fc1")
    yield from _both(f"{ours}.ffn.output", f"{theirs}.fc2")
    yield from _both(f"{ours}.ffn_residual.norm", f"{theirs}.ffn_norm")


def _both(ours: str, *theirs: str) -> Pairs:
    for kind in (W, "bias"):
        yield f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs)


def tied_names(config: ModelConfig) -> dict[str, str]:
    """Tensors that a checkpoint may hold as copies, and their originals."""
    ties: dict[str, str] = {}
    output = {"decoder.output_projection.weight": "decoder.embed_tokens.weight"}
    if isinstance(config, Seq2SeqConfig):
        if config.share_embeddings == "all":
            ties["decoder.embed_tokens.weight"] = "encoder.embed_tokens.weight"
        return ties if config.share_embeddings == "none" else ties | output
    if config.adaptive is None:
        return output if config.tie_output else {}
    for band in range(len(config.adaptive.cutoffs) + 1):
        inputs = f"decoder.embed_tokens.embeddings.{band}"
        if config.adaptive.tie_words:
            ties[_band_words(band)] = f"{inputs}.0.{W}"
        if config.adaptive.tie_projections and band > 0:
            ties[f"{TAIL}.{band - 1}.0.{W}"] = f"{inputs}.1.{W}"
    return ties
