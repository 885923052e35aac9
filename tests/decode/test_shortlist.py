"""Shortlists: made from counts, stored, and searches with one against those of all words."""

import math
import random
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from lightconv.data.vocabulary import EOS, UNK
from lightconv.decode import DecodeConfig, beam_options, beam_search
from lightconv.decode.engine import Engine
from lightconv.decode.options import Options, SampleConfig, TextOptions
from lightconv.decode.search import ModelSearch, Stream
from lightconv.decode.shortlist import SHORTLIST_FILE, Shortlist, make_shortlist
from lightconv.ops import program
from lightconv.ops.library import native

from .test_engine import SOURCE_V, V, language_model, seq2seq

pytestmark = pytest.mark.skipif(native().library is None, reason="no C++ kernels")
HAS_BF16 = native().library is not None and program.panels().columns[program.BF16_PANEL] > 0
no_bf16 = pytest.mark.skipif(not HAS_BF16, reason="the CPU has no AVX512-BF16")
every_precision = pytest.mark.parametrize(
    "quantize", [None, "int8", pytest.param("bf16", marks=no_bf16)]
)
SOURCES = [[4, 5, 6], [7], [8, 9, 10, 11, 4, 5], [], [12] * 9, [6, 5]]


def shortlist(words: int) -> Shortlist:
    """Random words for each token of the source."""
    generator = torch.Generator().manual_seed(words)
    best = torch.randint(2, V, (SOURCE_V, words), generator=generator, dtype=torch.int32)
    best[::3, -1] = -1
    return Shortlist(best, torch.tensor([3, 9], dtype=torch.int32))


def test_words_that_go_together() -> None:
    """Against the log-likelihood ratio from plain counts of sentences."""
    draw = random.Random(0)
    pairs = []
    for _ in range(300):
        source = [draw.randrange(3, 12) for _ in range(draw.randrange(1, 6))]
        target = [word + 20 for word in source] + [40] * (draw.random() < 0.9)
        pairs.append((np.array(source, np.uint16), np.array(target, np.uint16)))
    found = make_shortlist(iter(pairs), (12, 50), best=3, always=2)
    both = Counter(p for s, t in pairs for p in product(set(s.tolist()), set(t.tolist())))
    ours = Counter(word for s, _ in pairs for word in set(s.tolist()))
    theirs = Counter(word for _, t in pairs for word in set(t.tolist()))

    def ratio(s: int, t: int) -> float:
        n, a = len(pairs), both[s, t]
        cells = [[a, ours[s] - a], [theirs[t] - a, n - ours[s] - theirs[t] + a]]
        rows, columns = [sum(row) for row in cells], [sum(c) for c in zip(*cells, strict=True)]
        every = product(range(2), range(2))
        return sum(
            cells[i][j] * math.log(cells[i][j] * n / (rows[i] * columns[j]))
            for i, j in every
            if cells[i][j]
        )

    for s in range(3, 12):
        likely = [t for t in theirs if both[s, t] * len(pairs) > ours[s] * theirs[t]]
        expected = sorted(likely, key=lambda t: (-ratio(s, t), t))[:3]
        assert [t for t in found.best[s].tolist() if t >= 0] == expected
        assert expected[0] == s + 20
    assert (found.best[:3] == -1).all()
    top = sorted(theirs, key=lambda t: (-theirs[t], t))[:2]
    assert found.always.tolist() == sorted(top) and 40 in top
    expected = {EOS, UNK, 7, *top, *(t for t in found.best[[4, 5]].flatten().tolist() if t >= 0)}
    assert found.choose([4, 5], [7]).tolist() == sorted(expected)


@every_precision
@torch.no_grad()
def test_scores_are_those_of_all_words(quantize: Any) -> None:
    """To the bit, while rows move."""
    model = seq2seq("dynamicconv")
    engines = Engine(model, quantize), Engine(model, quantize, shortlist(5))
    draw = random.Random(1)
    source = [[*(draw.randrange(3, SOURCE_V) for _ in range(n + 1)), EOS] for n in range(6)]
    states = [engine.start(engine.encode_ids(source), 40) for engine in engines]
    for _ in range(12):
        rows = torch.tensor(sorted(draw.choices(range(len(states[0].sentences)), k=7)))
        tokens = torch.tensor([[draw.randrange(3, V)] for _ in rows])
        found = []
        for place, engine in enumerate(engines):
            states[place] = engine.reorder(states[place], rows)
            scores, states[place] = engine.step(tokens, states[place])
            found.append(scores[:, 0])
        real, words = found[1] > -torch.inf, states[1].table[states[1].sentences]
        assert real.any(1).all()
        assert torch.equal(found[1][real], found[0].gather(1, words.long())[real])


