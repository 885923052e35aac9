"""Checkpoints as the original writes them, made from a model of ours: names spelt out by hand."""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightconv.models import (
    AdaptiveConfig,
    AttentionConfig,
    DynamicConvConfig,
    LanguageModel,
    LanguageModelConfig,
    LightConvConfig,
    MixerConfig,
    Seq2Seq,
    Seq2SeqConfig,
)
from lightconv.models.embedding import AdaptiveEmbedding, AdaptiveOutput
from lightconv.models.folder import build

# 2019: v0.6. v0.9: `args`. v0.12: `cfg`. cuda: 2019 with kernels [H, K]. newest: 2025.
LAYOUTS = ("2019", "v0.9", "v0.12", "cuda", "newest")
State = dict[str, Tensor]

MIXERS: dict[str, tuple[MixerConfig, ...]] = {
    "lightconv": (
        LightConvConfig(kernel=3, heads=2, dropconnect=0.1),
        LightConvConfig(kernel=7, heads=2, dropconnect=0.1),
    ),
    "lightconv_plain": (LightConvConfig(kernel=5, heads=4, glu=True, normalize="none"),) * 2,
    "dynamicconv": (
        DynamicConvConfig(kernel=3, heads=2, glu=True, dropconnect=0.1),
        DynamicConvConfig(kernel=7, heads=2, glu=True, dropconnect=0.1),
    ),
    "dynamicconv_plain": (DynamicConvConfig(kernel=5, heads=4, normalize="none"),) * 2,
    "transformer": (AttentionConfig(heads=2, dropout=0.2),) * 2,
}
PAIR = Seq2SeqConfig(
    dim=8,
    ffn_dim=12,
    source_heads=2,
    encoder=MIXERS["lightconv"],
    decoder=MIXERS["lightconv"],
    source_vocab=11,
    target_vocab=9,
    dropout=0.3,
    activation_dropout=0.05,
    attention_dropout=0.2,
    final_norm=False,
)
TEXT = LanguageModelConfig(
    dim=8,
    ffn_dim=12,
    layers=MIXERS["lightconv"],
    vocab=11,
    tie_output=False,
    dropout=0.1,
)
BANDS = AdaptiveConfig(cutoffs=(5, 8), factor=2, dropout=0.2)


def make(config: Seq2SeqConfig | LanguageModelConfig) -> Any:
    """A model with every parameter at random, norms too."""
    torch.manual_seed(0)
    model = build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def write(model: Seq2Seq | LanguageModel, layout: str, path: Path, **changes: Any) -> None:
    """torch.save of what the original would have saved; changes are laid over the arguments."""
    args = argparse.Namespace(**(arguments(model.config) | changes))
    checkpoint: dict[str, Any] = {
        "args": args,
        "model": state_of(model, layout),
        "optimizer_history": [{"criterion_name": "Cross", "num_updates": 7}],
        "last_optimizer_state": {"state": {0: {"exp_avg": torch.zeros(3)}}},
        "extra_state": {"epoch": 3, "val_loss": 4.5},
    }
    if layout in ("v0.12", "newest"):
        task = {"_name": "translation", "source_lang": "de", "target_lang": "en"}
        checkpoint |= {"args": None, "cfg": {"_name": None, "model": args, "task": task}}
    # Archives came with torch 1.6, in 2020.
    torch.save(checkpoint, path, _use_new_zipfile_serialization=layout not in ("2019", "cuda"))


