"""What steps a model: the C++ engine where it can, the model itself where it cannot."""

from collections.abc import Callable, Sequence
from typing import Any

from lightconv.decode.config import DecodeConfig
from lightconv.decode.engine import Engine
from lightconv.decode.ensemble import Ensemble
from lightconv.decode.options import EngineName, Quantization, TextOptions, check_coverage
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.models.folder import build_empty
from lightconv.models.tensors import fill, parameters

Model = Seq2Seq | LanguageModel
Runner = Model | Engine | Ensemble


def choose_runner(
    model: Model,
    engine: EngineName = "auto",
    quantize: Quantization = "none",
    *,
    tell: Callable[[str], None] = lambda text: None,
) -> Model | Engine:
    """The engine of a model, or the model itself.

    tell  called with the reason when "auto" cannot take the engine; otherwise that is a ValueError
    """
    if engine == "torch":
        if quantize != "none":
            raise ValueError(f"quantize={quantize!r} needs the C++ engine, got engine='torch'")
        return model
    bare = bare_model(model)
    reason = Engine.supports(bare)
    if reason is None:
        return Engine(bare, None if quantize == "none" else quantize)
    if engine == "native" or quantize != "none":
        asked = f"engine={engine!r}" if engine == "native" else f"quantize={quantize!r}"
        raise ValueError(f"{asked} cannot run this model: {reason}. Leave it away to run in torch")
    tell(f"decoding in torch, not in the C++ engine: {reason}")
    return model


def choose_runners(
    models: Sequence[Model],
    text: TextOptions,
    decode: DecodeConfig,
    *,
    tell: Callable[[str], None] = lambda text: None,
) -> Runner:
    """What steps one model, or several as one, in such a search."""
    engine = text.engine
    check_coverage(decode.coverage, text)
    if decode.coverage > 0.0:
        if engine == "auto":
            tell("decoding in torch, not in the C++ engine: coverage needs to know the attention")
        engine = "torch"
    found = [choose_runner(model, engine, text.quantize, tell=tell) for model in models]
    return found[0] if len(found) == 1 else Ensemble(found)


def bare_model(model: Model) -> Model:
    """The same parameters, not copied, in a model of the plain class: it may be a subclass."""
    plain = Seq2Seq if isinstance(model, Seq2Seq) else LanguageModel
    if type(model) is plain:
        return model
    twin = build_empty(model.config)
    fill(twin, parameters(model))
    return twin.train(model.training)


def options_of(runner: Runner) -> dict[str, Any]:
    """What a search must be told of it."""
    return {"reorder": runner.reorder} if isinstance(runner, Engine | Ensemble) else {}
