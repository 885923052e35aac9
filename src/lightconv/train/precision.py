"""Number formats of a forward pass, and the scale that keeps half-precision gradients alive."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from lightconv.train.config import Precision

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The loss is a sum over tokens, so that its gradients are large to begin with.
FIRST_SCALE = 128.0
LARGEST_SCALE = 2.0**24
GROW_EVERY = 2000


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Where a forward pass runs; parameters and their gradients stay float32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[precision])


class LossScale:
    """What the loss is multiplied with before its backward pass; 1 but for fp16.

    It is halved when a gradient is not finite, and doubled after `GROW_EVERY` updates without that.
    """

    def __init__(self, precision: Precision) -> None:
        self.fixed = precision != "fp16"
        self.value = 1.0 if self.fixed else FIRST_SCALE
        self.good = 0

    def adjust(self, *, finite: bool) -> None:
        """After each update: whether its gradient was finite."""
        if self.fixed:
            return
        if not finite:
            self.value /= 2.0
            self.good = 0
            return
        self.good += 1
        if self.good == GROW_EVERY:
            self.value = min(self.value * 2.0, LARGEST_SCALE)
            self.good = 0
