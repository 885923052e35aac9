"""`lightconv evaluate MODEL`: a model, floors and another system on one split."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightconv.config import override
from lightconv.console import print_groups
from lightconv.data.prepared import Prepared
from lightconv.data.text import read_lines
from lightconv.decode import DecodeConfig
from lightconv.decode.options import TextOptions, read_decode
from lightconv.evaluate.bootstrap import SAMPLES, SEED, Comparison, Summed, paired_bootstrap
from lightconv.evaluate.floor import copy_floor, nearest_floor, unigram_floor
from lightconv.evaluate.forms import Forms, of_references, of_texts
from lightconv.evaluate.metrics import Metric
from lightconv.evaluate.signature import Score
from lightconv.evaluate.system import (
    Outputs,
    Show,
    check_vocabulary,
    describe_search,
    evaluate_pairs,
    evaluate_texts,
    extend,
    find_metrics,
    score_forms,
    sign_perplexity,
)
from lightconv.files import write_file
from lightconv.models import LanguageModel, Seq2Seq
from lightconv.models.folder import ModelFolder

if TYPE_CHECKING:
    import torch

FLOORS = {"copy": copy_floor, "nearest": nearest_floor}
MODEL = "model"
FLOAT = "float32"


class FolderSettings(NamedTuple):
    """A model folder, and its search."""

    folder: Path
    pairs: bool
    decode: DecodeConfig


def read_settings(folder: str | Path) -> FolderSettings:
    """The settings of a model folder or a run."""
    found = ModelFolder(folder)
    return FolderSettings(found.path, found.pairs, read_decode(found.path, found.tables))


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be evaluated.

    against  another model folder, or a file of outputs, one per line
    ensemble other models of this data, the mean of whose probabilities is searched
    compare  whether the same model is decoded in float32 too, to see what `text.quantize` costs
    limit    only so many examples of the split
    out      a file for the outputs, plain text
    """

    model: Path
    data: Path
    split: str = "test"
    settings: Sequence[str] = ()
    metrics: Sequence[str] = ()
    against: Path | None = None
    ensemble: Sequence[Path] = ()
    compare: bool = False
    floor: bool = False
    limit: int | None = None
    out: Path | None = None
    samples: int = SAMPLES
    seed: int = SEED
    text: TextOptions = field(default_factory=TextOptions)


@dataclass
class Report:
    """Scores by system, the model's first, and comparisons with another one."""

    rows: list[tuple[str, str]]
    scores: dict[str, list[Score]] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)

    def print(self, form: str) -> None:
        """A table and the signatures, or a line of JSON for each score."""
        if form == "jsonl":
            about = dict(self.rows)
            for system, scores in self.scores.items():
                for score in scores:
                    print(json.dumps(score.plain() | {"system": system, "about": about}))
            for comparison in self.comparisons:
                print(json.dumps(comparison.plain() | {"about": about}))
            return
        print_groups({"": self.rows}, ("", ""), ())
        print()
        header = ("metric", *self.scores)
        print_groups({"": list(self._table())}, header, header[1:])
        print()
        for score in self.scores[MODEL]:
            print(score)
        for comparison in self.comparisons:
            print(comparison)

    def _table(self) -> Iterator[list[str]]:
        for scores in zip(*self.scores.values(), strict=True):
            name = scores[0].signature.name
            yield [name, *(f"{score.value:.2f}" for score in scores)]
            if name == "rouge":
                for part in ("rouge1", "rouge2"):
                    yield [f"  {part}", *(f"{score.parts[part]:.2f}" for score in scores)]


