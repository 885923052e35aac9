"""The search in C++ against those in Python: rules, ties, draws, joining and leaving."""

import ctypes
import random
from dataclasses import asdict
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from lightconv.decode import DecodeConfig, Hypothesis, beam_search, sample
from lightconv.decode.engine import Engine
from lightconv.decode.native import EngineSearch, SearchTask
from lightconv.decode.options import Options, SampleConfig, TextOptions
from lightconv.decode.search import ModelSearch, Request, derive_seed
from lightconv.ops.library import native

from .tables import Table, Told, define
from .test_beam import problems
from .test_engine import EOS, PAD, SOURCE_V, V, every_kind, language_model, seq2seq

pytestmark = pytest.mark.skipif(native().library is None, reason="no C++ kernels")
SOURCES = [[5, 6, 7], [4], [8, 9, 10, 11, 4, 5, 12], [13, 3, 3], [20, 21]]
PREFIXES: list[list[int]] = [[], [5, 6, 7], [8], [], [9, 9]]


def scripted(table: Table, beam: int, told: list[Told]) -> list[list[Hypothesis]]:
    """The search of the engine's search over scores that are written for it."""
    rules = told[0]
    config = DecodeConfig(beam=beam, block_ngrams=rules.block)
    running = EngineSearch(
        Engine(language_model("lightconv", vocab=table.logits.shape[-1])), Options(decode=config)
    )
    task, forbidden = running._task, (ctypes.c_int64 * len(rules.forbidden))(*rules.forbidden)
    task.forbidden, task.forbidden_count = ctypes.addressof(forbidden), len(forbidden)
    running._run.count = 0
    requests = [
        Request(b, [], 1, each.prefix, (each.min_len, each.max_len)) for b, each in enumerate(told)
    ]
    running.add(requests)
    found: dict[int, list[Hypothesis]] = {}
    while len(running):
        t, rows = running._tables, running._rows
        for row in range(rows):
            place = int(t["sentences"][row])
            read = t["words"][row, : t["length"][place]].tolist()
            b = running._kept[place][0]
            running._scores[row] = table.logits[b, len(read), table.digest(read)].float()
        found |= dict(running.advance())
    return [found[b] for b in range(len(told))]


@settings(max_examples=150, deadline=None)
@given(problems())
def test_all_rules_follow_the_definition(problem: tuple[Table, int, list[Told]]) -> None:
    table, beam, told = problem
    table.logits = table.logits.float().double()
    found = scripted(table, beam, told)
    for b, rules in enumerate(told):
        scores, tokens = zip(*define(table, b, beam, rules, lambda n: n), strict=True)
        assert [h.tokens for h in found[b]] == [*tokens]
        assert [h.score for h in found[b]] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_equal_sums_follow_the_definition(beam: int) -> None:
    for seed in range(30):
        table = Table(2, 6, 5, seed)
        table.logits = (table.logits / 4).round()
        found = scripted(table, beam, [Told(5)] * 2)
        expected = table.search(beam=beam, max_len=5)
        assert [[h.tokens for h in each] for each in found] == [
            [h.tokens for h in each] for each in expected
        ]


def test_what_is_no_number_ends() -> None:
    table = Table(2, 9, 6, 1)
    table.logits[0, 3:] = torch.nan
    found, expected = scripted(table, 3, [Told(6)] * 2), Table(2, 9, 6, 1).search(beam=3, max_len=6)
    assert [h.tokens for h in found[1]] == [h.tokens for h in expected[1]]
    assert len(found[0]) < 3 and all(len(h.tokens) <= 3 for h in found[0])


CONFIGS: list[dict[str, Any]] = [
    {"beam": 4, "max_len_plus": 9},
    {"beam": 1, "max_len_plus": 9, "block_ngrams": 2},
    {"beam": 3, "max_len_plus": 12, "min_len": 6, "alpha": 0.4, "allow_unknown": False},
    {"max_len_plus": 9, "sampling": SampleConfig(seed=3)},
    {"max_len_plus": 9, "block_ngrams": 1, "sampling": SampleConfig(temperature=3.0, top_p=0.7)},
    {"max_len_plus": 9, "min_len": 4, "sampling": SampleConfig(top_k=5, top_p=0.9)},
]


