"""Words per second and core, from a raw text file to translations, of models of one shape.

    python -m benchmarks.words                       a text of invented words
    python -m benchmarks.words --write docs          also the table in docs/engine.md
    python -m benchmarks.words --lines 400 --rounds 3 --sides lightconv-int8 fxtranslate

Loading the model, tokenising and writing are in the figures, the start of Python and imports are
not. The shape is that of Firefox's `tiny` models: width 256, 1,536 in feed-forward layers, 6
encoder and 2 decoder layers, a joint vocabulary of 32,000, greedy search. Weights are random, and
every side writes 2 n + 6 tokens for n words, as fxtranslate does when no end is chosen: a speed
says nothing about quality. Every side has one core. CTranslate2's settings are searched.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.firefox import Sizes, write_model, write_vocabulary
from benchmarks.pages import measured, replace, table

SIZES = Sizes()
# Lines to texts and their numbers of tokens.
Translate = Callable[[Sequence[str]], Iterator[tuple[str, int]]]
LETTERS = "".join(map(chr, range(97, 123)))


def invented() -> tuple[list[str], list[tuple[str, str]]]:
    """Words of two or three syllables, and the merges that make each of them one token."""
    syllables = ["".join(pair) for pair in product(sorted(set(LETTERS) - set("aeiou")), "aeiou")]
    two = [*product(syllables, syllables)]
    merges = [tuple(each) for each in syllables] + [(c, v + "</w>") for c, v in syllables]
    room = SIZES.vocab - 4 - 2 * (len(syllables) + 26) - 2 * len(two)
    three = [(a + b, c) for (a, b), c in product(two, syllables)][:room]
    merges += [*two, *((a, b + "</w>") for a, b in (*two, *three))]
    words = [a + b for a, b in (*two, *three)]
    return words, [(left, right) for left, right in merges]


def write_text(path: Path, lines: int) -> None:
    """Lines of 5 to 40 words, some words far more frequent than others."""
    words, draw = invented()[0], random.Random(0)
    draw.shuffle(words)
    shares = [1 / (rank + 10) for rank in range(len(words))]
    texts = (draw.choices(words, shares, k=draw.randrange(5, 41)) for _ in range(lines))
    path.write_text("".join(f"{' '.join(text)}\n" for text in texts))


def pipeline() -> Any:
    from lightconv.data.config import BPEConfig, PipelineConfig, SideConfig
    from lightconv.data.pipeline import Pipeline
    from lightconv.data.subword import Codes
    from lightconv.data.vocabulary import Vocabularies, Vocabulary

    words, merges = invented()
    syllables = [left + right for left, right in merges[: 5 * 21]]
    inside = [f"{piece}@@" for piece in (*LETTERS, *syllables)]
    pairs = [f"{word}@@" for word in words[: len(syllables) ** 2]]
    tokens = [*inside, *pairs, *LETTERS, *syllables, *words]
    vocabulary = Vocabulary.of(tokens)
    sides = (SideConfig(lang="xx"), SideConfig(lang="yy"))
    subword = BPEConfig(merges=len(merges), share_vocab=True)
    both = Vocabularies(vocabulary, vocabulary)
    return Pipeline(PipelineConfig(sides=sides, subword=subword), [Codes(tuple(merges))], both)


def save_ours(folder: Path, kind: str, sizes: Sizes) -> None:
    import torch

    from lightconv.decode.shortlist import SHORTLIST_FILE, Shortlist
    from lightconv.models import DynamicConvConfig, LightConvConfig, Seq2Seq, Seq2SeqConfig
    from lightconv.models.folder import ModelFolder

    make: Any = {"lightconv": LightConvConfig, "dynamicconv": DynamicConvConfig}[kind]
    layers = [
        tuple(make(kernel=k, heads=sizes.heads, glu=False) for k in kernels)
        for kernels in ((3, 7, 15, 31, 31, 31), (15, 31))
    ]
    words = pipeline()
    V = words.vocabularies().sizes()[0]
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        source_vocab=V,
        target_vocab=V,
        dim=sizes.dim,
        ffn_dim=sizes.ffn,
        dropout=0.0,
        encoder=layers[0],
        decoder=layers[1],
        source_heads=sizes.heads,
        share_embeddings="all",
    )
    best = torch.randint(4, V, (V, 50), dtype=torch.int32)
    chosen = Shortlist(best, torch.arange(4, 104, dtype=torch.int32))
    from safetensors.torch import save

    files = words.files() | {SHORTLIST_FILE: save(chosen._asdict())}
    ModelFolder.write(folder, Seq2Seq(config), files=files)


def save_theirs(folder: Path, sizes: Sizes) -> None:
    words = [*invented()[0], *(f"q{n}" for n in range(sizes.vocab))]
    ranked = {word: -5 - n / 5000 for n, word in enumerate(words[: sizes.vocab - 28])}
    folder.mkdir()
    (folder / "model.bin").write_bytes(write_model(sizes))
    (folder / "vocab.spm").write_bytes(write_vocabulary(ranked, LETTERS))


def save_peer(folder: Path, sizes: Sizes) -> None:
    from benchmarks import peer
    from lightconv.models import AttentionConfig, Seq2SeqConfig

    layer = AttentionConfig(heads=sizes.heads)
    config = Seq2SeqConfig(
        source_vocab=sizes.vocab,
        target_vocab=sizes.vocab,
        dim=sizes.dim,
        ffn_dim=sizes.ffn,
        encoder=(layer,) * sizes.encoder,
        decoder=(layer,) * sizes.decoder,
        source_heads=sizes.heads,
    )
    peer.save(config, "int8", folder)


def ours(folder: Path, quantize: str, shortlist: bool) -> Translate:
    import torch

    import lightconv

    torch.set_num_threads(1)
    model = lightconv.load(folder)
    options = {"beam": 1, "quantize": quantize, "shortlist": shortlist, "max_sentences": 64}
    lengths = {"min_len_ratio": 2.0, "max_len_ratio": 2.0, "max_len_plus": 4}
    return lambda lines: (
        (each.text, len(each.outputs[0].tokens))
        for each in model.answers(lines, **options, **lengths)
    )


def fxtranslate(folder: Path) -> Translate:
    from fxtranslate import Translator

    vocab = (folder / "vocab.spm").read_bytes()
    translator = Translator((folder / "model.bin").read_bytes(), vocab, vocab)
    # A token of its vocabulary is a word.
    return lambda lines: ((text, len(text.split())) for text in map(translator.translate, lines))


def ctranslate2(folder: Path, batch: int) -> Translate:
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder), compute_type="int8", inter_threads=1, intra_threads=1
    )
    words = pipeline()

    def translate(lines: Sequence[str]) -> Iterator[tuple[str, int]]:
        # Its vocabulary has names of its own.
        tokens = [[f"w{place}" for place in ids] for ids in words.encode(0, lines)]
        order = sorted(range(len(tokens)), key=lambda row: -len(tokens[row]))
        for first in range(0, len(order), 16 * batch):  # of similar length, as it cannot be told
            some = [tokens[row] for row in order[first : first + 16 * batch]]
            for begin in range(0, len(some), batch):
                part = some[begin : begin + batch]
                length = 2 * len(part[0]) + 6
                found = translator.translate_batch(
                    part, beam_size=1, min_decoding_length=length, max_decoding_length=length
                )
                for each, one in zip(found, part, strict=True):
                    kept = each.hypotheses[0][: 2 * len(one) + 6]
                    yield " ".join(kept), len(kept)

    return translate


SIDES: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...]]] = {
    f"{kind}-{name}": (kind, ours, (quantize, short))
    for kind in ("lightconv", "dynamicconv")
    for name, quantize, short in (
        ("int8", "int8", False),
        ("int8-shortlist", "int8", True),
        ("bf16", "bf16", False),
        ("float32", "none", False),
    )
}
SIDES |= {"fxtranslate": ("fx", fxtranslate, ())}
SIDES |= {f"ctranslate2-{n}": ("peer", ctranslate2, (n,)) for n in (1, 8, 32, 64)}


def serve(side: str, folder: Path) -> None:
    """Seconds of loading, and of all; words read and tokens written."""
    kind, make, options = SIDES[side]
    if kind in ("lightconv", "dynamicconv") or kind == "fx":
        pass
    else:
        pass
    begin = time.perf_counter()
    translate = make(folder / kind, *options)
    lines = (folder / "text").read_text().splitlines()
    loaded = time.perf_counter() - begin
    found = list(translate(lines))
    (folder / "out").write_text("\n".join(text for text, _ in found))
    seconds = time.perf_counter() - begin
    print(json.dumps([loaded, seconds, sum(count for _, count in found)]), flush=True)


def costs() -> list[str]:
    """Multiplications for a token of the source, and of the output, without the vocabulary."""
    D, F, (encoder, decoder) = SIZES.dim, SIZES.ffn, SIZES[4:]
    H = SIZES.heads
    attention, ffn = 4 * D * D, 2 * D * F
    kernels = D * H * sum((3, 7, 15, 31, 31, 31)), D * H * sum((15, 31))
    rows = {
        "LightConv": (
            encoder * (2 * D * D + ffn) + decoder * 2 * D * D,
            decoder * (4 * D * D + ffn),
        ),
        "DynamicConv": (
            encoder * (2 * D * D + ffn) + kernels[0] + decoder * 2 * D * D,
            decoder * (4 * D * D + ffn) + kernels[1],
        ),
        "fxtranslate": (
            encoder * (attention + ffn) + decoder * 2 * D * D,
            decoder * (4 * D * D + ffn),
        ),
        "CTranslate2": (
            encoder * (attention + ffn) + decoder * 2 * D * D,
            decoder * (6 * D * D + ffn),
        ),
    }
    return [
        f"{name}: {read / 1e6:.1f} M a source token, {write / 1e6:.1f} M an output token"
        for name, (read, write) in rows.items()
    ] + [f"all: {SIZES.vocab * D / 1e6:.1f} M an output token for the vocabulary"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--text", type=Path, help="a text of one's own; default: invented words")
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--write", type=Path, metavar="DOCS", help="also write the table there")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], Path(options.serve[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder / "text", options.lines)
        if options.text is not None:
            lines = options.text.read_text().splitlines(keepends=True)[: options.lines]
            (folder / "text").write_text("".join(lines))
        words = len((folder / "text").read_text().split())
        kinds = {SIDES[side][0] for side in options.sides}
        for kind in sorted(kinds & {"lightconv", "dynamicconv"}):
            save_ours(folder / kind, kind, SIZES)
        if "fx" in kinds:
            save_theirs(folder / "fx", SIZES)
        if "peer" in kinds:
            save_peer(folder / "peer", SIZES)
        found: dict[str, list[list[float]]] = {side: [] for side in options.sides}
        core = min(os.sched_getaffinity(0))
        for side in list(chain(*[options.sides] * options.rounds)):
            command = [sys.executable, "-m", "benchmarks.words", "--serve", side, name]
            done = subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )
            found[side].append(json.loads(done.stdout.splitlines()[-1]))
    rate = {side: words / median(each[1] for each in runs) for side, runs in found.items()}
    rows = []
    for side, runs in found.items():
        ratio = f"{rate[side] / rate['fxtranslate']:.2f}x" if "fxtranslate" in rate else "-"
        load = f"{median(each[0] for each in runs):.2f}"
        rows.append([side, f"{rate[side]:,.0f}", load, f"{runs[0][2]:,.0f}", ratio])
    header = ["side", "words/s of a core", "load, s", "tokens written", "against fxtranslate"]
    text = f"{words:,} words in {options.lines} lines. Multiplications: {'; '.join(costs())}.\n\n"
    print(text := text + table(header, rows))
    if options.write is not None:
        replace(options.write / "engine.md", "benchmarks.words", f"{measured()}; {text}")


if __name__ == "__main__":
    main()
