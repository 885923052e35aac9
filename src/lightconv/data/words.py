"""From text to words and back: normalise, tokenise, lower-case, truncate, as `SideConfig` says.

What each step loses: normalising loses the kind of quotes, dashes and spaces; Moses's tokeniser
loses where the spaces stood (its rules put back most of them), runs of spaces and control
characters; jieba loses spaces between Chinese words; lower-casing loses case; truncating loses the
end. Without any of these steps a text stays as it is.
"""

import functools
import re
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

from lightconv.data.config import PipelineConfig, SideConfig

# The package and the extra that brings it, by the name of the step.
PACKAGES = {"moses": ("sacremoses", "moses"), "jieba": ("jieba", "chinese")}

# Between two pieces that end and begin so, a Chinese text has a space.
LATIN_ENDS = re.compile(r"[0-9A-Za-z.,!?;:%)\]}]\Z")
LATIN_BEGINS = re.compile(r"[0-9A-Za-z(\[{]")


class Steps:
    """The steps of one side: `apply` gives words with a space between them, `undo` plain text."""

    def __init__(self, config: SideConfig) -> None:
        self.config = config
        self._forward: list[Callable[[str], str]] | None = None
        self._join: Callable[[str], str] | None = None

    def __reduce__(self) -> tuple[type["Steps"], tuple[SideConfig]]:
        return Steps, (self.config,)  # tokenisers are made anew where they are used

    def apply(self, text: str) -> str:
        """Text as it is -> text as models see it."""
        if self._forward is None:
            self._forward = _forward_steps(self.config)
        for step in self._forward:
            text = step(text)
        return text

    def undo(self, text: str) -> str:
        """Text as models see it -> text as people write it."""
        if self._join is None:
            self._join = JOINERS[self.config.tokenize](self.config)
        return self._join(text)


def check_packages(config: PipelineConfig) -> None:
    """Raises ValueError that names the extra to install if a step's package is missing."""
    for side in config.sides:
        for step in (side.normalize, side.tokenize):
            if step in PACKAGES and find_spec(PACKAGES[step][0]) is None:
                raise _missing(step)


def _missing(step: str) -> ValueError:
    package, extra = PACKAGES[step]
    return ValueError(
        f"'{step}' needs the package {package}, which is not installed. "
        f"Install it with: pip install 'lightconv[{extra}]'"
    )


def _forward_steps(config: SideConfig) -> list[Callable[[str], str]]:
    steps = []
    if config.normalize == "moses":
        steps.append(_moses_normalizer(config))
    if config.tokenize != "none":
        steps.append(SPLITTERS[config.tokenize](config))
    if config.lowercase:
        steps.append(str.lower)
    if config.truncate is not None:
        steps.append(_truncater(config.truncate))
    return steps


def _truncater(most: int) -> Callable[[str], str]:
    """Keeps the first words, with the spaces between them as they are."""
    word = re.compile(r"\S+")

    def truncate(text: str) -> str:
        if len(text) < 2 * most:  # so short that it cannot have more words
            return text
        end = 0
        for number, found in enumerate(word.finditer(text)):
            if number == most:
                return text[:end]
            end = found.end()
        return text

    return truncate


def _moses() -> Any:
    try:
        import sacremoses
    except ModuleNotFoundError:
        raise _missing("moses") from None
    return sacremoses


def _moses_normalizer(config: SideConfig) -> Callable[[str], str]:
    """As the scripts normalize-punctuation.perl and remove-non-printing-char.perl do."""
    normalizer = _moses().MosesPunctNormalizer(config.lang, perl_parity=True)
    import regex  # it comes with sacremoses

    unprintable = regex.compile(r"\p{C}")

    def normalize(text: str) -> str:
        found: str = normalizer.normalize(text)
        return found if found.isprintable() else str(unprintable.sub(" ", found))

    return normalize


def _moses_splitter(config: SideConfig) -> Callable[[str], str]:
    """As tokenizer.perl does, with characters that Moses reserves written as &apos; and so on."""
    tokenizer = _moses().MosesTokenizer(config.lang)
    # The same answers; its own build a set of thousands of characters for each, a quarter of the
    # time of all.
    lower, alpha = frozenset(tokenizer.IsLower), frozenset(tokenizer.IsAlpha)
    tokenizer.islower = lower.issuperset
    tokenizer.isanyalpha = lambda text: not alpha.isdisjoint(text)

    def split(text: str) -> str:
        words = tokenizer.tokenize(text, aggressive_dash_splits=config.split_hyphens)
        return " ".join(words)

    return split


def _moses_joiner(config: SideConfig) -> Callable[[str], str]:
    detokenizer = _moses().MosesDetokenizer(config.lang)

    def join(text: str) -> str:
        words = text.split()
        try:
            return str(detokenizer.detokenize(words))
        except TypeError:  # sacremoses stumbles over a Czech "-li"
            return str(detokenizer.unescape_xml(" ".join(words)))

    return join


@functools.cache  # its dictionary takes a second to read
def _jieba() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its own source, in newer Pythons
            import jieba
    except ModuleNotFoundError:
        raise _missing("jieba") from None
    tokenizer = jieba.Tokenizer()
    # Its own way to start reads a cache from the folder for temporary files, where anybody may have
    # put it, and tells so on stderr.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


def _jieba_splitter(config: SideConfig) -> Callable[[str], str]:
    tokenizer = _jieba()

    def split(text: str) -> str:
        return " ".join(" ".join(tokenizer.cut(text)).split())

    return split


def _jieba_joiner(config: SideConfig) -> Callable[[str], str]:
    def join(text: str) -> str:
        words = text.split()
        parts = words[:1]
        for before, word in pairwise(words):
            if LATIN_ENDS.search(before) and LATIN_BEGINS.match(word):
                parts.append(" ")
            parts.append(word)
        return "".join(parts)

    return join


SPLITTERS: dict[str, Callable[[SideConfig], Callable[[str], str]]] = {
    "moses": _moses_splitter,
    "jieba": _jieba_splitter,
}
JOINERS: dict[str, Callable[[SideConfig], Callable[[str], str]]] = {
    "none": lambda config: str,
    "moses": _moses_joiner,
    "jieba": _jieba_joiner,
}
