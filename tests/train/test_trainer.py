"""One update: rate, gradient, randomness, ranks; what is not finite or does not fit."""

import math
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lightconv.data import PAD, Batch
from lightconv.models import DynamicConvConfig, Seq2Seq
from lightconv.train import CosineConfig, DivergenceError, Group, Trainer
from lightconv.train.optim import MOST_IN_A_ROW, is_out_of_memory
from tests.harness.examples import DATA, model_config, train_config
from tests.train.formula import fit, smoothed

STILL = {
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder": (DynamicConvConfig(kernel=3, heads=2),),
    "decoder": (DynamicConvConfig(kernel=3, heads=2),),
}


def still(model: dict[str, Any] | None = None, **changes: Any) -> Trainer:
    """A model of float64 without randomness."""
    torch.manual_seed(0)
    config = model_config(**{**STILL, **(model or {})})
    return Trainer(Seq2Seq(config).double(), train_config(**changes))


def noisy(**changes: Any) -> Trainer:
    """A model with every kind of dropout."""
    torch.manual_seed(3)
    return Trainer(Seq2Seq(model_config()), train_config(**changes))


def same(a: Trainer, b: Trainer) -> bool:
    return all(map(torch.equal, a.model.parameters(), b.model.parameters()))


def test_an_update_uses_the_rate_of_the_updates_before_it() -> None:
    schedule = CosineConfig(peak=1e-3, warmup=2, period=2, start=0.0, floor=0.0)
    trainer = still(schedule=schedule, max_steps=6)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.0
    rates = [record.lr for record in fit(trainer, DATA)]
    assert rates == pytest.approx([0.0, 5e-4, 1e-3, 5e-4, 0.0, 0.0])
    assert trainer.optimizer.param_groups[0]["lr"] == rates[-1]


def test_the_gradient_is_that_of_the_loss_per_token() -> None:
    trainer, model, batch = still(), still().model, DATA.batch(0)
    total, count = smoothed(model(*batch.inputs), batch.target)
    (total / count).backward()
    record = trainer.update([batch])
    assert record.loss == pytest.approx((total / count).item())
    for a, b in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("limit", [0.01, 100.0, 0.0])
def test_the_gradient_is_cut_to_a_norm(limit: float) -> None:
    free, cut_off = still(), still(clip_norm=limit)
    for trainer in (free, cut_off):
        trainer.update([DATA.batch(0)])
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in free.model.parameters()))
    assert norm > 0.01
    share = limit / norm if 0.0 < limit < norm else 1.0
    for a, b in zip(free.model.parameters(), cut_off.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad * share, b.grad, rtol=1e-4, atol=1e-12)


def test_an_update_without_tokens_is_refused() -> None:
    trainer = still()
    with pytest.raises(ValueError, match="at least one target token"):
        trainer.update([])
    assert same(trainer, still())


# --- Randomness


def test_randomness_is_that_of_the_step_and_not_of_what_was_drawn_before() -> None:
    one, two, late = noisy(), noisy(), noisy()
    batches = [DATA.batch(0), DATA.batch(1)]
    torch.manual_seed(1)
    first = one.update(batches)
    torch.manual_seed(2)
    torch.rand(5)
    assert two.update(batches) == first
    assert same(one, two)
    late.step = 1
    assert late.update(batches).loss != first.loss


def test_every_batch_and_every_seed_has_randomness_of_its_own() -> None:
    batch = DATA.batch(0)
    once, twice = noisy().update([batch]), noisy().update([batch, batch])
    assert twice.tokens == 2 * once.tokens
    other = noisy()
    other.config = train_config(seed=2)
    assert len({once.loss, twice.loss, other.update([batch]).loss}) == 3


# --- Several ranks


class Rank(Group):
    """One of two ranks that are run one after the other: `other` has been before."""

    size = 2

    def __init__(self, rank: int, other: "Rank | None" = None) -> None:
        self.rank = rank
        self.other = other
        self.sums = torch.zeros(0)
        self.gradients: list[torch.Tensor] = []

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        self.sums = values.clone()
        return values if self.other is None else values + self.other.sums

    def sum_gradients(self, model: nn.Module) -> None:
        self.gradients = [p.grad.clone() for p in model.parameters()]
        if self.other is not None:
            for parameter, gradient in zip(model.parameters(), self.other.gradients, strict=True):
                parameter.grad += gradient


