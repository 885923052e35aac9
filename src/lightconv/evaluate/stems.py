"""Words as the script ROUGE-1.5.5 with -m compares them: irregular forms, then Porter's stemmer.

Porter (1980), An algorithm for suffix stripping, with his later rules "bli" and "logi" and the
script's own step 4, which tries "ment" and "ent" also on the rest of a word that lost a suffix.
"""

import hashlib
import re
from functools import cache, lru_cache
from pathlib import Path

# A word and its base form on each line; irregular.LICENSE has their origin.
IRREGULAR = Path(__file__).with_name("irregular.txt")
# The script looks up and stems words that are longer than this.
SHORT = 3
# Steps 2 and 3: endings and their replacements.
_STEP_2 = {
    **{"ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize"},
    **{"bli": "ble", "alli": "al", "entli": "ent", "eli": "e", "ousli": "ous"},
    **{"ization": "ize", "ation": "ate", "ator": "ate", "alism": "al", "iveness": "ive"},
    **{"fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble"},
    "logi": "log",
}
_STEP_3 = {"icate": "ic", "alize": "al", "iciti": "ic", "ical": "ic"}
# Of several endings the longest counts; the measure of the rest must exceed a number.
_STEPS = [
    (re.compile(f"({endings.replace(' ', '|')})$"), instead, measure)
    for endings, instead, measure in (
        (" ".join(_STEP_2), _STEP_2, 0),
        ("icate ative alize iciti ical ful ness", _STEP_3, 0),
        ("al ance ence er ic able ible ant ement ou ism ate iti ous ive ize", {}, 1),
        ("ment", {}, 1),
        ("ent (?<=[st])ion", {}, 1),
    )
]


def split_words(text: str) -> list[str]:
    """The words of a text, as stems; only ASCII letters and digits are part of a word."""
    words = re.findall(rb"[a-z0-9]+", text.encode(errors="surrogatepass").lower())
    return [_base(word.decode()) for word in words]


@lru_cache(1 << 16)
def _base(word: str) -> str:
    return word if len(word) <= SHORT else irregular_forms().get(word) or stem(word)


@cache
def irregular_forms() -> dict[str, str]:
    """Base forms by word."""
    lines = IRREGULAR.read_text(encoding="ascii").splitlines()
    return dict(line.split() for line in lines)


@cache
def irregular_digest() -> str:
    """The first digits of the SHA-256 digest of the list."""
    return hashlib.sha256(IRREGULAR.read_bytes()).hexdigest()[:8]


def stem(word: str) -> str:
    """The stem of a word in lower case."""
    word = re.sub("(?<=ss)es$|(?<=i)es$|(?<=[^s])s$", "", word)
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    elif "v" in _shape(rest := re.sub("(ed|ing)$", "", word)) and rest != word:
        word = _repair(rest)
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = f"{word[:-1]}i"
    for endings, instead, measure in _STEPS:
        if (found := endings.search(word)) and _measure(word[: found.start()]) > measure:
            word = word[: found.start()] + instead.get(found[0], "")
    if word.endswith("e"):
        rest = word[:-1]
        if _measure(rest) > 1 or (_measure(rest) == 1 and not _is_short(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _repair(word: str) -> str:
    """A word that lost "ed" or "ing": conflat is conflate, hopp is hop, fil is file."""
    if word.endswith(("at", "bl", "iz")):
        return f"{word}e"
    if re.search(r"([^aeiouylsz])\1$", word):
        return word[:-1]
    return f"{word}e" if _is_short(word) else word


def _shape(word: str) -> str:
    """Its letters as c, consonant, or v, vowel; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    return _shape(word).count("vc")


def _is_short(word: str) -> bool:
    return re.fullmatch("c+vc", _shape(word)) is not None and word[-1] not in "wxy"
