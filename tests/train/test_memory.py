"""Memory of a run: freed memory is kept up to a bound; an estimate from shapes."""

import json
import platform
import subprocess
import sys

import pytest
import torch

from lightconv.models import LanguageModel, Seq2Seq
from lightconv.train import NesterovConfig
from lightconv.train.memory import (
    LENGTH,
    SETTING,
    Allocator,
    estimate,
    machine_bytes,
    most_kept,
    resident_bytes,
)
from tests.harness.examples import lm_config, model_config, train_config

# MB that a process has more than before: freed, asked to release, closed, freed once more.
CODE = """
import ctypes, json, sys
from lightconv.train.memory import Allocator, resident_bytes

keep, most = json.loads(sys.argv[1])
allocator = Allocator(most)
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
before = resident_bytes()

def free_a_block():
    size = 200 << 20
    block = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(block, 1, size)
    libc.free(ctypes.c_void_p(block))
    return resident_bytes()

if keep:
    allocator.__enter__()
sizes = [free_a_block()]
kept, released = allocator.kept, allocator.release()
sizes.append(resident_bytes())
allocator.__exit__(None, None, None)
sizes += [resident_bytes(), free_a_block()]
print(json.dumps([kept, released, *((size - before) >> 20 for size in sizes)]))
"""

glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are"
)


@glibc
@pytest.mark.parametrize(
    "keep, most, kept, released, freed, asked",
    [
        pytest.param(False, 1 << 40, False, False, False, False, id="without it"),
        pytest.param(True, 1 << 40, True, False, True, True, id="below the bound"),
        pytest.param(True, 1 << 20, True, True, True, False, id="past the bound"),
        pytest.param(True, 0, False, False, False, False, id="switched off"),
    ],
)
def test_memory_is_kept_below_the_bound_and_given_back_at_the_end(
    keep: bool, most: int, kept: bool, released: bool, freed: bool, asked: bool
) -> None:
    """In a process of its own."""
    command = [sys.executable, "-c", CODE, json.dumps([keep, most])]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    *flags, after, still, closed, later = json.loads(done.stdout)
    assert flags == [kept, released]
    assert after >= 180 if freed else after < 20
    assert still >= 180 if asked else still < 20
    assert closed < 20 and later < 20


@glibc
def test_the_bound_is_half_of_the_machine_or_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    assert Allocator().most == most_kept() == machine_bytes() // 2
    assert most_kept(processes=4) == machine_bytes() // 8
    assert most_kept("cuda") == 0
    assert 0 < resident_bytes() < machine_bytes()
    monkeypatch.setenv(SETTING, "300")
    assert Allocator().most == 300 << 20
    assert most_kept(processes=3) == 100 << 20
    monkeypatch.setenv(SETTING, "much")
    with pytest.raises(ValueError, match="LIGHTCONV_TRAIN_KEEP_MB='much' must be a whole number"):
        most_kept()


# --- Estimate


def kept(model: Seq2Seq | LanguageModel, *inputs: torch.Tensor) -> int:
    """Bytes of all tensors that the graph of a forward pass holds on to, parameters left out."""
    storages = {}
    own = {parameter.data_ptr() for parameter in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.features(*inputs)
    assert output.requires_grad
    return sum(storages.values())


def test_activations_are_what_a_forward_pass_keeps() -> None:
    tokens = torch.randint(4, 12, (4, LENGTH))
    config = train_config(max_tokens=4 * LENGTH)
    for model_of, inputs in ((model_config(), (tokens, tokens)), (lm_config(), (tokens,))):
        model = (Seq2Seq if len(inputs) == 2 else LanguageModel)(model_of)  # type: ignore[arg-type]
        found = estimate(model_of, config)
        # Beside them: a chunk of logits, its gradient, those of vocabulary and features.
        loss = (2 * 128 * 12 + 12 * 16 + 128 * 16) * 4
        real = kept(model, *inputs)
        assert abs(found.activations - loss - real) <= 0.02 * real
        count = sum(p.numel() for p in model.parameters())
        assert found.parameters == found.gradients == 4 * count
        assert found.optimizer == 8 * count
        assert found.total == sum(found)


def test_what_changes_it() -> None:
    plain = estimate(model_config(), train_config())
    assert estimate(model_config(), train_config(ema=0.9)).optimizer == 1.5 * plain.optimizer
    nesterov = train_config(optimizer=NesterovConfig())
    assert estimate(model_config(), nesterov).optimizer == plain.optimizer / 2
    assert estimate(model_config(), train_config(precision="bf16")).activations < plain.activations
    larger = estimate(model_config(), train_config(max_tokens=2048)).activations
    assert larger > 20 * plain.activations
    assert estimate(model_config(), train_config(max_tokens=3)).activations > 0
