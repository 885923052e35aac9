"""The whole way from text to ids and back, folders of pipelines, and folders that are none."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from lightconv.config import to_dict
from lightconv.data.config import BPEConfig, BytesConfig, PipelineConfig, SideConfig, WordsConfig
from lightconv.data.pipeline import Pipeline
from lightconv.data.subword import Codes
from lightconv.data.vocabulary import BOS, EOS, PAD, UNK, Vocabularies, Vocabulary
from lightconv.data.words import Steps
from tests.data.examples import SIDES as PLAIN
from tests.data.examples import Subword, learn_lines, make_lines, make_words

SOURCE = make_lines(300, make_words(200), 1)
TARGET = make_lines(300, make_words(200, 7), 2)
SUBWORDS: dict[str, Subword] = {
    "bytes": BytesConfig(vocab=400),
    "bytes apart": BytesConfig(vocab=300, joint=False),
    "bpe": BPEConfig(merges=80),
    "bpe shared": BPEConfig(merges=80, share_vocab=True),
    "bpe apart": BPEConfig(merges=40, joint=False),
    "words": WordsConfig(min_count=2),
}


def learn_from(config: PipelineConfig, *sides: list[str]) -> Pipeline:
    return Pipeline(config, *learn_lines(config.subword, *sides))


def learned(name: str) -> Pipeline:
    return learn_from(PipelineConfig(sides=PLAIN, subword=SUBWORDS[name]), SOURCE, TARGET)


def save(pipeline: Pipeline, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in pipeline.files().items():
        (folder / name).write_bytes(data)


@pytest.fixture(params=list(SUBWORDS))
def pipeline(request: pytest.FixtureRequest) -> Pipeline:
    return learned(request.param)


def test_ids_and_tokens_and_text(pipeline: Pipeline) -> None:
    for side, lines in enumerate((SOURCE, TARGET)):
        vocabulary = pipeline.vocabularies()[side]
        ids = pipeline.encode(side, lines)
        for line, line_ids in zip(lines, ids, strict=True):
            assert vocabulary.encode(vocabulary.decode(line_ids)) == line_ids
            assert not {BOS, PAD, EOS} & set(line_ids)
            if UNK not in line_ids:
                assert pipeline.decode(side, line_ids) == line
                assert pipeline.decode_words(side, line_ids) == pipeline.words(side, line) == line
            marked = [BOS, *line_ids, EOS, PAD, PAD]
            assert pipeline.decode(side, marked) == pipeline.decode(side, line_ids)
        assert len({token for line in ids for token in line}) > 20
    assert pipeline.encode(0, ["", " "])[0] == []
    assert pipeline.encode(1, []) == []
    assert pipeline.decode(0, []) == ""
    with pytest.raises(ValueError, match=r"id 99999 must be from 0 to"):
        pipeline.decode(0, [99999])


def test_what_is_not_known_is_shown() -> None:
    for name in ("bpe", "words"):
        pipeline = learned(name)
        known = SOURCE[0].split()[0]
        ids = pipeline.encode(0, [f"{known} ☃ {known}"])[0]
        assert UNK in ids
        assert pipeline.decode(0, ids) == f"{known} <unk> {known}"
        # A text cannot end a sentence, whatever it says.
        assert set(pipeline.encode(0, ["</s> <s> <pad> <unk>"])[0]) & {BOS, EOS, PAD} == set()
    assert learned("words").encode(0, ["</s> <unk> <pad>"]) == [[UNK, UNK, UNK]]


def test_steps_and_subwords_together() -> None:
    sides = tuple(SideConfig(lang=lang, tokenize="moses", lowercase=True) for lang in ("de", "en"))
    config = PipelineConfig(sides=sides, subword=BPEConfig(merges=30))
    text = ("Das ist's, sagt er.", 'It\'s "good", he says.')
    steps = [Steps(side).apply(each) for side, each in zip(sides, text, strict=True)]
    pipeline = learn_from(config, *([words] * 3 for words in steps))
    assert pipeline.words(1, text[1]) == "it &apos;s &quot; good &quot; , he says ."
    ids = pipeline.encode(1, [text[1]])[0]
    assert pipeline.decode_words(1, ids) == pipeline.words(1, text[1])
    assert pipeline.decode(1, ids) == 'it\'s "good", he says.'
    assert pipeline.words(0, text[0]) == "das ist &apos; s , sagt er ."


def test_folders(pipeline: Pipeline, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    save(pipeline, folder)
    kind = pipeline.config.subword.kind
    codes = {"codes.txt"} if len(pipeline.codes) == 1 else {"codes.source.txt", "codes.target.txt"}
    shared = pipeline.vocabularies().source is pipeline.vocabularies().target
    vocabularies = {"vocab.txt"} if shared else {"vocab.source.txt", "vocab.target.txt"}
    expected = {"pipeline.json", *vocabularies, *(codes if kind != "words" else ())}
    assert {path.name for path in folder.iterdir()} == expected
    loaded = Pipeline.load(folder)
    assert loaded.config == pipeline.config
    assert loaded.codes == pipeline.codes
    assert loaded.vocabularies() == pipeline.vocabularies()
    for other in (loaded, pickle.loads(pickle.dumps(pipeline))):
        assert other.encode(1, TARGET) == pipeline.encode(1, TARGET)
    head = {"format": "lightconv-pipeline", "version": 1}
    table = json.loads((folder / "pipeline.json").read_text())
    assert table == {**head, "pipeline": to_dict(pipeline.config)}


def test_one_side_alone(tmp_path: Path) -> None:
    config = PipelineConfig(sides=PLAIN[:1], subword=BytesConfig(vocab=300))
    pipeline = learn_from(config, SOURCE)
    save(pipeline, tmp_path)
    assert Pipeline.load(tmp_path).encode(0, SOURCE) == pipeline.encode(0, SOURCE)
    (tmp_path / "vocab.txt").unlink()
    for name in ("vocab.source.txt", "vocab.target.txt"):
        pipeline.vocabularies().source.save(tmp_path / name)
    with pytest.raises(ValueError, match=r"expected one for the only side"):
        Pipeline.load(tmp_path)


def test_an_imported_model_brings_codes_and_vocabulary(tmp_path: Path) -> None:
    words = ["low", "lower", "newest"]
    (tmp_path / "codes.txt").write_text("#version: 0.2\nl o\nlo w</w>\nlo w\ne r</w>\n")
    Vocabulary.of(["low", "low@@", "er"]).save(tmp_path / "vocab.source.txt")
    Vocabulary.of(["er"]).save(tmp_path / "vocab.target.txt")
    config = PipelineConfig(sides=PLAIN, subword=BPEConfig(merges=4))
    with pytest.raises(ValueError, match=r"has no file pipeline\.json"):
        Pipeline.load(tmp_path)
    pipeline = Pipeline.load(tmp_path, config)
    assert pipeline.encode(0, words) == [[4], [5, 6], [UNK] * 6]
    assert pipeline.encode(1, ["lower"]) == [[UNK, 4]]
    (tmp_path / "codes.txt").unlink()
    with pytest.raises(ValueError, match=r"has no codes: .* expected codes\.txt"):
        Pipeline.load(tmp_path, config)
    (tmp_path / "codes.source.txt").write_text("l o\nlo w\nlow </w>\n")
    (tmp_path / "codes.target.txt").write_text("l o 12\n")
    apart = Pipeline.load(tmp_path, config)
    assert apart.encode(0, ["low lowe"]) == [[4, 5, UNK]]
    assert apart.encode(1, ["low", "er"]) == [[UNK, UNK], [UNK, UNK]]


def test_the_cache_is_bounded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = learned("bpe").encode(0, SOURCE)
    monkeypatch.setattr("lightconv.data.pipeline.MOST_CACHED", 5)
    monkeypatch.setattr("lightconv.data.pipeline.LONGEST_CACHED", 8)
    bounded = learned("bpe")
    assert [bounded.encode(0, [line])[0] for line in SOURCE] == expected
    assert 0 < len(bounded._ids[0]) <= 5
    assert max(map(len, bounded._ids[0])) <= 8
    bounded.encode(0, SOURCE[:1])[0].append(99)
    assert bounded.encode(0, SOURCE[:1]) == expected[:1]


def test_parts_that_do_not_belong_together() -> None:
    words = PipelineConfig(sides=PLAIN, subword=WordsConfig())
    bpe = PipelineConfig(sides=PLAIN[:1], subword=BPEConfig(merges=1))
    as_bytes = PipelineConfig(sides=PLAIN, subword=BytesConfig())
    good = learned("bytes")
    merges, vocabulary = good.codes[0].merges, good.vocabularies().source
    few, extra = Vocabulary.of("ab"), Vocabulary.of([*vocabulary.tokens[4:], "漢"])
    none = Codes(())
    for config, codes, known, message in (
        (words, [none], few, "1 files of codes, but 2 sides with kind='words'"),
        (bpe, [], few, "0 files of codes, but 1 sides with kind='bpe'"),
        (bpe, [none, none], few, "2 files of codes, but 1 sides"),
        (as_bytes, [none], few, "lacks bytes"),
        (as_bytes, good.codes, extra, "not made of bytes"),
        (as_bytes, [Codes((*merges, ("q", "q")))], vocabulary, "or tokens that the codes make"),
    ):
        with pytest.raises(ValueError, match=message):
            Pipeline(config, codes, Vocabularies(known, known))


HEAD = '{"format": "lightconv-pipeline", "version"'


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "not JSON|is empty"),
        ("{", "not JSON"),
        ("[]", "not written by lightconv"),
        ('{"format": "lightconv", "version": 1}', "not written by lightconv"),
        (HEAD + ": 2}", "version 2 of the format, expected 1"),
        (HEAD + ": true}", "version True of the format, expected 1"),
        (HEAD + ": 1}", "pipeline=none must be a table"),
        (
            HEAD
            + ': 1, "pipeline": {"subword": {"kind": "words"}, "sides": [{"lowercas": true}]}}',
            r"unknown field pipeline\.sides\.0\.lowercas=true; did you mean 'lowercase'",
        ),
    ],
)
def test_files_that_are_no_pipeline(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pipeline.json").write_text(text)
    with pytest.raises(ValueError, match=rf"pipeline\.json: .*({message})"):
        Pipeline.load(tmp_path)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        Pipeline.load(tmp_path / "nowhere")
    pipeline = learned("bpe")
    secret = tmp_path / "secret"
    secret.write_text("#version: 0.2\nhidden words\n")
    folder = tmp_path / "folder"
    save(pipeline, folder)
    (folder / "codes.txt").unlink()
    (folder / "codes.txt").symlink_to(secret)
    with pytest.raises(ValueError, match=r"link that leaves its folder") as raised:
        Pipeline.load(folder)
    assert "hidden" not in str(raised.value)


def test_no_heavy_package_is_needed_to_encode(tmp_path: Path) -> None:
    save(learned("bytes"), tmp_path)
    code = f"""
import sys
from lightconv.data.pipeline import Pipeline
pipeline = Pipeline.load({str(tmp_path)!r})
assert pipeline.decode(0, pipeline.encode(0, ["äb"])[0]) == "äb"
sys.exit(bool({{"torch", "sacremoses", "jieba"}} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
