"""Models of the paper: those of its tasks, the steps of its ablation, and their small twins."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lightconv.models.config import (
    AdaptiveConfig,
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    LanguageModelConfig,
    LightConvConfig,
    MixerConfig,
    ModelConfig,
    Seq2SeqConfig,
)

# Widths in encoder and decoder. Self-attention has 6 + 6 layers; other mixers have one more encoder
# layer, to match its size.
KERNELS = ((3, 7, 15, 31, 31, 31, 31), (3, 7, 15, 31, 31, 31))
LM_KERNELS = (15,) * 2 + (31,) * 4 + (63,) * 11

NAMES = {"attention": "self-attention", "average": "averaged attention", "conv": "CNN"}
NAMES |= {"selfattention": "self-attention", "lightconv": "LightConv"}
NAMES["dynamicconv"] = "DynamicConv"
Convolution = ConvConfig | LightConvConfig | DynamicConvConfig
Model = TypeVar("Model", Seq2SeqConfig, LanguageModelConfig)
Models = dict[str, ModelConfig]


def count_layers(model: ModelConfig) -> str:
    """`4+3 layers`."""
    return "+".join(str(len(layers)) for layers in model.stacks.values()) + " layers"


def describe(model: ModelConfig) -> str:
    """Mixers and sizes: `self-attention, width 128, 2 heads, 3+3 layers`."""
    layers = [vars(layer) for stack in model.stacks.values() for layer in stack]

    def found(*names: str) -> list[str]:
        values = sorted({layer[name] for layer in layers for name in names if layer.get(name)})
        return [",".join(map(str, values))] if values else []

    kinds = {name: _kind(stack[0], model.dim) for name, stack in model.stacks.items()}
    parts = [f"{kind} {name}" for name, kind in kinds.items()]
    parts = parts if len({*kinds.values()}) > 1 else [kinds.popitem()[1]]
    parts += [f"width {model.dim}", *(f"{n} head{'s' * (n != '1')}" for n in found("heads"))]
    parts += [count_layers(model), *(f"k={widths}" for widths in found("kernel", "window"))]
    names = {"glu": "GLU", "dropconnect": "DropConnect"}
    return ", ".join([*parts, *(text for name, text in names.items() if found(name))])


def _kind(layer: MixerConfig, dim: int) -> str:
    name, values = NAMES[layer.kind], vars(layer)
    if values.get("normalize", "softmax") != "softmax":
        depthwise = isinstance(layer, LightConvConfig) and layer.heads == dim
        about = values["normalize"].replace("none", "not normalised")
        return "depthwise CNN" if depthwise else f"{name} ({about})"
    return name + " in windows" * bool(values.get("window"))


def put(model: Model, layer: Convolution, *kernels: Sequence[int]) -> Model:
    """`model` with convolutions of these widths, stack by stack, in place of its mixers."""
    made: dict[str, Any] = {
        name: tuple(replace(layer, kernel=width) for width in widths)
        for name, widths in zip(model.stacks, kernels, strict=True)
    }
    return replace(model, **made)


def change(model: Model, *names: str, **changes: Any) -> Model:
    """`model` with changes of the mixers in these stacks; without names, in all."""
    made: dict[str, Any] = {
        name: tuple(replace(layer, **changes) for layer in layers)
        for name, layers in model.stacks.items()
        if not names or name in names
    }
    return replace(model, **made)


def family(
    attention: Model,
    kernels: Sequence[Sequence[int]],
    *,
    glu: bool,
    dropconnect: float = 0.1,
    input_dropout: float = 0.1,
) -> Models:
    """A self-attention model, and the same with lightweight and with dynamic convolutions.

    glu  gates DynamicConv on both sides and LightConv in the encoder, as the paper's counts imply;
         of language models, both
    """
    (first, *_), *_ = attention.stacks.values()
    assert isinstance(first, AttentionConfig)
    both: dict[str, Any] = {"kernel": 3, "heads": first.heads, "dropconnect": dropconnect}
    frame = replace(attention, input_dropout=input_dropout)
    light = put(frame, LightConvConfig(**both), *kernels)
    dynamic = put(frame, DynamicConvConfig(**both, glu=glu), *kernels)
    gated = change(light, "encoder", "layers", glu=glu)
    return {"selfattention": attention, "lightconv": gated, "dynamicconv": dynamic}


ATTENTION = AttentionConfig(heads=16, dropout=0.1)
EN_DE = Seq2SeqConfig(
    dim=1024,
    ffn_dim=4096,
    source_heads=16,
    encoder=(ATTENTION,) * 6,
    decoder=(ATTENTION,) * 6,
    source_vocab=32_768,
    target_vocab=32_768,
    share_embeddings="all",
    dropout=0.3,
    attention_dropout=0.1,
)
IWSLT = replace(
    change(EN_DE, heads=4),
    dim=512,
    ffn_dim=1024,
    source_heads=4,
    source_vocab=8848,
    target_vocab=6632,
    share_embeddings="none",
)
EN_FR = replace(EN_DE, source_vocab=40_000, target_vocab=40_000, dropout=0.1)
ZH_EN = replace(
    change(EN_DE, dropout=0.2),
    source_vocab=37_900,
    target_vocab=37_900,
    share_embeddings="none",
    dropout=0.25,
    attention_dropout=0.2,
)
CNN_DAILYMAIL = replace(
    change(EN_DE, heads=8),
    dim=512,
    ffn_dim=2048,
    source_heads=8,
    source_vocab=30_000,
    target_vocab=30_000,
    share_embeddings="none",
)
BILLION_WORD = LanguageModelConfig(
    dim=1024,
    ffn_dim=4096,
    layers=(ATTENTION,) * 16,
    vocab=793_471,
    adaptive=AdaptiveConfig(cutoffs=(60_000, 160_000)),
    dropout=0.1,
)

MODELS: dict[str, Models] = {
    "iwslt-de-en": family(IWSLT, KERNELS, glu=False, input_dropout=0.0),
    "wmt-en-de": family(EN_DE, KERNELS, glu=True),
    "wmt-en-fr": family(EN_FR, KERNELS, glu=True),
    "wmt-zh-en": family(ZH_EN, KERNELS, glu=True, dropconnect=0.2),
    "billion-word": family(BILLION_WORD, [LM_KERNELS], glu=True),
    "cnn-dailymail": family(CNN_DAILYMAIL, KERNELS, glu=False),
}

# --- Table 3: from self-attention to dynamic convolutions in small steps, without GLU

_WINDOWS = tuple(replace(ATTENTION, window=window) for window in KERNELS[1])
_AVERAGE = AverageConfig(ffn_dim=4096)
_DEPTHWISE = LightConvConfig(kernel=3, heads=1024, normalize="none")

WINDOWED = replace(EN_DE, encoder=_WINDOWS, decoder=_WINDOWS)
CNN = put(replace(EN_DE, input_dropout=0.1), ConvConfig(kernel=3), (3,) * 7, (3,) * 6)
DEPTHWISE = put(CNN, _DEPTHWISE, (3,) * 7, (3,) * 6)
INCREASING_KERNEL = put(DEPTHWISE, _DEPTHWISE, *KERNELS)
DROPCONNECT = change(INCREASING_KERNEL, dropconnect=0.1)
SHARING = change(DROPCONNECT, heads=16)
SOFTMAX = change(SHARING, normalize="softmax")  # LightConv
DYNAMIC_LAYER = DynamicConvConfig(kernel=3, heads=16, dropconnect=0.1)
DYNAMIC = put(SOFTMAX, DYNAMIC_LAYER, *KERNELS)
AAN_DECODER = replace(EN_DE, decoder=(_AVERAGE,) * 6)
# Section 6.2 names it for its speed.
_BASE = replace(change(EN_DE, heads=8), dim=512, ffn_dim=2048, source_heads=8, dropout=0.1)
AAN_BASE = replace(_BASE, decoder=(replace(_AVERAGE, ffn_dim=2048),) * 6)

# --- Small twins

WIDTH = 256
_SIZES = ("heads", "source_heads", "ffn_dim")
_RATES = ("dropout", "attention_dropout", "dropconnect")
# One layer more would be a quarter of the model here, not a sixteenth.
_LM_KERNELS = ((15, 31, 63, 63),)
Config = TypeVar("Config", MixerConfig, Seq2SeqConfig)


def shrink(model: ModelConfig, decoder: int = 3) -> Seq2SeqConfig:
    """The twin of a model: heads of the same width, half of the layers, dropout of at most 0.1.

    decoder  layers of the decoder that stay; of the encoder, half of them, rounded up
    """
    assert isinstance(model, Seq2SeqConfig)

    def scale(config: Config) -> Config:
        values = vars(config)
        sizes = {n: WIDTH * values[n] // model.dim for n in _SIZES if n in values}
        return replace(config, **sizes, **{n: min(values[n], 0.1) for n in _RATES if n in values})

    layers = tuple(map(scale, model.encoder[: (len(model.encoder) + 1) // 2]))
    last = tuple(map(scale, model.decoder[:decoder]))
    return replace(scale(model), dim=WIDTH, encoder=layers, decoder=last, input_dropout=0.0)


def shrink_all(models: Models) -> Models:
    return {mixer: shrink(model) for mixer, model in models.items()}


_FEW_LAYERS = replace(BILLION_WORD, layers=BILLION_WORD.layers[:4])
_SMALL_LM = replace(change(_FEW_LAYERS, heads=4), dim=WIDTH, ffn_dim=4 * WIDTH)
# The corpora that anyone can fetch: one vocabulary of 8000 byte pairs each.
_DEBIAN = replace(EN_DE, source_vocab=8000, target_vocab=8000)
_DEBIAN_LM = replace(_SMALL_LM, vocab=8000, adaptive=None)

SMALL_MODELS: dict[str, Models] = {
    **{task: shrink_all(MODELS[task]) for task in MODELS if task.startswith(("iwslt", "wmt"))},
    "billion-word": family(_SMALL_LM, _LM_KERNELS, glu=True),
    "cnn-dailymail": shrink_all(MODELS["cnn-dailymail"]),
    "debian-en-de": shrink_all(family(_DEBIAN, KERNELS, glu=True)),
    "debian-lm": family(_DEBIAN_LM, _LM_KERNELS, glu=True),
    "debian-summary": shrink_all(family(_DEBIAN, KERNELS, glu=False)),
}
