"""Settings laid over a configuration, against the same change made with dataclasses.replace."""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import pytest

from lightconv.config import ConfigError, override
from lightconv.models.config import (
    AdaptiveConfig,
    AttentionConfig,
    ConvConfig,
    DynamicConvConfig,
    LanguageModelConfig,
    LightConvConfig,
    Seq2SeqConfig,
)
from lightconv.recipe import Recipe
from lightconv.train.config import AdamConfig, CosineConfig, NesterovConfig
from tests.config.examples import LANGUAGE_MODEL, TRANSLATION

assert isinstance(TRANSLATION.model, Seq2SeqConfig)
MODEL = TRANSLATION.model
FIRST, SECOND = MODEL.encoder


def change(part: str, **changes: object) -> Recipe:
    return replace(TRANSLATION, **{part: replace(getattr(TRANSLATION, part), **changes)})


model, task, train = (partial(change, part) for part in ("model", "task", "train"))


def about(text: str) -> Recipe:
    return replace(TRANSLATION, about=text)


def sources(**changes: str) -> Recipe:
    return replace(TRANSLATION, sources={**TRANSLATION.sources, **changes})


CONV = ConvConfig(kernel=3)
ADAM, HALF = AdamConfig(weight_decay=1e-4), NesterovConfig(momentum=0.5)
EIGHT = (replace(FIRST, heads=8), AttentionConfig(heads=8, window=5))
SMALL = {
    "dim": 6,
    "source_heads": 3,
    "encoder": (replace(FIRST, heads=3), AttentionConfig(heads=3)),
    "decoder": (LightConvConfig(kernel=7, heads=6, normalize="none"),),
}
DYNAMIC = DynamicConvConfig(kernel=7, heads=4, normalize="none")
COSINE = CosineConfig(peak=5e-4, warmup=4000, period=7)
# Settings, separated by semicolons, and the recipe that they make.
SETTINGS: list[tuple[str, Recipe]] = [
    ("model.dim=256", model(dim=256)),
    (" model.dim = 1_024 ", model(dim=1024)),
    ("train.clip_norm=1", train(clip_norm=1.0)),
    ("train.clip_norm=1e-1", train(clip_norm=0.1)),
    ("model.pre_norm=true", model(pre_norm=True)),
    ("about=all = mine ", about("all = mine")),
    ('about="two words\\n"', about("two words\n")),
    ("about='", about("'")),
    ("about=", about("")),
    ("about=none", about("none")),
    ("about=3", about("3")),
    ("model.share_embeddings=decoder", model(share_embeddings="decoder")),
    ("model.share_embeddings=none", model(share_embeddings="none")),
    ('train.precision="bf16"', train(precision="bf16")),
    ("task.source_lang=none", task(source_lang=None)),
    ("task.source_lang='none'", task(source_lang="none")),
    ("model.encoder.0.kernel=5", model(encoder=(replace(FIRST, kernel=5), SECOND))),
    ("model.encoder.*.heads=8; model.encoder.1.window=5", model(encoder=EIGHT)),
    ("model.encoder.*={kind='conv', kernel=3}", model(encoder=(CONV, CONV))),
    ("model.encoder=[{kind='conv', kernel=2}]; model.encoder.0.kernel=3", model(encoder=(CONV,))),
    ("train.optimizer={kind='nesterov', momentum=0.5}", train(optimizer=HALF)),
    ("train.optimizer.betas=[0.8, 0.9]", train(optimizer=replace(ADAM, betas=(0.8, 0.9)))),
    ("train.optimizer.betas.1=0.9", train(optimizer=replace(ADAM, betas=(0.9, 0.9)))),
    # Another kind: the fields of both stay.
    ("train.optimizer.kind=nesterov", train(optimizer=NesterovConfig(weight_decay=1e-4))),
    ("train.optimizer.kind=adam", TRANSLATION),
    ("train.schedule.kind=cosine; train.schedule.period=7", train(schedule=COSINE)),
    ("model.decoder.*.kind='dynamicconv'", model(decoder=(DYNAMIC,))),
    ("model.encoder.1.kind=conv; model.encoder.1.kernel=3", model(encoder=(FIRST, CONV))),
    # A part that was absent.
    ("model.adaptive.cutoffs=[10, 20]", model(adaptive=AdaptiveConfig(cutoffs=(10, 20)))),
    # Names with dots in them.
    ("sources.model.encoder.0=a guess", sources(**{"model.encoder.0": "a guess"})),
    ('sources.model="1"', sources(model="1")),
    ("sources={'a.b' = 'c'}", replace(TRANSLATION, sources={"a.b": "c"})),
    # Wrong in between, right at the end.
    (
        "model.dim=6; model.source_heads=3; model.encoder.*.heads=3; model.decoder.0.heads=6",
        model(**SMALL),
    ),
    ("model.dim=x; model.dim=8", model(dim=8)),
]


@pytest.mark.parametrize(("settings", "expected"), SETTINGS, ids=lambda value: str(value)[:60])
def test_settings(settings: str, expected: Recipe) -> None:
    assert override(TRANSLATION, settings.split("; ")) == expected


