"""The golden folders beside this file, made anew; they were made by lightconv 0.1.0.

    python -m tests.golden.make OUT                    # folders, from texts to results
    python -m tests.golden.make OUT --digests          # digests.json of folders that are there

Everything is written by commands; what is committed stays as 0.1.0 wrote it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

WORDS = {
    "the": "la", "a": "un", "old": "anu", "red": "roso", "small": "pito", "dog": "kanu",
    "cat": "gato", "house": "domu", "river": "riu", "tree": "arbo", "sees": "vidi",
    "finds": "trovi", "likes": "ami", "takes": "preni", "near": "apu", "under": "subu",
    "and": "e", "bird": "usel", "stone": "petra", "light": "lumi",
}  # fmt: skip
NOUNS = ("dog", "cat", "house", "river", "tree", "bird", "stone", "light")
ADJECTIVES = ("old", "red", "small", "light")
VERBS = ("sees", "finds", "likes", "takes")
COUNTS = {"train": 400, "valid": 24, "test": 16}

PAIRS = """\
about = "golden: pairs, post-norm, EMA"

[task]
kind = "translation"
corpus = "own"
source_lang = "en"
target_lang = "eo"
metric = "sacrebleu"

[model]
kind = "seq2seq"
dim = 16
ffn_dim = 16
source_heads = 2
encoder = [
    { kind = "dynamicconv", kernel = 3, heads = 2, glu = true, dropconnect = 0.1 },
    { kind = "lightconv", kernel = 5, heads = 4 },
]
decoder = [{ kind = "dynamicconv", kernel = 3, heads = 2, normalize = "softmax" }]
source_vocab = VOCAB
target_vocab = VOCAB
share_embeddings = "all"
dropout = 0.05

[train]
max_steps = STEPS
tokens_per_update = 200
max_tokens = 120
label_smoothing = 0.1
validate_every = 50
save_every = SAVE
log_every = 25
keep_last = 2
keep_best = 0
ema = 0.9

[train.optimizer]
kind = "adam"
eps = 1e-4

[train.schedule]
kind = "cosine"
peak = 2e-2
warmup = 20
period = STEPS

[decode]
beam = 3
alpha = 0.7
max_len_ratio = 1.0
max_len_plus = 6
"""
# Two ranks: pre-norm, attention, the average of the last two checkpoints, Nesterov's momentum.
RANKS = """\
about = "golden: pairs, pre-norm, two ranks"

[task]
kind = "translation"
corpus = "own"
source_lang = "en"
target_lang = "eo"
metric = "sacrebleu"

[model]
kind = "seq2seq"
dim = 16
ffn_dim = 16
source_heads = 2
encoder = [{ kind = "attention", heads = 2, dropout = 0.1 }]
decoder = [{ kind = "lightconv", kernel = 3, heads = 2, glu = true }]
source_vocab = VOCAB
target_vocab = VOCAB
share_embeddings = "all"
dropout = 0.05
attention_dropout = 0.1
pre_norm = true

[train]
max_steps = STEPS
tokens_per_update = 200
max_tokens = 120
label_smoothing = 0.1
clip_norm = 1.0
validate_every = 50
save_every = SAVE
log_every = 25
keep_last = 2
keep_best = 0
average_last = 2

[train.optimizer]
kind = "nesterov"
momentum = 0.9

[train.schedule]
kind = "inverse_sqrt"
peak = 0.4
warmup = 30

[decode]
beam = 2
length_penalty = "stepwise"
alpha = 0.6
max_len_ratio = 1.0
max_len_plus = 6
"""
TEXT = """\
about = "golden: text, bands of the vocabulary"

[task]
kind = "language_model"
corpus = "own"
metric = "perplexity"

[model]
kind = "language_model"
dim = 8
ffn_dim = 16
layers = [
    { kind = "lightconv", kernel = 5, heads = 2, glu = true },
    { kind = "attention", heads = 2, window = 4 },
]
vocab = VOCAB
dropout = 0.05

[model.adaptive]
cutoffs = [10, 20]
factor = 2
dropout = 0.1

[train]
max_steps = STEPS
tokens_per_update = 300
max_tokens = 200
validate_every = 40
save_every = SAVE
log_every = 20
keep_last = 2
keep_best = 0

[train.optimizer]
kind = "adam"
eps = 1e-4

[train.schedule]
kind = "cosine"
peak = 1e-2
warmup = 10
period = STEPS

[decode]
beam = 2
max_len_plus = 8
"""
SUMMARY = """\
about = "golden: summaries"

