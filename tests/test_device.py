"""The machine: the device of each process, and numbers about the processor."""

import os
import platform
from pathlib import Path

import pytest
import torch

from lightconv.device import choose_device, count_cores, machine_bytes, processor_name


def test_each_process_of_a_machine_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu", 1, 2) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda")
    assert [choose_device("auto", rank, 2).index for rank in (0, 1)] == [0, 1]
    with pytest.raises(ValueError, match="3 processes on this machine have 2 CUDA devices"):
        choose_device("cuda", 0, 3)


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux to compare")
def test_numbers_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5})
    assert count_cores() == 3
    total = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    assert machine_bytes() == pytest.approx(total, rel=0.01)
    for text, name in {
        "processor\t: 0\nmodel name\t: A 7\nmodel name\t: B\n": "A 7",
        "Model\t\t: Pi 5\n": "Pi 5",
        "": platform.processor() or platform.machine(),
    }.items():
        monkeypatch.setattr(Path, "read_text", lambda *_, text=text, **__: text)
        assert processor_name() == name