@pytest.mark.parametrize("batches, difference", [(2, 0.0), (4, 1e-9)])
def test_two_ranks_equal_one_that_accumulates(batches: int, difference: float) -> None:
    alone, first, second = trainers = noisy(), noisy(), noisy()
    if difference > 0.0:
        # What has no gradient but rounding, as a bias of keys has, is moved by Adam all the same.
        for trainer in trainers:
            trainer.model.double()
    data = [DATA.batch(i) for i in range(batches)]
    for _ in range(3):
        record = alone.update(data)
        second.group = Rank(1)
        second.update(data[1::2])
        first.group = Rank(0, second.group)
        together = first.update(data[::2])
        assert together.tokens == record.tokens
        assert together.loss == pytest.approx(record.loss, rel=max(difference, 1e-15))
        assert together.norm == pytest.approx(record.norm, rel=max(difference, 1e-15))
        # What `second` did with half a gradient is forgotten.
        second.model.load_state_dict(first.model.state_dict())
        second.optimizer.load_state_dict(deepcopy(first.optimizer.state_dict()))
    for a, b in zip(alone.model.parameters(), first.model.parameters(), strict=True):
        assert (a - b).abs().max().item() <= difference


def rank_before(trainer: Trainer, *, stop: bool, complete: bool) -> Rank:
    """The other rank, which has no gradient."""
    other = Rank(1)
    other.sums = torch.tensor([0.0, 0.0, 0.0, stop, not complete], dtype=torch.float64)
    other.gradients = [torch.zeros_like(p) for p in trainer.model.parameters()]
    return other


def test_who_wants_to_stop_is_heard_by_all() -> None:
    trainer = noisy()
    trainer.group = Rank(0, rank_before(trainer, stop=True, complete=True))
    record = trainer.update([DATA.batch(0)])
    assert record.stop and record.done and trainer.step == 1
    trainer.group = Group()
    assert not trainer.update([DATA.batch(0)]).stop
    # A single batch is not given up.
    record = trainer.update([DATA.batch(0)], stop=lambda: True)
    assert record.stop and record.done and trainer.step == 3


def test_an_update_of_many_batches_is_given_up() -> None:
    trainer, whole = noisy(), noisy()
    asked: list[bool] = []
    batches = [DATA.batch(i) for i in range(4)]
    record = trainer.update(batches, stop=lambda: asked.append(True) or len(asked) == 2)
    assert record.stop and not record.done
    assert (record.step, trainer.step, trainer.guard.skipped) == (0, 0, 0)
    assert same(trainer, noisy())
    # It can be done again.
    assert trainer.update(batches) == whole.update(batches)
    assert same(trainer, whole)

    # Another rank has given up.
    trainer = noisy()
    trainer.group = Rank(0, rank_before(trainer, stop=True, complete=False))
    record = trainer.update([DATA.batch(0)])
    assert record.stop and not record.done and trainer.step == 0
    assert same(trainer, noisy())


# --- Precision, measuring, averaging


