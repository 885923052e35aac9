"""`lightconv prepare` and `verify-data`: from text to a prepared folder; is it the paper's data?"""

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightconv.commands.parser import Parser, warnings_told
from lightconv.config import override
from lightconv.console import Display, aligned, print_groups, print_rows, print_text
from lightconv.corpora import CORPORA, PUBLISHED, find_entry, open_corpus
from lightconv.data.config import PrepareConfig, TaskKind
from lightconv.files import cache_folder
from lightconv.processes import EXIT_DIFFERS

if TYPE_CHECKING:
    from lightconv.data.prepared import Prepared
    from lightconv.data.text import Corpus

# Options for training files of one's own, all of which are needed, and their task.
OWN: dict[tuple[str, ...], TaskKind] = {
    ("train",): "translation",
    ("text",): "language_model",
    ("jsonl",): "summarization",
    ("articles", "summaries"): "summarization",
}
BESIDE_OWN = ("valid", "test", "source_lang", "target_lang", "tokenized", "lowercase")
SUBWORDS = {"bytes": "byte pairs", "bpe": "pieces of words", "words": "words"}
# Width of the lines about what a corpus needs, and of the longest bar of a histogram.
WIDTH = 74
WIDEST = 24


def prepare(argv: Sequence[str]) -> None:
    parser = _parser()
    options = parser.parse(argv)
    if options.list:
        list_corpora()
        return
    if options.out is None:
        parser.error("--out DIR is needed")
    training = _find_training(parser, options)

    from lightconv.data.prepare import check_free, work_folder
    from lightconv.data.prepare import prepare as prepare_data

    check_free(options.out, overwrite=options.overwrite)
    with Display() as display, warnings_told(display.note):
        corpus = _open(training, options, display)
        usual = PrepareConfig(pipeline=corpus.pipeline, filters=corpus.filters)
        how = {"overwrite": options.overwrite, "processes": options.processes, "display": display}
        try:
            prepared = prepare_data(corpus, options.out, config=override(usual, options.set), **how)
        except BaseException as error:
            folder = work_folder(options.out)
            if folder.exists():  # it is removed if the input is unusable
                display.note("not finished: the same command resumes from here")
            if isinstance(error, OSError) and error.errno and error.filename is None:
                error.filename = str(folder)  # a full disk does not say where
            raise
    report(prepared)


def list_corpora() -> None:
    groups: dict[str, list[list[str]]] = {}
    for name, entry in CORPORA.items():
        if entry.takes_source:
            rows = groups.setdefault("Read from what its owners ship, given with --from", [])
            needs = textwrap.wrap(f"from {entry.needs}", WIDTH)
            rows += [[name, entry.about], *(["", f"  {line}"] for line in needs)]
        else:
            groups.setdefault(f"Needs {entry.needs}", []).append([name, entry.about])
    print_groups(groups, ("", ""), ())


def report(prepared: "Prepared") -> None:
    """Prints counts, drops, lengths and a histogram."""
    task, config = prepared.task, prepared.pipeline.config
    vocabularies = dict.fromkeys(prepared.pipeline.vocabularies())
    sizes = " and ".join(f"{len(each):,}" for each in vocabularies)
    languages = [lang for lang in (task.source_lang, task.target_lang) if lang]
    rows = [
        ["corpus", task.corpus + (f" ({' to '.join(languages)})" if languages else "")],
        ["task", task.kind.replace("_", " ")],
        ["vocabulary", f"{sizes} {SUBWORDS[config.subword.kind]}"],
        ["folder", str(prepared.folder)],
        *(["figures", verdict] for rows, verdict in [_compare(prepared)] if rows),
    ]
    splits = prepared.statistics()["splits"]
    print_rows(rows)
    for table in (count_rows(splits), length_rows(splits)):
        header = list(table[0])
        right = [name for name in header if name not in ("split", "side")]
        print()
        print_rows([list(row.values()) for row in table], header, right)
    print(f"\nlengths of train, in tokens\n\n{draw_histogram(splits['train'])}")
    if recipe := _recipe(task.corpus):
        print(f"\nnext: lightconv train {recipe} --data {prepared.folder} --out RUN")


