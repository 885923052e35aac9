"""Parts of an update: loss, number format, guards, optimiser and its state, average, seeds."""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightconv.data import EOS, PAD, Batch
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.models.tensors import Tensors, compare, parameters
from lightconv.processes import EXIT_DIVERGED
from lightconv.train.config import NesterovConfig, OptimizerConfig
from lightconv.train.distributed import shard

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The loss is a sum over tokens, so its gradients are large to begin with.
FIRST_SCALE = 128.0
LARGEST_SCALE = 2.0**24
# Batches without an overflow after which the loss scale is doubled, as in fairseq.
GROW_AFTER = 2**14
MOST_IN_A_ROW = 10
# Number of examples of a batch that an error lists.
LISTED = 8
# Messages of torch on a processor, where the error has no class of its own.
OUT_OF_MEMORY = (
    "DefaultCPUAllocator",
    "can't allocate memory",
    "not enough memory",
    "out of memory",
)

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


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Context of a forward pass; parameters and their gradients stay float32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, DTYPES[precision])


class DivergenceError(RuntimeError):
    """Training cannot continue: the message names the step, the module and the batch."""

    exit_code = EXIT_DIVERGED


class Guard:
    """Counts the updates whose gradient was not finite, and adapts the loss scale to them.

    scale  factor of the loss before its backward pass; 1 except for fp16: halved when a gradient is
           not finite, doubled after `window` updates without that
    steps  True if an update that is left out counts as a step all the same: not in fp16, where
           searching for the scale is no progress
    """

    def __init__(self, precision: str, batches: int = 1) -> None:
        self.fixed = self.steps = precision != "fp16"
        self.scale = 1.0 if self.fixed else FIRST_SCALE
        self.window = max(1, GROW_AFTER // batches)
        self.skipped = self.in_a_row = self.good = 0

    def count(self, *, finite: bool) -> bool:
        """Called after each update; True if too many in a row were not finite."""
        self.in_a_row = 0 if finite else self.in_a_row + 1
        self.skipped += not finite
        if not self.fixed:
            self.good = self.good + 1 if finite else 0
            if not finite:
                self.scale /= 2.0
            elif self.good >= self.window:
                self.scale, self.good = min(self.scale * 2.0, LARGEST_SCALE), 0
        return self.in_a_row >= MOST_IN_A_ROW


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


@torch.no_grad()
def restore_tensors(own: Tensors, saved: Tensors) -> None:
    """Copies saved tensors into those of a model, once names, shapes and dtypes are compared."""
    compare("the checkpoint", "the model", own, saved, dtypes=True)
    for name, tensor in own.items():
        tensor.copy_(shard(saved[name], tensor))


def flatten_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State of an optimiser: tensors `state/PARAMETER/KEY`, and the rest as plain values."""
    names = _optimized(optimizer, model)
    packed = optimizer.state_dict()
    tensors = {
        f"state/{names[number]}/{key}": tensor
        for number, entries in packed["state"].items()
        for key, tensor in entries.items()
    }
    groups = [
        {
            "parameters": [names[number] for number in group["params"]],
            "options": {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in group.items()
                if not key.startswith("param")
            },
        }
        for group in packed["param_groups"]
    ]
    state: dict[str, Any] = {names[number]: {} for number in packed["state"]}
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "state": state}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Tensors, values: Mapping[str, Any]
) -> None:
    """Gives a new optimiser the state of `flatten_optimizer`; of its options only the rate."""
    kind, names = type(optimizer).__name__, _optimized(optimizer, model)
    if values["kind"] != kind:
        raise ValueError(f"the checkpoint has the state of {values['kind']}, expected {kind}")
    saved = {name for group in values["groups"] for name in group["parameters"]}
    if odd := sorted(saved.symmetric_difference(names)):
        where = "the checkpoint" if odd[0] in saved else "the optimiser"
        raise ValueError(f"optimiser state: {odd[0]} is only in {where}")
    numbers, own = {name: number for number, name in enumerate(names)}, parameters(model)
    state: dict[int, dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        name, _, key = full.removeprefix("state/").rpartition("/")
        # Copies: the checkpoint is mapped from its file.
        placed, like = tensor.clone(), own[name]
        if tensor.shape == like.shape:
            placed = torch.empty_like(like, dtype=tensor.dtype).copy_(shard(tensor, like))
        state.setdefault(numbers[name], {})[key] = placed
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    for group, old in zip(optimizer.param_groups, values["groups"], strict=True):
        group["lr"] = old["options"]["lr"]


def _optimized(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    return [names[p] for group in optimizer.param_groups for p in group["params"]]


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
    def _swap(self) -> None:
        # By copies: others refer to the memory of parameters, as FSDP does.
        for name, parameter in self.model.named_parameters():
            kept = parameter.detach().clone()
            parameter.copy_(self.tensors[name])
            self.tensors[name].copy_(kept)


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


def describe(step: int, culprit: tuple[str, int] | None, batches: Sequence[Batch]) -> str:
    """The message of `DivergenceError`; without batches nobody has looked for a culprit."""
    text = f"diverged at step {step}: {MOST_IN_A_ROW} gradients in a row were not finite"
    advice = "Lower train.schedule.peak, clip with train.clip_norm, or choose another normalisation"
    if culprit is None:
        return f"{text}, though that of each batch alone is" if batches else f"{text}. {advice}"
    module, place = culprit
    batch = batches[place]
    where = f"batch {place + 1} of {len(batches)}"
    if batch.rows is not None:
        rows = [*map(str, batch.rows[:LISTED].tolist()), *["..."] * (len(batch.rows) > LISTED)]
        where += f", examples {', '.join(rows)}"
    return f"{text}, the last one from {module} ({where}). {advice}"


def find_culprit(
    model: nn.Module, runs: Sequence[Callable[[], Loss]], scale: float
) -> tuple[str, int] | None:
    """The module that made the first number that is not finite, and the place of the batch.

    runs   each returns the loss of one batch
    scale  factor of losses before the backward pass
    """
    ran: list[str] = []
    wrong: list[str] = []

    def look(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        ran.append(name)
        if isinstance(output, Tensor) and not _is_finite(output):
            wrong.append(name)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_hook(partial(look, name)).remove)
        for place, run in enumerate(runs):
            model.zero_grad(set_to_none=True)
            ran.clear()
            loss = run().loss
            if wrong or not _is_finite(loss):
                return (wrong or ["output"])[0], place
            torch.autograd.backward(loss * scale)
            named = model.named_parameters()
            wrong += [name.rpartition(".")[0] for name, p in named if not _is_finite(p.grad)]
            if wrong:
                # The one that ran last had its gradient computed first. A module may not run
                # itself, but have its parameters read by the one around it.
                known = [name for name in wrong if name in ran]
                return max(known, key=ran.index, default=wrong[-1]), place
    return None


def _is_finite(tensor: Tensor | None) -> bool:
    return tensor is None or bool(tensor.isfinite().all())


def is_out_of_memory(error: BaseException) -> bool:
    """True for an error of exhausted memory on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