def test_the_model_of_a_recipe_changes_its_kind() -> None:
    settings = ["model.kind=language_model", "model.vocab=9"]
    found = override(TRANSLATION, [*settings, "model.layers=[{kind='conv',kernel=3}]"]).model
    kept = {"dim": 512, "ffn_dim": 1024, "dropout": 0.3, "pre_norm": False, "final_norm": True}
    assert found == LanguageModelConfig(layers=(CONV,), vocab=9, **kept)
    cleared = override(LANGUAGE_MODEL, ["model.adaptive=none"])
    assert cleared.model == replace(LANGUAGE_MODEL.model, adaptive=None)


def test_parts_and_the_original_stay_as_they_are() -> None:
    before = override(TRANSLATION, [])
    assert before == TRANSLATION
    override(TRANSLATION, ["model.encoder.0.kernel=5", "sources.a=b"])
    assert before == TRANSLATION
    assert override(AdamConfig(), ["eps=1e-6"]) == AdamConfig(eps=1e-6)
    with pytest.raises(ConfigError, match=r"^kind='language_model' must be one of seq2seq$"):
        override(MODEL, ["kind=language_model"])


MISTAKES = [
    ("model.dim", "'model.dim' is not a setting, expected path=value"),
    ("=3", "'=3' is not a setting, expected path=value"),
    ("model..dim=3", "'model..dim=3' is not a setting"),
    ("", "'' is not a setting"),
    ("model.dimm=3", "unknown field model.dimm=3; did you mean 'dim'?"),
    ("modle.dim=3", "unknown field modle=3; did you mean 'model'?"),
    ("max_steps=3", "unknown field max_steps=3; did you mean 'train.max_steps'?"),
    ("zzz=x", "unknown field zzz='x'; known: about, task, model, train, decode, sources"),
    ("train.optimizer.momentum=0.9", "unknown field train.optimizer.momentum=0.9 of 'adam', "),
    ("model.encoder.*.kernel=3", "unknown field model.encoder.1.kernel=3"),
    ("model.encoder.2.heads=3", "model.encoder has no place '2', expected 0 to 1, or * for a"),
    ("model.encoder.-1.heads=3", "model.encoder has no place '-1', expected 0 to 1"),
    ("model.encoder.x=3", "model.encoder has no place 'x', expected 0 to 1"),
    ("model.encoder." + "9" * 5000 + "=3", "model.encoder has no place '9999"),
    ("model.encoder.²=3", "model.encoder has no place '²', expected 0 to 1"),
    ("model.encoder=[]; model.encoder.*=3", "model.encoder has no place '*', expected not"),
    ("model.encoder=3; model.encoder.0=3", "model.encoder=3 must be a list"),
    ("model=3; model.dim=3", "model=3 must be a table"),
    ("model={}; model.dim=3", "model.kind is missing; known: seq2seq, language_model"),
    ("model={kind='seq2seq'}; model.encoder.0=3", "model.encoder is missing, set it befo"),
    ("sources=3; sources.a=3", "sources=3 must be a table"),
    ("model.dim.x=3", "model.dim is a whole number, it has no 'x' in it"),
    ("model.dim=big", "model.dim='big' must be a whole number"),
    ("model.dim=1.5", "model.dim=1.5 must be a whole number"),
    ("model.dim=none", "model.dim='none' must be a whole number"),
    ("model.dim=3\npad=3", "model.dim='3\\npad=3' must be a whole number"),
    ("model.dropout=.5", "model.dropout='.5' must be a number"),
    ("model.pre_norm=True", "model.pre_norm='True' must be true or false"),
    ("model.encoder=[{", "model.encoder='[{' must be a list"),
    ("train.precision=fp8", "train.precision='fp8' must be one of fp32, bf16, fp16, auto"),
    ("train.optimizer.kind=sgd", "unknown train.optimizer.kind='sgd'; known: adam, nesterov"),
    ("model.adaptive.factor=2", "model.adaptive.cutoffs is missing, expected a list"),
    ("model.adaptive.kind=x", "unknown field model.adaptive.kind='x'; known: cutoffs, fact"),
    ("model.dim=510", "model.encoder.0.heads=4 does not divide model.dim=510"),
    ("train.max_steps=0", "train.max_steps=0 must be at least 1"),
]


@pytest.mark.parametrize(("settings", "message"), MISTAKES, ids=lambda value: value[:60])
def test_mistakes(settings: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        override(TRANSLATION, settings.split("; "))
    assert str(raised.value).startswith(message)


def test_a_setting_has_at_most_16384_characters() -> None:
    longest = "x" * (16_384 - len("about="))
    assert override(TRANSLATION, [f"about={longest}"]).about == longest
    with pytest.raises(ConfigError, match="is not a setting, expected path=value of at most 16384"):
        override(TRANSLATION, [f"about={longest}x"])


@dataclass(frozen=True, kw_only=True)
class Whole:
    kind: ClassVar[str] = "whole"
    size: int = 1
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Parts:
    kind: ClassVar[str] = "parts"
    size: tuple[int, ...] = (1, 2)
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Odd:
    part: Whole | Parts
    choice: Literal["true", "none", 1] = 1


def test_a_field_of_another_type_does_not_stay() -> None:
    odd = Odd(part=Whole(size=5, name="a"))
    assert override(odd, ["part.kind=parts"]) == Odd(part=Parts(name="a"))


def test_words_of_a_choice_come_before_their_meaning() -> None:
    for text, value in (("true", "true"), ("none", "none"), ("1", 1)):
        assert override(Odd(part=Whole()), [f"choice={text}"]).choice == value