def verify_data(argv: Sequence[str]) -> int:
    about = (
        "Compares prepared data with the published figures; exit 3 if it is not the paper's data."
    )
    parser = Parser("verify-data", about, "lightconv verify-data data/iwslt")
    parser.add("DIR", "a folder of `lightconv prepare`")
    parser.share("--format")
    from lightconv.data.prepared import Prepared

    rows, verdict = _compare(prepared := Prepared.open(parser.parse(argv).dir))
    if (corpus := prepared.task.corpus) not in PUBLISHED:
        known = ", ".join(PUBLISHED)
        print_text(f"not the paper's data: corpus {corpus}, expected one of {known}")
        return EXIT_DIFFERS
    print_rows(rows, ("", "published", "here", "agree"), ("published", "here"))
    print()
    print_text(f"{verdict} (source: {PUBLISHED[corpus][0]})")
    return EXIT_DIFFERS if "NO" in (row[3] for row in rows) else 0


def _compare(prepared: "Prepared") -> tuple[list[list[str]], str]:
    from lightconv.paper.tables import compare

    rows = compare(PUBLISHED.get(prepared.task.corpus, ("", {}))[1], prepared.counts())
    other = [f"{row[0]} {row[2]}, {row[1]} published" for row in rows if row[3] == "NO"]
    return rows, f"not the paper's data: {'; '.join(other)}" if other else "as published"


def count_rows(splits: Mapping[str, Any]) -> list[dict[str, str]]:
    """Examples of each split that were read, kept, and dropped by reason."""
    from lightconv.data.prepared import REASONS

    found = {reason for split in splits.values() for reason in split["dropped"]}
    rows = []
    for name, split in splits.items():
        dropped = {each: split["dropped"].get(each, 0) for each in REASONS if each in found}
        counts = {"read": split["read"], "kept": split["kept"], **dropped}
        rows.append({"split": name} | {each: f"{count:,}" for each, count in counts.items()})
    return rows


def length_rows(splits: Mapping[str, Any]) -> list[dict[str, str]]:
    """Tokens and lengths of each side of each split."""
    return [
        {
            "split": name,
            "side": side,
            "tokens": f"{about['tokens']:,}",
            "unknown": _share(about["unknown_rate"]),
            "mean": f"{about['mean']:.1f}",
            **{f"{share} %": f"{length:,}" for share, length in about["percentiles"].items()},
            "longest": f"{about['longest']:,}",
        }
        for name, split in splits.items()
        for side, about in split["sides"].items()
    ]


def _share(rate: float) -> str:
    # Enough digits to tell it from zero.
    return "0" if rate == 0 else f"{rate:.2%}" if rate >= 1e-4 else f"{rate:.0e}"


def draw_histogram(split: Mapping[str, Any]) -> str:
    """A line for each length, with a bar for each side."""
    histograms = [about["histogram"] for about in split["sides"].values()]
    if not any(bars[0]["count"] for bars in histograms):  # empty sentences are rare
        histograms = [bars[1:] for bars in histograms]
    columns = list(map(_draw_bars, histograms))
    width = max(len(cell) for cells in columns for cell in cells)
    header = ["", *(f"{side:<{width}}" for side in split["sides"])]
    rows = list(zip(map(_label, histograms[0]), *columns, strict=True))
    return aligned({"": rows}, header, [""])


def _draw_bars(histogram: Sequence[Mapping[str, Any]]) -> list[str]:
    counts = [bar["count"] for bar in histogram]
    total, most = max(sum(counts), 1), max(*counts, 1)
    return [f"{n / total:>6.1%} {'#' * -(-WIDEST * n // most)}".rstrip() for n in counts]


def _label(bar: Mapping[str, Any]) -> str:
    first, last = bar["from"], bar["to"]
    return f"{first:,}" + (" and more" if last is None else f"-{last:,}" if last > first else "")


def _recipe(corpus: str) -> str | None:
    """A recipe for this corpus that an ordinary machine can train."""
    from lightconv.paper.recipes import RECIPES

    names = [name for name, recipe in RECIPES.items() if recipe.task.corpus == corpus]
    return min(names, key=lambda name: not name.endswith("dynamicconv-small"), default=None)


