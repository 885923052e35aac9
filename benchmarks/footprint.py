"""Memory of decoding: state per hypothesis, and peak memory of a process that translates."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import decoders, peer
from benchmarks.decoders import Shape
from benchmarks.remote import Remote
from lightconv.decode.engine import Engine
from lightconv.models import Seq2Seq, Seq2SeqConfig


def state_bytes(runner: decoders.Runner, config: Seq2SeqConfig, shape: Shape) -> float:
    """Bytes per hypothesis after the last step, without the source."""
    last: list[float] = []

    def step(tokens: Any, state: Any) -> Any:
        logits, state = runner.step(tokens, state)
        if isinstance(runner, Engine):
            size = state.nbytes()
        else:
            size = sum(t.nbytes for layer in state.layers for t in layer.mixer.tensors)
        last[:] = [size / len(tokens)]
        return logits, state

    decoders.search(runner, config, shape, step)()
    return last[0]


def peaks(
    names: Sequence[str], precisions: Sequence[str], shape: Shape, *, against: bool, small: bool
) -> dict[str, int]:
    """Peak bytes of a process that loads a model folder and translates a batch, by side.

    The memory after importing the libraries is subtracted. Each side runs in a separate process.
    """
    with tempfile.TemporaryDirectory() as folder:
        sides: dict[str, tuple[Any, tuple[Any, ...]]] = {}
        for name in names:
            path = Path(folder) / name
            decoders.build(decoders.configuration(name, small)).save_pretrained(path)
            title = decoders.NAMES[name]
            for kind in precisions:
                sides[f"{title}, {kind}"] = make_engine, (path, kind, shape)
            sides[f"{title}, torch, float32"] = make_engine, (path, "torch", shape)
        for kind in precisions if against else ():
            config = decoders.configuration("selfattention", small)
            path = peer.save(config, kind, Path(folder) / f"peer-{kind}")
            sides[f"{decoders.PEER}, {kind}"] = make_peer, (path, kind, shape)
        found = {}
        for name, side in sides.items():
            with Remote({name: side}) as remote:
                found[name] = remote.peak_bytes(name)
        return found


def make_engine(folder: Path, precision: str, shape: Shape) -> Callable[[], object]:
    """A call that loads a model and translates, with the engine or in torch."""
    from lightconv.ops.library import native

    native()

    def call() -> object:
        model = Seq2Seq.from_pretrained(folder)
        assert isinstance(model, Seq2Seq)
        runner = model if precision == "torch" else decoders.compile_model(model, precision)
        return decoders.search(runner, model.config, shape)()

    return call


def make_peer(folder: Path, precision: str, shape: Shape) -> Callable[[], object]:
    """The same with CTranslate2; two workers with a batch each."""
    import ctranslate2  # noqa: F401 - imported before memory is measured

    return partial(_run_peer, folder, precision, shape)


def _run_peer(folder: Path, precision: str, shape: Shape) -> object:
    other = peer.Peer(folder, precision, shape.batch)
    call, _ = other.call(shape.beam, shape.length)
    return call(), other
