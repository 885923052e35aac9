"""Text of one's own: all forms give the same examples; splits hold no near-duplicates."""

import json
import random
from pathlib import Path

import pytest

from lightconv.fitting.texts import clean, read_own, split_off

PAIRS = [(f"the number {n} is here", f"la nombre {n} est ici") for n in range(20)]


def write(folder: Path, name: str) -> list[Path]:
    """The pairs in a file of that form, or in two."""
    pyarrow = pytest.importorskip("pyarrow") if name.endswith("parquet") else None
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "lines":
        for place, lang in enumerate(("en", "fr")):
            (folder / f"t.{lang}").write_text("".join(f"{pair[place]}\n" for pair in PAIRS))
        return [folder / "t.en", folder / "t.fr"]
    if name.endswith(".jsonl"):
        rows = [json.dumps({"translation": dict(zip(("en", "fr"), p, strict=True))}) for p in PAIRS]
        path.write_text("\n".join(rows) + "\n")
    elif pyarrow is not None:
        from pyarrow import parquet

        columns = {name: [pair[place] for pair in PAIRS] for place, name in enumerate(("en", "fr"))}
        parquet.write_table(pyarrow.table(columns), path)
    else:
        sign = "\t" if name.endswith(".tsv") else ","
        path.write_text("".join(f"{a}{sign}{b}\n" for a, b in [("en", "fr"), *PAIRS]))
    return [path if len(Path(name).parts) == 1 else folder / Path(name).parts[0]]


FORMS = ["lines", "t.tsv", "t.csv", "t.jsonl", "t.parquet", "folder/data/train-00000.jsonl"]


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_give_the_same_examples(form: str, tmp_path: Path) -> None:
    own = read_own(write(tmp_path, form))
    assert own.splits == {"train": PAIRS}
    assert own.languages == ("en", "fr")
    assert own.digests == read_own(PAIRS, languages=("en", "fr")).digests


def test_splits_of_a_folder_are_kept(tmp_path: Path) -> None:
    for name in ("train", "validation", "test"):
        write(tmp_path, f"set/{name}.tsv")
    own = read_own(tmp_path / "set")
    assert own.splits == dict.fromkeys(("test", "train", "valid"), PAIRS)


BAD = [
    ("a.tsv", "one\ttwo\nalone\n", "row 2: "),
    ("a.jsonl", "{not json\n", "line 1: not JSON"),
    ("a.jsonl", '{"x": "a", "y": "b", "z": "c"}\n', "--columns A,B"),
    ("a.jsonl", '{"source": 1, "target": "b"}\n', "expected text"),
    ("a.txt", "a\n", "expected two files of lines"),
    ("a.tsv", "", "is empty"),
    ("a.tsv", "one\ttwo\n", "--source-lang"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_bad_files(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_own(tmp_path / name)


def test_cleaning_counts_by_reason() -> None:
    same = ("one two three four", "one two three four")
    name = ("Linux 6", "Linux 6")  # so short, it may well be the same in both languages
    found, dropped = clean("translation", [("a", "b"), ("a", "b"), ("", "b"), same, name])
    assert found == [("a", "b"), name]
    assert dropped == {"repeated": 1, "empty": 1, "not translated": 1}


def test_near_duplicates_are_in_one_split() -> None:
    """Every sentence comes three times: with other case, and with another translation."""
    draw = random.Random(1)
    words = [" ".join("".join(draw.choices("abcdefgh", k=5)) for _ in "four") for _ in range(2000)]
    made = [(w, f"t {w}") for w in words]
    made += [(w.upper() + "!", f"u {w}") for w in words] + [(f"v {w}", f"T {w}.") for w in words]
    splits = split_off("translation", {"train": made})
    homes = {name: {p[-1][2:].rstrip(".") for p in found} for name, found in splits.items()}
    assert min(len(found) for found in splits.values()) > 50
    assert not homes["train"] & homes["valid"]
    assert not homes["train"] & homes["test"]
    assert not homes["valid"] & homes["test"]


def test_what_half_of_the_text_has_in_common_does_not_keep_it_together() -> None:
    """Else a target such as "yes" would leave nothing to hold out."""
    draw = random.Random(2)
    sources = ["".join(draw.choices("abcdefgh", k=9)) for _ in range(2000)]
    splits = split_off("translation", {"train": [(source, "oui") for source in sources]})
    assert min(len(found) for found in splits.values()) > 50
