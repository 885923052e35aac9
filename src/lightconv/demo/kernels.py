"""The kernels of a trained model: what LightConv has learned, what DynamicConv says of a text."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightconv.mixers import NORMALIZATIONS, DynamicConv, LightConv
from lightconv.models import LanguageModel, Seq2Seq


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The kernels of one layer, normalised.

    layer    where it stands, for people
    left     how many positions before its own the first weight belongs to
    weights  LightConv: [H][K]; DynamicConv: [H][T][K]
    """

    layer: str
    left: int
    weights: list[list[float]] | list[list[list[float]]]


def learned_kernels(model: nn.Module) -> list[Kernels]:
    """One kernel per head of every LightConv layer, from the input on."""
    return [
        Kernels(layer=_title(name), left=mixer.left, weights=_plain(_normalize(mixer)))
        for name, mixer in model.named_modules()
        if isinstance(mixer, LightConv)
    ]


def dynamic_kernels(model: Seq2Seq | LanguageModel, ids: list[int]) -> list[Kernels]:
    """The kernels that every DynamicConv layer over `ids` predicts, one for each position and head.

    Layers over a target, which has not been said yet, are left out.
    """
    tokens = torch.tensor([ids], device=next(model.parameters()).device)
    with torch.inference_mode(), _listen(model) as heard:
        if isinstance(model, Seq2Seq):
            model.encode(tokens)
        else:
            model.features(tokens)
    return [
        Kernels(layer=_title(name), left=mixer.left, weights=_plain(weights[0].transpose(0, 1)))
        for name, (mixer, weights) in heard.items()
    ]


def _normalize(mixer: LightConv) -> Tensor:
    return NORMALIZATIONS[mixer.normalize](mixer.weight.detach())


@contextmanager
def _listen(model: nn.Module) -> Iterator[dict[str, tuple[DynamicConv, Tensor]]]:
    """Fills a dict with the kernels [B, T, H, K] of each DynamicConv that runs, by its name."""
    heard: dict[str, tuple[DynamicConv, Tensor]] = {}
    with ExitStack() as stack:
        for name, mixer in model.named_modules():
            if isinstance(mixer, DynamicConv):

                def hear(
                    module: nn.Module,
                    args: tuple[Tensor, ...],
                    logits: Tensor,
                    name: str = name,
                    mixer: DynamicConv = mixer,
                ) -> None:
                    logits = logits.unflatten(-1, (mixer.heads, mixer.kernel))
                    heard[name] = mixer, NORMALIZATIONS[mixer.normalize](logits)

                handle = mixer.kernel_proj.register_forward_hook(hear)
                stack.callback(handle.remove)
        yield heard


def _title(name: str) -> str:
    """`encoder.1.mixer` is the encoder's layer 2."""
    stack, place, *_ = name.split(".")
    return f"{stack.removesuffix('s')} {int(place) + 1}"


def _plain(weights: Tensor) -> list[list[float]]:
    """Numbers that JSON holds, with as many digits as a picture shows."""
    found: list[list[float]] = (weights.double() * 1e5).round().div(1e5).tolist()
    return found
