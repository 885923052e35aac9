"""Checkpoints of fairseq, the original implementation: LightConv, DynamicConv and Transformer.

Translation and language models of all its versions. The imported model computes what the original
does, with one exception: for texts shorter than the kernel, the original's DynamicConv computes
another function in a forward pass than in generation; this one always computes the latter.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lightconv.interop.architecture import Arguments, model_config
from lightconv.interop.layouts import (
    check_tensors,
    common_names,
    describe_layout,
    need,
    parameter_sources,
    tied_names,
)
from lightconv.interop.pickles import read_pickle
from lightconv.models.config import LanguageModelConfig, ModelConfig
from lightconv.models.folder import build_from
from lightconv.models.layers import BaseModel


class Imported(NamedTuple):
    """A model, the version that wrote its tensors, and its task."""

    model: BaseModel
    layout: str
    task: dict[str, str]


def read_model(path: str | Path) -> Imported:
    """The model of a checkpoint in float32 and evaluation mode; no code in the file is run."""
    path = Path(path)
    checkpoint = read_pickle(path)
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path} is not a checkpoint of fairseq: it holds no dict")
    try:
        state = check_tensors(checkpoint.get("model"))
        args = Arguments.of_checkpoint(checkpoint)
        layout = describe_layout(state, has_cfg=not checkpoint.get("args"))
        common = common_names(state)
        config = model_config(args, common)
        tensors = our_names(config, common)
        total, size = (
            sum(t.nbytes for parts in tensors.values() for t in parts),
            path.stat().st_size,
        )
        if total > size:
            raise ValueError(f"{total} bytes of tensors in {size}: they share their numbers")
        task = {"kind": "language_model"}
        if not isinstance(config, LanguageModelConfig):
            languages = {name: args.word(name) for name in ("source_lang", "target_lang")}
            task = {"kind": "translation"} | {
                name: lang for name, lang in languages.items() if lang
            }
        return Imported(_build(config, tensors), layout, task)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def our_names(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, list[Tensor]]:
    """Tensors to concatenate for each of our parameters; ValueError if one is left over."""
    sources, ties = parameter_sources(config), tied_names(config)
    for copy, original in ties.items():
        if copy in state and not torch.equal(state[copy], need(state, original)):
            raise ValueError(f"tensor {copy} must be the same as {original} by the arguments")
    known = {name for names in sources.values() for name in names} | set(ties)
    unknown = [name for name in state if name not in known]
    if unknown:
        raise ValueError(
            f"tensor {unknown[0][:100]} and {len(unknown) - 1} others have no counterpart here"
        )
    return {ours: [need(state, name) for name in names] for ours, names in sources.items()}


def _build(config: ModelConfig, tensors: Mapping[str, list[Tensor]]) -> BaseModel:
    whole = {
        name: (parts[0] if len(parts) == 1 else torch.cat(parts)).float()
        for name, parts in tensors.items()
    }
    return build_from(config, whole, "the checkpoint", "its arguments")
