"""What the mixers accept, said once: every constructor and every forward calls these checks."""

import difflib
from collections.abc import Iterable

import torch
from torch import Tensor


def check_count(name: str, value: int) -> None:
    """Raises ValueError unless value is an integer of at least 1."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}={value!r} must be an integer of at least 1")


def check_heads(dim: int, heads: int) -> None:
    """Raises ValueError unless heads divides dim."""
    check_count("heads", heads)
    if dim % heads != 0:
        raise ValueError(f"heads={heads} does not divide dim={dim}")


def check_probability(name: str, value: float) -> None:
    """Raises ValueError unless 0 <= value < 1."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name}={value!r} must be in [0, 1)")


def check_name(name: str, value: str, known: Iterable[str]) -> None:
    """Raises ValueError unless value is one of the known names."""
    names = list(known)
    if value not in names:
        near = difflib.get_close_matches(str(value), names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name}={value!r} must be one of {', '.join(names)}{hint}")


def check_input(dim: int, x: Tensor, padding: Tensor | None = None) -> None:
    """Raises ValueError unless x is [B, T, dim] and padding a bool [B, T]."""
    if x.dim() != 3 or x.shape[2] != dim:
        raise ValueError(f"x must have shape [B, T, D] with D={dim}, got {list(x.shape)}")
    if padding is None:
        return
    if padding.dtype != torch.bool:
        raise ValueError(f"padding must be bool, True where there is nothing, got {padding.dtype}")
    if padding.shape != x.shape[:2]:
        raise ValueError(
            f"padding must have shape [B, T] = {list(x.shape[:2])}, got {list(padding.shape)}"
        )