def check_request(request: Request) -> tuple[FolderSettings, Prepared, DecodeConfig]:
    """What the folders say, once it is known that they belong together."""
    settings = read_settings(request.model)
    decode = override(settings.decode, request.settings)
    prepared = Prepared.open(request.data)
    if request.split not in prepared.splits:
        raise ValueError(
            f"{request.data} has the splits {', '.join(prepared.splits)}, no {request.split!r}"
        )
    check_kind(settings, prepared)
    if request.limit is not None and request.limit < 1:
        raise ValueError(f"--limit {request.limit}, expected at least 1")
    if settings.pairs:
        find_metrics(prepared, request.metrics)
    else:
        _refuse_outputs(request, settings.folder)
    for other in request.ensemble:
        check_kind(read_settings(other), prepared)
    if request.against is not None:
        check_other(request.against, prepared, request.split)
    if request.compare and request.text.quantize == "none":
        raise ValueError("--compare without --quantize int8, expected both: float32 stands beside")
    return settings, prepared, decode


def _refuse_outputs(request: Request, folder: Path) -> None:
    """Raises ValueError if something was asked for that only searched outputs have."""
    usual = Request(model=request.model, data=request.data)
    asked = {
        "--metric": bool(request.metrics),
        "--against": request.against is not None,
        "--compare": request.compare,
        "--ensemble": bool(request.ensemble),
        "--quantize": request.text.quantize != usual.text.quantize,
        "--engine": request.text.engine != usual.text.engine,
        "--out": request.out is not None,
    }
    for option, is_asked in asked.items():
        if is_asked:
            raise ValueError(f"{option} is for outputs, but {folder} is a language model")


def check_other(other: Path, prepared: Prepared, split: str) -> None:
    """Raises ValueError unless it is a model of this data, or a file with as many lines."""
    if other.is_dir():
        check_kind(read_settings(other), prepared)
        return
    lines = sum(1 for _ in read_lines(other))
    count = len(prepared.store(split))
    if lines != count:
        raise ValueError(
            f"{other} has {lines} lines, expected {count}, one for each example of {split}"
        )


def check_kind(settings: FolderSettings, prepared: Prepared) -> None:
    """Raises ValueError unless the model was made for such data, and with its vocabulary."""
    kinds = ("texts", "pairs of source and target")
    pairs = len(prepared.sides) == 2
    if settings.pairs != pairs:
        raise ValueError(
            f"{prepared.folder} holds {kinds[pairs]}, expected {kinds[settings.pairs]} by "
            f"{settings.folder}. Give the data that it was trained on"
        )
    check_vocabulary(settings.folder, prepared)


def evaluate(request: Request, device: "torch.device | str" = "cpu") -> Report:
    """Everything that was asked for."""
    from lightconv.models.folder import load

    settings, prepared, decode = check_request(request)
    folders = [settings.folder, *(ModelFolder(other).path for other in request.ensemble)]
    model, *others = (load(folder, device) for folder in folders)
    rows = [
        ("model", " + ".join(map(str, folders))),
        ("data", f"{request.data} ({request.split})"),
    ]
    if isinstance(model, LanguageModel):
        return _evaluate_texts(model, prepared, request, rows)
    models = [model, *(other for other in others if isinstance(other, Seq2Seq))]
    return _evaluate_pairs(models, prepared, request, decode, rows, device)


def _evaluate_texts(
    model: LanguageModel, prepared: Prepared, request: Request, rows: list[tuple[str, str]]
) -> Report:
    with _progress(MODEL, prepared, request) as show:
        score = evaluate_texts(model, prepared, request.split, most=request.limit, show=show)
    report = Report(rows, {MODEL: [score]})
    if request.floor:
        total = unigram_floor(prepared, request.split, request.limit)
        count = len(prepared.store(request.split))
        count = count if request.limit is None else min(count, request.limit)
        report.scores["unigram"] = [sign_perplexity(prepared, request.split, total, count)]
    return report


