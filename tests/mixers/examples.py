"""The configurations every law is tested on. A new mixer adds its lines here."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lightconv.mixers import MIXERS, NORMALIZATIONS, Mixer, State

DIM = 8


class Example(NamedTuple):
    """One mixer and the keywords of its constructor, without `causal`."""

    name: str
    options: dict[str, Any]

    def build(self, causal: bool, dtype: torch.dtype = torch.float64) -> Mixer:
        """The mixer in eval mode, with biases that are not zero."""
        torch.manual_seed(0)
        mixer = MIXERS[self.name](DIM, causal=causal, **self.options)
        with torch.no_grad():
            for name, parameter in mixer.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_()
        return mixer.to(dtype).eval()

    @property
    def width(self) -> int:
        """How many positions it sees; 4 stands for "all of them"."""
        kernel = self.options.get("kernel") or self.options.get("window") or 4
        return (kernel - 1) * self.options.get("dilation", 1) + 1

    @property
    def lengths(self) -> list[int]:
        """Below, at and above the width."""
        return sorted({1, max(1, self.width // 2), self.width, self.width + 1, 2 * self.width + 3})

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


def _convolutions(name: str) -> list[Example]:
    shapes: list[dict[str, Any]] = [
        {"kernel": 3, "heads": 2},
        {"kernel": 3, "heads": 2, "glu": True},
        {"kernel": 1, "heads": 4},
        {"kernel": 2, "heads": 1},
        {"kernel": 4, "heads": 2, "glu": True},
        {"kernel": 31, "heads": 4},
        {"kernel": 7, "heads": 2, "dropconnect": 0.3},
        {"kernel": 3, "heads": DIM, "normalize": "none"},
        {"kernel": 3, "heads": 2, "dilation": 4},
        {"kernel": 1, "heads": 2, "dilation": 2},
    ]
    shapes += [{"kernel": 5, "heads": 2, "normalize": each} for each in NORMALIZATIONS]
    return [Example(name, options) for options in shapes]


EXAMPLES = [
    Example("attention", {"heads": 2}),
    Example("attention", {"heads": 1, "dropout": 0.3}),
    Example("attention", {"heads": DIM}),
    *(Example("attention", {"heads": 2, "window": window}) for window in (1, 2, 3, 5, 20)),
    *(Example("conv", {"kernel": kernel}) for kernel in (1, 2, 3, 15)),
    *_convolutions("lightconv"),
    *_convolutions("dynamicconv"),
    Example("average", {"ffn_dim": 12}),
    Example("average", {"ffn_dim": 4, "dropout": 0.3}),
    Example("dynamicconv", {"kernel": 3, "heads": 4, "rank": 3}),
    Example("lowrankconv", {"kernel": 4}),
    Example("lowrankconv", {"kernel": 2, "rank": 2, "dilation": 3, "bias": False}),
    Example("shortconv", {"kernel": 3}),
    Example("shortconv", {"kernel": 2, "dilation": 2, "bias": True}),
    Example("hyena", {"kernel": 9, "heads": 2}),
    Example("hyena", {"kernel": 4, "heads": 1, "short": 1, "bias": True}),
]

# One of each kind, for what is slow.
FEW = [
    Example("attention", {"heads": 2}),
    Example("attention", {"heads": 2, "window": 5}),
    Example("conv", {"kernel": 3}),
    Example("lightconv", {"kernel": 4, "heads": 2, "glu": True}),
    Example("dynamicconv", {"kernel": 4, "heads": 2, "glu": True}),
    Example("dynamicconv", {"kernel": 3, "heads": 2, "normalize": "l2"}),
    Example("average", {"ffn_dim": 12}),
    Example("dynamicconv", {"kernel": 3, "heads": 2, "dilation": 2}),
    Example("lowrankconv", {"kernel": 3}),
    Example("shortconv", {"kernel": 3}),
    Example("hyena", {"kernel": 5, "heads": 2}),
]


every_example = pytest.mark.parametrize("example", EXAMPLES, ids=str)
few_examples = pytest.mark.parametrize("example", FEW, ids=str)
padded_or_full = pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
both_directions = pytest.mark.parametrize("causal", [True, False], ids=["causal", "centred"])


def stream(step: Any, x: Tensor, sizes: list[int], state: State) -> Tensor:
    """x in chunks of those sizes -> the outputs, joined."""
    parts, end = [], state.position + x.shape[1]
    for chunk in x.split(sizes, dim=1):
        out, state = step(chunk, state)
        parts.append(out)
    assert state.position == end
    return torch.cat(parts, dim=1)


def noise(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> torch.Tensor:
    """Normal random numbers of that shape, the same every time."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)
