"""Lines decoded with the files of `lightconv export MODEL --onnx FOLDER`.

    echo 'A fast text editor.' | python examples/onnx_decode.py FOLDER

PyTorch is not needed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from lightconv.data.pipeline import Pipeline
from lightconv.data.vocabulary import EOS


def decode(folder: Path, text: str, most: int) -> str:
    """The greedy translation of a text, or its continuation by a language model."""
    pipeline = Pipeline.load(folder)
    step = onnxruntime.InferenceSession(str(folder / "step.onnx"))
    past = {
        each.name: np.zeros([1, *(most if isinstance(d, str) else d for d in each.shape[1:])], "f4")
        for each in step.get_inputs()
        if each.name.startswith("past_")
    }
    tokens, memory, found = [EOS, *pipeline.encode(0, [text])[0]], {}, []
    if (folder / "encoder.onnx").exists():
        encoder = onnxruntime.InferenceSession(str(folder / "encoder.onnx"))
        names = [each.name for each in encoder.get_outputs()]
        source = np.array([[*tokens[1:], EOS]])
        memory = dict(zip(names, encoder.run(None, {"source": source}), strict=True))
        tokens = [EOS]
    position = 0
    while position + len(tokens) <= most:
        given = {"tokens": np.array([tokens]), "position": np.array(position)}
        scores, *new = step.run(None, {**given, **past, **memory})
        past, position = dict(zip(past, new, strict=True)), position + len(tokens)
        tokens = [int(scores[0, -1].argmax())]
        if tokens[0] == EOS:
            break
        found += tokens
    return pipeline.decode(-1 if memory else 0, found)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Decode lines of text with onnxruntime.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=100, help="longest text in tokens")
    args = parser.parse_args(argv)
    if args.most < 1:
        parser.error("--most must be at least 1")
    for line in sys.stdin:
        print(decode(args.folder, line.strip(), args.most))


if __name__ == "__main__":
    main()
