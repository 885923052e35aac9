"""`lightconv import`: a model of another toolkit becomes a model folder."""

from collections.abc import Sequence
from pathlib import Path

from lightconv.commands.parser import Parser, warnings_told
from lightconv.console import print_rows, tell
from lightconv.data.subword import PAIR_CODES, SHARED_CODES, Codes
from lightconv.data.text import check_file
from lightconv.data.vocabulary import SPECIALS, Vocabularies, Vocabulary
from lightconv.models.config import ModelConfig, Seq2SeqConfig
from lightconv.models.folder import ModelFolder, check_free, describe_layers


def main(argv: Sequence[str]) -> int:
    parser = Parser(
        "import",
        "Turns a checkpoint of fairseq (LightConv, DynamicConv, Transformer; any version since "
        "2019) into a model folder. The pickle is read as data, and nothing in it is run.",
        "lightconv import fairseq checkpoint_best.pt --dict dict.de.txt --dict dict.en.txt "
        "--codes code --out de-en",
        "lightconv import fairseq model.pt --dict dict.txt --out lm  # one vocabulary",
    )
    parser.add("FORMAT", "the toolkit that wrote it: fairseq", choices=["fairseq"])
    parser.add("CHECKPOINT", "a .pt file")
    parser.add("--dict FILE ...", "its dict.txt; twice for source and target", required=True)
    parser.add("--codes FILE ...", "BPE codes to keep with it; twice for source and target")
    parser.add("--out FOLDER", "the model folder to write", required=True)
    parser.add("--overwrite", "replace an older model folder")
    parser.add_format()
    options = parser.parse(argv)
    for name in ("dict", "codes"):
        if (given := len(getattr(options, name))) > 2:
            raise ValueError(f"--{name} is given {given} times, expected at most source and target")
    with warnings_told(tell):
        dictionaries = list(map(Vocabulary.from_fairseq, options.dict))
    codes = _read_codes(options.codes)

    # Imports torch, which is slow: mistakes above are answered at once.
    from lightconv.interop.fairseq import read_model
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
    dictionaries: Sequence[Vocabulary], paths: Sequence[Path], config: ModelConfig
) -> Vocabularies:
    """Vocabularies of the model; ValueError if the dictionaries do not fit it."""
    sizes = config.vocab_sizes
    shares = not isinstance(config, Seq2SeqConfig) or config.share_embeddings == "all"
    source, target = dictionaries[0], dictionaries[-1]
    for vocabulary, path, size in zip((source, target), (paths[0], paths[-1]), sizes, strict=True):
        if len(vocabulary) != size:
            hint = "Is it the dictionary that the model was trained with?"
            if len(paths) == 1 and sizes[0] != sizes[1]:
                hint = "Give --dict twice, for source and target"
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


def _read_codes(paths: Sequence[Path]) -> dict[str, bytes]:
    for path in paths:
        check_file(path)
        Codes.load(path)
    names = PAIR_CODES if len(paths) == 2 else (SHARED_CODES,)
    return {name: path.read_bytes() for name, path in zip(names, paths, strict=False)}
