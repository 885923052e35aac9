"""The small runs of `lightconv selftest`, which the tests train too."""

from lightconv.selftest.examples import (
    DATA,
    MIXERS,
    fingerprint,
    lm_config,
    model_config,
    prepare,
    recipe,
    small_config,
    train_config,
    write_recipe,
)

__all__ = [
    "DATA",
    "MIXERS",
    "fingerprint",
    "lm_config",
    "model_config",
    "prepare",
    "recipe",
    "small_config",
    "train_config",
    "write_recipe",
]
