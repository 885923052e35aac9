"""Model folders: `average` of a run, `import` of fairseq's, `export`, `push`; `plot` of curves."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from lightconv.commands.parser import Parser, warnings_told
from lightconv.console import print_rows, tell
from lightconv.data.subword import PAIR_CODES, SHARED_CODES, Codes
from lightconv.data.text import check_file
from lightconv.data.vocabulary import SPECIALS, Vocabularies, Vocabulary
from lightconv.models.config import ModelConfig, Seq2SeqConfig
from lightconv.models.folder import ModelFolder, check_free, describe_layers
from lightconv.train.run import LAST, Run


def average(argv: Sequence[str]) -> None:
    parser = Parser(
        "average",
        "Makes a model folder whose parameters are the mean of those of checkpoints of a run.",
        f"lightconv average runs/iwslt --last {LAST} --out iwslt",
        "lightconv average runs/iwslt --steps 48000,49000,50000 --out iwslt",
        "lightconv average runs/iwslt --best --out iwslt    # the best one, as it is",
    )
    parser.add("RUN", "a folder of `lightconv train`")
    which = parser.add_mutually_exclusive_group()
    parser.add("--last N", f"the last N checkpoints (default: {LAST})", group=which)
    parser.add("--best N", "the N best ones (default: 1)", group=which, nargs="?", const=1)
    parser.add("--steps A,B,C", "those of these steps", group=which)
    parser.add("--ema", "their moving averages, if training kept such")
    parser.add("--out MODEL", "the model folder to write", required=True)
    parser.add("--overwrite", "replace an older model folder")
    parser.share("--format")
    options = parser.parse(argv)
    run = Run.open(options.run)
    check_free(options.out, overwrite=options.overwrite)
    steps = run.choose(last=options.last, best=options.best, steps=options.steps)
    tell(f"averaging {len(steps)} checkpoints of {run.path}")
    model = run.average(steps, ema=options.ema)
    run.export(model, options.out, overwrite=options.overwrite)
    rows = [
        ("steps", ", ".join(map(str, steps))),
        ("parameters", f"{sum(tensor.numel() for tensor in model.parameters()):,}"),
        ("folder", str(options.out)),
        ("files", ", ".join(sorted(path.name for path in options.out.iterdir()))),
    ]
    print_rows(rows)


def export(argv: Sequence[str]) -> None:
    parser = Parser(
        "export",
        "Writes a model as ONNX: step.onnx, encoder.onnx if it translates, and its text pipeline. "
        "Batch and lengths are free; onnxruntime runs the files without PyTorch.",
        "lightconv export runs/first --onnx first-onnx",
        "echo 'A fast text editor.' | python examples/onnx_decode.py first-onnx",
    )
    parser.share("MODEL")
    parser.add("--onnx FOLDER", "the folder to write", required=True)
    options = parser.parse(argv)
    check_free(options.onnx, overwrite=False)
    from lightconv.interop.onnx import export as write

    print(*write(ModelFolder(options.model), options.onnx), sep="\n")


def push(argv: Sequence[str]) -> None:
    parser = Parser(
        "push",
        "Publishes a model folder on the Hugging Face hub, where lightconv.load('user/name') finds "
        "it. Its digests are checked first. `hf auth login` or HF_TOKEN says who you are.",
        "lightconv push runs/first/model user/first --licence cc-by-4.0",
    )
    parser.share("MODEL")
    parser.add("NAME", "user/name")
    parser.add("--licence ID", "of the model, such as mit or cc-by-4.0, for its card")
    parser.add("--private", "only for you")
    options = parser.parse(argv)
    from lightconv.interop.hub import push as push_model

    how = {"licence": options.licence, "private": options.private}
    print(push_model(options.model, options.name, **how))


def plot(argv: Sequence[str]) -> None:
    parser = Parser(
        "plot",
        "Draws loss, metric and learning rate of runs, finished or not: as text, and with "
        "matplotlib into one picture.",
        "lightconv plot runs/iwslt",
        "lightconv plot runs/light runs/dynamic --out both.png",
    )
    parser.add("RUN ...", "folders of `lightconv train`")
    parser.add("--out FILE", "the picture: .png, .svg or .pdf; default: plot.png of the first run")
    options = parser.parse(argv)

    from lightconv.train.log import PLOT_FILE, draw, draw_text

    out = options.out or options.run[0] / PLOT_FILE
    picture = options.out is not None or find_spec("matplotlib") is not None
    if picture:
        draw(options.run, out)
    print(draw_text(options.run))
    if picture:
        print(out)


def import_checkpoint(argv: Sequence[str]) -> None:
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
    parser.share("--format")
    options = parser.parse(argv)
    for name in ("dict", "codes"):
        if (given := len(getattr(options, name))) > 2:
            raise ValueError(f"--{name} is given {given} times, expected at most source and target")
    with warnings_told(tell):
        dictionaries = list(map(Vocabulary.from_fairseq, options.dict))
    codes = _read_codes(options.codes)

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
