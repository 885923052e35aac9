"""Model folders in transformers: the Auto classes give the texts of our own search."""

from pathlib import Path

import pytest
import torch

import lightconv

pytest.importorskip("transformers", reason="an extra: pip install 'lightconv[transformers]'")

from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import lightconv.auto
from tests.fitting.test_run import make_pairs


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("auto") / "m"
    how = {"size": "nano", "settings": ["train.max_steps=60"]}
    lightconv.fit(make_pairs(), out, source_lang="xx", target_lang="yy", **how)
    return out


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("auto") / "m"
    lines = [source for source, _ in make_pairs()]
    lightconv.fit(lines, out, size="nano", settings=["train.max_steps=60"])
    return out


SOURCES = ["ab cd", "ef gh ij kl mn op", "wx"]


def test_generate_gives_the_texts_of_our_search(pairs: Path) -> None:
    model = AutoModelForSeq2SeqLM.from_pretrained(pairs, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(pairs)
    given = tokenizer(SOURCES, return_tensors="pt", padding=True)
    own = lightconv.load(pairs)
    assert tokenizer.batch_decode(model.generate(**given)) == own.translate(SOURCES)
    wide = model.generate(**given, num_beams=3, num_return_sequences=2, length_penalty=0.5)
    answers = own.answers(SOURCES, beam=3, n_best=2, alpha=0.5)
    wanted = [output.text for answer in answers for output in answer.outputs]
    assert tokenizer.batch_decode(wide, skip_special_tokens=True) == wanted
    with pytest.raises(ValueError, match="no option 'num_beam_groups'"):
        model.generate(**given, num_beam_groups=2)


def test_a_language_model_continues(texts: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(texts)
    tokenizer = AutoTokenizer.from_pretrained(texts)
    given = tokenizer(["ab cd", "ef"], return_tensors="pt")
    found = tokenizer.batch_decode(model.generate(**given, max_new_tokens=5))
    assert found == lightconv.load(texts).generate(["ab cd", "ef"], max_len_plus=5)


def test_losses_are_those_of_the_model(pairs: Path, texts: Path) -> None:
    for auto, folder in ((AutoModelForSeq2SeqLM, pairs), (AutoModelForCausalLM, texts)):
        model, tokenizer = auto.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        own = lightconv.load(folder)
        if folder == pairs:
            batch = tokenizer(["ab cd"], text_target=["ba dc"], return_tensors="pt")
            (scored,) = own.score(["ab cd"], ["ba dc"])
        else:
            batch = tokenizer(["ab cd"], return_tensors="pt")
            # EOS ends a text here, and begins the next.
            end = torch.tensor([[2]])
            ids = torch.cat([batch["input_ids"], end], 1)
            batch = {"input_ids": ids, "labels": ids}
            (scored,) = own.score(["ab cd"])
        with torch.no_grad():
            found = model(**batch)
        count = batch["labels"].shape[1] - (folder == texts)
        assert -float(found.loss) * count == pytest.approx(scored.logprob, rel=1e-4)


def test_the_wrong_class_is_refused(pairs: Path) -> None:
    with pytest.raises(ValueError, match="expected AutoModelForSeq2SeqLM"):
        AutoModelForCausalLM.from_pretrained(pairs)


def test_a_saved_model_is_a_model_folder(pairs: Path, tmp_path: Path) -> None:
    AutoModelForSeq2SeqLM.from_pretrained(pairs).save_pretrained(tmp_path / "saved")
    saved = lightconv.load(tmp_path / "saved")
    assert saved.translate(SOURCES) == lightconv.load(pairs).translate(SOURCES)