def arguments(config: Seq2SeqConfig | LanguageModelConfig) -> dict[str, Any]:
    sides = (
        {"encoder": config.encoder, "decoder": config.decoder}
        if isinstance(config, Seq2SeqConfig)
        else {"decoder": config.layers}
    )
    args: dict[str, Any] = {
        "arch": "any",
        "dropout": config.dropout,
        "relu_dropout": config.activation_dropout,
        "attention_dropout": 0.2,
        "input_dropout": config.input_dropout,
        "weight_dropout": getattr(sides["decoder"][0], "dropconnect", 0.0),
        "weight_softmax": getattr(sides["decoder"][0], "normalize", "softmax") == "softmax",
    }
    for side, layers in sides.items():
        args[f"{side}_embed_dim"] = config.dim
        args[f"{side}_ffn_embed_dim"] = config.ffn_dim
        args[f"{side}_layers"] = len(layers)
        args[f"{side}_attention_heads"] = getattr(layers[0], "heads", None)
        args[f"{side}_normalize_before"] = config.pre_norm
        args[f"{side}_learned_pos"] = False
        if not isinstance(layers[0], AttentionConfig):
            dynamic = isinstance(layers[0], DynamicConvConfig)
            args[f"{side}_conv_type"] = "dynamic" if dynamic else "lightweight"
            args[f"{side}_glu"] = getattr(layers[0], "glu", False)
            args[f"{side}_kernel_size_list"] = [getattr(layer, "kernel", 0) for layer in layers]
            args[f"{side}_conv_dim"] = config.dim
    if isinstance(config, Seq2SeqConfig):
        args["share_all_embeddings"] = config.share_embeddings == "all"
        args["share_decoder_input_output_embed"] = config.share_embeddings != "none"
        args |= {"source_lang": "de", "target_lang": "en", "adaptive_softmax_cutoff": None}
    else:
        args["share_decoder_input_output_embed"] = config.tie_output
        if config.adaptive is not None:
            cutoffs = ",".join(map(str, config.adaptive.cutoffs))
            args |= {
                "adaptive_input": True,
                "adaptive_input_cutoff": cutoffs,
                "adaptive_input_factor": float(config.adaptive.factor),
                "adaptive_softmax_cutoff": cutoffs,
                "adaptive_softmax_factor": float(config.adaptive.factor),
                "adaptive_softmax_dropout": config.adaptive.dropout,
                "tie_adaptive_weights": config.adaptive.tie_words,
                "tie_adaptive_proj": config.adaptive.tie_projections,
            }
    return args


def state_of(model: Seq2Seq | LanguageModel, layout: str) -> State:
    old = layout in ("2019", "cuda")
    if isinstance(model, LanguageModel):
        state = _decoder(model.layers, layout) | norm("decoder.layer_norm", model.norm)
        if isinstance(model.embedding, AdaptiveEmbedding):
            state |= _bands(model.embedding, model.output)
            tied = True
        else:
            state["decoder.embed_tokens.weight"] = model.embedding.weight
            tied = model.output is model.embedding
    else:
        state = _encoder(model.encoder, layout) | _decoder(model.decoder, layout)
        state |= norm("encoder.layer_norm", model.encoder_norm)
        state |= norm("decoder.layer_norm", model.decoder_norm)
        state["encoder.embed_tokens.weight"] = weight(model.source_embedding)
        state["decoder.embed_tokens.weight"] = weight(model.target_embedding)
        state["encoder.version"] = torch.tensor([2.0])
        tied = model.output is model.target_embedding
    if not isinstance(model.output, AdaptiveOutput):
        # Old versions store a tied output by the name of the input alone.
        if layout == "newest":
            state["decoder.output_projection.weight"] = weight(model.output)
        elif not tied:
            state["decoder.embed_out"] = weight(model.output)
    state["decoder.version"] = torch.tensor([2.0])
    if old:
        state["decoder.embed_positions._float_tensor"] = torch.full((1,), torch.nan)
    return {name: tensor.detach() for name, tensor in state.items()}


def _encoder(layers: nn.ModuleList, layout: str) -> State:
    state: State = {}
    for place, layer in enumerate(layers):
        at = f"encoder.layers.{place}"
        state |= _mixer(at, layer.mixer, layout) | _ffn(at, layer)
        first, second = "self_attn_layer_norm", "final_layer_norm"
        if layout in ("2019", "cuda"):
            first, second = "layer_norms.0", "layer_norms.1"
        elif f"{at}.linear1.weight" in state:
            is_new = layout == "newest"
            first = "layer_norm1" if is_new else "layer_norms.0"
            second = "layer_norm2" if is_new else "layer_norms.1"
        state |= norm(f"{at}.{first}", layer.mixer_residual.norm)
        state |= norm(f"{at}.{second}", layer.ffn_residual.norm)
    return state


