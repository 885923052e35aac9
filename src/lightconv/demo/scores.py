"""What the trained model is worth on held-out text, beside systems that have no model."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from lightconv.config import to_dict
from lightconv.console import Display
from lightconv.data.prepared import Prepared
from lightconv.decode import DecodeConfig
from lightconv.decode.text import TextModel
from lightconv.evaluate.comparison import copy_baseline, nearest_baseline, unigram_baseline
from lightconv.evaluate.signature import Score
from lightconv.evaluate.system import (
    Forms,
    evaluate_pairs,
    evaluate_texts,
    find_metrics,
    of_references,
    of_texts,
    score_forms,
    sign_perplexity,
)
from lightconv.models import LanguageModel

SPLIT = "test"
# Texts that are shown, and how long their sources may be, in words.
SHOWN = 6
FEWEST_WORDS = 6
MOST_WORDS = {"translation": 18, "lm": 24, "summary": 60}
# A language model is given so many words of a text, and says at most so many tokens.
PROMPT = 4
CONTINUES = 30

Floor = Callable[[Prepared, str, int | None], Forms]
Scores = dict[str, list[dict[str, Any]]]


def lead_floor(prepared: Prepared, split: str, most: int | None = None) -> Forms:
    """The first words of every source, as many as a summary of validation has on average."""
    known = prepared.references("valid")
    count = max(1, round(sum(len(text.split()) for text in known) / max(1, len(known))))
    texts = [_lead(text, count) for text in islice(prepared.texts(split, "source"), most)]
    return of_texts(prepared, texts, tokenized=prepared.tokenized)


FLOORS: dict[str, dict[str, Floor]] = {
    "translation": {"copy": copy_baseline, "nearest": nearest_baseline},
    "summary": {"lead": lead_floor, "nearest": nearest_baseline},
}


def score(
    task: str,
    model: TextModel,
    prepared: Prepared,
    decode: DecodeConfig,
    limit: int | None,
    display: Display,
) -> Scores:
    """The scores of the model and of each floor on the first `limit` lines of the test set."""
    count = count_lines(prepared, limit)
    if isinstance(model.model, LanguageModel):
        display.show("scoring the test set")
        found = evaluate_texts(model.model, prepared, SPLIT, most=limit)
        display.show("scoring a model that counts words")
        floor = sign_perplexity(prepared, SPLIT, unigram_baseline(prepared, SPLIT, limit), count)
        return {"model": [found.plain()], "unigram": [floor.plain()]}
    metrics = find_metrics(prepared)
    _, _, scores = evaluate_pairs(
        model.model,
        prepared,
        SPLIT,
        decode,
        metrics,
        most=limit,
        show=lambda done: display.show("decoding the test set", done, count),
    )
    result = {"model": _plain(scores)}
    references = of_references(prepared, SPLIT).first(count)
    for name, make in FLOORS[task].items():
        display.show(f"scoring without a model: {name}")
        forms = make(prepared, SPLIT, limit)
        floors = score_forms(prepared, SPLIT, forms, metrics, {"floor": name}, references)
        result[name] = _plain(floors)
    display.end()
    return result


def count_lines(prepared: Prepared, limit: int | None) -> int:
    """How many lines of the test set are scored."""
    count = len(prepared.store(SPLIT))
    return count if limit is None else min(limit, count)


def answer_examples(
    task: str, model: TextModel, prepared: Prepared, decode: DecodeConfig
) -> list[dict[str, str]]:
    """What the model says to a handful of texts of the test set, chosen by a rule."""
    sources = list(prepared.texts(SPLIT, prepared.sides[0]))
    references = prepared.references(SPLIT)
    rows = choose(sources, MOST_WORDS[task])
    texts = [sources[row] for row in rows]
    if model.pairs:
        say = model.summarize if task == "summary" else model.translate
        outputs = say(texts, **to_dict(decode))
    else:
        texts = [" ".join(text.split()[:PROMPT]) for text in texts]
        outputs = model.generate(
            texts, sample=True, temperature=0.8, top_k=40, seed=1, max_len_plus=CONTINUES
        )
    found = zip(texts, outputs, (references[row] for row in rows), strict=True)
    return [{"source": a, "output": b, "reference": c} for a, b, c in found]


def choose(sources: Sequence[str], most: int) -> list[int]:
    """Rows at even distances from all whose source has a moderate number of words."""
    rows = [i for i, text in enumerate(sources) if FEWEST_WORDS <= len(text.split()) <= most]
    rows = rows or list(range(len(sources)))
    shown = min(SHOWN, len(rows))
    return [rows[place * len(rows) // shown] for place in range(shown)]


def _lead(text: str, count: int) -> str:
    """Its first `count` words, or its first sentence where that is shorter."""
    words = text.split()[:count]
    ends = [place for place, word in enumerate(words, 1) if word.endswith((".", "!", "?"))]
    return " ".join(words[: ends[0]] if ends else words)


def _plain(scores: Sequence[Score]) -> list[dict[str, Any]]:
    return [each.plain() for each in scores]