@pytest.mark.parametrize(
    "precision, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_precision_is_that_of_products_and_parameters_keep_theirs(
    precision: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = Seq2Seq(model_config())
    seen = []
    layer = model.encoder[0].ffn.hidden
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    trainer = Trainer(model, train_config(precision=precision, max_steps=10))
    records = fit(trainer, map(DATA.batch, range(20)))
    assert set(seen) == {dtype}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert records[-1].loss < records[0].loss
    exact = Trainer(Seq2Seq(model_config()), train_config())
    assert records[0].loss == pytest.approx(exact.update([DATA.batch(0)]).loss, rel=0.2)


def test_a_weight_is_cast_once_for_all_batches_of_an_update() -> None:
    casts: list[torch.Size] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            if func is torch.ops.aten._to_copy.default and args[0].dtype == torch.float32:
                casts.append(args[0].shape)
            return func(*args, **(kwargs or {}))

    torch.manual_seed(0)
    model = Seq2Seq(model_config())
    trainer = Trainer(model, train_config(precision="bf16"))
    with Watch():
        trainer.update([DATA.batch(0), DATA.batch(1)])
    shape = model.encoder[0].ffn.hidden.weight.shape
    assert casts.count(shape) == sum(p.shape == shape for p in model.parameters()) > 0


def test_auto_is_what_was_chosen_when_the_run_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightconv.train.trainer.choose_precision", lambda *_: "bf16")
    trainer = noisy(precision="auto")
    assert trainer.precision == "bf16"
    trainer.keep_choices("default", "fp32")
    assert (trainer.products, trainer.precision) == ("default", "fp32")
    monkeypatch.undo()
    explicit = noisy(precision="fp32")
    explicit.keep_choices("default", "bf16")
    assert explicit.precision == "fp32"


def test_measure_is_the_mean_over_tokens_and_draws_nothing() -> None:
    trainer = noisy()
    batches = [DATA.batch(7), DATA.batch(8)]
    found = trainer.measure(batches)
    assert not trainer.model.training
    total = tokens = 0
    for batch in batches:
        logits = trainer.model(*batch.inputs)
        total += smoothed(logits, batch.target, 0.0)[0].item()
        tokens += int((batch.target != PAD).sum())
    assert found.nll == pytest.approx(total / tokens, rel=1e-6)
    assert found.loss != found.nll
    assert found.tokens == tokens
    assert trainer.measure(batches) == found
    with pytest.raises(ValueError, match="at least one target token"):
        trainer.measure([])


def test_measuring_uses_the_averaged_parameters() -> None:
    torch.manual_seed(0)
    trainer = Trainer(Seq2Seq(model_config()), train_config(ema=0.9))
    fit(trainer, map(DATA.batch, range(9)))
    plain = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    found = trainer.measure([DATA.batch(0)])
    assert all(torch.equal(plain[n], t) for n, t in trainer.model.state_dict().items())
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(trainer.ema.tensors[name])
    trainer.ema = None
    assert trainer.measure([DATA.batch(0)]) == found


def test_the_moving_average_follows_every_update() -> None:
    trainer = Trainer(Seq2Seq(model_config()).double(), train_config(ema=0.5))
    average = trainer.model.output.weight.detach().clone()
    for step in range(1, 10):
        trainer.update([DATA.batch(step)])
        decay = min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * trainer.model.output.weight.detach()
    assert (1 + 8) / (10 + 8) == 0.5  # so both cases were met
    (found,) = (t for t in trainer.ema.tensors.values() if t.shape == average.shape)
    torch.testing.assert_close(found, average, rtol=1e-12, atol=0)
    assert not torch.allclose(found, trainer.model.output.weight, rtol=1e-4)


def test_compiling_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def compile_(function: object, **options: object) -> object:
        asked.append((function, options))
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    model = Seq2Seq(model_config())
    Trainer(model, train_config())
    assert asked == []
    trainer = Trainer(model, train_config(compile=True))
    trainer.update([DATA.batch(0)])
    assert asked == [(model.features, {"dynamic": True})]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_values_come_back(precision: str) -> None:
    trainer, other = (
        Trainer(Seq2Seq(model_config()), train_config(precision=precision)) for _ in range(2)
    )
    scale = (32.0, 5) if precision == "fp16" else (1.0, 0)
    guard = trainer.guard
    trainer.step, trainer.largest, guard.skipped, guard.in_a_row = 7, 99, 3, 2
    guard.scale, guard.good = scale
    own = guard.steps, guard.window
    other.set_values(trainer.values())
    assert list(other.values().values()) == [7, 3, 2, *scale, *own, 99]
    # Checkpoints of 0.1.0 do not have these: there every update was a step.
    old = {k: v for k, v in trainer.values().items() if k not in ("steps", "window")}
    other.set_values(old)
    wanted = (True, 2000) if precision == "fp16" else own
    assert (other.guard.steps, other.guard.window) == wanted
    # Another precision has a scale of its own.
    plain = Trainer(Seq2Seq(model_config()), train_config())
    plain.set_values(trainer.values())
    assert (plain.guard.scale, plain.guard.good) == (1.0, 0)


# --- What is not finite


def nearly_given_up() -> Trainer:
    """One more gradient that is not finite ends the run."""
    trainer = noisy()
    trainer.guard.in_a_row = MOST_IN_A_ROW - 1
    return trainer


def numbered(index: int) -> Batch:
    """A batch whose examples have numbers."""
    batch = DATA.batch(index)
    return batch._replace(rows=torch.arange(len(batch.target)) + 100 * index)


def spoil(model: nn.Module, name: str, value: float, when: Callable[[], bool]) -> None:
    """What a module returns has one such number in it."""

    def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if not when():
            return output
        wrong = torch.zeros_like(output)
        wrong[0, 0, 0] = value
        return output + wrong

    model.get_submodule(name).register_forward_hook(hook)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name", [f"{side}.{i}.ffn" for side in ("encoder", "decoder") for i in (0, 1)]
)
def test_it_never_reaches_the_parameters(name: str, value: float) -> None:
    """R8."""
    trainer = noisy()
    calls = iter([False, True, False])
    spoil(trainer.model, name, value, lambda: next(calls))
    assert not trainer.update([DATA.batch(0)]).skipped
    before = [p.clone() for p in trainer.model.parameters()]
    record = trainer.update([DATA.batch(1)])
    assert record.skipped and not math.isfinite(record.norm)
    assert all(map(torch.equal, before, trainer.model.parameters()))
    assert not trainer.update([DATA.batch(1)]).skipped
    assert not any(map(torch.equal, before, trainer.model.parameters()))
    assert all(bool(p.isfinite().all()) for p in trainer.model.parameters())
    assert (trainer.guard.skipped, trainer.guard.in_a_row) == (1, 0)


