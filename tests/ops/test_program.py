"""Single instructions of the engine against plain formulas, for every instruction set and panel."""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lightconv.ops import program
from lightconv.ops.vocabulary import topk_logprobs

# Rows around the blocks of the kernels, outputs and inputs around panels and groups of four.
ROWS = [1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 24, 25, 130, 245]
SIZES = [(1, 1), (3, 5), (16, 16), (31, 33), (32, 8), (33, 64), (70, 7), (100, 130)]
every_kind = pytest.mark.parametrize("kind", [program.SIGNED_PANEL, program.UNSIGNED_PANEL])


def panel_columns(kernels: Any, instruction_sets: list[str], kind: int) -> Iterator[int]:
    """Chooses every instruction set that runs this kind of panel."""
    for isa in instruction_sets:
        kernels.lightconv_choose(isa.encode())
        if columns := program.panels().columns[kind]:
            yield columns


def width(size: int) -> int:
    return -(-size // 16) * 16


def run(instructions: list[program.Instruction], workspace: Tensor, rows: int) -> None:
    array = (program.Instruction * len(instructions))(*instructions)
    task = program.Task(
        program=ctypes.addressof(array),
        count=len(instructions),
        rows=rows,
        threads=torch.get_num_threads(),
        workspace=workspace.data_ptr(),
        longest=1,
    )
    assert program.run(program.panels().engine, task) == -1


def workspace(x: Tensor, columns: int) -> Tensor:
    """x [N, I] in the first buffer, NaN everywhere else."""
    space = torch.full((x.shape[0] * columns,), torch.nan)
    space[: x.shape[0] * width(x.shape[1])].view(-1, width(x.shape[1]))[:, : x.shape[1]] = x
    return space


def part(space: Tensor, rows: int, column: int, size: int) -> Tensor:
    """The buffer at `column`: [rows, size]."""
    return space[rows * column :][: rows * width(size)].view(rows, -1)[:, :size]


def linear(op: str, x: Tensor, O: int, **fields: Any) -> tuple[program.Instruction, int]:
    """An instruction from the first buffer to the second, and the columns of both."""
    I = x.shape[1]
    return program.Instruction(
        op=program.OPS.index(op),
        source=program.Place(0, width(I), 0),
        to=program.Place(width(I), width(O), 0),
        second=program.Place(-1, 0, 0),
        I=I,
        O=O,
        **fields,
    ), width(I) + width(O)


def test_structs_are_those_of_the_library(kernels: Any) -> None:
    for name, struct in (("instruction", program.Instruction), ("run", program.Task)):
        size = getattr(kernels, f"lightconv_{name}_bytes")
        size.restype = ctypes.c_int64
        assert size() == ctypes.sizeof(struct)


@pytest.mark.parametrize("change", ["plain", "relu", "residual"])
@pytest.mark.parametrize("rows", ROWS)
def test_linear(rows: int, change: str, kernels: Any, instruction_sets: list[str]) -> None:
    """to = x W^T + bias, its positive part, or added to what `to` holds."""
    generator = torch.Generator().manual_seed(rows)
    for columns in panel_columns(kernels, instruction_sets, program.FLOAT_PANEL):
        for O, I in SIZES:
            x, weight = (torch.randn(n, I, generator=generator) for n in (rows, O))
            bias, before = (torch.randn(*n, O, generator=generator) for n in ((), (rows,)))
            packed, padded = program.pack(weight, columns), program.whole(bias, columns)
            pointers = {"weight": packed.data_ptr(), "bias": padded.data_ptr()}
            instruction, total = linear("linear", x, O, relu=int(change == "relu"), **pointers)
            space = workspace(x, total)
            expected = x.double() @ weight.double().T + bias
            if change == "residual":
                instruction.second = instruction.to
                part(space, rows, width(I), O).copy_(before)
                expected += before
            run([instruction], space, rows)
            expected = expected.relu() if change == "relu" else expected
            found = part(space, rows, width(I), O).double()
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def int8_sums(x: Tensor, values: Tensor, kind: int, bias: Tensor, scale: Tensor) -> Tensor:
    """x [N, I] quantised by the engine, times int8 values [O, I]: what the kernel gives."""
    I = x.shape[1]
    fours = F.pad(values, (0, -I % 4)).view(torch.int32)
    offset = -128 * values.sum(1, dtype=torch.int32)
    return product(x, program.Matrix(kind, fours, scale, offset), bias)


def product(x: Tensor, matrix: program.Matrix, bias: Tensor) -> Tensor:
    """x [N, I] in the numbers of a panel, times that matrix [O, I]: what the kernel gives."""
    (rows, I), O = x.shape, len(matrix.items)
    columns = program.panels().columns[matrix.panel]
    weights = matrix.pack(columns) | {"bias": program.whole(bias, columns)}
    room = width(-(-I // 2) + 1)
    quantize, _ = linear("quantize", x, 1, panel=matrix.panel)
    quantize.to = program.Place(width(I), room, 0)
    product, _ = linear("linear", x, O, panel=matrix.panel)
    product.source = quantize.to
    product.to = program.Place(width(I) + room, width(O), 0)
    for name, tensor in weights.items():
        setattr(product, name, tensor.data_ptr())
    space = workspace(x, width(I) + room + width(O))
    run([quantize, product], space, rows)
    return part(space, rows, width(I) + room, O).clone()


@every_kind
@pytest.mark.parametrize("rows", ROWS)
def test_int8_sums_are_exact(
    rows: int, kind: int, kernels: Any, instruction_sets: list[str]
) -> None:
    """Rows of integers with a largest of 127 quantise to themselves: the result is an integer."""
    generator = torch.Generator().manual_seed(rows)
    for columns in panel_columns(kernels, instruction_sets, kind):
        for O, I in SIZES:
            q, values = (
                torch.randint(-127, 128, (n, I), generator=generator, dtype=torch.int8)
                for n in (rows, O)
            )
            q[:, 0] = 127
            q[rows // 2], values[O // 2] = -127, 127  # the largest sums there are
            expected = q.long() @ values.long().T
            found = int8_sums(q.float(), values, kind, torch.zeros(O), torch.ones(O))
            assert torch.equal(found.long(), expected), (columns, O, I)


@every_kind
def test_int8_linear(kind: int, kernels: Any, instruction_sets: list[str]) -> None:
    """Against the formula with rows rounded as the engine says it does."""
    generator = torch.Generator().manual_seed(0)
    for _ in panel_columns(kernels, instruction_sets, kind):
        for O, I in SIZES:
            x, weight = (torch.randn(n, I, generator=generator) for n in (9, O))
            x[3] = weight[O // 2] = 0.0
            bias = torch.randn(O, generator=generator)
            values, scale = program.quantize(weight)
            assert torch.equal(values.abs().amax(1), torch.where(weight.any(1), 127, 0))
            found = int8_sums(x, values, kind, bias, scale)
            top = x.abs().amax(1, keepdim=True)
            q = (x * torch.where(top > 0, 127 / top, 0)).round().double()
            expected = (q * (top / 127)) @ (values.double() * scale[:, None]).T + bias
            torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5)
            # And near the product of the numbers themselves: half a step on either side.
            exact = x.double() @ weight.double().T + bias
            step = top * weight.abs().amax(1) / 127
            assert ((found - exact).abs() <= I * step * 1.01 + 1e-4).all()


@pytest.mark.parametrize("rows", ROWS)
def test_bf16_linear(rows: int, kernels: Any, instruction_sets: list[str]) -> None:
    """The formula on numbers rounded to bfloat16; numbers of 8 bits have exact sums."""
    generator = torch.Generator().manual_seed(rows)
    for _ in panel_columns(kernels, instruction_sets, program.BF16_PANEL):
        for O, I in SIZES:
            x, weight = (torch.randn(n, I, generator=generator) for n in (rows, O))
            bias = torch.randn(O, generator=generator)
            found = product(x, program.Matrix.of(weight, program.BF16_PANEL), bias)
            ours, theirs = (each.bfloat16().double() for each in (x, weight))
            torch.testing.assert_close(found.double(), ours @ theirs.T + bias, atol=1e-4, rtol=1e-5)
            x, weight = (each.mul(20).round() for each in (x, weight))
            found = product(x, program.Matrix.of(weight, program.BF16_PANEL), torch.zeros(O))
            assert torch.equal(found, x @ weight.T)


@pytest.mark.parametrize("V", [1, 5, 16, 63, 64, 65, 200, 1000])
def test_topk_kernel(V: int, kernels: Any, instruction_sets: list[str]) -> None:
    """Sorted in Python; equal values, -inf and rows of a larger matrix among them."""
    generator = torch.Generator().manual_seed(V)
    rows = (6 * torch.randn(9, V + 3, generator=generator)).round().div(2)
    rows[1], rows[2, ::2], rows[3] = 0.0, -torch.inf, torch.linspace(-9, 9, V + 3)
    logits = rows[:, :V]
    expected = logits.double().log_softmax(-1)
    for isa in instruction_sets:
        kernels.lightconv_choose(isa.encode())
        for k in {1, min(V, 9), V if V < 100 else 20}:
            values, words = topk_logprobs(logits, k)
            for row, chosen in zip(logits.tolist(), words.tolist(), strict=True):
                assert chosen == sorted(range(V), key=lambda i: (-row[i], i))[:k], isa
            exact = expected.gather(1, words)
            torch.testing.assert_close(values.double(), exact, atol=2e-6, rtol=1e-6, equal_nan=True)
