"""What steps a model: the C++ engine where it can, the model itself where it cannot."""

from collections.abc import Callable
from typing import Any

from lightconv.decode.engine import Engine
from lightconv.decode.options import EngineName, Quantization
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.models.folder import build_empty
from lightconv.models.weights import fill, parameters

Model = Seq2Seq | LanguageModel
Runner = Model | Engine


def choose_runner(
    model: Model,
    engine: EngineName = "auto",
    quantize: Quantization = "none",
    *,
    tell: Callable[[str], None] = lambda text: None,
) -> Runner:
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
    return {"reorder": runner.reorder} if isinstance(runner, Engine) else {}
