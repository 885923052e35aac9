"""Kernels that a model has learned, or predicts for a text, for pictures of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from lightconv.mixers.dynamicconv import DynamicConv
from lightconv.mixers.lightconv import LightConv
from lightconv.mixers.projected import NORMALIZATIONS


def learned_kernels(model: nn.Module) -> list[dict[str, Any]]:
    """Normalised kernels [H][K] of every LightConv layer, with its name and reach to the left."""
    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, LightConv)]
    return [_describe(name, mixer, mixer.weight.detach()) for name, mixer in layers]


def dynamic_kernels(model: nn.Module, run: Callable[[], object]) -> list[dict[str, Any]]:
    """Normalised kernels [H][T][K] of the first row that DynamicConv layers predict in run()."""
    layers = [(name, each) for name, each in model.named_modules() if isinstance(each, DynamicConv)]
    owners = {mixer.kernel_proj: (name, mixer) for name, mixer in layers}
    found: list[dict[str, Any]] = []

    def hear(module: nn.Module, args: Any, out: Tensor) -> None:
        if module in owners:
            name, mixer = owners[module]
            logits = out[0].unflatten(-1, (mixer.heads, mixer.kernel))
            found.append(_describe(name, mixer, logits.transpose(0, 1)))

    with register_module_forward_hook(hear), torch.inference_mode():
        run()
    return found


def _describe(name: str, mixer: LightConv | DynamicConv, logits: Tensor) -> dict[str, Any]:
    weights = NORMALIZATIONS[mixer.normalize](logits).double().mul(1e5).round().div(1e5)
    stack, place, *_ = name.split(".")  # encoder.1.mixer is layer 2 of the encoder
    title = f"{stack.removesuffix('s')} {int(place) + 1}"
    return {"layer": title, "left": mixer.left, "weights": weights.tolist()}
