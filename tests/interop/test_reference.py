"""Checkpoints that the original wrote, and what it computed with them. Skipped where absent."""

from pathlib import Path
from typing import Any

import pytest
import torch

import lightconv
from lightconv.commands.models import import_checkpoint
from lightconv.data import load_vocabularies
from lightconv.decode import beam_search
from lightconv.models import Seq2Seq

FIXTURES = Path(__file__).parents[2].parent / "shared" / "fixtures" / "fairseq"
CASES = {
    "v0.6.1/dynamicconv": "checkpoint.pt",
    "cuda/lightconv": "checkpoint.pt",
    "main/lightconv_glu": "checkpoint_last.pt",
}
pytestmark = pytest.mark.skipif(not FIXTURES.is_dir(), reason="no checkpoints of the original")

PAD, EOS = 1, 2
# The original's lengths do not count EOS; ours do.
SEARCHES: dict[str, dict[str, Any]] = {
    "beam4": {"beam": 4, "min_len": 2, "max_len": 41},
    "beam5_lenpen0.6": {"beam": 5, "length_penalty": 0.6, "min_len": 2, "max_len": 41},
    # In spite of its name trigrams do come twice in it (4 4 4 4 4): nothing was blocked.
    "beam4_notrigram_min5_max20": {"beam": 4, "min_len": 6, "max_len": 21},
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The imported model, read back from its folder, and the original's results."""
    folder = FIXTURES / request.param
    out = tmp_path_factory.mktemp("imported") / "model"
    dictionaries = ["--dict", f"{folder}/dict.de.txt", "--dict", f"{folder}/dict.en.txt"]
    checkpoint = str(folder / CASES[request.param])
    assert not import_checkpoint(["fairseq", checkpoint, *dictionaries, "--out", str(out)])
    reference = torch.load(folder / "reference.pt", weights_only=True)
    return out, lightconv.load(out).model, reference


def test_teacher_forcing_is_the_same(case: Any) -> None:
    _, model, reference = case
    with torch.inference_mode():
        found = model(reference["src"], reference["prev"])
        first = model(reference["src"], reference["prev"][:, :9])  # shorter than the kernel of 31
    torch.testing.assert_close(found, reference["teacher_forced"], rtol=0, atol=1e-5)
    torch.testing.assert_close(first, reference["teacher_forced_first9"], rtol=0, atol=1e-5)


def test_steps_are_the_same(case: Any) -> None:
    _, model, reference = case
    with torch.inference_mode():
        state = model.start(model.encode(reference["src"]), 36)
        logits = []
        for place in range(36):
            out, state = model.step(reference["prev"][:, place : place + 1], state)
            logits.append(out)
    torch.testing.assert_close(torch.cat(logits, 1), reference["incremental"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("setting", SEARCHES)
def test_beams_are_the_same(setting: str, case: Any) -> None:
    _, model, reference = case
    assert isinstance(model, Seq2Seq)
    memory = model.encode(reference["src"])
    first = torch.full((len(reference["src"]),), EOS)
    state = model.start(memory, SEARCHES[setting]["max_len"])
    found = beam_search(model.step, state, first, eos=EOS, pad=PAD, **SEARCHES[setting])
    wanted = reference["beams"][setting]
    assert [[h.tokens for h in sentence] for sentence in found] == [
        [list(tokens) for tokens, _, _ in sentence] for sentence in wanted
    ]
    for ours, theirs in zip(found, wanted, strict=True):
        for hypothesis, (_, score, positions) in zip(ours, theirs, strict=True):
            assert hypothesis.score == pytest.approx(float(score), abs=1e-5)
            assert hypothesis.logprobs == pytest.approx(list(map(float, positions)), abs=1e-5)


def test_words_keep_their_ids(case: Any) -> None:
    out, model, _ = case
    source, target = load_vocabularies(out)
    assert (len(source), len(target)) == (model.config.source_vocab, model.config.target_vocab)
    assert source.encode(["s40", "s0"]) == [4, 5]  # the first two lines of dict.de.txt
    assert target.encode(["t40", "t0"]) == [4, 5]