def _find_training(parser: Parser, options: argparse.Namespace) -> tuple[str, ...]:
    """The options for training files of one's own; none if a corpus is named."""
    own = [name for group in OWN for name in group]
    if options.name is not None:
        for option in parser.given(options, *own, *BESIDE_OWN):
            parser.error(f"{option} is for files of your own, not for {options.name}")
        find_entry(options.name)
        return ()
    if options.source is not None:
        parser.error("--from needs the NAME of a corpus before it; --list shows them")
    given = parser.given(options, *own)
    training = tuple(option.removeprefix("--") for option in given)
    if training not in OWN:
        got = " and ".join(given) or "nothing to prepare"
        parser.error(
            f"{got}, expected the NAME of a corpus (--list shows them), or files of your own: "
            "--train, --text, --jsonl, or --articles with --summaries"
        )
    return training


def _open(training: tuple[str, ...], options: argparse.Namespace, display: Display) -> "Corpus":
    from lightconv.corpora.own import is_json, own_corpus

    if not training:
        return open_corpus(options.name, options.source, cache_folder() / "corpora", display.note)
    if options.jsonl is not None and not is_json(options.jsonl):
        raise ValueError(
            f"--jsonl {options.jsonl}: expected a file that ends with .jsonl or .json, perhaps "
            "with .gz, .bz2 or .xz behind it. Rename it, or give --articles and --summaries"
        )
    train = options.train or [getattr(options, name) for name in training]
    files: dict[str, Any] = {}
    for name, paths in (("train", train), ("valid", options.valid), ("test", options.test)):
        if paths and len(paths) > 2:
            raise ValueError(f"--{name} has {len(paths)} files, expected one prefix or two files")
        if paths:
            files[name] = paths[0] if len(paths) == 1 else (paths[0], paths[1])
    return own_corpus(
        OWN[training],
        **files,
        source_lang=options.source_lang,
        target_lang=options.target_lang,
        tokenized=options.tokenized,
        lowercase=options.lowercase,
        progress=display.note,
    )


def _parser() -> Parser:
    parser = Parser(
        "prepare",
        "Makes a prepared folder of a corpus, one of --list or files of your own: text becomes "
        "subwords, stored as ids. Stopped or killed, the same command resumes.",
        "lightconv prepare --list",
        "lightconv prepare debian-en-de --out data/debian",
        "lightconv prepare iwslt14-de-en --from de-en.tgz --out data/iwslt",
        "lightconv prepare --source-lang de --target-lang en --train train --valid dev --out data",
        "lightconv prepare --text train.txt --out data/lm --set pipeline.subword.vocab=16000",
        "lightconv prepare --articles a.txt --summaries s.txt --valid va.txt vs.txt --out data/sum",
        "lightconv prepare --jsonl train.jsonl --out data/sum --set filters.max_len=1000",
    )
    add = parser.add
    add("[NAME]", "a corpus of --list")
    add("--list", "list the corpora and what each needs")
    add("--from PATH", "the archive or folder of NAME", dest="source")
    add("--out DIR", "the prepared folder to write")
    own = parser.add_argument_group(
        "files of your own",
        "UTF-8, one example per line; .gz, .bz2, .xz are unpacked.\n"
        "Without --valid a part of the training text is held out",
    )
    parts: dict[str, Any] = {"group": own, "metavar": ("PREFIX", "FILE"), "nargs": "+"}
    add("--source-lang LANG", "ending of source files, such as de", group=own)
    add("--target-lang LANG", "ending of target files, such as en", group=own)
    add("--train FILE", "translation: PREFIX.de and PREFIX.en, or two files", **parts)
    add("--text FILE", "language modelling: a text file", group=own)
    add("--jsonl FILE", 'summarisation: {"document": ..., "summary": ...}', group=own)
    add("--articles FILE", "summarisation: articles, with --summaries", group=own)
    add("--summaries FILE", "summarisation: their summaries, line by line", group=own)
    add("--valid FILE", "validation: as for training", **parts)
    add("--test FILE", "test: as for training", **parts)
    add("--tokenized", "the text is tokenised: leave it alone, score tokenised BLEU", group=own)
    add("--lowercase", "lower-case the text", group=own)
    add("--set PATH=VALUE ...", "change steps, subwords or filters, such as filters.max_len=100")
    add("--processes N", "default: one per core")
    add("--overwrite", "replace a prepared folder")
    parser.share("--format")
    return parser