[task]
kind = "summarization"
corpus = "own"
metric = "rouge"

[model]
kind = "seq2seq"
dim = 8
ffn_dim = 16
source_heads = 2
encoder = [{ kind = "dynamicconv", kernel = 7, heads = 2 }, { kind = "average", ffn_dim = 16 }]
decoder = [{ kind = "conv", kernel = 3 }]
source_vocab = VOCAB
target_vocab = VOCAB
share_embeddings = "all"

[train]
max_steps = STEPS
tokens_per_update = 300
max_tokens = 600
validate_every = 40
save_every = SAVE
log_every = 20
keep_last = 2
keep_best = 0

[train.schedule]
kind = "cosine"
peak = 1e-2
warmup = 10
period = STEPS

[decode]
beam = 2
length_penalty = "stepwise"
alpha = 0.9
min_len = 3
max_len_plus = 20
block_ngrams = 3
"""
# name -> (recipe, data, steps, processes, the signal that stops it in the middle)
RUNS = {
    "pairs": (PAIRS, "pairs", 400, 1, signal.SIGINT),
    "ranks": (RANKS, "pairs", 200, 2, signal.SIGTERM),
    "text": (TEXT, "text", 160, 1, signal.SIGTERM),
}
# A run is stopped when so many updates are left at most: on another processor, with other
# rounding, the rest of it still ends near the numbers that are stored here.
LEFT = 40


def environment() -> dict[str, str]:
    """One thread each: sums do not depend on the number of cores."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def lightconv(*arguments: object, folder: Path | None = None, code: int = 0) -> None:
    words = [sys.executable, "-m", "lightconv", *map(str, arguments)]
    done = subprocess.run(words, check=False, env=environment(), cwd=folder)
    assert done.returncode == code, (done.returncode, arguments)


# --- Texts


def sentence(random: Random) -> tuple[str, str]:
    """Words in one language and, one by one, in another; adjectives follow their nouns there."""
    source, target = [], []
    for place in range(2):
        article, noun = random.choice(("the", "a")), random.choice(NOUNS)
        adjective = random.choice(ADJECTIVES) if random.random() < 0.4 else None
        middle = [] if adjective is None else [adjective]
        source += [article, *middle, noun]
        target += [WORDS[word] for word in (article, noun, *middle)]
        if place == 0:
            verb = random.choice(VERBS)
            source.append(verb)
            target.append(WORDS[verb])
    mark = random.choice(".?!")
    return " ".join(source).capitalize() + mark, " ".join(target).capitalize() + mark