@every_precision
@pytest.mark.parametrize("sampling", [None, SampleConfig(top_k=3), SampleConfig()])
def test_company_changes_no_bit(quantize: Any, sampling: Any) -> None:
    """Tokens and score bits of each source are those of it alone, whenever it joined."""
    engine = Engine(seq2seq("lightconv"), quantize, shortlist(9))
    text = TextOptions(shortlist=True, n_best=2)
    decode = DecodeConfig(beam=3, max_len_plus=12, min_len=3, block_ngrams=2)
    search = ModelSearch(engine, Options(decode=decode, text=text, sampling=sampling))
    prefixes = [[], [5, 6, 7], [], [8], [V - 1] * 2, []]
    alone = [
        search([source], [n], [prefix])[0]
        for n, (source, prefix) in enumerate(zip(SOURCES, prefixes, strict=True))
    ]
    stream, found = Stream(search, most=4), {}
    for n, source in enumerate(SOURCES):
        stream.put(n, source, n, prefixes[n])
        found |= {each.row: each.hypotheses for each in stream.advance()}
    while stream:
        found |= {each.row: each.hypotheses for each in stream.advance()}
    for n, prefix in enumerate(prefixes):
        assert found[n] == alone[n]
        words = set(engine._shortlist.choose([*SOURCES[n], EOS], prefix).tolist())  # type: ignore[union-attr]
        for hypothesis in found[n]:
            assert hypothesis.tokens[: len(prefix)] == prefix
            assert set(hypothesis.tokens) <= words


def test_a_shortlist_of_all_words_changes_no_output() -> None:
    every = torch.arange(V, dtype=torch.int32)
    model = seq2seq("attention")
    decode = DecodeConfig(max_len_plus=12)
    none = torch.full((SOURCE_V, 1), -1, dtype=torch.int32)
    searches = [
        ModelSearch(
            Engine(model, None, own),
            Options(decode=decode, text=TextOptions(shortlist=own is not None)),
        )
        for own in (None, Shortlist(none, every))
    ]
    ours, theirs = ([each[0] for each in search(SOURCES, range(6))] for search in searches)
    for a, b in zip(ours, theirs, strict=True):
        assert a.tokens == b.tokens and a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_files_and_what_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no shortlist\.safetensors, expected one"):
        Shortlist.read(tmp_path)
    (tmp_path / SHORTLIST_FILE).write_bytes(save(shortlist(4)._asdict()))
    found = Shortlist.read(tmp_path)
    assert torch.equal(found.best, shortlist(4).best)
    (tmp_path / SHORTLIST_FILE).write_bytes(save({"best": torch.zeros(2)}))
    with pytest.raises(ValueError, match="expected a shortlist"):
        Shortlist.read(tmp_path)
    with pytest.raises(ValueError, match="another vocabulary"):
        Engine(seq2seq("lightconv"), None, Shortlist(found.best[1:], found.always))
    with pytest.raises(ValueError, match="not for a language model"):
        Engine(language_model("lightconv"), None, found)


@every_precision
@pytest.mark.parametrize("block", [0, 2])
def test_prefixes_that_are_read_as_rows(quantize: Any, block: int) -> None:
    """As when each word of them is a step; several lengths in one batch."""
    engine = Engine(seq2seq("dynamicconv"), quantize)
    prefixes = [[5, 6, 7, 8, 9, 10], [], [11], [5, 6, EOS], [12, 13], [7] * 3 if not block else [7]]
    decode = DecodeConfig(beam=3, max_len_plus=9, block_ngrams=block)
    found = ModelSearch(engine, Options(decode=decode))(SOURCES, range(6), prefixes)
    for source, prefix, hypotheses in zip(SOURCES, prefixes, found, strict=True):
        with torch.no_grad():
            state = engine.start(engine.encode(torch.tensor([[*source, EOS]])), 9)
        given = beam_options(decode, [len(source) + 1], eos=EOS, pad=engine.config.pad)
        (expected,) = beam_search(
            engine.step,
            state,
            torch.tensor([EOS]),
            prefix=[prefix],
            reorder=engine.reorder,
            **given,
        )
        assert [h.tokens for h in hypotheses] == [h.tokens for h in expected]
        for ours, theirs in zip(hypotheses, expected, strict=True):
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
