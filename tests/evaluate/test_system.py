"""A trained model on its data, against what one gets by hand from texts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import lightconv
from lightconv import cli
from lightconv.config import to_dict
from lightconv.corpora.synthetic import Settings, make
from lightconv.data.prepare import prepare
from lightconv.decode.config import DecodeConfig
from lightconv.decode.text import TextLanguageModel, TextSeq2Seq
from lightconv.evaluate import METRICS, compute_perplexity
from lightconv.evaluate.system import (
    check_vocabulary,
    describe_search,
    evaluate_pairs,
    evaluate_texts,
    find_metrics,
    search_split,
)
from lightconv.evaluate.validation import validation_metric
from lightconv.models.folder import build
from lightconv.ops.library import native
from tests.trained import DECODE, Trained, pair_config


@pytest.fixture
def pairs(copies: Trained) -> TextSeq2Seq:
    model = lightconv.load(copies.model)
    assert isinstance(model, TextSeq2Seq)
    return model


def by_hand(copies: Trained, model: TextSeq2Seq, **options: Any) -> list[str]:
    return model.translate(list(copies.prepared.texts("test", "source")), **options)


def test_the_outputs_are_those_of_translate(copies: Trained, pairs: TextSeq2Seq) -> None:
    outputs, forms, scores = evaluate_pairs(
        pairs, copies.prepared, "test", DECODE, find_metrics(copies.prepared)
    )
    assert forms.plain == by_hand(copies, pairs)
    references = copies.prepared.references("test")
    assert [score.signature.name for score in scores] == ["sacrebleu", "chrf"]
    for score in scores:
        expected = METRICS[score.signature.name].score(forms.plain, references)
        assert score.value == expected.value
        assert str(score.signature).startswith(str(expected.signature).rpartition("|")[0])
        assert "|split:test|data:" in str(score.signature)
        assert "|beam:3|penalty:power|alpha:0.7|" in str(score.signature)
    assert outputs.tokens == sum(len(text.split()) + 1 for text in forms.plain)
    assert outputs.seconds > 0.0


def test_a_few_lines_and_hurry(copies: Trained, pairs: TextSeq2Seq) -> None:
    config = DecodeConfig(beam=1, max_len_plus=9)
    few = search_split(pairs, copies.prepared, "test", config, most=3)
    everything = search_split(pairs, copies.prepared, "test", config)
    assert few.best == everything.best[:3]
    shown: list[int] = []
    stopped = search_split(
        pairs, copies.prepared, "test", config, show=shown.append, hurry=lambda: len(shown) == 4
    )
    assert shown == [1, 2, 3, 4]
    assert sum(map(bool, stopped.best)) == 4


def test_signatures_tell_all_of_a_search() -> None:
    usual = describe_search(DecodeConfig())
    assert usual == {"beam": 5, "penalty": "power", "alpha": "1"}
    config = DecodeConfig(length_penalty="stepwise", block_ngrams=3, allow_unknown=False)
    assert describe_search(config) == {
        "beam": 5,
        "penalty": "stepwise",
        "alpha": "1",
        "block_ngrams": "3",
        "allow_unknown": "false",
    }


def test_the_paper_s_measure_comes_first(copies: Trained, texts: Trained) -> None:
    assert [each.name for each in find_metrics(copies.prepared)] == ["sacrebleu", "chrf"]
    asked = find_metrics(copies.prepared, ["tokenized_bleu_compounds"])
    assert [each.name for each in asked] == ["tokenized_bleu_compounds"]
    assert find_metrics(texts.prepared) == []


def test_texts_have_the_perplexity_of_score(texts: Trained) -> None:
    model = lightconv.load(texts.model)
    assert isinstance(model, TextLanguageModel)
    lines = list(texts.prepared.texts("test", "text"))
    scored = model.score(lines)
    expected = compute_perplexity(
        sum(each.logprob for each in scored),
        lines=len(lines),
        subwords=sum(len(each.ids) - 1 for each in scored),
        words=sum(len(line.split()) for line in lines),
    )
    found = evaluate_texts(model, texts.prepared, "test")
    assert found.value == pytest.approx(expected.value, rel=1e-6)
    assert found.parts["words"] == expected.parts["words"]
    few = evaluate_texts(model, texts.prepared, "test", most=3)
    part = sum(each.logprob for each in scored[:3])
    assert few.parts["log_prob"] == pytest.approx(part, abs=1e-3)


def test_data_of_another_model_is_refused(copies: Trained, texts: Trained, tmp_path: Path) -> None:
    check_vocabulary(copies.model, copies.prepared)
    with pytest.raises(ValueError, match=r"its pipeline\.json is not the one of"):
        check_vocabulary(texts.model, copies.prepared)
    other = shutil.copytree(copies.model, tmp_path / "model")
    with (other / "vocab.target.txt").open("a") as file:
        file.write("more\n")
    with pytest.raises(ValueError, match=r"its vocab\.target\.txt is not the one of"):
        check_vocabulary(other, copies.prepared)
    (other / "vocab.target.txt").unlink()
    with pytest.raises(ValueError, match=r"model has no vocab\.target\.txt"):
        check_vocabulary(other, copies.prepared)
    imported = shutil.copytree(copies.model, tmp_path / "imported")
    (imported / "pipeline.json").unlink()
    check_vocabulary(imported, copies.prepared)


# --- While training


def test_a_metric_for_training(copies: Trained, pairs: TextSeq2Seq) -> None:
    told: list[str] = []
    name, compute = validation_metric(copies.data, DECODE, lines=10, tell=told.append)
    assert name == "sacrebleu"
    sources = list(copies.prepared.texts("valid", "source"))[:10]
    references = copies.prepared.references("valid")[:10]
    expected = METRICS["sacrebleu"].score(pairs.translate(sources), references).value
    assert compute(pairs, lambda: False) == pytest.approx(expected)
    assert compute(pairs, lambda: True) < expected, "it stops when told to"
    engine = "the C++ engine" if native().library else "torch, not in the C++ engine: it needs"
    (note,) = told
    assert note.startswith(f"sacrebleu of 10 lines: decoding in {engine}")
    assert validation_metric(copies.data, DECODE, "chrf")[0] == "chrf"


def test_texts_have_no_metric_of_outputs(texts: Trained) -> None:
    with pytest.raises(ValueError, match="perplexity is measured anyway"):
        validation_metric(texts.data, DECODE)


@pytest.mark.skipif(native().library is None, reason="no C++ kernels")
def test_what_stepped_the_model_is_told(
    copies: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (copies.model, "--data", copies.data, "--limit", "3")
    assert evaluate(*common) == 0
    assert "engine  native\n" in capsys.readouterr().out
    assert evaluate(*common, "--engine", "torch") == 0
    assert "engine  torch\n" in capsys.readouterr().out
    assert evaluate(*common, "--set", "coverage=0.1") == 0
    assert "engine  torch (coverage needs to know the attention)\n" in capsys.readouterr().out
    assert evaluate(*common, "--quantize", "int8") == 0
    out = capsys.readouterr().out
    assert "engine  native, int8\n" in out and "|quantize:int8|" in out


# --- The command


def evaluate(*arguments: object) -> int:
    return cli.main(["evaluate", *map(str, arguments)])


def test_a_table_with_floors(
    copies: Trained, pairs: TextSeq2Seq, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(copies.run, "--data", copies.data, "--floor") == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.startswith(("metric ", "sacrebleu "))]
    header, bleu = rows
    assert header == ["metric", "model", "copy", "nearest"]
    references = copies.prepared.references("test")
    score = METRICS["sacrebleu"].score(by_hand(copies, pairs), references).value
    assert bleu[:3] == ["sacrebleu", f"{score:.2f}", "100.00"]
    assert float(bleu[3]) < 50.0
    assert "search  beam 3, penalty power, alpha 0.7" in out
    assert "\nsacrebleu|nrefs:1|" in out and "\nchrf|nrefs:1|" in out


def test_json_and_another_system(
    copies: Trained, pairs: TextSeq2Seq, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.txt"
    other.write_text("".join(f"{line} w0\n" for line in by_hand(copies, pairs)))
    common = (copies.model, "--data", copies.data, "--format", "jsonl", "--samples", "50")
    assert evaluate(*common, "--against", other, "--out", tmp_path / "out.txt") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each.get("system") for each in found] == ["model"] * 2 + ["against"] * 2 + [None]
    comparison = found[-1]
    assert comparison["first"]["value"] == found[0]["value"] > comparison["second"]["value"]
    assert comparison["second"]["value"] == found[2]["value"]
    assert comparison["p_value"] < 0.1 and "|test:paired|bs:50|" in comparison["signature"]
    assert found[0]["about"]["model"] == str(copies.model)
    assert (tmp_path / "out.txt").read_text().splitlines() == by_hand(copies, pairs)
    # Against a model: itself.
    assert evaluate(*common, "--against", copies.model, "--metric", "tokenized_bleu") == 0
    *_, comparison = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert comparison["difference"]["value"] == 0.0


@pytest.mark.skipif(native().library is None, reason="no C++ kernels")
def test_eight_bits_beside_float(
    copies: Trained, pairs: TextSeq2Seq, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (copies.model, "--data", copies.data, "--quantize", "int8", "--compare")
    assert evaluate(*common, "--samples", "50") == 0
    out = capsys.readouterr().out
    exact = by_hand(copies, pairs)
    short = by_hand(copies, pairs, quantize="int8")
    same = sum(a == b for a, b in zip(short, exact, strict=True))
    assert f"same outputs   {same} of 30\n" in out
    assert "engine         native, int8\n" in out and "\ntime, float32  " in out
    (line,) = (line.split() for line in out.splitlines() if line.startswith("sacrebleu "))
    references = copies.prepared.references("test")
    scores = (METRICS["sacrebleu"].score(each, references).value for each in (short, exact))
    assert line[1:] == [f"{score:.2f}" for score in scores]
    assert "|test:paired|bs:50|" in out and " against " in out
    assert evaluate(*common, "--samples", "5", "--format", "jsonl") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    signatures = {each["system"]: each["signature"] for each in found if "system" in each}
    assert "|quantize:int8|" in signatures["model"] and "quantize" not in signatures["float32"]


def test_several_models_as_one(copies: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    """A model beside itself says what it says alone; the signature says how many there were."""
    common = (copies.model, "--data", copies.data, "--format", "jsonl")
    assert evaluate(*common) == 0
    (alone, _) = map(json.loads, capsys.readouterr().out.splitlines())
    assert evaluate(*common, "--ensemble", copies.run, "--ensemble", copies.model) == 0
    (together, _) = map(json.loads, capsys.readouterr().out.splitlines())
    assert together["value"] == alone["value"] and "|ensemble:3|" in together["signature"]
    assert together["about"]["model"] == " + ".join([str(copies.model)] * 3)
    assert together["about"]["engine"] == alone["about"]["engine"]


def test_texts_and_their_floor(texts: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(texts.run, "--data", texts.data, "--floor", "--format", "jsonl") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["system"] for each in found] == ["model", "unigram"]
    assert found[0]["value"] < found[1]["value"] / 2
    assert found[0]["metric"] == "perplexity"


def test_mistakes_are_one_line(
    copies: Trained, texts: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: object) -> str:
        assert evaluate(*arguments) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and err.count("\n") == 1
        return err

    data = ("--data", copies.data)
    assert "--data DIR is needed" in refused(copies.model)
    assert "train, valid, test, no 'dev'" in refused(copies.model, *data, "--split", "dev")
    assert "--beam 0" in refused(copies.model, *data, "--beam", "0")
    assert "--limit 0" in refused(copies.model, *data, "--limit", "0")
    assert "did you mean 'alpha'" in refused(copies.model, *data, "--set", "alfa=1")
    assert "unknown metric 'blue'" in refused(copies.model, *data, "--metric", "blue")
    assert "holds pairs of source and target" in refused(texts.model, *data)
    assert "is a language model" in refused(
        texts.model, "--data", texts.data, "--metric", "sacrebleu"
    )
    assert "expected both" in refused(copies.model, *data, "--compare")
    assert "Give the data that it was trained on" in refused(
        copies.model, *data, "--ensemble", texts.model
    )
    for option in (("--quantize", "int8"), ("--engine", "native"), ("--out", tmp_path / "x")):
        message = refused(texts.model, "--data", texts.data, *option)
        assert f"{option[0]} is for outputs, but " in message
    assert "does not exist" in refused(tmp_path / "no", *data)
    assert "expected a prepared folder" in refused(copies.model, "--data", tmp_path)
    assert "expected none with a model" in refused(copies.model, *data, "--hypotheses", "x")
    assert "--floor is for a model" in refused("--hypotheses", "x", "--references", "y", "--floor")
    (tmp_path / "out").touch()
    assert "out exists" in refused(copies.model, *data, "--out", tmp_path / "out")
    (tmp_path / "few").write_text("w1\n")
    assert "1 lines, expected 30" in refused(copies.model, *data, "--against", tmp_path / "few")


def test_train_measures_it(
    copies: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once begun with a metric, a run goes on with it."""
    run = shutil.copytree(copies.run, tmp_path / "run")
    recipe = shutil.copy(run / "config.json", tmp_path / "recipe.json")
    command = ["train", str(recipe), "--data", str(copies.data), "--out", str(run)]
    assert cli.main([*command, "--metric", "bleu"]) == 2
    assert "was begun with no --metric, expected the same, got sacrebleu" in capsys.readouterr().err
    few = ["--set", "train.max_steps=3", "--set", "train.validate_every=3"]
    fresh = [*command[:-1], str(tmp_path / "fresh"), *few]
    assert cli.main([*fresh, "--metric", "bleu"]) == 0
    err = capsys.readouterr().err
    assert "sacrebleu " in err
    assert err.count("note: sacrebleu of 40 lines: decoding in ") == 1
    entries = [json.loads(line) for line in (tmp_path / "fresh/log.jsonl").read_text().splitlines()]
    assert list(entries[-1]["metric"]) == ["sacrebleu"]
    assert cli.main(fresh) == 2
    assert "was begun with sacrebleu" in capsys.readouterr().err


def test_summaries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model that knows nothing, so what training says is above it."""
    torch.manual_seed(0)
    corpus = make("synthetic-summary", Settings(train=20, valid=2, test=4))
    data = prepare(corpus, tmp_path / "data", processes=1)
    tables = {
        "task": to_dict(corpus.task),
        "decode": to_dict(DecodeConfig(beam=2, max_len_plus=12, block_ngrams=3)),
    }
    model = build(pair_config(data.vocab_sizes))
    model.save(tmp_path / "model", files=data.files(), tables=tables)
    assert evaluate(tmp_path / "model", "--data", tmp_path / "data", "--floor") == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["metric"] == ["model", "copy", "nearest"]
    for name in ("rouge", "rouge1", "rouge2"):
        mine, copy, nearest = map(float, rows[name])
        assert mine < nearest and copy > 0.0
    assert "|block_ngrams:3|" in out
    document = next(data.texts("test", "source"))
    (summary,) = lightconv.load(tmp_path / "model").summarize([document], max_source=9000)
    assert 0 < len(summary.split()) <= 11 and "¶" not in summary.split()