def test_ten_in_a_row_end_the_run_and_say_where() -> None:
    trainer = noisy()
    bad = numbered(3)
    spoil(trainer.model, "decoder.0.mixer", math.nan, lambda: trainer.step >= 2)
    for _ in range(2 + MOST_IN_A_ROW - 1):
        trainer.update([numbered(1), bad])
    assert trainer.guard.in_a_row == MOST_IN_A_ROW - 1
    with pytest.raises(DivergenceError) as caught:
        trainer.update([numbered(1), bad])
    message = str(caught.value)
    assert re.match(rf"diverged at step {2 + MOST_IN_A_ROW}: 10 gradients in a row", message)
    assert "from decoder.0.mixer (batch 1 of 2, examples 100, 101, 102, " in message
    assert message.count("\n") == 0


def test_the_batch_is_the_one_that_did_it() -> None:
    trainer = nearly_given_up()
    place = iter([False, True] * 2)
    spoil(trainer.model, "encoder.1.ffn.hidden", math.inf, lambda: next(place))
    with pytest.raises(
        DivergenceError, match=r"from encoder\.1\.ffn\.hidden \(batch 2 of 2, examples 300, "
    ):
        trainer.update([numbered(1), numbered(3)])


def test_a_number_that_is_lost_on_the_way_back_is_found_too() -> None:
    trainer = nearly_given_up()

    # Its value is right; its gradient is not.
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * math.inf

    layer = trainer.model.get_submodule("decoder.0.ffn.output")
    layer.register_forward_hook(lambda module, inputs, output: Wrong.apply(output))
    with pytest.raises(DivergenceError, match=r"from decoder\.0\.ffn\.output \(batch 1 of 1\)"):
        trainer.update([DATA.batch(0)])


def test_a_sum_may_overflow_where_no_part_does() -> None:
    trainer = nearly_given_up()
    trainer.group.norm = lambda model: torch.tensor(math.inf)  # type: ignore[method-assign]
    with pytest.raises(DivergenceError, match=r"though that of each batch alone is$"):
        trainer.update([DATA.batch(0)])


# --- Memory


class SmallDevice:
    """A model's features on a device with room for so many positions."""

    def __init__(self, trainer: Trainer, room: int) -> None:
        self.real = trainer.model.features
        self.room = room
        self.asked: list[int] = []
        trainer.features = self

    def __call__(self, *inputs: Tensor) -> Tensor:
        size = max(part.numel() for part in inputs)
        self.asked.append(size)
        if size > self.room:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't ...")
        return self.real(*inputs)


