"""The peers of benchmarks/train.py compute what they are compared with."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.breakdown import breakdown
from benchmarks.plain import FORMULATIONS, plain_pytorch
from benchmarks.remote import OtherTree, Remote
from benchmarks.train import judge, plain_step, render, render_parts, step

from lightconv.data import Batch
from lightconv.models import Seq2Seq, Seq2SeqConfig
from lightconv.paper.models import change
from lightconv.paper.recipes import RECIPES
from lightconv.train.optim import batch_loss

RECIPE_NAME = "iwslt-de-en-dynamicconv-small"
RECIPE = RECIPES[RECIPE_NAME]


def without_dropout() -> Seq2SeqConfig:
    model = RECIPE.model
    assert isinstance(model, Seq2SeqConfig)
    rates = ("dropout", "attention_dropout", "activation_dropout", "input_dropout")
    model = replace(change(model, dropconnect=0.0), **dict.fromkeys(rates, 0.0))
    return replace(model, source_vocab=40, target_vocab=40)


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_plain_pytorch_computes_the_same(formulation: str) -> None:
    torch.manual_seed(0)
    model = Seq2Seq(without_dropout()).train()
    source, target_in, target = torch.randint(4, 40, (3, 2, 9))
    batch = Batch((source, target_in), target)

    def run() -> tuple[torch.Tensor, list[torch.Tensor]]:
        model.zero_grad()
        loss = batch_loss(model, batch, 0.1).loss
        torch.autograd.backward(loss)
        return loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected, gradients = run()
    with plain_pytorch(formulation):
        found, others = run()
    torch.testing.assert_close(found, expected)
    for other, gradient in zip(others, gradients, strict=True):
        torch.testing.assert_close(other, gradient, rtol=1e-3, atol=1e-4)


def test_plain_pytorch_needs_none_of_our_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("one of our operators was called")

    call = step(RECIPE, 8, 32)
    for name in ("dynamicconv", "residual"):
        monkeypatch.setattr(getattr(torch.ops.lightconv, name), "default", refuse)
    with plain_pytorch("band"):
        call()
    with pytest.raises(AssertionError, match="our operators"):
        call()


def test_parts_of_a_step() -> None:
    parts = breakdown(step(RECIPE, 32, 256))
    assert sum(parts.values()) == pytest.approx(1.0)
    assert parts["attention"] > 0.0
    for part in ("matrix products", "convolution", "vocabulary loss", "optimiser"):
        assert parts[part] > 0.005, part


def test_a_process_of_its_own() -> None:
    with Remote({"a": (plain_step, (RECIPE_NAME, 8, 32, "band"))}) as remote:
        remote.call("a")
        assert remote.peak_bytes("a") > 0
    ends = Remote({"a": (plain_step, ("no such recipe", 8, 32, "band"))})
    with ends, pytest.raises(RuntimeError, match="ended with code 1"):
        ends.call("a")


def test_another_tree() -> None:
    tree = Path(__file__).parents[2]
    with OtherTree(tree, "process_time", RECIPE_NAME, 8, 32) as other:
        assert 0.0 < other.call() < 60.0
    failing = OtherTree(tree, "time", "no such recipe", 8, 32)
    with failing as other, pytest.raises(RuntimeError, match="ended early"):
        other.call()


def test_a_missed_bar_is_seen() -> None:
    ms = {"selfattention fp32": 100.0, "selfattention bf16": 60.0}
    ms |= {"dynamicconv fp32": 80.0, "dynamicconv bf16": 50.0, "band": 100.0, "unfold": 160.0}
    ms |= {"fp32 products": 64.0, "bf16 products": 30.0, "default products": 130.0, "old": 140.0}
    parts = {precision: {"rest": 1.0} for precision in ("fp32", "bf16")}
    row = {"T": 32, "tokens": 4096, "ms": ms, "bytes": dict.fromkeys(ms, 1), "parts": parts}
    row |= {"flops": 1e12, "work": 6e10}
    found = {what: value >= bar for what, value, bar in judge(row)}
    assert found == {
        "against self-attention, fp32, T=32": True,
        "against plain PyTorch, T=32": False,
        "fp32, share of the products": True,
        "fp32, share of the limit": True,
        "bf16 against fp32": False,
        "bf16, share of the products": False,
        "fp32 against the other version": True,
    }
    page = render([row])
    assert "| iwslt-de-en-dynamicconv | fp32 | 32 | 80 | 1.25x | 51,200 | 80% | 75% |" in page
    assert "| DynamicConv of the other version |  | 32 | 140 | 0.71x |" in page
    assert "| rest | 100.0% | 100.0% |" in render_parts([row])
