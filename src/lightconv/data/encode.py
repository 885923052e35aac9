"""One side of a pipeline: text -> words -> tokens -> ids, and back."""

from collections.abc import Callable, Iterable
from itertools import chain

from lightconv.data.config import SideConfig
from lightconv.data.subword import Segmenter
from lightconv.data.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary
from lightconv.data.words import Steps

# Words that are remembered with their ids, about 40 MB; then it begins anew.
MOST_REMEMBERED = 1 << 18
LONGEST_REMEMBERED = 64


class Coder:
    """Text to ids and back; each word is segmented once and then remembered."""

    def __init__(self, config: SideConfig, segmenter: Segmenter, vocabulary: Vocabulary) -> None:
        self.steps = Steps(config)
        self.segmenter = segmenter
        self.vocabulary = vocabulary
        self._ids = Remembered(self._encode_unit)

    def words(self, text: str) -> str:
        """The text as tokenised BLEU sees it: words with a space between them, no subwords."""
        return self.steps.apply(text)

    def tokens(self, text: str) -> list[str]:
        """Tokens as they are, also those that the vocabulary does not have."""
        units = self.segmenter.split(self.steps.apply(text))
        return [token for unit in units for token in self.segmenter.segment(unit)]

    def encode(self, text: str) -> list[int]:
        """Ids, without an end of sentence."""
        units = self.segmenter.split(self.steps.apply(text))
        return list(chain.from_iterable(map(self._ids.__getitem__, units)))

    def decode_words(self, ids: Iterable[int]) -> str:
        """What `words` is for text: subwords are joined, words stay as they are."""
        shown = [place for place in ids if place not in (BOS, PAD, EOS)]
        return self.segmenter.join(self.vocabulary.decode(shown))

    def decode(self, ids: Iterable[int]) -> str:
        """Plain text; what is unknown is shown as <unk>, other special tokens not at all."""
        return self.steps.undo(self.decode_words(ids))

    def _encode_unit(self, unit: str) -> list[int]:
        ids = self.vocabulary.encode(self.segmenter.segment(unit))
        # A word that looks like a special token is none.
        return [place if place >= SPECIALS else UNK for place in ids]


class Remembered(dict[str, list[int]]):
    """What `make` gives for a word, made when it is first asked for."""

    def __init__(self, make: Callable[[str], list[int]]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, unit: str) -> list[int]:
        made = self.make(unit)
        if len(unit) <= LONGEST_REMEMBERED:
            if len(self) >= MOST_REMEMBERED:
                self.clear()
            self[unit] = made
        return made
