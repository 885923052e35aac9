"""From text to words and back: normalise, tokenise, lower-case, truncate, as `SideConfig` says.

Normalising loses the kind of quotes, dashes and spaces; Moses's tokeniser loses where spaces stood
(its rules restore most), runs of spaces and control characters; jieba loses spaces between Chinese
words; lower-casing loses case; truncating loses the end.
"""

import functools
import re
import warnings
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

from lightconv.data.config import PipelineConfig, SideConfig
from lightconv.lazy import needed

# Package of a step, and the extra that installs it.
PACKAGES = {"moses": ("sacremoses", "moses"), "jieba": ("jieba", "chinese")}

# Chinese text has a space between two pieces that end and begin so.
LATIN_ENDS = re.compile(r"[0-9A-Za-z.,!?;:%)\]}]\Z")
LATIN_BEGINS = re.compile(r"[0-9A-Za-z(\[{]")

Step = Callable[[str], str]


class Steps:
    """The steps of one side: `apply` gives words with a space between them, `undo` plain text."""

    def __init__(self, config: SideConfig) -> None:
        self.config = config

    def apply(self, text: str) -> str:
        for step in self._forward:
            text = step(text)
        return text

    # Tokenisers are made when they are first used.
    @functools.cached_property
    def _forward(self) -> list[Step]:
        config = self.config
        steps: list[Step] = []
        if config.normalize == "moses":
            steps.append(_moses_normalizer(config))
        if config.tokenize != "none":
            steps.append(_jieba_split if config.tokenize == "jieba" else _moses_splitter(config))
        if config.lowercase:
            steps.append(str.lower)
        if config.truncate is not None:
            steps.append(functools.partial(_truncate, config.truncate))
        return steps

    @functools.cached_property
    def undo(self) -> Step:
        if self.config.tokenize == "none":
            return str
        return _jieba_join if self.config.tokenize == "jieba" else _moses_joiner(self.config)


def check_packages(config: PipelineConfig) -> None:
    """Raises ValueError that names the extra to install if the package of a step is missing."""
    for side in config.sides:
        for step in (side.normalize, side.tokenize):
            if step in PACKAGES:
                _import(step)


def _import(step: str) -> Any:
    package, extra = PACKAGES[step]
    with needed(f"'{step}'", package, extra), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn about jieba's source
        return import_module(package)


def _truncate(most: int, text: str) -> str:
    if len(text) < 2 * most:  # too short for more words
        return text
    end = 0
    for number, found in enumerate(re.finditer(r"\S+", text)):
        if number == most:
            return text[:end]
        end = found.end()
    return text


def _moses_normalizer(config: SideConfig) -> Step:
    """As the scripts normalize-punctuation.perl and remove-non-printing-char.perl do."""
    normalizer = _import("moses").MosesPunctNormalizer(config.lang, perl_parity=True)
    import regex  # installed with sacremoses

    substitutions = list(normalizer.substitutions)
    if config.lang not in ("en", "cs", "cz", "de", "es", "fr"):  # the last four have these rules
        substitutions[-1:-1] = normalizer.DE_ES_FR_QUOTATION_FOLLOWED_BY_COMMA
    # The script reads bytes, so its classes are those of ASCII; all quotes become double ones.
    double = dict.fromkeys("‘‚’", '"')
    rules = [(re.compile(old, re.ASCII), double.get(old, new)) for old, new in substitutions]
    unprintable = regex.compile(r"\p{C}")

    def normalize(text: str) -> str:
        text += "\n"  # the script's rules see the end of the line
        for pattern, new in rules:
            text = pattern.sub(new, text)
        text = text.strip()
        return text if text.isprintable() else str(unprintable.sub(" ", text))

    return normalize


def _moses_splitter(config: SideConfig) -> Step:
    """As tokenizer.perl did until 2018-11-07, when it began to split every final dot."""
    tokenizer = _import("moses").MosesTokenizer(config.lang)
    import regex

    # Perl's classes; those of sacremoses lack Chinese characters, for one. Also faster.
    classes = {
        tokenizer.IsAlnum: r"\p{Alphabetic}\p{Nd}",
        tokenizer.IsAlpha: r"\p{Alphabetic}",
        tokenizer.IsN: r"\p{N}",
    }

    def mended(rule: tuple[Any, str]) -> tuple[Any, str]:
        pattern = rule[0].pattern
        for old, new in classes.items():
            pattern = pattern.replace(old, new)
        return regex.compile(pattern), rule[1]

    for name in ("PAD_NOT_ISALNUM", "AGGRESSIVE_HYPHEN_SPLIT"):
        setattr(tokenizer, name, mended(getattr(tokenizer, name)))
    for name in ("ENGLISH_SPECIFIC_APOSTROPHE", "FR_IT_SPECIFIC_APOSTROPHE"):
        setattr(tokenizer, name, list(map(mended, getattr(tokenizer, name))))
    prefixes = frozenset(tokenizer.NONBREAKING_PREFIXES)
    tokenizer.NONBREAKING_PREFIXES = prefixes - {"Rs"}  # an abbreviation since 2019
    tokenizer.islower = regex.compile(r"\p{Lowercase}").match
    tokenizer.isanyalpha = regex.compile(r"\p{Alphabetic}").search
    # Spaces for Python but not for Perl, which drops them as control characters.
    dropped = dict.fromkeys(range(0x1C, 0x20))
    return lambda text: " ".join(
        tokenizer.tokenize(text.translate(dropped), aggressive_dash_splits=config.split_hyphens)
    )


def _moses_joiner(config: SideConfig) -> Step:
    detokenizer = _import("moses").MosesDetokenizer(config.lang)

    def join(text: str) -> str:
        words = text.split()
        try:
            return str(detokenizer.detokenize(words))
        except TypeError:  # sacremoses fails on a Czech "-li"
            return str(detokenizer.unescape_xml(" ".join(words)))

    return join


@functools.cache  # its dictionary takes a second to read
def _jieba() -> Any:
    tokenizer = _import("jieba").Tokenizer()
    # By itself it reads a cache from the shared temporary folder, which anybody may have written,
    # and tells so on stderr.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


def _jieba_split(text: str) -> str:
    return " ".join(" ".join(_jieba().cut(text)).split())


def _jieba_join(text: str) -> str:
    words = text.split()
    parts = words[:1]
    for before, word in pairwise(words):
        if LATIN_ENDS.search(before) and LATIN_BEGINS.match(word):
            parts.append(" ")
        parts.append(word)
    return "".join(parts)