def _evaluate_pairs(
    models: Sequence[Seq2Seq],
    prepared: Prepared,
    request: Request,
    decode: DecodeConfig,
    rows: list[tuple[str, str]],
    device: "torch.device | str",
) -> Report:
    split, metrics = request.split, find_metrics(prepared, request.metrics)
    outputs, forms, scores = _decode(MODEL, models, prepared, request, decode)
    count = len(forms.plain)
    search = ", ".join(f"{name} {value}" for name, value in describe_search(decode).items())
    rows = [
        *rows,
        ("lines", f"{count:,}"),
        ("search", search),
        ("engine", _engine(outputs, request.text)),
        ("time", _rate(outputs)),
    ]
    if request.out is not None:
        write_file(request.out, "".join(f"{line}\n" for line in forms.plain).encode())
    report = Report(rows, {MODEL: scores})
    references = of_references(prepared, split).first(count)
    if request.floor:
        for name, make in FLOORS.items():
            found = make(prepared, split, request.limit)
            report.scores[name] = score_forms(
                prepared, split, found, metrics, {"floor": name}, references
            )
    if request.compare:
        exact = replace(request, text=replace(request.text, quantize="none"))
        plain, other, found_scores = _decode(FLOAT, models, prepared, exact, decode)
        report.rows.append((f"time, {FLOAT}", _rate(plain)))
        report.rows.append(("speed", f"{plain.seconds / outputs.seconds:.2f}x of {FLOAT}"))
        same = sum(a == b for a, b in zip(forms.plain, other.plain, strict=True))
        report.rows.append(("same outputs", f"{same:,} of {count:,}"))
        report.scores[FLOAT] = found_scores
        report.comparisons += _compare(request, prepared, metrics, forms, other, references)
    if request.against is not None:
        other, about = _other(prepared, request, device)
        report.scores["against"] = score_forms(prepared, split, other, metrics, about, references)
        report.comparisons += _compare(request, prepared, metrics, forms, other, references)
    return report


def _decode(
    name: str,
    models: Sequence[Seq2Seq],
    prepared: Prepared,
    request: Request,
    decode: DecodeConfig,
) -> tuple[Outputs, Forms, list[Score]]:
    with _progress(name, prepared, request) as show:
        return evaluate_pairs(
            models[0],
            prepared,
            request.split,
            decode,
            find_metrics(prepared, request.metrics),
            others=models[1:],
            most=request.limit,
            show=show,
            options=request.text,
        )


def _compare(
    request: Request,
    prepared: Prepared,
    metrics: Sequence[Metric],
    first: Forms,
    second: Forms,
    references: Forms,
) -> Iterator[Comparison]:
    """The paired bootstrap of every measure that can be resampled."""
    for metric in metrics:
        if isinstance(metric, Summed):
            texts = (each.for_metric(metric) for each in (first, second, references))
            compared = paired_bootstrap(metric, *texts, samples=request.samples, seed=request.seed)
            signature = extend(compared.signature, prepared, request.split, {})
            yield replace(compared, signature=signature)


def _other(
    prepared: Prepared, request: Request, device: "torch.device | str"
) -> tuple[Forms, dict[str, object]]:
    """The outputs of the other system, and what is known of how they were made."""
    from lightconv.models.folder import load

    assert request.against is not None
    if not request.against.is_dir():
        lines = list(read_lines(request.against))
        return of_texts(prepared, lines).first(request.limit), {"system": "file"}
    settings = read_settings(request.against)
    model = load(settings.folder, device)
    assert isinstance(model, Seq2Seq)
    _, forms, _ = _decode("against", [model], prepared, request, settings.decode)
    return forms, describe_search(settings.decode)


def _rate(outputs: Outputs) -> str:
    seconds, count = outputs.seconds, len(outputs.hypotheses)
    return (
        f"{seconds:.1f} s, {count / seconds:,.1f} sentences/s, "
        f"{outputs.tokens / seconds:,.0f} tokens/s"
    )


def _engine(outputs: Outputs, text: TextOptions) -> str:
    exact = "" if text.quantize == "none" else f", {text.quantize}"
    reason = outputs.reason.partition(": ")[2]
    return f"{outputs.engine}{exact}" + (f" ({reason})" if reason else "")


@contextmanager
def _progress(what: str, prepared: Prepared, request: Request) -> Iterator[Show]:
    from lightconv.console import Display

    total = len(prepared.store(request.split))
    total = total if request.limit is None else min(total, request.limit)
    with Display() as display:
        yield lambda done: display.show(f"{what}: lines", done, total)
        display.end()
