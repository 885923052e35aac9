"""`lightconv import`: a model of another toolkit becomes a model folder."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightconv.commands.parser import Parser
from lightconv.console import print_rows, tell
from lightconv.data.subword import LARGEST_CODES, PAIR_CODES, SHARED_CODES
from lightconv.data.vocabulary import SPECIALS, Vocabularies, Vocabulary

if TYPE_CHECKING:
    from lightconv.models.config import ModelConfig


def main(argv: Sequence[str]) -> int:
    """Reads the checkpoint and its dictionaries, writes the folder, prints a summary."""
    options = _parser().parse(argv)
    dictionaries = [_read_dictionary(path) for path in _at_most_two("--dict", options.dict)]
    codes = _read_codes(_at_most_two("--codes", options.codes))

    # Imports torch, which is slow: mistakes above are answered at once.
    from lightconv.interop.fairseq import read_model
    from lightconv.models.folder import ModelFolder, check_free, describe_layers
    from lightconv.models.tensors import parameters

    check_free(options.out, overwrite=options.overwrite)
    tell(f"reading {options.checkpoint}")
    model, layout, task = read_model(options.checkpoint)
    config = model.config
    vocabulary = choose_vocabulary(dictionaries, options.dict, config)
    tell(f"writing {options.out}")
    ModelFolder.write(
        options.out,
        model,
        vocabulary=vocabulary,
        files=codes,
        tables={"task": task},
        overwrite=options.overwrite,
    )
    count = sum(tensor.numel() for tensor in parameters(model).values())
    rows = [
        ("layout", layout),
        *((name, describe_layers(layers)) for name, layers in config.stacks.items()),
        ("parameters", f"{count:,}"),
        ("vocabulary", " and ".join(f"{len(each):,}" for each in dict.fromkeys(vocabulary))),
        ("folder", str(options.out)),
        ("files", ", ".join(sorted(path.name for path in options.out.iterdir()))),
    ]
    print_rows(rows)
    return 0


def choose_vocabulary(
    dictionaries: Sequence[Vocabulary], paths: Sequence[Path], config: "ModelConfig"
) -> Vocabularies:
    """Vocabularies of the model; ValueError if the dictionaries do not fit it."""
    from lightconv.models.config import Seq2SeqConfig

    if isinstance(config, Seq2SeqConfig):
        sizes = (config.source_vocab, config.target_vocab)
        shares = config.share_embeddings == "all"
    else:
        sizes = (config.vocab, config.vocab)
        shares = True
    source, target = dictionaries[0], dictionaries[-1]
    for vocabulary, path, size in zip((source, target), (paths[0], paths[-1]), sizes, strict=True):
        if len(vocabulary) != size:
            hint = (
                "Give --dict twice, for source and target"
                if len(paths) == 1 and sizes[0] != sizes[1]
                else "Is it the dictionary that the model was trained with?"
            )
            raise ValueError(
                f"{path} has {len(vocabulary) - SPECIALS} symbols, but the checkpoint has "
                f"{size - SPECIALS}. {hint}"
            )
    if source == target:
        return Vocabularies(source, source)
    if shares:
        raise ValueError(
            f"{paths[0]} and {paths[-1]} differ, but the model has one vocabulary for all. "
            "Give the one it was trained with"
        )
    return Vocabularies(source, target)


def _parser() -> Parser:
    parser = Parser(
        "import",
        "Turns a checkpoint of fairseq (LightConv, DynamicConv, Transformer; translation or "
        "language model; any version since 2019) into a model folder. The checkpoint is a pickle: "
        "it is read as data, and nothing in it is run.",
        "lightconv import fairseq checkpoint_best.pt --dict dict.de.txt --dict dict.en.txt "
        "--codes code --out de-en",
        "lightconv import fairseq model.pt --dict dict.txt --out lm    # one vocabulary for all",
    )
    add = parser.add_argument
    file: dict[str, Any] = {"type": Path, "action": "append"}
    add("format", choices=["fairseq"], help="the toolkit that wrote it")
    add("checkpoint", metavar="CHECKPOINT", type=Path, help="a .pt file")
    text = "its dict.txt; twice for source and target"
    add("--dict", metavar="DICT", **file, required=True, help=text)
    text = "BPE codes to keep with it; twice for source and target"
    add("--codes", metavar="CODES", **file, default=[], help=text)
    add("--out", metavar="FOLDER", type=Path, required=True, help="the model folder to write")
    add("--overwrite", action="store_true", help="replace an older model folder")
    return parser


def _at_most_two(option: str, paths: list[Path]) -> list[Path]:
    if len(paths) > 2:
        raise ValueError(
            f"{option} is given {len(paths)} times, expected at most source and target"
        )
    return paths


def _read_dictionary(path: Path) -> Vocabulary:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vocabulary = Vocabulary.from_fairseq(path)
    for warning in caught:
        tell(f"warning: {warning.message}")
    return vocabulary


def _read_codes(paths: Sequence[Path]) -> dict[str, bytes]:
    names = PAIR_CODES if len(paths) == 2 else (SHARED_CODES,)
    return {name: _read_text(path) for name, path in zip(names, paths, strict=False)}


def _read_text(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"there is no file {path}, expected BPE codes")
    if path.stat().st_size > LARGEST_CODES:
        raise ValueError(f"{path} is longer than {LARGEST_CODES >> 20} MB, expected BPE codes")
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8, expected BPE codes") from None
    if not text.strip():
        raise ValueError(f"{path} is empty, expected BPE codes")
    return data
