"""Parts of an update: loss, number format, optimiser, moving average and seeds."""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightconv.data import EOS, PAD, Batch
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.train.config import NesterovConfig, OptimizerConfig, Precision
from lightconv.train.group import shard

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The loss is a sum over tokens, so its gradients are large to begin with.
FIRST_SCALE = 128.0
LARGEST_SCALE = 2.0**24
GROW_EVERY = 2000

Model = Seq2Seq | LanguageModel


class Loss(NamedTuple):
    """Sums over the target tokens of a batch: smoothed [], plain [] without gradient; tokens."""

    loss: Tensor
    nll: Tensor
    tokens: int


def batch_loss(
    model: Model,
    batch: Batch,
    smoothing: float = 0.0,
    *,
    device: torch.device | str | None = None,
    features: Callable[..., Tensor] | None = None,
) -> Loss:
    """The loss of a batch; padding is dropped before the vocabulary is scored.

    device    of the model, if the batch is elsewhere: tokens are counted without waiting for it
    features  called instead of `model.features`: inputs to [B, T, D]
    """
    target = batch.target.flatten()
    rows = (target != PAD).nonzero()[:, 0]
    tokens = len(rows)
    if device is not None:
        batch = batch.to(device, non_blocking=True)
        rows = rows.to(device, non_blocking=True)
        target = batch.target.flatten()
    x = (features or model.features)(*batch.inputs).flatten(0, 1)
    if tokens < len(target):
        x, target = x.index_select(0, rows), target.index_select(0, rows)
    return Loss(*model.output.loss(x, target, smoothing), tokens)


def empty_batch(model: Model) -> Batch:
    """A batch without target tokens, whose loss and gradients are zero."""
    token = torch.full((1, 1), EOS)
    inputs = (token, token) if isinstance(model, Seq2Seq) else (token,)
    return Batch(inputs, torch.full((1, 1), PAD))


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Context of a forward pass; parameters and their gradients stay float32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[precision])


class LossScale:
    """Factor of the loss before its backward pass; 1 except for fp16.

    Halved when a gradient is not finite, doubled after `GROW_EVERY` updates without that.
    """

    def __init__(self, precision: Precision) -> None:
        self.fixed = precision != "fp16"
        self.value = 1.0 if self.fixed else FIRST_SCALE
        self.good = 0

    def adjust(self, *, finite: bool) -> None:
        if self.fixed:
            return
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value /= 2.0
        elif self.good == GROW_EVERY:
            self.value = min(self.value * 2.0, LARGEST_SCALE)
            self.good = 0


def build_optimizer(
    parameters: Iterable[nn.Parameter], lr: float, config: OptimizerConfig
) -> torch.optim.Optimizer:
    """The optimiser of a configuration, in torch's fused form: one pass over the parameters."""
    parameters = list(parameters)
    if not isinstance(config, NesterovConfig):
        # AdamW is Adam with decoupled weight decay.
        return torch.optim.AdamW(parameters, lr=lr, fused=True, **asdict(config))
    # torch has no fused form of this for sharded parameters. The momentum holds gradients, so a
    # changed rate takes effect at once.
    fused = not any(hasattr(parameter, "full_tensor") for parameter in parameters)
    return torch.optim.SGD(parameters, lr=lr, nesterov=True, fused=fused, **asdict(config))


class EMA:
    """Moving average of parameters: average <- d * average + (1 - d) * parameter.

    d = min(decay, (1 + n) / (10 + n)) after n updates: the start is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = model
        self.decay = decay
        self.tensors: dict[str, Tensor] = {
            name: parameter.detach().clone() for name, parameter in model.named_parameters()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Called after update number `step`, from 1 on."""
        decay = min(self.decay, (1 + step) / (10 + step))
        parameters = [parameter.detach() for parameter in self.model.parameters()]
        torch._foreach_lerp_(list(self.tensors.values()), parameters, 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the averaged parameters while this is open."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in self.tensors.items():
            tensor.copy_(shard(tensors[name], tensor))

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self.model.named_parameters():
            average = self.tensors[name]
            if hasattr(parameter, "full_tensor"):  # sharded: FSDP refers to its memory too
                kept = parameter.detach().clone()
                parameter.copy_(average)
                average.copy_(kept)
            else:
                parameter.data, self.tensors[name] = average, parameter.data


def derive(*numbers: int) -> int:
    """A seed of 63 bits from integers; different ones give unrelated seeds.

    Randomness is derived from (seed, step, batch), never carried, so that a resumed run repeats it.
    """
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1


def set_seed(seed: int, device: torch.device) -> None:
    """Seeds torch's generators of the CPU and of `device`."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