def _decoder(layers: nn.ModuleList, layout: str) -> State:
    state: State = {}
    for place, layer in enumerate(layers):
        at = f"decoder.layers.{place}"
        state |= _mixer(at, layer.mixer, layout) | _ffn(at, layer)
        first = "conv" if f"{at}.linear1.weight" in state else "self_attn"
        state |= norm(f"{at}.{first}_layer_norm", layer.mixer_residual.norm)
        state |= norm(f"{at}.final_layer_norm", layer.ffn_residual.norm)
        if hasattr(layer, "source"):
            source = layer.source
            q, (k, v) = source.q_proj.weight, source.kv_proj.weight.chunk(2)
            qb, (kb, vb) = source.q_proj.bias, source.kv_proj.bias.chunk(2)
            state |= _attention(f"{at}.encoder_attn", (q, k, v), (qb, kb, vb), layout)
            state |= linear(f"{at}.encoder_attn.out_proj", source.out_proj)
            state |= norm(f"{at}.encoder_attn_layer_norm", layer.source_residual.norm)
    return state


def _mixer(at: str, mixer: nn.Module, layout: str) -> State:
    if hasattr(mixer, "weight") or hasattr(mixer, "kernel_proj"):
        state = linear(f"{at}.linear1", mixer.in_proj) | linear(f"{at}.linear2", mixer.out_proj)
        if hasattr(mixer, "weight"):
            flat = layout == "cuda"
            state[f"{at}.conv.weight"] = mixer.weight if flat else mixer.weight[:, None]
        else:
            state[f"{at}.conv.weight_linear.weight"] = mixer.kernel_proj.weight
        if layout == "newest":
            state[f"{at}.conv.conv_bias"] = torch.full((8,), torch.inf)  # never used, never set
        return state
    weights, biases = mixer.in_proj.weight.chunk(3), mixer.in_proj.bias.chunk(3)
    state = _attention(f"{at}.self_attn", weights, biases, layout)
    return state | linear(f"{at}.self_attn.out_proj", mixer.out_proj)


def _attention(at: str, weights: Any, biases: Any, layout: str) -> State:
    """Three matrices, for queries, keys and values, or one above the other."""
    if layout in ("2019", "cuda"):
        return {f"{at}.in_proj_weight": torch.cat(weights), f"{at}.in_proj_bias": torch.cat(biases)}
    state = {f"{at}.{n}_proj.weight": w.clone() for n, w in zip("qkv", weights, strict=True)}
    return state | {f"{at}.{n}_proj.bias": b.clone() for n, b in zip("qkv", biases, strict=True)}


def _ffn(at: str, layer: Any) -> State:
    return linear(f"{at}.fc1", layer.ffn.hidden) | linear(f"{at}.fc2", layer.ffn.output)


def _bands(inputs: Any, output: Any) -> State:
    """The original's adaptive input and softmax; tied tensors stand under both names."""
    state: State = {"decoder.embed_tokens._float_tensor": torch.zeros(1)}
    for i, (words, project) in enumerate(zip(inputs.words, inputs.projections, strict=True)):
        state[f"decoder.embed_tokens.embeddings.{i}.0.weight"] = words.weight
        state[f"decoder.embed_tokens.embeddings.{i}.1.weight"] = project.weight
    softmax = "decoder.adaptive_softmax"
    state[f"{softmax}.version"] = torch.tensor([1])
    if output.words is inputs.words:
        state[f"{softmax}.head.word_proj.weight"] = output.words[0].weight
        state[f"{softmax}.head.class_proj.weight"] = output.classes.weight
    else:
        both = [output.words[0].weight, output.classes.weight]
        state[f"{softmax}.head.weight"] = torch.cat(both)
    for i, project in enumerate(output.projections):
        original = getattr(project, "original", project)  # [D, d] if tied, else [d, D]
        state[f"{softmax}.tail.{i}.0.weight"] = original.weight
        state[f"{softmax}.tail.{i}.2.weight"] = output.words[i + 1].weight
    return state


def linear(at: str, module: Any) -> State:
    return {f"{at}.weight": module.weight, f"{at}.bias": module.bias}


def norm(at: str, module: nn.Module) -> State:
    return linear(at, module) if isinstance(module, nn.LayerNorm) else {}


def weight(module: Any) -> Tensor:
    found: Tensor = module.weight
    return found
