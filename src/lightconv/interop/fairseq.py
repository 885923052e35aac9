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
from lightconv.models.config import LanguageModelConfig, ModelConfig, Seq2SeqConfig
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
# Parts of a layer with a weight and a bias, in our names and in common ones; those of several parts
# stand one below the other.
LAYER = {
    **{"mixer_residual.norm": "mixer_norm", "ffn_residual.norm": "ffn_norm"},
    **{"ffn.hidden": "fc1", "ffn.output": "fc2"},
}
ATTENTION = {
    "mixer.in_proj": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "mixer.out_proj": "self_attn.out_proj",
}
CONVOLUTION = {"mixer.in_proj": "linear1", "mixer.out_proj": "linear2"}
SOURCE = {
    **{"source.q_proj": "encoder_attn.q_proj", "source.out_proj": "encoder_attn.out_proj"},
    "source.kv_proj": "encoder_attn.k_proj encoder_attn.v_proj",
    "source_residual.norm": "source_norm",
}
KERNELS = {
    "lightconv": ("mixer.weight", "conv.weight"),
    "dynamicconv": ("mixer.kernel_proj.weight", "conv.weight_linear.weight"),
}
# Our name of a parameter, and the names of the tensors it is made of.
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
        whole = {
            name: (parts[0] if len(parts) == 1 else torch.cat(parts)).float()
            for name, parts in tensors.items()
        }
        model = build_from(config, whole, "the checkpoint", "its arguments")
        return Imported(model, layout, task)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def our_names(config: ModelConfig, state: State) -> dict[str, list[Tensor]]:
    """Tensors to concatenate for each of our parameters; ValueError if one is left over."""
    sources, ties = dict(_layers(config)), dict[str, str]()
    for ours, theirs, original in _embeddings(config):
        if original:
            ties[f"{theirs}.weight"] = f"{original}.weight"
        else:
            sources[f"{ours}.weight"] = (f"{theirs}.weight",)
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


def _embeddings(config: ModelConfig) -> Iterator[tuple[str, str, str]]:
    """Our name, the common name, and the name of the original if a checkpoint has but a copy."""
    inputs = "decoder.embed_tokens"
    if isinstance(config, Seq2SeqConfig):
        share = config.share_embeddings
        yield "source_embedding", "encoder.embed_tokens", ""
        yield "target_embedding", inputs, "encoder.embed_tokens" if share == "all" else ""
        yield "output", "decoder.output_projection", inputs if share != "none" else ""
    elif config.adaptive is None:
        yield "embedding", inputs, ""
        yield "output", "decoder.output_projection", inputs if config.tie_output else ""
    else:
        yield "output.classes", f"{HEAD}.class_proj", ""
        for band in range(len(config.adaptive.cutoffs) + 1):
            words, projection = (f"{inputs}.embeddings.{band}.{part}" for part in (0, 1))
            yield f"embedding.words.{band}", words, ""
            yield f"embedding.projections.{band}", projection, ""
            ours, tied = f"output.words.{band}", words if config.adaptive.tie_words else ""
            yield ours, f"{TAIL}.{band - 1}.2" if band else f"{HEAD}.word_proj", tied
            if band:
                tied = projection if config.adaptive.tie_projections else ""
                yield f"output.projections.{band - 1}", f"{TAIL}.{band - 1}.0", tied


def _layers(config: ModelConfig) -> Pairs:
    for stack, mixers in config.stacks.items():
        side = "decoder" if stack == "layers" else stack
        for place, mixer in enumerate(mixers):
            ours, theirs = f"{stack}.{place}", f"{side}.layers.{place}"
            parts = LAYER | (ATTENTION if mixer.kind == "attention" else CONVOLUTION)
            if stack == "decoder":
                parts |= SOURCE
            for name, names in parts.items():
                yield from _both(f"{ours}.{name}", *(f"{theirs}.{n}" for n in names.split()))
            if mixer.kind in KERNELS:
                name, kernel = KERNELS[mixer.kind]
                yield f"{ours}.{name}", (f"{theirs}.{kernel}",)
        if config.pre_norm and config.final_norm:
            yield from _both("norm" if stack == "layers" else f"{stack}_norm", f"{side}.layer_norm")


def _both(ours: str, *theirs: str) -> Pairs:
    for kind in ("weight", "bias"):
        yield f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs)
