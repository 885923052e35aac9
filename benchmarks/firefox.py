"""A model for the Firefox engine (`pip install fxtranslate`) with given sizes and random weights.

The engine reads Marian's binary format and a SentencePiece vocabulary. Both are written here: speed
does not depend on the values of weights. Biases keep the end of a sentence from being chosen, so
outputs are as long as the engine lets them be.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Marian's numbers of types: class and bytes.
TYPES = {"int8": 0x0101, "float32": 0x0404, "intgemm8": 0x4101}
EOS = 0


class Sizes(NamedTuple):
    """A Transformer encoder, and a decoder of simple recurrent units that attends to the source."""

    vocab: int = 32000
    dim: int = 256
    ffn: int = 1536
    heads: int = 8
    encoder: int = 6
    decoder: int = 2


class Item(NamedTuple):
    """A named array as bytes."""

    name: str
    kind: str
    shape: tuple[int, ...]
    data: bytes


def write_model(sizes: Sizes, seed: int = 0) -> bytes:
    """The model file: header, names, shapes and arrays that begin at multiples of 256."""
    items = list(_items(sizes, np.random.default_rng(seed)))
    data = [each.data + b"\0" * (-len(each.data) % 256) for each in items]
    names = [each.name.encode() + b"\0" for each in items]
    head = struct.pack("<QQ", 1, len(items))
    for item, name, each in zip(items, names, data, strict=True):
        head += struct.pack("<QQQQ", len(name), TYPES[item.kind], len(item.shape), len(each))
    head += b"".join(names)
    head += b"".join(struct.pack(f"<{len(each.shape)}i", *each.shape) for each in items)
    pad = -(len(head) + 8) % 256
    return head + struct.pack("<Q", pad) + b"\0" * pad + b"".join(data)


def write_vocabulary(words: Mapping[str, float], characters: Iterable[str]) -> bytes:
    """A SentencePiece model: words with their log-probabilities, and all characters."""
    pieces = [("</s>", 0.0, 3), ("<unk>", 0.0, 2)]
    pieces += [("\N{LOWER ONE EIGHTH BLOCK}" + word, value, 1) for word, value in words.items()]
    known = {piece for piece, _, _ in pieces}
    pieces += [(each, -20.0, 1) for each in characters if each not in known]
    found = b"".join(_field(1, _piece(*each)) for each in pieces)
    trainer = _number(3, 1) + _number(40, 1) + _number(41, -1) + _number(42, EOS) + _number(43, -1)
    normalizer = _field(1, b"identity") + _number(3, 1) + _number(4, 1) + _number(5, 1)
    return found + _field(2, trainer) + _field(3, normalizer)


def _piece(piece: str, value: float, kind: int) -> bytes:
    return _field(1, piece.encode()) + b"\x15" + struct.pack("<f", value) + _number(3, kind)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value % (1 << 64))


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value % 128 + 128])
        value //= 128
    return found + bytes([value])


def _items(sizes: Sizes, generator: Any) -> Iterator[Item]:
    V, D, F = sizes.vocab, sizes.dim, sizes.ffn

    def floats(name: str, array: NDArray[Any]) -> Item:
        return Item(name, "float32", array.shape, array.astype("<f4").tobytes())

    def matrix(name: str, rows: int, columns: int) -> Iterator[Item]:
        values = generator.integers(-127, 128, (rows, columns), dtype=np.int8)
        yield Item(
            name, "intgemm8", (rows, columns), values.tobytes() + struct.pack("<f", 127 / 0.2)
        )
        yield floats(f"{name}_QuantMultA", np.full((1, 1), 127 / 4.0))

    def vector(name: str, size: int, value: float = 0.0) -> Item:
        return floats(name, np.full((1, size), value))

    def norm(name: str) -> Iterator[Item]:
        yield vector(f"{name}_ln_scale", D, 1.0)
        yield vector(f"{name}_ln_bias", D)

    def attention(name: str) -> Iterator[Item]:
        for part in "qkvo":
            yield from matrix(f"{name}_W{part}", D, D)
            yield vector(f"{name}_b{part}", D)
        yield from norm(f"{name}_Wo")

    def feed_forward(name: str) -> Iterator[Item]:
        yield from matrix(f"{name}_W1", D, F)
        yield vector(f"{name}_b1", F)
        yield from matrix(f"{name}_W2", F, D)
        yield vector(f"{name}_b2", D)
        yield from norm(f"{name}_ffn")

    settings = {
        "version": "v1.9.56",
        "type": "transformer",
        "dim-emb": D,
        "dim-vocabs": f"\n  - {V}\n  - {V}",
        "enc-depth": sizes.encoder,
        "dec-depth": sizes.decoder,
        "transformer-dim-ffn": F,
        "transformer-decoder-dim-ffn": F,
        "transformer-heads": sizes.heads,
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": "relu",
        "transformer-preprocess": '""',
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-decoder-autoreg": "rnn",
        "dec-cell": "ssru",
        "tied-embeddings-all": "true",
    }
    text = "".join(f"{name}: {value}\n" for name, value in settings.items()).encode() + b"\0"
    yield from matrix("Wemb", V, D)
    yield floats("none_QuantMultA", np.full((1, 1), 127 / 4.0))
    bias = np.zeros((1, V))
    bias[0, EOS] = -1e6
    yield floats("decoder_ff_logit_out_b", bias)
    for layer in range(1, sizes.encoder + 1):
        yield from attention(f"encoder_l{layer}_self")
        yield from feed_forward(f"encoder_l{layer}_ffn")
    for layer in range(1, sizes.decoder + 1):
        name = f"decoder_l{layer}_rnn"
        yield from matrix(f"{name}_W", D, D)
        yield from matrix(f"{name}_Wf", D, D)
        yield vector(f"{name}_bf", D)
        yield from norm(f"{name}_ffn")
        yield from attention(f"decoder_l{layer}_context")
        yield from feed_forward(f"decoder_l{layer}_ffn")
    yield Item("special:model.yml", "int8", (len(text),), text)
