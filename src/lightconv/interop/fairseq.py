"""Models of the original implementation (fairseq): LightConv, DynamicConv and Transformer.

Translation and language models, as any of its versions wrote them. The result computes what the
original computes, except where that contradicts itself: its DynamicConv is another function for
texts shorter than the kernel than while it generates them. This one is the latter, always.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lightconv.interop.architecture import model_config
from lightconv.interop.arguments import Arguments
from lightconv.interop.layouts import check_tensors, common_names, describe_layout, need
from lightconv.interop.names import parameter_sources, tied_names
from lightconv.interop.pickles import read_pickle
from lightconv.models.config import LanguageModelConfig, ModelConfig
from lightconv.models.folder import build_empty
from lightconv.models.layers import BaseModel
from lightconv.models.tensors import compare, fill, parameters


class Imported(NamedTuple):
    """A model, the layout it came in and what is known about its task."""

    model: BaseModel
    layout: str
    task: dict[str, str]


def read_model(path: str | Path) -> Imported:
    """The model of a checkpoint, in float32 and evaluation mode. No code in the file is run."""
    path = Path(path)
    checkpoint = read_pickle(path)
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path} is no checkpoint of fairseq: it holds no dict")
    try:
        state = check_tensors(checkpoint.get("model"))
        args = Arguments.of_checkpoint(checkpoint)
        layout = describe_layout(state, has_cfg=not checkpoint.get("args"))
        common = common_names(state)
        config = model_config(args, common)
        tensors = our_names(config, common)
        _check_size(tensors, path.stat().st_size)
        return Imported(_build(config, tensors), layout, _task(config, args))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def our_names(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """For each parameter of ours the tensors to put one below the other; nothing may be left."""
    sources, ties = parameter_sources(config), tied_names(config)
    for copy, original in ties.items():
        if copy in state and not torch.equal(state[copy], need(state, original)):
            raise ValueError(f"tensor {copy} must be the same as {original} by the arguments")
    known = {name for names in sources.values() for name in names} | set(ties)
    unknown = [name for name in state if name not in known]
    if unknown:
        raise ValueError(
            f"tensor {unknown[0][:100]} (of {len(unknown)} such) belongs to nothing that this "
            "library has"
        )
    return {ours: [need(state, name) for name in names] for ours, names in sources.items()}


def _check_size(tensors: Mapping[str, list[Tensor]], size: int) -> None:
    """A file cannot hold more numbers than it has bytes for, unless tensors share them."""
    total = sum(part.nbytes for parts in tensors.values() for part in parts)
    if total > size:
        raise ValueError(f"{total} bytes of tensors in a file of {size}: they share their numbers")


def _build(config: ModelConfig, tensors: Mapping[str, list[Tensor]]) -> BaseModel:
    model = build_empty(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in parameters(model).items()}
    whole = {
        name: (parts[0] if len(parts) == 1 else torch.cat(parts)).float()
        for name, parts in tensors.items()
    }
    shapes = {name: tuple(tensor.shape) for name, tensor in whole.items()}
    compare("the checkpoint", "its arguments", wanted, shapes)
    fill(model, whole)
    return model.eval()


def _task(config: ModelConfig, args: Arguments) -> dict[str, str]:
    if isinstance(config, LanguageModelConfig):
        return {"kind": "language_model"}
    languages = {name: args.word(name) for name in ("source_lang", "target_lang")}
    return {"kind": "translation"} | {name: lang for name, lang in languages.items() if lang}
