"""The original's checkpoints, whichever of its versions wrote them, under one set of names.

    2019            layer_norms.0, embed_out, one in_proj_weight for queries, keys and values
    v0.9 to v0.12   the same with q_proj, k_proj, v_proj
    CUDA            kernels [H, K] instead of [H, 1, K]
    newest          layer_norm1, output_projection

Common names follow the newest, but for the norms: mixer_norm, source_norm, ffn_norm.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

# Buffers without meaning, and a bias that the newest version stores but does not use.
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
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def describe_layout(state: Mapping[str, Tensor], *, has_cfg: bool) -> str:
    """Which version wrote these names, for people to read."""
    if any(".layer_norm1." in name or ".output_projection." in name for name in state):
        version = "newest"
    elif any(name.endswith(".in_proj_weight") for name in state):
        version = "2019 (v0.6)"
    else:
        version = "v0.12" if has_cfg else "v0.9 to v0.10"
    flat = any(name.endswith(".conv.weight") and t.dim() == 2 for name, t in state.items())
    return f"{version}, kernels of the CUDA layer" if flat else version


def common_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by common names and in common shapes, as views."""
    if f"{HEAD}.weight" in state or f"{HEAD}.word_proj.weight" in state:
        # Before this buffer came, the classes stood one place before their place.
        need(state, "decoder.adaptive_softmax.version")
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if DROPPED.fullmatch(name):
            continue
        for new, part in _reshape(_rename(name), tensor):
            if new in found:
                raise ValueError(f"tensor {name} stands twice, also under an older name")
            found[new] = part
    return _split_head(found)


def need(state: Mapping[str, Tensor], name: str) -> Tensor:
    """The tensor of that name; ValueError if there is none."""
    if name not in state:
        raise ValueError(f"the checkpoint lacks tensor {name}")
    return state[name]


def check_tensors(state: object) -> dict[str, Tensor]:
    """Raises ValueError unless it is a dict of ordinary tensors, each with all of its numbers."""
    if not isinstance(state, Mapping):
        raise ValueError("the checkpoint has no 'model' with tensors in it")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ValueError(f"'model' has {str(name)[:80]!r}, which is no tensor")
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise ValueError(f"tensor {name[:80]} is sparse or quantised, expected plain numbers")
        # A view can be larger than the memory behind it, and so than the file.
        if not tensor.is_contiguous():
            raise ValueError(f"tensor {name[:80]} is a view with gaps or repetitions")
        if tensor.dtype not in DTYPES and not DROPPED.fullmatch(name):
            raise ValueError(f"tensor {name[:80]} has type {tensor.dtype}, expected float32")
    return dict(state)


def _rename(name: str) -> str:
    for old, new in RENAMED.items():
        name, count = re.subn(f"^{old}(?=$|\\.)", new, name)
        if count:
            break
    return name


def _reshape(name: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    fused = re.fullmatch(r"(.*_attn)\.in_proj_(weight|bias)", name)
    if fused and tensor.shape[0] % 3 == 0:
        place, kind = fused.groups()
        return [
            (f"{place}.{part}_proj.{kind}", tensor_part)
            for part, tensor_part in zip("qkv", tensor.chunk(3), strict=True)
        ]
    if name.endswith(".conv.weight") and tensor.dim() == 3 and tensor.shape[1] == 1:
        return [(name, tensor.squeeze(1))]
    return [(name, tensor)]


def _split_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """An adaptive softmax with its own matrix: words and classes as in a tied one."""
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
