"""Ranges of options, and options by name."""

import math
from pathlib import Path
from typing import Any

import pytest

from lightconv.decode import DecodeConfig
from lightconv.decode.options import Options, SampleConfig, TextOptions, read_decode
from lightconv.models import LanguageModelConfig
from lightconv.models.config import LightConvConfig


@pytest.mark.parametrize(
    "cls, changes, message",
    [
        (DecodeConfig, {"beam": 0}, "^beam=0"),
        (DecodeConfig, {"min_len": 0}, "^min_len=0"),
        (DecodeConfig, {"alpha": -0.5}, "^alpha=-0.5"),
        (DecodeConfig, {"alpha": math.nan}, "^alpha=nan"),
        (DecodeConfig, {"coverage": -0.1}, "^coverage=-0.1"),
        (DecodeConfig, {"min_len_ratio": -0.5}, "^min_len_ratio=-0.5"),
        (DecodeConfig, {"max_len_ratio": -1.0}, "^max_len_ratio=-1.0"),
        (DecodeConfig, {"max_len_ratio": math.inf}, "^max_len_ratio=inf"),
        (DecodeConfig, {"max_len_plus": -1}, "^max_len_plus=-1"),
        (DecodeConfig, {"block_ngrams": -3}, "^block_ngrams=-3"),
        (DecodeConfig, {"min_len": 201}, "^min_len=201 must not be above max_len_plus=200$"),
        (DecodeConfig, {"max_len_plus": 0}, "^min_len=1 must not be above max_len_plus=0$"),
        (SampleConfig, {"temperature": 0.0}, "^temperature=0.0"),
        (SampleConfig, {"top_k": -1}, "^top_k=-1"),
        (SampleConfig, {"top_p": 0.0}, "^top_p=0.0"),
        (SampleConfig, {"top_p": 1.5}, "^top_p=1.5"),
        (SampleConfig, {"seed": -1}, "^seed=-1"),
        (TextOptions, {"window": 0}, "^window=0"),
        (TextOptions, {"max_sentences": 0}, "^max_sentences=0"),
        (TextOptions, {"engine": "torch", "quantize": "int8"}, "needs the C.. engine"),
        (DecodeConfig, {"length_penalty": "x"}, "^length_penalty='x' .* one of power, stepwise$"),
        (TextOptions, {"too_long": "cut"}, "^too_long='cut' must be one of parts, start, end$"),
        (TextOptions, {"engine": "cuda"}, "^engine='cuda' must be one of auto, native, torch$"),
        (TextOptions, {"quantize": None}, "^quantize=None must be one of none, int8, bf16$"),
    ],
)
def test_values_out_of_range_are_refused(cls: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cls(**changes)


def test_bounds_are_allowed() -> None:
    DecodeConfig(beam=1, min_len=200, alpha=0.0, block_ngrams=0)
    DecodeConfig(max_len_ratio=1.5, max_len_plus=0, min_len=5)


def test_options_by_name() -> None:
    decode = DecodeConfig(beam=3, alpha=0.5)
    found = Options.of(decode, {"beam": 4, "n_best": 2, "engine": "torch"}, pairs=True)
    assert found.decode == DecodeConfig(beam=4, alpha=0.5) and found.sampling is None
    assert found.text == TextOptions(n_best=2, engine="torch")
    text = Options.of(decode, {"n_best": 9, "seed": 5}, pairs=False, sample=True)
    assert text.text == TextOptions(n_best=9, too_long="end")
    assert text.sampling == SampleConfig(seed=5) and text.decode is not None


@pytest.mark.parametrize(
    "values, message",
    [
        ({"beem": 3}, "beem"),
        ({"engine": "cuda"}, "engine"),
        ({"window": "9"}, "window"),
        ({"n_best": 4}, "n_best=4 must not be above beam=3"),
        ({"temperature": 2.0}, "temperature is for random outputs"),
        ({"coverage": 0.2, "engine": "native"}, "coverage=0.2 runs in torch only, got engine="),
        ({"coverage": 0.2, "quantize": "int8"}, "coverage=0.2 runs in torch only, got quantize="),
    ],
)
def test_wrong_options_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options.of(DecodeConfig(beam=3), values, pairs=True)


def test_the_search_of_a_folder(tmp_path: Any) -> None:
    model = LanguageModelConfig(
        vocab=9, dim=8, ffn_dim=8, layers=(LightConvConfig(kernel=3, heads=1),)
    )
    assert read_decode(tmp_path, {}, model) == DecodeConfig()
    assert read_decode(tmp_path, {"decode": {"beam": 7}}, model) == DecodeConfig(beam=7)
    with pytest.raises(ValueError, match=r"config.json: decode\.beam=0"):
        read_decode(tmp_path, {"decode": {"beam": 0}}, model)
    with pytest.raises(ValueError, match=r"beam=1000.*expected a smaller"):
        read_decode(tmp_path, {"decode": {"beam": 1000}}, model)


def test_a_language_model_has_no_coverage(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"coverage=0\.5 needs a source"):
        Options.of(DecodeConfig(), {"coverage": 0.5}, pairs=False)
    assert Options.of(DecodeConfig(), {"coverage": 0.5}, pairs=True).decode.coverage == 0.5
    texts = LanguageModelConfig(
        dim=8, ffn_dim=8, layers=(LightConvConfig(kernel=3, heads=2),), vocab=9
    )
    with pytest.raises(ValueError, match=r"config\.json: coverage=0\.5 needs a source"):
        read_decode(tmp_path, {"decode": {"coverage": 0.5}}, texts)
