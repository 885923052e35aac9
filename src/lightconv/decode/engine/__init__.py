"""Fast inference on a CPU: a model compiled into a program that C++ runs, one call per step."""

from lightconv.decode.engine.engine import Engine
from lightconv.decode.engine.state import EngineState, Source

__all__ = ["Engine", "EngineState", "Source"]