def write_texts(folder: Path) -> None:
    folder.mkdir(parents=True)
    for split, count in COUNTS.items():
        random = Random(f"golden {split}")
        pairs = [sentence(random) for _ in range(count)]
        for place, end in enumerate(("en", "eo")):
            (folder / f"{split}.{end}").write_text("".join(f"{pair[place]}\n" for pair in pairs))
        lines = [sentence(random)[0].rstrip(".?!").lower() for _ in range(count)]
        (folder / f"{split}.txt").write_text("".join(f"{line}\n" for line in lines))
        records = []
        for _ in range(count // 4):
            said = [sentence(random)[0] for _ in range(random.randint(2, 4))]
            records.append({"document": " ".join(said), "summary": f"{said[0]} {said[-1]}"})
        text = "".join(f"{json.dumps(record)}\n" for record in records)
        (folder / f"{split}.jsonl").write_text(text)


# --- Folders


def prepare(texts: Path, out: Path) -> None:
    """One folder of each kind, each with other subwords."""
    for name, words in preparations(texts).items():
        lightconv("prepare", *words, "--processes", 1, "--out", out / name)


def preparations(texts: Path) -> dict[str, list[str]]:
    """The arguments of `lightconv prepare`, but for --out."""

    def splits(end: str, first: str = "train") -> list[str]:
        others = [word for s in ("valid", "test") for word in (f"--{s}", f"{texts / s}{end}")]
        return [f"--{first}", f"{texts / 'train'}{end}", *others]

    moses = [f"pipeline.sides.{i}.{x}=moses" for i in (0, 1) for x in ("normalize", "tokenize")]
    code = ["kind=bpe", "merges=50", "joint=true", "share_vocab=true"]
    pairs = [*moses, f"pipeline.subword={{{', '.join(quote(each) for each in code)}}}"]
    return {
        "pairs": [
            *("--source-lang", "en", "--target-lang", "eo", *splits("")),
            *(word for each in pairs for word in ("--set", each)),
        ],
        "text": [
            *splits(".txt", "text"),
            *("--set", 'pipeline.subword={kind="words", min_count=1}'),
        ],
        "summaries": [*splits(".jsonl", "jsonl"), "--set", "pipeline.subword.vocab=300"],
    }


def quote(assignment: str) -> str:
    name, _, value = assignment.partition("=")
    return f"{name} = {value if value in ('true', 'false') or value.isdigit() else repr(value)}"


def write_recipe(path: Path, text: str, data: Path, steps: int) -> None:
    sizes = json.loads((data / "prepared.json").read_text())["vocabulary"]
    (size,) = set(sizes.values())
    text = (
        text.replace("VOCAB", str(size))
        .replace("STEPS", str(steps))
        .replace("SAVE", str(steps - LEFT))
    )
    path.write_text(text)


def train(out: Path) -> None:
    """Each run twice: to its end, and stopped in the middle."""
    for name, (text, data, steps, processes, stop) in RUNS.items():
        recipe = out / f"{name}.toml"
        write_recipe(recipe, text, out / "data" / data, steps)
        words = ["train", recipe, "--data", out / "data" / data, "--processes", processes]
        if processes == 1:
            words = words[:-2]
        lightconv(*words, "--out", out / "end" / name)
        stop_in_the_middle([*words, "--out", out / "middle" / name], stop, steps - LEFT)


def stop_in_the_middle(words: list[object], number: signal.Signals, step: int) -> None:
    """Sends a signal as soon as there is a checkpoint of `step`; again, if it came too late."""
    folder = Path(str(words[-1]))
    command = [sys.executable, "-m", "lightconv", *map(str, words)]
    code = 0
    while code == 0:
        shutil.rmtree(folder, ignore_errors=True)
        process = subprocess.Popen(command, env=environment())
        while not (folder / "checkpoints" / f"step-{step:08}").exists() and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(number)
        code = process.wait(120)
    assert code == (130 if number == signal.SIGINT else 75), code


def add_models(out: Path) -> None:
    """A model of summaries, and one that was imported."""
    import torch

    from tests.interop.writer import PAIR, make, write

    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        data = out / "data" / "summaries"
        write_recipe(work / "summary.toml", SUMMARY, data, 160)
        words = ["train", work / "summary.toml", "--data", data]
        lightconv(*words, "--out", work / "run")
        shutil.copytree(work / "run" / "model", out / "models" / "summary")
        torch.manual_seed(0)
        checkpoint = out / "fairseq"
        checkpoint.mkdir()
        write(make(replace(PAIR, dropout=0.1)), "2019", checkpoint / "checkpoint.pt")
        for lang, count in (("de", 7), ("en", 5)):
            lines = "".join(f"{lang[0]}{i} {100 - i}\n" for i in range(count))
            (checkpoint / f"dict.{lang}.txt").write_text(lines)
        dicts = [word for x in ("de", "en") for word in ("--dict", checkpoint / f"dict.{x}.txt")]
        importing = ["import", "fairseq", checkpoint / "checkpoint.pt", *dicts]
        lightconv(*importing, "--out", out / "models" / "imported")


def add_results(out: Path) -> None:
    """Two rows of a table with one seed each."""
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(out / "data" / "pairs", Path(name) / "data" / "pairs")
        small = ["model.dim=32", "model.ffn_dim=32", "decode.beam=1", "decode.max_len_plus=5"]
        small += ["train.tokens_per_update=200", "train.max_tokens=200"]
        lightconv(
            *("table", "decoders", "--scale", "cpu", "--data", "data/pairs", "--seeds", 1),
            *("--rows", "decoder-1", "--rows", "decoder-3", "--steps", 6, "--limit", 8),
            *(word for each in small for word in ("--set", each)),
            *("--run", "--out", "runs", "--results", "results"),
            folder=Path(name),
        )
        shutil.copytree(Path(name) / "results", out / "results")
        for picture in (out / "results").rglob("*.png"):
            picture.unlink()


def write_digests(path: Path, found: dict[str, Any]) -> None:
    """One line for each folder, command or value."""
    parts = []
    for part, values in found.items():
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
        parts.append(f"{json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main() -> None:
    out = Path(sys.argv[1]).absolute()
    if "--digests" in sys.argv:
        from tests.test_golden import measure

        write_digests(out / "digests.json", measure(out))
        return
    write_texts(out / "texts")
    prepare(out / "texts", out / "data")
    train(out)
    add_models(out)
    add_results(out)


if __name__ == "__main__":
    main()
