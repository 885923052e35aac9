"""A model spread over ranks equals one that each has a copy of; its checkpoints are the same."""

from pathlib import Path
from typing import Any

import pytest
import torch

import lightconv
from lightconv.data import PAD
from lightconv.models import AdaptiveConfig
from lightconv.models.folder import build
from lightconv.models.tensors import parameters
from lightconv.train.checkpoints import Checkpoints
from lightconv.train.optim import batch_loss, empty_batch
from tests.harness.examples import lm_config, model_config, prepare
from tests.harness.server import RankServer
from tests.train.rank_cases import difference, updates, whole_run, without_key_biases


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(
    "size, count, changes",
    [
        (2, 3, {"optimizer": "nesterov", "ema": 0.9}),  # one rank has a batch less
        (3, 2, {"text": True}),  # one has none
        pytest.param(2, 4, {"steps": 20}, marks=pytest.mark.slow),
    ],
)
def test_shards_equal_replicas(
    size: int, count: int, changes: dict[str, Any], rank_server: RankServer, tmp_path: Path
) -> None:
    changes = {"steps": 8, **changes}
    whole, spread = str(tmp_path / "whole"), str(tmp_path / "spread")
    (alone,) = rank_server.call(updates, size=1, folder=whole, count=count, **changes)
    losses = rank_server.call(updates, size=size, folder=spread, count=count, shard=True, **changes)
    assert all(found == losses[0] for found in losses)
    assert losses[0] == pytest.approx(alone, rel=1e-5)
    assert difference(Path(whole) / "0.safetensors", Path(spread) / "0.safetensors") <= 1e-6


def test_checkpoints_are_those_of_replicas(
    rank_server: RankServer, data: Path, tmp_path: Path
) -> None:
    """Begun with shards, gone on without, and the other way round; a metric sees a whole model."""
    arguments: dict[str, Any] = {"data": str(data), "ema": 0.9, "validate_every": 4}
    scores = [1.0, 2.0]
    names = {
        "whole": (False, False),
        "a": (True, False),
        "b": (False, True),
    }
    for name, shards in names.items():
        for shard, steps in zip(shards, (4, 8), strict=True):
            rows = rank_server.call(
                whole_run,
                folder=f"{tmp_path}/{name}",
                shard=shard,
                max_steps=steps,
                scores=scores[steps == 8 :],
                **arguments,
            )
            assert [(row["code"], row["step"]) for row in rows] == [(0, steps)] * 2
    whole = Checkpoints(tmp_path / "whole" / "checkpoints")
    for name in names:
        found = Checkpoints(tmp_path / name / "checkpoints")
        assert found.steps() == whole.steps()
        a, b = whole.load(8), found.load(8)
        assert a.score == b.score == 2.0
        assert a.values["optimizer"] == b.values["optimizer"]
        assert a.tensors.keys() == b.tensors.keys() == {"model", "optimizer", "ema"}
        for part, tensors in a.tensors.items():
            others = without_key_biases(b.tensors[part])
            assert tensors.keys() == others.keys()
            for key, tensor in without_key_biases(tensors).items():
                torch.testing.assert_close(tensor, others[key], atol=1e-6, rtol=1e-4)
        exported = parameters(lightconv.load(tmp_path / name / "model"))
        assert all(torch.equal(exported[key], b.tensors["ema"][key]) for key in exported)


def test_a_stop_ends_all_shards(rank_server: RankServer, data: Path, tmp_path: Path) -> None:
    rows = rank_server.call(
        whole_run,
        folder=f"{tmp_path}/run",
        data=str(data),
        shard=True,
        scores=[1.0, 2.0],
        stop_rank=1,
        validate_every=4,
    )
    assert [(row["code"], row["step"]) for row in rows] == [(75, 8)] * 2


@pytest.mark.parametrize(
    "config",
    [model_config(), lm_config(), lm_config(adaptive=AdaptiveConfig(cutoffs=(6,)))],
    ids=["pairs", "texts", "bands"],
)
def test_a_pass_over_nothing_adds_nothing(config: Any) -> None:
    model = build(config).train()
    batch = empty_batch(model)
    assert bool((batch.target == PAD).all())
    found = batch_loss(model, batch)
    assert (found.loss.item(), found.nll.item(), found.tokens) == (0.0, 0.0, 0)
    torch.autograd.backward(found.loss)
    # Zeros, not None: gradients that ranks can add up.
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
