"""Model folders made by a stranger: each is opened, and reads a text, in a process with limits.

`python -m tests.harness.hostile FIRST LAST` prints a line of JSON for each case. A case follows
from its number alone: a good folder, one to three changes that know its formats, and a manifest
that fits the result, so that no digest stands in the way.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import lightconv
from lightconv.config import from_dict
from lightconv.console import Display
from lightconv.data.config import (
    BPEConfig,
    BytesConfig,
    PipelineConfig,
    SideConfig,
    WordsConfig,
)
from lightconv.data.pipeline import PIPELINE_FILE, Pipeline
from lightconv.data.subword import learn
from lightconv.decode.options import SORTED, STEPS
from lightconv.files import MANIFEST_FILE, write_manifest
from lightconv.models import (
    AdaptiveConfig,
    AttentionConfig,
    AverageConfig,
    ConvConfig,
    DynamicConvConfig,
    HyenaConfig,
    LanguageModelConfig,
    LightConvConfig,
    LowRankConvConfig,
    ModelConfig,
    Seq2SeqConfig,
    ShortConvConfig,
)
from lightconv.models.folder import CONFIG_FILE, WEIGHTS_FILE, ModelFolder, build, build_empty
from lightconv.models.tensors import DTYPES, parameters, write_tensors
from lightconv.ops.library import native
from tests.test_garbage import damage

SECONDS = 10  # of the processor
WALL_SECONDS = 60  # for one that waits
MEMORY = 512 << 20  # besides twice the weights
CASES_OF_A_PROCESS = 20
MOST_WEIGHTS = 4 << 20
TEXT = "the quick brown fox said: don't"
# Errors about the text or about an option that the user chose, and about what all weights give.
NAMELESS = re.compile(
    r"line 1(:| has no output)|quantize='int8'|sentence \d has no output|coverage needs"
)

Chance = random.Random
Change = Callable[[Path, Chance], None]

# --- Good folders

LAYERS = (
    AttentionConfig(heads=2),
    ConvConfig(kernel=3),
    LightConvConfig(kernel=3, heads=2),
    DynamicConvConfig(kernel=4, heads=4, glu=True),
    AverageConfig(ffn_dim=12),
    AttentionConfig(heads=4, window=3),
)
GATED = (
    ShortConvConfig(dilation=2),
    LowRankConvConfig(rank=2, dilation=3),
    HyenaConfig(kernel=9, heads=2),
)
BANDS = AdaptiveConfig(cutoffs=(6, 12), factor=2)
SIDE = SideConfig(lang="en", tokenize="moses", normalize="moses")
SUBWORDS = {
    "bpe": BPEConfig(merges=30, joint=False),
    "bytes": BytesConfig(vocab=280),
    "words": WordsConfig(),
}


def learn_pipeline(kind: str, sides: int) -> Pipeline:
    text = b"the quick brown fox jumps over the lazy dog and said : don't\n" * 3
    side = SideConfig(lang="en") if kind == "bytes" else SIDE
    config = PipelineConfig(sides=(side,) * sides, subword=SUBWORDS[kind])
    learned = learn(config.subword, [(text, text[10:])[:sides]], display=Display(quiet=True))
    return Pipeline(config, learned.codes, learned.vocabularies)


def write_good(folder: Path) -> None:
    """A folder of each kind."""
    for name, kind, adaptive, dtype in (
        ("pair-bpe", "bpe", None, torch.float32),
        ("pair-bytes", "bytes", None, torch.float32),
        ("pair-words", "words", BANDS, torch.float16),
        ("pair-import", "bpe", None, torch.float32),
        ("text-words", "words", BANDS, torch.float32),
        ("text-bytes", "bytes", None, torch.float32),
        ("pair-gated", "bpe", None, torch.float32),
        ("text-gated", "bytes", None, torch.float32),
    ):
        pair = name.startswith("pair")
        layers = GATED if name.endswith("gated") else LAYERS
        pipeline = learn_pipeline(kind, 2 if pair else 1)
        sizes = pipeline.vocabularies().sizes()
        config: ModelConfig = LanguageModelConfig(
            dim=8, ffn_dim=12, layers=layers, vocab=sizes[0], adaptive=adaptive
        )
        if pair:
            config = Seq2SeqConfig(
                dim=8,
                ffn_dim=12,
                source_heads=2,
                encoder=layers,
                decoder=layers,
                source_vocab=sizes[0],
                target_vocab=sizes[1],
                adaptive=adaptive,
                share_embeddings="all" if kind == "bytes" else "none",
            )
        torch.manual_seed(0)
        model = build(config).to(dtype)
        files = pipeline.files()
        if name == "pair-import":
            del files[PIPELINE_FILE]
        decode = {"beam": 3, "max_len_ratio": 1.0, "max_len_plus": 5}
        ModelFolder.write(folder / name, model, files=files, tables={"decode": decode})


# --- Changes

NUMBERS = [
    *(0, -1, 1, 2, 3, 7, 8, 16, 255, 256, 1000, 1001, 4096, 65535, 65536, 10**6, 2**20, 2**20 + 1),
    *(2**24, 2**27, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**61, 2**62, 2**63 - 1, 2**63),
    *(2**64, -(2**63), 10**30, 10**400, 0.5, -0.5, 1.0, 0.999999, 1e-320, 1e30, 1e308, -1e308),
    *(float("nan"), float("inf"), float("-inf")),
]
STRINGS = [
    *("", " ", "x" * 100_000, "\x1b[31mred\x1b]0;title\x07", "\x9b2J", "\0", "\ud800", "\u202e"),
    *("../../etc/passwd", "/dev/zero", "%s%n", "none", "softmax", "l2", "all", "moses", "jieba"),
    *("attention", "conv", "lightconv", "dynamicconv", "average", "seq2seq", "language_model"),
    *("bpe", "bytes", "words", "zh", "th", "F64", "F16", "BF16", "I8", "F8_E4M3", "C64", "BOOL"),
]
VALUES = [*NUMBERS, *STRINGS, None, True, False, [], {}, [[]], [{}], {"a": {}}, [0], [3, 2, 1]]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of plain values."""
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for key, item in list(pairs):
        yield value, key
        yield from places(item)


