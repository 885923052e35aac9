"""Fast inference on a CPU: a model compiled into a program that C++ runs, one call per step."""

from lightconv.decode.engine.engine import Engine

__all__ = ["Engine"]