def test_what_torch_says_on_a_processor() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert not isinstance(caught.value, torch.OutOfMemoryError)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("size mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_halves_have_all_rows_and_no_empty_columns() -> None:
    batch = DATA.batch(0)._replace(rows=torch.arange(16))
    middle = len(batch.target) // 2
    first, second = batch.cut(slice(middle)), batch.cut(slice(middle, None))
    assert first.rows.tolist() + second.rows.tolist() == list(range(16))
    for whole, *parts in zip((*batch.inputs, batch.target), *_parts(first, second), strict=True):
        rows = [[t for t in row if t != PAD] for part in parts for row in part.tolist()]
        assert rows == [[t for t in row if t != PAD] for row in whole.tolist()]
        assert all(bool((part[:, -1] != PAD).any()) for part in parts)
    assert first.tokens + second.tokens == batch.tokens
    assert batch.positions == max(batch.inputs[0].numel(), batch.target.numel())


def _parts(*halves: Batch) -> list[tuple[Tensor, ...]]:
    return [(*half.inputs, half.target) for half in halves]


@pytest.mark.parametrize("share", [2, 3, 5, 9])
def test_the_update_is_the_same_in_parts(share: int) -> None:
    """R9."""
    whole, cut = still(), still()
    batches = [DATA.batch(0), DATA.batch(1)]
    small = SmallDevice(cut, room=batches[0].positions // share)
    for _ in range(3):
        a, b = whole.update(batches), cut.update(batches)
        assert (b.tokens, b.skipped) == (a.tokens, False)
        assert b.loss == pytest.approx(a.loss, rel=1e-12)
        assert b.norm == pytest.approx(a.norm, rel=1e-9)
    for x, y in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-9)
    # What does not fit is found out once for each size, and then known.
    refused = [size for size in small.asked if size > small.room]
    assert len(refused) == len(set(refused)) > 0
    assert refused == sorted(refused, reverse=True)
    assert cut.values()["largest"] == refused[-1] - 1


def test_a_backward_pass_that_fails_halfway_leaves_nothing() -> None:
    whole, cut = still(), still()
    batch = DATA.batch(0)
    size = batch.positions
    # This parameter's gradient comes last of all; some have been added by then.
    last = cut.model.get_parameter("encoder.0.mixer.in_proj.weight")
    current = [0]
    real = cut.model.features
    cut.features = lambda *inputs: current.__setitem__(0, inputs[0].numel()) or real(*inputs)

    def fail(gradient: Tensor) -> Tensor:
        if current[0] >= size:
            assert any(p.grad is not None for p in cut.model.parameters())
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return gradient

    last.register_hook(fail)
    a, b = whole.update([batch]), cut.update([batch])
    assert b.norm == pytest.approx(a.norm, rel=1e-9)
    for x, y in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-9, atol=1e-12)


def test_halves_have_randomness_of_their_own_and_it_is_repeated() -> None:
    noise = {"dropout": 0.3}
    losses = []
    for _ in range(2):
        trainer = still(noise)
        trainer.largest = DATA.batch(0).positions - 1
        losses.append(trainer.update([DATA.batch(0)]).loss)
    assert losses[0] == losses[1]
    half = DATA.batch(0).cut(slice(DATA.sentences // 2))
    trainer = still(noise)
    trainer.largest = 1
    rows = [Batch(tuple(p[:1] for p in half.inputs), half.target[:1])] * 2
    both = Batch(
        tuple(torch.cat(p) for p in zip(*(row.inputs for row in rows), strict=True)),
        torch.cat([row.target for row in rows]),
    )
    seen: list[float] = []
    real = trainer._run
    trainer._run = lambda part: seen.append(real(part).loss.item()) or real(part)  # type: ignore
    trainer.update([both])
    assert len(seen) == 2 and seen[0] != seen[1]


def test_one_row_that_does_not_fit_is_an_error() -> None:
    trainer = still()
    before = [p.clone() for p in trainer.model.parameters()]
    SmallDevice(trainer, room=1)
    with pytest.raises(
        RuntimeError, match=r"^out of memory at step 1 with one example of \d+ positions alone"
    ):
        trainer.update([DATA.batch(0)])
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_other_errors_are_not_hidden() -> None:
    trainer = still()

    def fail(*inputs: Tensor) -> Tensor:
        raise RuntimeError("something else")

    trainer.features = fail
    with pytest.raises(RuntimeError, match=r"^something else$"):
        trainer.update([DATA.batch(0)])
