"""The README.md of a model folder: what the model is, as far as its configuration says it."""

from collections import Counter
from collections.abc import Sequence

from lightconv.models.config import LanguageModelConfig, MixerConfig, ModelConfig

USE = """\
```python
import lightconv

model = lightconv.load("{folder}")
{call}
```"""
CALLS = {
    "seq2seq": "scores = model(source, target_in)  # int64 [B, S] and [B, T] -> [B, T, V]",
    "language_model": "scores = model(tokens)  # int64 [B, T] -> [B, T, V]",
}
# What a folder with a vocabulary can do besides.
TEXT_CALLS = {
    "seq2seq": 'model.translate(["a text"])  # text in, text out',
    "language_model": 'model.generate(["a text"])  # goes on with it',
}


def card(name: str, config: ModelConfig, parameters: int, files: Sequence[str]) -> str:
    """Markdown that begins with the tags a hub reads."""
    rows = [("parameters", f"{parameters:,}"), ("width", str(config.dim))]
    if isinstance(config, LanguageModelConfig):
        title = "Language model"
        rows += [("layers", describe(config.layers)), ("vocabulary", f"{config.vocab:,}")]
    else:
        title = "Encoder-decoder model"
        rows += [
            ("encoder", describe(config.encoder)),
            ("decoder", describe(config.decoder)),
            ("source vocabulary", f"{config.source_vocab:,}"),
            ("target vocabulary", f"{config.target_vocab:,}"),
        ]
    table = "\n".join(f"| {left} | {right} |" for left, right in rows)
    return "\n\n".join(
        [
            "---\nlibrary_name: lightconv\n---",
            f"# {name}",
            f"{title} of `lightconv`. `config.json` says all about its shape.",
            f"| | |\n| --- | --- |\n{table}",
            USE.format(folder=name, call=_calls(config.kind, files)),
            f"Files: {', '.join(f'`{file}`' for file in files)}.\n",
        ]
    )


def _calls(kind: str, files: Sequence[str]) -> str:
    has_words = any(file.startswith("vocab") for file in files)
    return "\n".join([*([TEXT_CALLS[kind]] if has_words else []), CALLS[kind]])


def describe(layers: Sequence[MixerConfig]) -> str:
    """`7 layers: 7 dynamicconv, kernels 3, 7, 15, 31, 31, 31, 31`."""
    kinds = Counter(layer.kind for layer in layers)
    text = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    kernels = [str(layer.kernel) for layer in layers if hasattr(layer, "kernel")]
    places = f", kernels {', '.join(kernels)}" if kernels else ""
    return f"{text}{places}"
