"""Bands of words: against their definition, against torch's own softmax, and what they share."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightconv.models import AdaptiveConfig
from lightconv.models.embedding import AdaptiveEmbedding, AdaptiveOutput, Transposed

PAD = 1
VOCAB, DIM = 23, 16
CONFIG = AdaptiveConfig(cutoffs=(7, 12), factor=2)
BANDS = [(0, 7, 16), (7, 12, 8), (12, 23, 4)]

TIES = {
    "words": CONFIG,
    "projections": dataclasses.replace(CONFIG, tie_projections=True),
    "nothing": dataclasses.replace(CONFIG, tie_words=False),
}
every_tie = pytest.mark.parametrize("tie", TIES)


def build(
    config: AdaptiveConfig = CONFIG, *, pad: int = PAD, dtype: torch.dtype = torch.float64
) -> tuple[AdaptiveEmbedding, AdaptiveOutput]:
    torch.manual_seed(0)
    embedding = AdaptiveEmbedding(VOCAB, DIM, pad, config).to(dtype)
    return embedding, embedding.output(tied=True).to(dtype)


def features(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(n, DIM, dtype=dtype, generator=torch.Generator().manual_seed(1))


def log_probabilities(embedding: AdaptiveEmbedding, output: AdaptiveOutput, x: Tensor) -> Tensor:
    """The definition, word by word: x [n, D] -> [n, V]."""
    words = [each.weight for each in output.words]
    head = torch.cat([words[0], output.classes.weight])
    columns = []
    for word in range(VOCAB):
        if word < 7:
            columns.append((x @ head.T).softmax(-1)[:, word])
            continue
        place = 1 if word < 12 else 2
        first, _, width = BANDS[place]
        if embedding.config.tie_projections:
            project = embedding.projections[place].weight
        else:
            project = output.projections[place - 1].weight.T
        assert project.shape == (DIM, width)
        inside = (x @ project @ words[place].T).softmax(-1)[:, word - first]
        columns.append((x @ head.T).softmax(-1)[:, 7 + place - 1] * inside)
    return torch.stack(columns, dim=1).log()


@every_tie
def test_scores_and_nll_are_the_definition(tie: str) -> None:
    embedding, output = build(TIES[tie])
    target = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2))
    x = features(VOCAB)
    expected = log_probabilities(embedding, output, x)
    torch.testing.assert_close(output.nll(x, target), -expected[torch.arange(VOCAB), target])
    x = x[:5]
    scores = output.scores(x)
    torch.testing.assert_close(scores, expected[:5])
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(5, dtype=torch.float64))
    # A softmax of log-probabilities changes nothing, so that a search may take them for logits.
    torch.testing.assert_close(scores.log_softmax(-1), scores)
    assert torch.equal(output.scores(x.view(5, 1, DIM)), scores.view(5, 1, VOCAB))


@pytest.mark.parametrize("words", [[0, 6], [7, 11], [12, 22], [3, 13], []], ids=str)
def test_nll_when_bands_stay_empty(words: list[int]) -> None:
    embedding, output = build()
    target, x = torch.tensor(words, dtype=torch.int64), features(len(words))
    loss = output.nll(x, target)
    expected = -log_probabilities(embedding, output, x).gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(loss, expected)
    loss.sum().backward()
    for name, parameter in output.named_parameters():
        assert parameter.grad is not None, name  # zeros, so that processes can add them up


def test_nll_never_scores_the_rarer_words_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    _, output = build()
    shapes: list[tuple[int, ...]] = []
    linear = F.linear

    def spy(*arguments: Tensor) -> Tensor:
        out = linear(*arguments)
        shapes.append(tuple(out.shape))
        return out

    monkeypatch.setattr(F, "linear", spy)
    output.nll(features(9), torch.tensor([0, 1, 2, 3, 8, 12, 13, 14, 6]))
    assert sorted(shape for shape in shapes if shape[1] in (5, 11)) == [(1, 5), (3, 11)]
    assert all(shape[1] < VOCAB for shape in shapes)


@pytest.mark.parametrize("factor", [2, 4])
def test_it_is_the_adaptive_softmax_of_torch(factor: int) -> None:
    _, output = build(AdaptiveConfig(cutoffs=(7, 12), factor=factor, tie_words=False))
    theirs = nn.AdaptiveLogSoftmaxWithLoss(DIM, VOCAB, [7, 12], factor, head_bias=False).double()
    with torch.no_grad():
        theirs.head.weight.copy_(torch.cat([output.words[0].weight, output.classes.weight]))
        for place, tail in enumerate(theirs.tail, start=1):
            tail[0].weight.copy_(output.projections[place - 1].weight)
            tail[1].weight.copy_(output.words[place].weight)
    x, target = features(40), torch.arange(40) % VOCAB
    torch.testing.assert_close(output.scores(x), theirs.log_prob(x))
    torch.testing.assert_close(output.nll(x, target), -theirs(x, target).output)


@pytest.mark.parametrize("tie", ["words", "projections"])
def test_gradients(tie: str) -> None:
    config = dataclasses.replace(TIES[tie], cutoffs=(3, 5))
    torch.manual_seed(0)
    embedding = AdaptiveEmbedding(8, 4, PAD, config).double()
    output = embedding.output(tied=True).double()
    tokens, target = torch.tensor([[0, 3, 7, 4, 2]]), torch.tensor([5, 1, 7, 3, 0])
    names = [*dict(output.named_parameters()), *dict(embedding.named_parameters())]
    parameters = [*output.parameters(), *embedding.parameters()]
    assert len(names) > len({id(parameter) for parameter in parameters})  # something is tied

    def losses(*_: Tensor) -> tuple[Tensor, Tensor]:
        x = embedding(tokens)[0]
        return output.nll(x, target), output.scores(x)

    assert torch.autograd.gradcheck(losses, list({id(p): p for p in parameters}.values()))


def test_dropout_acts_on_the_projected_bands_only() -> None:
    _, output = build(dataclasses.replace(CONFIG, dropout=0.5))
    x, target = features(50), torch.arange(50) % VOCAB
    quiet = output.eval().nll(x, target)
    assert torch.equal(output.nll(x, target), quiet)
    loud = output.train().nll(x, target)
    assert torch.equal(loud[target < 7], quiet[target < 7])
    assert (loud != quiet)[target >= 7].float().mean() > 0.8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_and_narrow_parameters(dtype: torch.dtype) -> None:
    embedding, output = build(dtype=torch.float32)
    tokens = torch.arange(2 * VOCAB).view(2, VOCAB) % VOCAB
    target = tokens.flatten().flip(0)
    exact = output.nll(embedding(tokens).flatten(0, 1), target)
    with torch.autocast("cpu", dtype):
        x = embedding(tokens).flatten(0, 1)
        loss, scores = output.nll(x, target), output.scores(x)
    assert loss.dtype == scores.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.0, atol=0.05)
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(len(target)))
    loss.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in output.parameters())
    x = embedding.to(dtype)(tokens).flatten(0, 1)
    assert x.dtype == dtype
    loss = output.to(dtype).nll(x, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.0, atol=0.05)


@pytest.mark.parametrize("pad", [1, 8, 22])
def test_embedding_is_the_definition(pad: int) -> None:
    embedding, _ = build(pad=pad)
    tokens = torch.arange(VOCAB).view(1, VOCAB)
    x = embedding(tokens)
    for word in range(VOCAB):
        place = 0 if word < 7 else 1 if word < 12 else 2
        row = embedding.words[place].weight[word - BANDS[place][0]]
        assert row.shape == (BANDS[place][2],)
        projected = embedding.projections[place].weight @ row
        torch.testing.assert_close(x[0, word], projected * DIM**0.5)
        assert torch.all(row == 0.0).item() == (word == pad)


def test_only_the_words_that_are_read_learn() -> None:
    embedding, _ = build()
    embedding(torch.tensor([[4, 9, PAD]])).square().sum().backward()
    touched = [
        first + row
        for (first, _, _), words in zip(BANDS, embedding.words, strict=True)
        for row in words.weight.grad.abs().sum(1).nonzero()[:, 0].tolist()
    ]
    assert touched == [4, 9]


def test_what_is_no_word_is_an_error() -> None:
    embedding, output = build()
    for word in (-1, VOCAB, VOCAB + 100):
        with pytest.raises(IndexError):
            embedding(torch.tensor([[3, word]]))
        with pytest.raises(IndexError):
            output.nll(features(2), torch.tensor([3, word]))


def test_initialisation() -> None:
    config = AdaptiveConfig(cutoffs=(1000, 3000), factor=2)
    torch.manual_seed(0)
    embedding = AdaptiveEmbedding(6000, 64, PAD, config)
    output = embedding.output(tied=False)
    for words in (embedding.words, output.words):
        for each, width in zip(words, (64, 32, 16), strict=True):
            assert each.weight.std().item() == pytest.approx(width**-0.5, rel=0.02)
            assert each.weight.mean().abs() < 0.01
        assert torch.all(words[0].weight[PAD] == 0.0)
        assert all(torch.any(row != 0.0) for row in (words[1].weight[PAD], words[2].weight[PAD]))
    projections = [*embedding.projections, *output.projections, output.classes]
    for each, width in zip(projections, (64, 32, 16, 32, 16, 2), strict=True):
        assert each.bias is None
        bound = (6 / (64 + width)) ** 0.5
        assert each.weight.abs().max().item() == pytest.approx(bound, rel=0.05)
        assert each.weight.abs().max() <= bound


def test_what_is_tied_is_one_parameter() -> None:
    counts = {}
    for name, config in TIES.items():
        embedding, output = build(config)
        both = nn.ModuleList([embedding, output])
        counts[name] = sum(parameter.numel() for parameter in both.parameters())
    words = sum((end - first) * width for first, end, width in BANDS)
    inputs, outputs, classes = DIM * (16 + 8 + 4), DIM * (8 + 4), 2 * DIM
    assert counts["words"] == words + inputs + outputs + classes
    assert counts["projections"] == words + inputs + classes
    assert counts["nothing"] == 2 * words + inputs + outputs + classes
    embedding, _ = build(TIES["projections"])
    alone = embedding.output(tied=False)
    assert not {id(p) for p in alone.parameters()} & {id(p) for p in embedding.parameters()}
    assert not any(isinstance(module, Transposed) for module in alone.modules())


@pytest.mark.parametrize("tie", ["words", "projections"])
def test_what_is_tied_stays_tied_on_another_device(tie: str) -> None:
    with torch.device("meta"):
        embedding = AdaptiveEmbedding(VOCAB, DIM, PAD, TIES[tie])
        both = nn.ModuleList([embedding, embedding.output(tied=True)])
    before = sum(parameter.numel() for parameter in both.parameters())
    both.to_empty(device="cpu")
    assert sum(parameter.numel() for parameter in both.parameters()) == before