def options_of(config: dict[str, Any]) -> Options:
    decode = {name: value for name, value in config.items() if name != "sampling"}
    text = TextOptions(n_best=3 if "sampling" in config else 1)
    return Options(decode=DecodeConfig(**decode), text=text, sampling=config.get("sampling"))


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("config", CONFIGS)
@every_kind
def test_it_is_the_search_in_python(kind: str, config: dict[str, Any], quantize: Any) -> None:
    engine, options = Engine(seq2seq(kind), quantize), options_of(config)
    search = ModelSearch(engine, options)
    found = search(SOURCES, range(5), PREFIXES)
    limits = [search.request(0, source).limits for source in SOURCES]
    least, most = zip(*limits, strict=True)
    encoded = engine.encode_ids([[*source, EOS] for source in SOURCES])
    rules: dict[str, Any] = {
        "min_len": least,
        "max_len": most,
        "eos": EOS,
        "forbidden": [PAD] if options.decode.allow_unknown else [PAD, 3],
        "block_ngrams": options.decode.block_ngrams,
        "prefix": PREFIXES,
        "length_penalty": options.decode.alpha,
        "reorder": engine.reorder,
    }
    first, state = torch.full((5,), EOS), engine.start(encoded, max(most))
    if options.sampling is None:
        expected = beam_search(engine.step, state, first, beam=options.decode.beam, **rules)
    else:
        drawn = asdict(options.sampling)
        seed = drawn.pop("seed")
        seeds = [derive_seed(seed, n) for n in range(5)]
        expected = sample(engine.step, state, first, seeds=seeds, samples=3, **drawn, **rules)
    for ours, theirs in zip(found, expected, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
            assert one.score == pytest.approx(other.score, abs=1e-5)


@pytest.mark.parametrize("quantize", [None, "int8"])
@pytest.mark.parametrize("make", [seq2seq, language_model])
@every_kind
def test_texts_join_and_leave_at_any_step(make: Any, kind: str, quantize: str | None) -> None:
    """Each has the tokens and score bits it has alone, whatever was read at once and who left."""
    draw = random.Random(f"{kind} {quantize}")
    engine = Engine(make(kind), quantize)
    decode = DecodeConfig(beam=2, max_len_plus=20, min_len=4, block_ngrams=3)
    text = TextOptions(n_best=2)
    for sampling in (None, SampleConfig(top_k=8)):
        search = ModelSearch(engine, Options(decode=decode, text=text, sampling=sampling))
        requests = []
        for n in range(14):
            words = V if make is language_model else SOURCE_V
            source = [draw.randrange(3, words) for _ in range(n % 5 + 1)]
            count = draw.choice([0, 0, 2, 9]) if engine.pairs else 0
            prefix = [draw.randrange(3, V) for _ in range(count)]
            requests.append(search.request(n, source, n, prefix))

        def alone(request: Request, search: ModelSearch = search) -> list[Hypothesis]:
            running = search.begin()
            search.add(running, [request])
            found = []
            while len(running):
                found += running.advance()
            return found[0][1]

        running, waiting, gone = search.begin(), [*requests], set[int]()
        found: dict[int, list[Hypothesis]] = {}
        going: list[int] = []
        while waiting or len(running):
            if waiting and (not going or draw.random() < 0.5):
                some = [waiting.pop() for _ in range(min(len(waiting), draw.choice([1, 1, 3])))]
                search.add(running, some)
                going += [each.key for each in some]
            left = dict(running.advance(draw.choice([1, 3]), draw.choice([0.0, 1e-9, 1e-4])))
            found |= left
            going = [key for key in going if key not in left]
            if going and draw.random() < 0.2:
                key = going.pop(draw.randrange(len(going)))
                gone.add(key)
                running.cancel([key])
        assert 0 < len(gone) < len(requests)
        for request in requests:
            if request.key not in gone:
                assert found[request.key] == alone(request), request


def test_the_struct_is_that_of_the_library() -> None:
    library = native().library
    assert library is not None
    library.lightconv_search_bytes.restype = ctypes.c_int64
    assert library.lightconv_search_bytes() == ctypes.sizeof(SearchTask)
