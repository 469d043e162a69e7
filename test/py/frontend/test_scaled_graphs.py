"""Scaled products in compiled models: what is matched, and the exact results.

Elements are integers and half integers, and scales differ by so little that sums are exact in float32: the exact sums,
rounded once, are the only right result. PyTorch itself has no product with block scales on the CPU to compare with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from scaled_values import TYPES, elements, scales, worth
from torch import Tensor
from torch.nn.functional import ScalingType, SwizzleType

import flycc
import flycc.backend  # before anything is traced: it mends PyTorch's rules of shapes
from flycc.record import collect

M, N, K = 5, 7, 70
STRICT = {"strict": True}
MX, ROWS, WHOLE = ScalingType.BlockWise1x32, ScalingType.RowWise, ScalingType.TensorWise
PLAIN, TILED = SwizzleType.NO_SWIZZLE, SwizzleType.SWIZZLE_32_4_4


def products(record: flycc.Record) -> list[str]:
    """The problems that kernels serve; no candidate is left to PyTorch."""
    nodes = [node for graph in record.graphs for node in graph.report.nodes]
    assert all(node.kernel == f"flycc::{node.problem.split()[0]}" for node in nodes), nodes
    return [node.problem.split(" align")[0] for node in nodes]


def compiled(function: Callable[..., Tensor], *inputs: Tensor, problem: str, **how: Any) -> Tensor:
    """What `function` gives, compiled; it is one product, the `problem`."""
    assert products(flycc.explain(function, *inputs)) == [problem]
    torch._dynamo.reset()
    return torch.compile(function, backend="flycc", options=STRICT, **how)(*inputs)


def tiles(plain: Tensor) -> Tensor:
    """Scales [rows, blocks] in PyTorch's tiles, one byte after the other by its documentation."""
    rows, blocks = plain.shape
    across = -(-blocks // 4)
    stored = torch.full((-(-rows // 128) * across * 512,), 255, dtype=torch.uint8)
    for r in range(rows):
        for c in range(blocks):
            tile = r // 128 * across + c // 4
            stored[512 * tile + 16 * (r % 32) + 4 * (r % 128 // 32) + c % 4] = plain.view(torch.uint8)[r, c]
    return stored.view(torch.float8_e8m0fnu)


def block_scaled(form_a: str = "e4m3", form_b: str = "e4m3", *, m: int = M, n: int = N, k: int = K) -> Any:
    """Operands [M, K] and [N, K], their scales, and the exact product."""
    a, b = elements(form_a, m, k), elements(form_b, n, k)
    blocks = -(-k // 32)
    scale_a, scale_b = scales(125, 129, m, blocks), scales(125, 129, n, blocks)
    return a, b, scale_a, scale_b, worth(a, scale_a) @ worth(b, scale_b).T


def mx(a: Tensor, b: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return F.scaled_mm(a, b.t(), x, MX, y, MX, PLAIN, PLAIN, output_dtype=dtype)


@pytest.mark.parametrize(
    ("form_a", "form_b"), [(form, form) for form in TYPES] + [("e4m3", "e2m1"), ("e2m1", "e5m2")]
)
def test_blocks(form_a: str, form_b: str) -> None:
    *operands, expected = block_scaled(form_a, form_b)
    result = compiled(
        mx, *operands, problem=f"scaled_gemm {M}x{N}x{K} {form_a}:block x {form_b}:block -> bf16"
    )
    assert torch.equal(result, expected.bfloat16())
    assert result.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_types_of_results_and_a_bias(dtype: torch.dtype) -> None:
    *operands, expected = block_scaled()
    bias = torch.randint(-4, 5, (N,)).to(dtype)
    name = {torch.float16: "f16", torch.float32: "f32"}[dtype]
    result = compiled(
        lambda a, b, x, y, c: F.scaled_mm(a, b.t(), x, MX, y, MX, bias=c, output_dtype=dtype),
        *operands,
        bias,
        problem=f"scaled_gemm {M}x{N}x{K} e4m3:block x e4m3:block -> {name}+bias",
    )
    assert torch.equal(result, (expected + bias).to(dtype))


def test_a_bias_of_16_bits_with_a_result_of_32() -> None:
    *operands, expected = block_scaled()
    bias = torch.randint(-4, 5, (N,)).bfloat16()
    result = compiled(
        lambda a, b, x, y, c: F.scaled_mm(a, b.t(), x, MX, y, MX, bias=c, output_dtype=torch.float32),
        *operands,
        bias,
        problem=f"scaled_gemm {M}x{N}x{K} e4m3:block x e4m3:block -> f32+bias",
    )
    assert torch.equal(result, (expected + bias).float())


@pytest.mark.parametrize(("m", "n", "k"), [(M, N, K), (130, 33, 160)])
def test_tiled_scales(m: int, n: int, k: int) -> None:
    """Partial tiles, and more than one in each direction."""
    a, b, x, y, expected = block_scaled("e2m1", "e2m1", m=m, n=n, k=k)
    result = compiled(
        lambda a, b, x, y: F.scaled_mm(a, b.t(), x, MX, y, MX, TILED, TILED),
        *(a, b, tiles(x), tiles(y)),
        problem=f"scaled_gemm {m}x{n}x{k} e2m1:block x e2m1:block -> bf16",
    )
    assert torch.equal(result, expected.bfloat16())


def test_the_first_form_with_scales_of_rows_to_spare() -> None:
    a, b, x, y, expected = block_scaled(m=16, n=32, k=128)
    spare_x, spare_y = (F.pad(s.view(torch.uint8), (0, 0, 0, 128 - len(s)), value=255) for s in (x, y))
    result = compiled(
        lambda a, b, x, y: torch._scaled_mm(a, b.t(), x, y, out_dtype=torch.bfloat16),
        *(a, b, spare_x.view(x.dtype), spare_y.view(y.dtype).flatten()),
        problem="scaled_gemm 16x32x128 e4m3:block x e4m3:block -> bf16",
    )
    assert torch.equal(result, expected.bfloat16())


#: Scales of rows or of a tensor: how PyTorch multiplies with them, the scales, and what the kernel is asked for.
FORMS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "rows": (lambda a, b, x, y: F.scaled_mm(a, b.t(), x, ROWS, y, ROWS), (M, 1), (1, N)),
    "column": (lambda a, b, x, y: F.scaled_mm(a, b.t(), x, ROWS, y.t(), ROWS), (M, 1), (N, 1)),
    "tensors": (lambda a, b, x, y: F.scaled_mm(a, b.t(), x, WHOLE, y, WHOLE), (), (1,)),
    "first form, rows": (
        lambda a, b, x, y: torch._scaled_mm(a, b.t(), x, y, out_dtype=torch.bfloat16),
        (M, 1),
        (1, N),
    ),
    "first form, tensors": (
        lambda a, b, x, y: torch._scaled_mm(a, b.t(), x, y, out_dtype=torch.bfloat16),
        (),
        (1, 1),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_rows_and_tensors(name: str) -> None:
    """PyTorch on the CPU has these; quarters as scales keep its sums exact, too."""
    function, shape_a, shape_b = FORMS[name]
    a, b = elements("e4m3", M, K), elements("e5m2", N, K)
    x, y = (torch.randint(1, 9, shape).float() / 4 for shape in (shape_a, shape_b))
    result = compiled(
        function, a, b, x, y, problem=f"scaled_gemm {M}x{N}x{K} e4m3:row_f32 x e5m2:row_f32 -> bf16"
    )
    column = y.reshape(1, -1)
    exact = (worth(a) @ worth(b).T) * x.double() * column.double()
    assert torch.equal(result, exact.bfloat16())
    assert torch.equal(result, function(a, b, x, y))


def test_layouts() -> None:
    """A weight that is [K, N] in memory or a slice of another, operands at odd addresses, rows with padding."""
    *_, x, y, _ = block_scaled()
    a = elements("e4m3", M, K + 1)[:, 1:]
    b = elements("e4m3", K + 3, N + 1)[3:, 1:]
    expected = worth(a.contiguous(), x) @ worth(b.t().contiguous(), y).T
    function = lambda a, b, x, y: F.scaled_mm(a, b, x, MX, y, MX)  # noqa: E731
    problem = f"scaled_gemm {M}x{N}x{K} e4m3:block x e4m3:block -> bf16"
    assert torch.equal(compiled(function, a, b, x, y, problem=problem), expected.bfloat16())
    x_wide = torch.empty(M, 8, dtype=torch.uint8).view(x.dtype)[:, 2:5].copy_(x)
    y_across = y.t().contiguous().t()
    assert torch.equal(compiled(function, a, b, x_wide, y_across, problem=problem), expected.bfloat16())


def test_a_product_that_is_flyccs_already() -> None:
    *operands, expected = block_scaled("e4m3", "e2m1")
    residual = torch.randint(-4, 5, (M, N)).bfloat16()
    result = compiled(
        lambda a, b, x, y, h: torch.ops.flycc.scaled_gemm(
            a, b, x, y, residual=h, activation="relu", out_dtype=torch.bfloat16
        ),
        *operands,
        residual,
        problem=f"scaled_gemm {M}x{N}x{K} e4m3:block x e2m1:block -> bf16+residual+relu",
    )
    assert torch.equal(result, (expected.relu() + residual).bfloat16())


@pytest.mark.filterwarnings("ignore:.*autograd kernel was not registered")
def test_a_product_without_a_derivative_in_training() -> None:
    """Compiling a backward pass that needs one fails, as with PyTorch's own operators; where none is needed it runs."""
    a, b, x, y, expected = block_scaled()
    bias = torch.zeros(N, requires_grad=True)

    def function(bias: Tensor) -> Tensor:
        return torch.ops.flycc.scaled_gemm(a, b, x, y, bias, out_dtype=torch.float32)

    with pytest.raises(RuntimeError, match="derivative for flycc::scaled_gemm is not implemented"):
        torch.compile(function, backend="flycc")(bias)
    with torch.no_grad():
        assert torch.equal(torch.compile(function, backend="flycc")(bias), expected.float())


def test_activations_quantised_by_hand() -> None:
    """By OCP's rule in PyTorch's operators, as libraries do it in a graph; integers of three bits lose nothing."""
    _, b, _, y, _ = block_scaled(k=64)

    def function(h: Tensor, b: Tensor, y: Tensor) -> Tensor:
        blocks = h.float().view(M, 2, 32)
        exponent = (blocks.abs().amax(-1, keepdim=True).log2().floor() - 8).clamp(-127)
        a = (blocks * torch.exp2(-exponent)).clamp(-448, 448).to(TYPES["e4m3"]).view(M, 64)
        x = (exponent.squeeze(-1) + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
        return mx(a, b, x, y)

    h = torch.randint(-7, 8, (M, 64)).bfloat16()
    problem = f"scaled_gemm {M}x{N}x64 e4m3:block x e4m3:block -> bf16"
    result = compiled(function, h, b, y, problem=problem)
    assert torch.equal(result, (h.double() @ worth(b, y).T).bfloat16())


def test_quantisation_there_and_back() -> None:
    """What is quantised here comes back to the bit: powers of two in a range that e2m1 has around its largest."""
    x = torch.tensor([1.0, 2.0, -4.0]).bfloat16()[torch.randint(0, 3, (M, K))]
    x[:, ::32] = 4

    def function(x: Tensor) -> Tensor:
        data, scale, _ = torch.ops.flycc.mx_quantize(x * 8, format="e2m1")
        return torch.ops.flycc.mx_dequantize(data, scale, dtype=torch.float32)

    result = torch.compile(function, backend="flycc", options=STRICT)(x)
    assert torch.equal(result, x.float() * 8)
    assert products(flycc.explain(function, x)) == [
        f"mx_quantize {M}x{K} bf16 -> e2m1 floor",
        f"mx_dequantize {M}x{K} e2m1 -> f32",
    ]


EPILOGUES: dict[str, tuple[Callable[..., Tensor], str]] = {
    "bias, activation and residual": (
        lambda p, c, h: F.relu(p(torch.bfloat16) + c) + h,
        "bf16+bias+residual+relu",
    ),
    "behind views": (
        lambda p, c, h: (p(torch.bfloat16).view(1, M, N).relu() + h.view(1, M, N)).view(M, N),
        "bf16+residual+relu",
    ),
    "in float32": (lambda p, c, h: p(torch.bfloat16).float() + h.float(), "f32+residual"),
    "rounded later": (lambda p, c, h: p(torch.float32).relu().half(), "f16+relu"),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues(name: str) -> None:
    """Rounded once where the graph rounds after every op: the exact sums, a bias and a residual are integers."""
    tail, result_of = EPILOGUES[name]
    *operands, _ = block_scaled("e4m3", "e2m1")
    addends = torch.randint(-4, 5, (N,)).bfloat16(), torch.randint(-4, 5, (M, N)).bfloat16()

    def function(a: Tensor, b: Tensor, x: Tensor, y: Tensor, c: Tensor, h: Tensor) -> Tensor:
        return tail(lambda dtype: mx(a, b, x, y, dtype), c, h)

    result = compiled(
        function,
        *(*operands, *addends),
        problem=f"scaled_gemm {M}x{N}x{K} e4m3:block x e2m1:block -> {result_of}",
    )
    exact = worth(operands[0], operands[2]) @ worth(operands[1], operands[3]).T
    if "bias" in result_of:
        exact = exact + addends[0]
    if "relu" in result_of:
        exact = exact.relu()
    if "residual" in result_of:
        exact = exact + addends[1]
    assert torch.equal(result, exact.to(result.dtype))
    assert result.is_contiguous()


def test_epilogue_of_any_number_of_rows() -> None:
    """A batch of unknown length, as a layer of a model has it."""
    _, b, _, y, _ = block_scaled()

    def function(a: Tensor, x: Tensor, h: Tensor) -> Tensor:
        product = mx(a.view(-1, K), b, x.view(-1, x.shape[-1]), y)
        return product.view(2, -1, N).relu() + h

    counter = torch._dynamo.testing.CompileCounterWithBackend("flycc")
    run = torch.compile(function, backend=counter, dynamic=True)
    for tokens in (5, 7):
        a, _, x, _, _ = block_scaled(m=2 * tokens)
        h = torch.randint(-4, 5, (2, tokens, N)).bfloat16()
        inputs = a.view(2, tokens, K), x.view(2, tokens, -1), h
        exact = (worth(a, x) @ worth(b, y).T).relu().view(2, tokens, N) + h
        assert torch.equal(run(*inputs), exact.bfloat16())
    assert counter.frame_count == 1
    [node] = [n for graph in flycc.explain(function, *inputs).graphs for n in graph.report.nodes]
    assert "relu" in node.problem
    assert node.fused == ("aten.view.default", "aten.relu.default", "aten.add.Tensor")


GROUPS = (3, 0, 9, 1)


@pytest.mark.parametrize("form", ["e4m3", "e2m1"])
@pytest.mark.parametrize("flat", [False, True])
def test_groups_of_rows(form: str, flat: bool) -> None:
    """With PyTorch's shape of the scales of a group, [N, blocks] in one dimension, and with both."""
    total, k = sum(GROUPS), 160
    a, b = elements(form, total, k), elements(form, len(GROUPS), N, k)
    x, y = scales(125, 129, total, k // 32), scales(125, 129, len(GROUPS), N, k // 32)
    ends = torch.tensor(GROUPS).cumsum(0).int()
    result = compiled(
        lambda a, b, x, y, offs: F.scaled_grouped_mm(a, b.mT, x, MX, y, MX, PLAIN, PLAIN, offs=offs),
        *(a, b, x, y.view(torch.uint8).flatten(1).view(y.dtype) if flat else y, ends),
        problem=f"scaled_grouped_gemm {len(GROUPS)}: *{total}x{N}x{k} {form} x {form} -> bf16",
    )
    group = torch.repeat_interleave(torch.tensor(GROUPS))
    rows, matrices = worth(a, x), worth(b, y)
    assert torch.equal(result, torch.einsum("tk,tnk->tn", rows, matrices[group]).bfloat16())


def test_nan_scales_and_zero_elements() -> None:
    """A byte of 255 makes its row NaN, whatever the elements are."""
    a, b, x, y, _ = block_scaled("e2m1", "e2m1")
    a.view(torch.uint8)[1] = 0
    x.view(torch.uint8)[1, 2] = 255
    expected = worth(a, x) @ worth(b, y).T
    result = torch.compile(mx, backend="flycc", options=STRICT)(a, b, x, y)
    assert result[1].isnan().all()
    assert torch.equal(result.nan_to_num(), expected.bfloat16().nan_to_num())


@pytest.mark.parametrize("form", ["e4m3", "e2m1"])
def test_any_number_of_rows_runs_without_compiling_again(form: str) -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("flycc")
    function = torch.compile(mx, backend=counter, dynamic=True)
    _, b, _, y, _ = block_scaled(form, form)
    for m in (5, 33, 2):
        a, _, x, _, _ = block_scaled(form, form, m=m)
        torch._dynamo.mark_dynamic(a, 0)
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(function(a, b, x, y), (worth(a, x) @ worth(b, y).T).bfloat16())
    assert counter.frame_count == 1


#: Sizes of a, b and their scales that may be any, and how scales are kept, of which PyTorch counts the elements only.
UNKNOWN: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[[Tensor], Tensor]]] = {
    "rows, one after the other": (((0,), (), (0,), ()), lambda s: s.flatten()),
    "rows, the other way around": (((0,), (0,), (1,), (1,)), lambda s: s.view(-1, len(s))),
    "all, one after the other": (((0, 1), (0, 1), (0,), (0,)), lambda s: s.flatten()),
    "all, the other way around": (((0, 1), (0, 1), (0, 1), (0, 1)), lambda s: s.view(-1, len(s))),
    "K": (((1,), (1,), (1,), (1,)), lambda s: s.view(len(s), 1, -1)[:, 0]),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_scales_of_any_shape_and_size(name: str) -> None:
    unknown, kept = UNKNOWN[name]
    function = torch.compile(mx, backend="flycc", options=STRICT)
    for m, n, k in ((5, 7, 70), (9, 7, 70), (9, 6, 134)):
        if (n != 7 and unknown[1] == ()) or (k != 70 and 1 not in unknown[0]):
            continue
        a, b, x, y, expected = block_scaled(m=m, n=n, k=k)
        operands = (a, b, kept(x), kept(y))
        for operand, dims in zip(operands, unknown, strict=True):
            for dim in dims:
                torch._dynamo.mark_dynamic(operand, dim)
        assert torch.equal(function(*operands), expected.bfloat16())


def first_form(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch._scaled_mm(a, b.t(), x, y, out_dtype=torch.bfloat16)


def test_the_first_form_with_any_number_of_rows() -> None:
    """Rows to spare are cut off, whatever there are."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("flycc")
    function = torch.compile(first_form, backend=counter)
    for m in (16, 48, 144):
        a, b, x, y, expected = block_scaled(m=m, n=32, k=128)
        spare_x, spare_y = (F.pad(s.view(torch.uint8), (0, 0, 0, -len(s) % 128), value=255) for s in (x, y))
        torch._dynamo.mark_dynamic(a, 0)
        result = function(a, b, spare_x.view(x.dtype), spare_y.view(y.dtype))
        assert torch.equal(result, expected.bfloat16())
    assert counter.frame_count <= 2, "the scales have 128 rows, or any multiple"


@pytest.mark.parametrize("form", ["rows", "first form, rows"])
def test_row_scales_of_any_number_of_rows_and_columns(form: str) -> None:
    function = torch.compile(FORMS[form][0], backend="flycc", options=STRICT, dynamic=True)
    for m, n in ((5, 7), (6, 9)):
        a, b = elements("e4m3", m, K), elements("e4m3", n, K)
        x, y = torch.randint(1, 9, (m, 1)).float() / 4, torch.randint(1, 9, (1, n)).float() / 4
        expected = (a.double() * x) @ (b.double() * y.T).T
        assert torch.equal(function(a, b, x, y), expected.bfloat16())


@pytest.mark.parametrize(
    ("k", "function", "stored"),
    [
        (32, mx, lambda s: s),  # a column may be of blocks or of rows
        (128, first_form, lambda s: F.pad(s.view(torch.uint8), (0, 0, 0, 128 - len(s))).view(s.dtype)),
    ],
)
def test_scales_whose_sizes_cannot_be_told_are_refused(
    k: int, function: Callable[..., Tensor], stored: Callable[[Tensor], Tensor]
) -> None:
    a, b, x, y, _ = block_scaled(m=16, n=32, k=k)
    with collect() as record, contextlib.suppress(RuntimeError, ValueError):
        torch.compile(function, backend="flycc", dynamic=True)(a, b, stored(x), stored(y))
    [node] = [node for graph in record.graphs for node in graph.report.nodes]
    assert node.reason is not None
    assert node.reason.code == "scaled-gemm.scale", node


@pytest.mark.parametrize(("m", "n", "k"), [(0, N, K), (M, 0, K), (M, N, 0)])
def test_empty_products(m: int, n: int, k: int) -> None:
    *operands, expected = block_scaled(m=m, n=n, k=k)
    result = torch.compile(mx, backend="flycc", options=STRICT)(*operands)
    assert result.shape == (m, n)
    assert torch.equal(result, expected.bfloat16())


REFUSED: dict[str, tuple[Callable[..., Tensor], str]] = {
    "a narrow result": (lambda a, b, x, y: torch._scaled_mm(a, b.t(), x, y), "scaled-gemm.dtype"),
    "blocks of 128": (
        lambda a, b, x, y: torch._scaled_mm(
            a, b.t(), x.expand(M, 2).contiguous(), y.expand(2, N).contiguous(), out_dtype=torch.bfloat16
        ),
        "scaled-gemm.recipe",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str) -> None:
    function, code = REFUSED[name]
    a, b = elements("e4m3", M, 140), elements("e4m3", N, 140)
    one = torch.ones(1, 1)
    # PyTorch on the CPU runs the one, but not the other.
    with collect() as record, contextlib.suppress(RuntimeError, ValueError):
        torch.compile(function, backend="flycc")(a, b, one, one)
    [node] = [node for graph in record.graphs for node in graph.report.nodes]
    assert node.kernel is None
    assert node.reason is not None
    assert node.reason.code == code
