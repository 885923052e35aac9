"""The arguments a model of the original was built with, asked for one by one.

Each question names the type it expects, so that an error can name the argument.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

from lightconv.interop.pickles import content, settings

# Arguments that change what a model computes in a way that no tensor shows, and the only value of
# each that is supported here.
SUPPORTED: Mapping[str, Any] = {
    "encoder_learned_pos": False,
    "decoder_learned_pos": False,
    "no_token_positional_embeddings": False,
    "no_scale_embedding": False,
    "layernorm_embedding": False,
    "character_embeddings": False,
    "no_cross_attention": False,
    "cross_self_attention": False,
    "encoder_layers_to_keep": None,
    "decoder_layers_to_keep": None,
    "activation_fn": "relu",
}


class Arguments:
    """Names and values; `of_checkpoint` finds them where the original keeps them."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    @classmethod
    def of_checkpoint(cls, checkpoint: Mapping[str, Any]) -> "Arguments":
        """`args` until v0.10, `cfg.model` and `cfg.task` since then."""
        found = settings(checkpoint.get("args"))
        if not found:
            parts = _parts(checkpoint.get("cfg"))
            found = settings(parts.get("task")) | settings(parts.get("model"))
        if not found:
            raise ValueError("the checkpoint has neither 'args' nor 'cfg' with a 'model' in it")
        return cls(found)

    def check_supported(self) -> None:
        """Raises ValueError for an argument whose value this library has no counterpart to."""
        for name, wanted in SUPPORTED.items():
            value = self.values.get(name)
            if value is not None and value != wanted:
                raise ValueError(
                    f"argument {name}={_show(value)} is not supported, expected {wanted}"
                )

    def flag(self, name: str, default: bool | None = None) -> bool:
        """True or false; text as in shell arguments counts too."""
        value = self._get(name, default)
        words = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}
        if not isinstance(value, bool) and str(value) in words:
            value = words[str(value)]
        if not isinstance(value, bool):
            self._refuse(name, value, "true or false")
        return value

    def count(self, name: str) -> int:
        """A whole number of at least 1."""
        value = self._get(name, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._refuse(name, value, "a whole number of at least 1")
        return value

    def counts(self, name: str) -> list[int] | None:
        """Whole numbers: a list, or text such as `[3, 7]` or `3,7`; None if not given."""
        value = self.values.get(name)
        if isinstance(value, str):
            parts = value.strip("[]() ").split(",")
            value = [int(p) if p.strip().isdecimal() and len(p) < 20 else p for p in parts]
        if value is None:
            return None
        if not isinstance(value, list) or any(type(item) is not int or item < 1 for item in value):
            self._refuse(name, self.values[name], "a list of whole numbers of at least 1")
        return value

    def number(self, name: str, default: float) -> float:
        """A number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(name, value, "a number")
        return float(value)

    def share(self, *names: str) -> float:
        """A probability: the first of these arguments that is given and not zero, else zero."""
        for name in names:
            value = self.number(name, 0.0)
            if not 0.0 <= value < 1.0:
                self._refuse(name, value, "a number in [0, 1)")
            if value:
                return value
        return 0.0

    def word(self, name: str) -> str | None:
        """Text, if there is any."""
        value = self.values.get(name)
        return value if isinstance(value, str) and value else None

    def check_same(self, name: str, found: object) -> None:
        """Raises ValueError if the argument is given and the tensors say something else."""
        value = self.values.get(name)
        if value is not None and value != found:
            raise ValueError(f"argument {name}={_show(value)}, but the weights have {found}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is None:
            value = default
        if value is None:
            raise ValueError(f"the checkpoint does not give argument {name}, which is needed")
        return value

    def _refuse(self, name: str, value: Any, expected: str) -> NoReturn:
        raise ValueError(f"argument {name}={_show(value)}, expected {expected}")


def _parts(cfg: Any) -> Mapping[str, Any]:
    found = content(cfg)
    return found if isinstance(found, Mapping) else {}


def _show(value: object) -> str:
    return repr(value)[:60]
