"""The machine: device to compute on, cores, memory, processor name."""

import os
import platform
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def choose_device(name: str, local_rank: int | None = None, local_size: int = 1) -> "torch.device":
    """The torch device for `auto`, `cpu` or `cuda`; ValueError if it is not available.

    local_rank, local_size  place among the ranks of this machine, each with its own GPU
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "--device cuda: no CUDA device is available, expected one. `lightconv doctor` shows "
            "the devices; --device auto chooses among them"
        )
    if name == "cpu" or local_rank is None:
        return torch.device(name)
    devices = torch.cuda.device_count()
    if local_size > devices:
        raise ValueError(
            f"{local_size} processes on this machine have {devices} CUDA devices, expected one "
            "for each. Start fewer, or use --device cpu"
        )
    return torch.device(name, local_rank)


def count_cores() -> int:
    """Processor cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def machine_bytes() -> int:
    """Memory of the machine; 8 GiB if the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 8 << 30


def read_megabytes(variable: str, usual: int) -> int:
    """Bytes that a variable of the environment gives in megabytes; `usual` if it is not set."""
    setting = os.environ.get(variable)
    if setting is None:
        return usual
    if not (setting.isascii() and setting.isdecimal()):
        raise ValueError(f"{variable}={setting!r} must be a whole number of megabytes, 0 for none")
    return int(setting) << 20


def processor_name() -> str:
    """Model name of the processor."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if found := re.search(r"^(?:model name|Model)[^:\n]*:(.*)", text, re.MULTILINE):
            return found[1].strip()
    return platform.processor() or platform.machine()
