"""ONNX files of mixers and models, run in onnxruntime, against PyTorch: every batch and length."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import lightconv
from lightconv import cli
from lightconv.data.vocabulary import EOS
from lightconv.mixers import State
from tests.examples.conftest import load_example
from tests.mixers.examples import DIM, EXAMPLES, FEW, Example, noise

pytest.importorskip("onnxscript", reason="ONNX is not installed (extra: onnx)")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX is not installed (extra: onnx)")

from lightconv.interop.onnx import translations  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "golden"
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of its exporter
f32 = torch.float32
# In CI one of each kind whose translation differs; the rest are slow.
SOON = (FEW[1], FEW[3], FEW[4])
CASES = [
    pytest.param(each, marks=[] if each in SOON else pytest.mark.slow, id=str(each))
    for each in (*EXAMPLES, *(each for each in FEW if each not in EXAMPLES))
]


def export(module: nn.Module, inputs: tuple[Any, ...], shapes: Any) -> Any:
    program = torch.onnx.export(
        module,
        inputs,
        dynamo=True,
        verbose=False,
        dynamic_shapes=shapes,
        custom_translation_table=translations(),
    )
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [each.name for each in session.get_inputs()]

    def run(*values: Any) -> list[Tensor]:
        """Outputs that have numbers; a graph may or may not keep an input that has none."""
        tensors = [torch.as_tensor(value) for value in values]
        if len(tensors) != len(names):
            tensors = [each for each in tensors if each.numel()]
        given = {name: each.numpy() for name, each in zip(names, tensors, strict=True)}
        found = [torch.from_numpy(each) for each in session.run(None, given)]
        return [each for each in found if each.numel()]

    return run


class Step(nn.Module):
    """A mixer's step with a state of plain tensors."""

    def __init__(self, mixer: Any) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor, position: int, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        out, state = self.mixer.step(x, State(tuple(tensors), position))
        return out, *state.tensors


@pytest.mark.parametrize("example", CASES)
def test_a_mixer(example: Example) -> None:
    for causal in (False, True):
        mixer = example.build(causal, f32)
        padding = torch.zeros(3, 6, dtype=torch.bool)
        free = {0: "batch", 1: "time"}
        run = export(mixer, (noise(3, 6, DIM, dtype=f32), padding), (free, free))
        for B, T in ((1, 1), (2, 3), (4, 37)):
            x, padding = noise(B, T, DIM, dtype=f32), torch.zeros(B, T, dtype=torch.bool)
            padding[-1, T - T // 3 :] = True
            expected = mixer(x, padding).masked_fill(padding[..., None], 0.0)
            found = run(x, padding)[0].masked_fill(padding[..., None], 0.0)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("example", CASES)
def test_its_step(example: Example) -> None:
    """Chunks of any length at any position, from the state that PyTorch left."""
    mixer = example.build(True, f32)

    def begin(batch: int, position: int) -> State:
        with torch.no_grad():
            past = noise(batch, position, DIM, dtype=f32, seed=2)
            return mixer.step(past, mixer.start(batch, 50))[1]

    state, free = begin(3, 5), {0: Dim("batch")}
    shapes = ({**free, 1: Dim("time")}, Dim.DYNAMIC, [free for _ in state.tensors])
    inputs = (noise(3, 4, DIM, dtype=f32), 5, list(state.tensors))
    run = export(Step(mixer), inputs, shapes)
    for B, n, position in ((1, 1, 0), (2, 1, 17), (4, 9, 3), (2, 3, 29)):
        x, state = noise(B, n, DIM, dtype=f32), begin(B, position)
        found = run(x, position, *(each.clone() for each in state.tensors))
        out, new = mixer.step(x, state)
        expected = [out, *(each for each in new.tensors if each.numel())]
        torch.testing.assert_close(found[: len(expected)], expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def greedy(model: Any, text: str, most: int) -> str:
    """The best word again and again, each time from the whole text."""
    network, pipeline = model.model, model.pipeline
    ids, given = pipeline.encode(0, [text])[0], [EOS]
    source = torch.tensor([[*ids, EOS]])
    if not model.pairs:
        given += ids
    first = len(given)
    while len(given) <= most and (len(given) == first or given[-1] != EOS):
        tokens = torch.tensor([given])
        scores = network(source, tokens) if model.pairs else network(tokens)
        given.append(int(scores[0, -1].argmax()))
    return str(pipeline.decode(1 if model.pairs else 0, given[first:]))


@pytest.mark.parametrize("kind", ["pairs", "text"])
def test_a_model_decodes(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files of `lightconv export` and the example find the words of PyTorch."""
    folder, source = tmp_path / "onnx", GOLDEN / "end" / kind / "model"
    assert cli.main(["export", str(source), "--onnx", str(folder)]) == 0
    assert "step.onnx" in capsys.readouterr().out
    assert cli.main(["export", str(source), "--onnx", str(folder)]) == 2
    model = lightconv.load(source)
    decode = load_example("onnx_decode").decode
    name = "test.en" if kind == "pairs" else "test.txt"
    for line in (GOLDEN / "texts" / name).read_text().splitlines()[:4]:
        assert decode(folder, line, 25) == greedy(model, line, 25)


def test_what_cannot_be_translated_is_refused() -> None:
    layer = lightconv.DynamicConv(8, 3, 2, dropconnect=0.5).train()
    with pytest.raises(Exception, match="eval") as caught:
        export(layer, (noise(2, 5, 8, dtype=f32),), None)
    assert "dropout" in str(caught.value)