def near(value: Any, chance: Chance) -> Any:
    """A value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        few = [value - 1, value + 1, value * 2, value // 2, -value, value * 1000]
        return chance.choice([*few, *(n for n in NUMBERS if isinstance(n, int))])
    if isinstance(value, float):
        return chance.choice([value * 2, value + 1, -value, *NUMBERS])
    if isinstance(value, str):
        return chance.choice([value + "x", value[:-1], value * 2, value.upper(), *STRINGS])
    if isinstance(value, list) and value:
        some = [value * chance.choice([2, 3, 20, 200, 2000]), value[:-1], value[::-1], value[:1]]
        return chance.choice([*some, [chance.choice(value) for _ in value], [*value, value[0]]])
    return chance.choice(VALUES)


def change_plain(data: Any, chance: Chance) -> None:
    found = list(places(data))
    if not found:
        return
    container, key = chance.choice(found)
    what = chance.random()
    if what < 0.6:
        container[key] = near(container[key], chance)
    elif what < 0.75:
        container[key] = chance.choice(VALUES)
    elif what < 0.85:
        other, name = chance.choice(found)
        container[key] = json.loads(json.dumps(other[name]))
    elif what < 0.95:
        del container[key]
    elif isinstance(container, dict):
        container[chance.choice([*STRINGS[:8], key + "x", "kind", "decode"])] = container.pop(key)


def write_plain(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1))


def change_json(folder: Path, chance: Chance) -> None:
    path = folder / chance.choice([CONFIG_FILE, CONFIG_FILE, PIPELINE_FILE])
    path = path if path.exists() else folder / CONFIG_FILE
    data = json.loads(path.read_bytes())
    for _ in range(chance.randint(1, 3)):
        change_plain(data, chance)
    write_plain(path, data)


def change_decode(folder: Path, chance: Chance) -> None:
    """A search whose fields have the right types."""
    data = json.loads((folder / CONFIG_FILE).read_bytes())
    ints = [0, 1, 2, 5, 64, 200, 1000, 4096, 10**4, 10**5, 2**20, 10**7, 10**9, 2**62]
    floats = [0.0, 0.5, 1.0, 2.0, 10.0, 50.0, 100.0, 1e4, 1e300]
    fields = {
        **dict.fromkeys(("beam", "min_len", "max_len_plus", "block_ngrams"), ints),
        **dict.fromkeys(("alpha", "coverage", "min_len_ratio", "max_len_ratio"), floats),
        "length_penalty": ["power", "stepwise"],
        "allow_unknown": [True, False],
    }
    for name in chance.sample(list(fields), chance.randint(1, 5)):
        data.setdefault("decode", {})[name] = chance.choice(fields[name])
    if chance.random() < 0.2:  # almost too much
        beam = chance.choice([1, 5, 40, 100, 200])
        length = min(STEPS // 10, SORTED // beam**2)
        data["decode"] = {"beam": beam, "max_len_plus": length, "min_len": length}
        data["decode"]["block_ngrams"] = chance.choice([0, 0, 3, 10])
    write_plain(folder / CONFIG_FILE, data)


def change_model(folder: Path, chance: Chance) -> None:
    """Another model, with weights and a vocabulary that fit it."""
    data = json.loads((folder / CONFIG_FILE).read_bytes())
    model = data["model"]
    for _ in range(chance.randint(1, 3)):
        layers = chance.choice([value for value in model.values() if isinstance(value, list)])
        what, layer = chance.random(), chance.choice(layers)
        if what < 0.2:
            kind = chance.choice(list(LARGE))
            layers[:] = [{"kind": kind, **LARGE[kind]}] * chance.choice([1, 2, 6, 30])
        elif what < 0.6:
            name = chance.choice([name for name in layer if name != "kind"])
            layer[name] = near(layer[name] or 1, chance)
        elif what < 0.7:
            layers.append(dict(layer))
        elif what < 0.8:
            model["dim"] = chance.choice([1, 2, 3, 4, 12, 16, 64, 256])
        else:
            name = chance.choice([name for name in model if not isinstance(model[name], list)])
            model[name] = near(model[name], chance)
    write_plain(folder / CONFIG_FILE, data)
    fit_files(folder, model, chance)


LARGE: dict[str, dict[str, Any]] = {
    "attention": {"heads": 1, "window": 2**20},
    "conv": {"kernel": 4096},
    "lightconv": {"heads": 1, "kernel": 4096, "normalize": "none"},
    "dynamicconv": {"heads": 1, "kernel": 4096, "glu": True},
    "average": {"ffn_dim": 10**5},
    "shortconv": {"kernel": 16, "dilation": 4096},
    "lowrankconv": {"kernel": 4096, "dilation": 16},
    "hyena": {"kernel": 4096, "heads": 1, "short": 4096},
}


def fit_files(folder: Path, model: Any, chance: Chance) -> None:
    """Weights and vocabularies of that size, unless it is large."""
    try:
        config: ModelConfig = from_dict(ModelConfig, model)
        empty = parameters(build_empty(config))
    except (ValueError, RuntimeError, OverflowError):
        return
    if sum(tensor.numel() for tensor in empty.values()) > MOST_WEIGHTS:
        return
    generator = torch.Generator().manual_seed(chance.randrange(1 << 30))
    shapes = {name: tensor.shape for name, tensor in empty.items()}
    write_weights(
        folder, {name: 0.3 * torch.randn(shapes[name], generator=generator) for name in shapes}
    )
    source, target = config.vocab_sizes
    sizes = {"vocab.txt": target, "vocab.source.txt": source, "vocab.target.txt": target}
    for name, size in sizes.items():
        if (folder / name).exists():
            lines = (folder / name).read_text().split("\n")[:-1]
            lines = [*lines, *(f"more{n}" for n in range(size))][:size]
            (folder / name).write_text("".join(f"{line}\n" for line in lines))


def write_weights(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    (folder / WEIGHTS_FILE).unlink()
    write_tensors(folder / WEIGHTS_FILE, tensors)


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


def split_weights(folder: Path) -> tuple[Any, bytes]:
    data = (folder / WEIGHTS_FILE).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def change_header(folder: Path, chance: Chance) -> None:
    header, data = split_weights(folder)
    for _ in range(chance.randint(1, 2)):
        if chance.random() < 0.02:
            header |= {f"t{n}": EMPTY for n in range(100_000)}
        elif chance.random() < 0.2:
            header["__metadata__"] = chance.choice([{"format": "pt"}, {"a": 1}, [], "x", None])
        change_plain(header, chance)
    text = json.dumps(header).encode()
    size = chance.choice([len(text)] * 8 + [0, 1, len(text) - 1, len(text) + 9, 2**63, 2**64 - 1])
    (folder / WEIGHTS_FILE).write_bytes(size.to_bytes(8, "little") + text + data)


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    header, data = split_weights(folder)
    names = {name: dtype for dtype, name in DTYPES.items()}
    found = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        flat = torch.frombuffer(bytearray(data[start:end]), dtype=names[entry["dtype"]])
        found[name] = flat.reshape(entry["shape"])
    return found


def change_values(folder: Path, chance: Chance) -> None:
    """Weights of the right shapes: not numbers, infinite, giant, tiny, random bits."""
    tensors = read_all(folder)
    some = list(tensors) if chance.random() < 0.3 else chance.sample(list(tensors), 2)
    value = chance.choice([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45, 0.0, 1e5])
    for name in some:
        flat = tensors[name].view(-1)
        if chance.random() < 0.3:
            bits = torch.frombuffer(bytearray(chance.randbytes(flat.nbytes)), dtype=flat.dtype)
            flat.copy_(bits)
        elif chance.random() < 0.5:
            flat.fill_(value)
        else:
            flat[chance.randrange(len(flat))] = value
    write_weights(folder, tensors)


def change_types(folder: Path, chance: Chance) -> None:
    tensors = read_all(folder)
    some = list(tensors) if chance.random() < 0.7 else chance.sample(list(tensors), 1)
    dtype = chance.choice(list(DTYPES))
    write_weights(folder, {**tensors, **{name: tensors[name].to(dtype) for name in some}})


def change_names(folder: Path, chance: Chance) -> None:
    tensors = read_all(folder)
    name = chance.choice(list(tensors))
    tensor = tensors.pop(name)
    if chance.random() < 0.8:
        other = chance.choice([*STRINGS[:6], name + "x", name.replace(".", ".."), "a." * 5000])
        tensors[other.replace("\ud800", "")] = tensor
    elif len(tensor):
        tensors[name] = chance.choice([tensor[:-1], tensor[None], tensor[:0], tensor.flatten()])
    write_weights(folder, tensors)


LINES = [
    *(b"", b" ", b"@@", b"</w>", b"a</w> b", b"<s>", b"<unk>", b"x y z", b"a b 3", b"\r", b"a\tb"),
    *(
        b"\x1b[31m",
        b"\xff\xfe",
        b"\0",
        b"\xed\xa0\x80",
        b"\xc2\x85",
        b"\xe2\x80\xa8",
        b"\xe2\x80\xae",
    ),
    *(b"x" * 100_000, b"x " * 50_000, b"#version: 0.2", b"#version: 9", "\U0010ffff".encode()),
    *(b"t h", b"th e</w>", b"e </w>", b"\xc2\xad", "é".encode()),
]


def change_lines(folder: Path, chance: Chance) -> None:
    """Tokens and codes."""
    names = [each for each in folder.iterdir() if each.name.startswith(("vocab", "codes"))]
    path = chance.choice(sorted(names))
    lines = path.read_bytes().split(b"\n")
    for _ in range(chance.randint(1, 4)):
        place, what = chance.randrange(len(lines)), chance.random()
        if what < 0.2:
            del lines[place]
        elif what < 0.4:
            lines.insert(place, chance.choice([*LINES, *lines]))
        elif what < 0.7:
            lines[place] = chance.choice([*LINES, *lines])
        elif what < 0.8:
            lines[place:place] = [b"m%d" % n for n in range(chance.choice([1, 300, 20_000]))]
        elif what < 0.9:
            other = chance.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
        else:
            lines = lines[: place + 1]
        lines = lines or [b""]
    path.write_bytes(b"\n".join(lines))


def change_bytes(folder: Path, chance: Chance) -> None:
    path = chance.choice(sorted(each for each in folder.iterdir() if each.is_file()))
    path.write_bytes(damage(path.read_bytes(), chance))


def change_file(folder: Path, chance: Chance) -> None:
    """Something else in place of a file."""
    path = chance.choice(sorted(each for each in folder.iterdir() if each.is_file()))
    what = chance.randrange(10)
    if what == 0:
        path.write_bytes(b"")
    elif what == 1:
        with path.open("r+b") as file:
            file.truncate(1 << 28)  # zeros that need no room on the disk
    elif what == 2:
        path.write_bytes(b"[" * 100_000 + b"]" * 100_000)
    elif what == 9:
        path.write_bytes(path.read_bytes() + b"".join(b"%x %x\n" % (n, n) for n in range(1 << 19)))
    else:
        path.unlink()
        if what == 3:
            path.mkdir()
        elif what == 4:
            os.mkfifo(path)
        elif what == 5:
            path.symlink_to(chance.choice(["/dev/zero", "/etc/passwd", path.name, "nowhere", "."]))
        elif what == 6:
            others = sorted((folder.parent / "good").glob(f"*/{path.name}"))
            shutil.copyfile(chance.choice(others), path)
        elif what == 7:
            shutil.copyfile(folder / chance.choice([CONFIG_FILE, "README.md", MANIFEST_FILE]), path)


CHANGES: dict[Change, int] = {
    change_json: 5,
    change_model: 10,
    change_decode: 4,
    change_header: 4,
    change_values: 3,
    change_types: 1,
    change_names: 1,
    change_lines: 4,
    change_bytes: 3,
    change_file: 1,
}


def make_case(number: int, folder: Path) -> list[str]:
    """Writes the folder of a case; the names of its changes."""
    chance = random.Random(number)
    good = sorted((folder.parent / "good").iterdir())
    shutil.copytree(chance.choice(good), folder)
    done: list[str] = []
    count = chance.choice([1, 1, 1, 2, 3])
    chosen = chance.choices(list(CHANGES), list(CHANGES.values()), k=count)
    # Nobody can read a pipe that stands in place of a file.
    for change in sorted(chosen, key=lambda each: each is change_file):
        if change is change_file and change.__name__ in done:
            break
        try:
            change(folder, chance)
        except (ValueError, OSError, KeyError, TypeError, AttributeError, RuntimeError):
            continue  # of a file that another change has damaged
        done.append(change.__name__)
    if chance.random() < 0.9:
        try:
            write_manifest(folder, skip=("README.md",))
        except OSError:  # of a pipe, or of a folder in its own place
            with suppress(OSError):
                (folder / MANIFEST_FILE).unlink()
    return done


# --- Cases

OPTIONS: list[dict[str, Any]] = [
    {},
    {},
    {"engine": "torch"},
    {"quantize": "int8"},
    {"alignments": True},
    {"sample": True, "n_best": 2},
    {"subwords": True},
]


def read_text(folder: Path, chance: Chance) -> str:
    """Opens a folder and answers a text; a line about the result."""
    model = lightconv.load(folder)
    options = dict(chance.choice(OPTIONS))
    if not model.pairs:
        options.pop("alignments", None)
    (answer,) = model.answers([TEXT], **options)
    shown = "".join(each.text for each in answer.outputs)
    assert not re.search("[\\x00-\\x08\\x0a-\\x1f\\x7f-\\x9f]", shown), repr(shown)
    if chance.random() < 0.3:
        model.score([TEXT], [TEXT] if model.pairs else None)
    return "answered"


def judge(folder: Path, chance: Chance) -> tuple[str, str]:
    """The outcome, and the fault if there is one."""
    try:
        return read_text(folder, chance), ""
    except (ValueError, OSError) as error:
        text = str(error)
        plain = isinstance(error, OSError) or type(error).__name__ in ("ValueError", "ConfigError")
        if not plain or not text.isprintable() or len(text) > 1000:
            return "refused", f"{type(error).__name__}: {text[:300]!r} {last_line()}"
        if str(folder) not in text and not NAMELESS.search(text):
            return "refused", f"names no file: {text[:300]} {last_line()}"
        return text.replace(str(folder), "DIR"), ""
    except BaseException as error:
        return "raised", f"{type(error).__name__}: {str(error)[:300]!r} {last_line()}"


def last_line() -> str:
    _, _, trace = sys.exc_info()
    frames = traceback.extract_tb(trace)
    ours = [each for each in frames if "lightconv" in each.filename]
    return " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in ours[:-5:-1])


def run_cases(numbers: range, folder: Path, pipe: int) -> None:
    """In a process of its own: a line for each case, before the next begins."""
    warnings.simplefilter("ignore")
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = pages + MEMORY + 2 * 4 * MOST_WEIGHTS
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for number in numbers:
        case = folder / f"case{number}"
        changes = make_case(number, case)
        os.write(pipe, (json.dumps({"case": number, "changes": changes}) + "\n").encode())
        signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        start = time.process_time()
        outcome, fault = judge(case, random.Random(number))
        seconds = round(time.process_time() - start, 3)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        row = {"outcome": outcome[:300], "fault": fault, "seconds": seconds}
        os.write(pipe, (json.dumps(row) + "\n").encode())
        shutil.rmtree(case, ignore_errors=True)


def run(first: int, last: int, folder: Path) -> Iterator[dict[str, Any]]:
    """The result of each case."""
    (folder / "good").mkdir()
    write_good(folder / "good")
    assert native().library is not None
    while first < last:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                run_cases(range(first, min(first + CASES_OF_A_PROCESS, last)), folder, writer)
            except BaseException:
                traceback.print_exc()
                os.kill(os.getpid(), signal.SIGABRT)  # a fault of this program
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as lines:
            for line in lines:
                row = json.loads(line)
                ending = next(lines, None)
                _, status = (0, 0) if ending else os.waitpid(child, 0)
                code = os.waitstatus_to_exitcode(status)
                end = json.loads(
                    ending or json.dumps({"outcome": "ended", "fault": f"exit {code}"})
                )
                first = row["case"] + 1
                yield row | end
                if not ending:
                    child = 0
        if child and os.waitpid(child, 0)[1]:
            raise RuntimeError(f"no case could be made of number {first}")


def main() -> None:
    for name in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(name, signal.SIG_DFL)
    # In memory, where files are synced at once.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        for row in run(int(sys.argv[1]), int(sys.argv[2]), Path(folder)):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
