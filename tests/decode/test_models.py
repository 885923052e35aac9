"""The search over tiny models: attention, alignments, a source shared by its hypotheses."""

import itertools
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lightconv.decode import Hypothesis, beam_search
from lightconv.decode.score import align
from lightconv.mixers import reorder
from lightconv.models import Seq2Seq
from lightconv.models.seq2seq import Seq2SeqState

from ..models.examples import EOS, PAD, SOURCE_VOCAB, seq2seq, tokens

Found = list[list[Hypothesis]]


def sources(B: int, seed: int = 0) -> Tensor:
    """[B, 7], of 1 to 7 tokens, padded on the right."""
    source = tokens(B, 7, SOURCE_VOCAB, seed)
    lengths = 1 + torch.arange(B) % 7
    return source.masked_fill(torch.arange(7) >= lengths[:, None], PAD)


def search(model: Seq2Seq, source: Tensor, *, max_len: int = 8, **options: Any) -> Found:
    state = model.start(model.encode(source), max_len)
    first, step = torch.full((len(source),), EOS), options.pop("step", model.step)
    return beam_search(step, state, first, eos=EOS, pad=PAD, max_len=max_len, **options)


def texts(found: Found) -> list[list[list[int]]]:
    return [[h.tokens for h in hypotheses] for hypotheses in found]


@pytest.mark.parametrize("layer", [0, -1])
def test_attention_of_a_layer(layer: int) -> None:
    model, source = seq2seq("dynamicconv"), sources(5)
    with pytest.raises(ValueError, match="layer=2 must be one of 2 decoder layers"):
        search(model, source, beam=3, step=partial(model.step_attending, layer=2))
    found = search(model, source, beam=3, step=partial(model.step_attending, layer=layer))
    assert texts(found) == texts(search(model, source, beam=3))
    decoder: Any = model.decoder[layer]
    seen: list[Tensor] = []
    decoder.source.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    for row, hypotheses in zip(source, found, strict=True):
        for h in hypotheses:
            real = row[None, row != PAD]
            seen.clear()
            with torch.inference_mode():
                model(real, torch.tensor([[EOS, *h.tokens[:-1]]]))
                memory = model.encode(real).output
                keys = decoder.source.kv_proj(memory)[..., :8]
                queries = decoder.source.q_proj(seen[0])
                heads = [
                    (queries[0, :, i : i + 4] @ keys[0, :, i : i + 4].T / 2).softmax(-1)
                    for i in (0, 4)
                ]
            expected = (heads[0] + heads[1]) / 2
            assert h.attention is not None
            S = real.shape[1]
            torch.testing.assert_close(h.attention[:, :S], expected.float(), atol=1e-5, rtol=0)
            assert h.attention[:, S:].eq(0).all()


# --- Alignments

READ = [[4, 5, 6], [7], [], [5, 4, 4, 6, 7, 5]]


def attend(model: Seq2Seq, source: list[int], target: list[int]) -> torch.Tensor:
    """[T, S] without EOS: the target is forced, one token at a time."""
    options = {"step": model.step_attending, "prefix": [target]}
    read = torch.tensor([[*source, EOS]])
    ((found,),) = search(model, read, beam=1, max_len=len(target) + 1, **options)
    assert found.tokens == [*target, EOS] and found.attention is not None
    return found.attention[:-1, :-1]


@pytest.mark.parametrize("kinds", [["dynamicconv"], ["dynamicconv", "attention"]])
def test_a_token_comes_from_where_the_last_layers_look(kinds: list[str]) -> None:
    models = [seq2seq(kind) for kind in kinds]
    targets = [[5, 4], [4, 4, 6, 7, 5], [4, 5], []]
    found = align(models, READ, targets)
    for source, target, pairs in zip(READ, targets, found, strict=True):
        looks = [attend(model, source, target) for model in models if source and target]
        best = torch.stack(looks).mean(0).argmax(1).tolist() if looks else []
        assert pairs == [(s, t) for t, s in enumerate(best)]
    assert {s for pairs in found for s, _ in pairs} - {0}, "not always the first"
    assert align(models, [], []) == []


# --- The source


def test_the_source_is_there_once_for_all_hypotheses() -> None:
    model, source = seq2seq("dynamicconv"), sources(6)
    seen: list[tuple[int, int, int]] = []

    def step(tokens: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        keys = state.layers[0].source.keys
        assert len(keys) == len(state.padding)
        seen.append((len(tokens), len(keys), keys.data_ptr()))
        logits, state = model.step(tokens, state)
        # Ever more willing to end: outputs get several lengths.
        logits[..., EOS] += 0.4 * state.position
        return logits, state

    search(model, source, beam=4, max_len=9, step=step)
    assert seen[0][:2] == (6, 6)
    for (_, sentences, place), (rows, after, next_place) in itertools.pairwise(seen):
        assert rows == 4 * after
        # Copied only when a sentence leaves.
        assert (place == next_place) == (sentences == after)
    assert len({sentences for _, sentences, _ in seen}) > 1


@pytest.mark.parametrize(
    "rows, shared",
    [
        ([0, 1, 2, 3, 4, 5], 3),
        ([1, 1, 3, 2, 5, 4], 3),
        ([4, 5, 0, 0], 2),
        ([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], 2),
        ([0, 2, 4], 3),
        ([4, 0, 1, 2], 4),
        ([5], 1),
        ([], 0),
    ],
)
def test_rows_of_a_shared_source_move_anywhere(rows: list[int], shared: int) -> None:
    model, source = seq2seq("mixed"), sources(3, seed=4)
    begin, more = tokens(6, 3), tokens(len(rows), 2, seed=2)
    chosen = torch.tensor(rows, dtype=torch.int64)
    with torch.inference_mode():
        pairs = reorder(model.start(model.encode(source), 9), torch.arange(6) // 2)
        assert len(pairs.padding) == 3
        _, state = model.step(begin, pairs)
        moved = reorder(state, chosen)
        assert len(moved.padding) == shared
        found, _ = model.step(more, moved)
        target = torch.cat([begin[chosen], more], dim=1)
        expected = model(source[chosen // 2], target)[:, 3:]
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "decoding.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == 4
    model = seq2seq("mixed", torch.float32)
    names = {"model": model, "models": [model] * 2, "source": sources(3), "EOS": EOS, "PAD": PAD}
    with torch.inference_mode():
        for block in blocks:
            exec(block, names)
    assert "tensor([" in capsys.readouterr().out
