"""flycc::scaled_gemm as a PyTorch operator: values, forms of scales, layouts, empty sizes, and wrong arguments.

Where results must be right to the bit, elements are integers and half integers, and scales differ by powers of two so
little that every sum is exact in float32: the exact sums, rounded once, are the only right result.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pytorchs_way import by_pytorch
from scaled_values import TYPES, elements, scales, worth
from torch import Tensor

from flycc.kernels.gemm import GemmConfig
from flycc.kernels.mx import MxConfig
from flycc.runtime import refusals
from flycc.runtime import scaled_gemm as runtime

scaled_gemm = torch.ops.flycc.scaled_gemm


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """Results are the kernels', but inside of `by_pytorch`."""
    torch.manual_seed(int(os.environ["FLYCC_TEST_SEED"]))
    with refusals.strict():
        yield


def check(expected: Tensor, kernel: bool, *arguments: Any, **tail: Any) -> None:
    """PyTorch's operators and, if `kernel`, a launch give `expected`, rounded once."""
    expected = expected.to(tail["out_dtype"])
    with by_pytorch(runtime):
        assert torch.equal(scaled_gemm(*arguments, **tail), expected)
    if kernel:
        result = scaled_gemm(*arguments, **tail)
        assert torch.equal(result, expected)
        assert result.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("form_a", "form_b"), [*itertools.product(TYPES, TYPES)])
def test_block_scales(form_a: str, form_b: str, dtype: torch.dtype) -> None:
    """Odd sizes, a last block that is short, every mix of types."""
    a, b = elements(form_a, 5, 70), elements(form_b, 7, 70)
    scale_a, scale_b = scales(125, 129, 5, 3), scales(125, 129, 7, 3)
    with_kernel = {
        ("e4m3", "e4m3", torch.bfloat16),
        ("e5m2", "e2m1", torch.float32),
        ("e2m1", "e2m1", torch.float16),
    }
    check(
        worth(a, scale_a) @ worth(b, scale_b).T,
        (form_a, form_b, dtype) in with_kernel,
        *(a, b, scale_a, scale_b),
        out_dtype=dtype,
    )


#: Scales of rows of 70 elements.
KINDS: dict[str, Any] = {
    "none": lambda rows: None,
    "block": lambda rows: scales(125, 129, rows, 3),
    "row": lambda rows: scales(120, 134, rows, 1),
    "row_f32": lambda rows: torch.randint(1, 9, (rows, 1)).float() / 4,
    "tensor": lambda rows: torch.full((1, 1), 0.375),
    "tensor byte": lambda rows: scales(130, 130, 1, 1),
}


@pytest.mark.parametrize(("kind_a", "kind_b"), [*itertools.product(KINDS, KINDS)])
def test_kinds_of_scales(kind_a: str, kind_b: str) -> None:
    a, b = elements("e4m3", 5, 70), elements("e2m1", 7, 70)
    scale_a, scale_b = KINDS[kind_a](5), KINDS[kind_b](7)
    with_kernel = {("none", "block"), ("row", "tensor"), ("tensor byte", "row_f32")}
    check(
        worth(a, scale_a) @ worth(b, scale_b).T,
        (kind_a, kind_b) in with_kernel,
        *(a, b, scale_a, scale_b),
        out_dtype=torch.float32,
    )


def test_one_byte_a_row_is_a_blocks_where_a_row_has_one_block() -> None:
    a, b = elements("e5m2", 3, 32), elements("e4m3", 4, 32)
    scale_a, scale_b = scales(120, 134, 3, 1), scales(120, 134, 1, 1)
    expected = worth(a, scale_a) @ worth(b, scale_b).T
    check(expected, True, a, b, scale_a, scale_b, out_dtype=torch.float32)


@pytest.mark.parametrize("form", TYPES)
def test_strides_and_offsets(form: str) -> None:
    """Rows with gaps from odd addresses, an odd K of 8-bit elements; operands and scales stored the other way."""
    k = 74 if form == "e2m1" else 73
    inner = elements(form, 1, 74).shape[1] if form == "e2m1" else k
    a, b = elements(form, 6, 200)[1:, 7 : 7 + inner], elements(form, 80, 18).mT[:9, :inner]
    scale_a, scale_b = scales(125, 129, 9, 5).mT[:, 3:6], scales(125, 129, 9, 11)[:, 2:5]
    expected = worth(a, scale_a) @ worth(b, scale_b).T
    check(expected, form != "e5m2", a, b, scale_a, scale_b, out_dtype=torch.float32)


def test_rows_far_apart() -> None:
    """Further than a kernel's addresses reach."""
    near, b = elements("e4m3", 3, 64), elements("e4m3", 7, 64)
    step = 1 << 25
    a = torch.empty(2 * step + 64, dtype=torch.uint8).as_strided((3, 64), (step, 1))
    a.copy_(near.view(torch.uint8))
    check(
        worth(near, None) @ worth(b, None).T, True, a.view(near.dtype), b, None, None, out_dtype=torch.float32
    )


def test_shares_of_k() -> None:
    """So few tiles of so long a K that workgroups share it."""
    a, b = elements("e4m3", 3, 4096), elements("e4m3", 20, 4096)
    scale_a, scale_b = scales(126, 128, 3, 128), scales(126, 128, 20, 128)
    problem = runtime.ScaledGemmOperands.of(
        *runtime._checked(a, b, scale_a, scale_b, None, None, "none", torch.float32)[1:],
        *(None, None, "none", torch.empty(3, 20)),
    ).problem()
    assert runtime.family.choose(problem).split
    expected = worth(a, scale_a) @ worth(b, scale_b).T
    check(expected, True, a, b, scale_a, scale_b, out_dtype=torch.float32)


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh", "silu"])
def test_epilogue(activation: str, kernel: bool) -> None:
    """One rounding at the end. bfloat16 has 8 bits; float32 functions are good to 2^-20 of what they get."""
    if kernel and activation not in ("relu", "silu"):
        pytest.skip("the kernels' own tests have all activations")
    a, b = elements("e4m3", 5, 64), elements("e4m3", 8, 64)
    scale_a, scale_b = scales(122, 126, 5, 2), scales(122, 126, 8, 2)
    bias, residual = torch.randn(8).bfloat16(), torch.randn(5, 8).bfloat16()
    with contextlib.nullcontext() if kernel else by_pytorch(runtime):
        result = scaled_gemm(
            a, b, scale_a, scale_b, bias, residual=residual, activation=activation, out_dtype=torch.bfloat16
        )
    p = worth(a, scale_a) @ worth(b, scale_b).T + bias.double()
    functions = {
        "none": lambda x: x,
        "relu": torch.relu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }
    y = functions[activation](p)
    bound = (y + residual.double()).abs() * 2.0**-8 + (p.abs() + y.abs()) * 2.0**-20
    assert ((result.double() - y - residual.double()).abs() <= bound).all()


@pytest.mark.parametrize("kernel", [False, True])
def test_the_whole_range_of_scales_and_nan_bytes(kernel: bool) -> None:
    """Scales of both operands may leave float32 where their product does not; a NaN byte takes its rows and no more."""
    a, b = elements("e4m3", 4, 64), elements("e2m1", 6, 64)
    scale_a, scale_b = scales(254, 254, 4, 2), scales(0, 0, 6, 2)
    scale_b.view(torch.uint8)[3, 1] = 255
    expected = worth(a, scale_a) @ worth(b, scale_b).T
    with contextlib.nullcontext() if kernel else by_pytorch(runtime):
        result = scaled_gemm(a, b, scale_a, scale_b, out_dtype=torch.float32)
        beyond = scaled_gemm(a, b, scale_a, scale_a[:1].expand(6, 2), out_dtype=torch.float32)
    assert torch.equal(result.isnan(), expected.isnan())
    assert result[:, 3].isnan().all()
    assert torch.equal(result.nan_to_num(), expected.float().nan_to_num())
    assert beyond.isinf().any()


@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 64), (4, 0, 64), (3, 4, 0), (0, 0, 0)])
def test_empty_sizes(m: int, n: int, k: int) -> None:
    """An empty sum is zero."""
    a, b, blocks = elements("e4m3", m, k), elements("e2m1", n, k), -(-k // 32)
    bias = torch.randn(n).bfloat16()
    result = scaled_gemm(a, b, scales(127, 127, m, blocks), None, bias, out_dtype=torch.bfloat16)
    assert torch.equal(result, bias.expand(m, n))


def test_the_operator_is_legal() -> None:
    a, b = elements("e4m3", 5, 64), elements("e5m2", 8, 64)
    arguments = (a, b, scales(125, 129, 5, 2), None, torch.randn(8))
    # Not "test_schema": it multiplies elements, which PyTorch cannot do with those of 8 bits.
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(scaled_gemm.default, arguments, {"out_dtype": torch.float32}, test_utils=tests)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": torch.zeros(5, 64)}, r"a \[5, 64\] is torch.float32; torch.float8_e4m3fn, "),
        ({"b": elements("e4m3", 8, 32), "scale_b": None}, "a has K = 64, b has K = 32"),
        ({"b": elements("e4m3", 2, 8, 64)}, r"b must have 2 dimensions, got \[2, 8, 64\]"),
        (
            {"scale_a": scales(127, 127, 5, 3)},
            r"scale_a is torch.float8_e8m0fnu \[5, 3\]; of a \[5, 64\] accepted are .* \[5, 2\]",
        ),
        (
            {"scale_b": torch.ones(8, 2)},
            r"scale_b is torch.float32 \[8, 2\]; .* torch.float32 \[8, 1\] or \[1, 1\]",
        ),
        ({"scale_b": torch.ones(8)}, r"scale_b is torch.float32 \[8\]"),
        ({"scale_b": torch.ones(8, 1).double()}, r"scale_b is torch.float64"),
        ({"bias": torch.ones(8)}, "bias is torch.float32; it must be that of the result, torch.bfloat16"),
        (
            {"residual": torch.ones(4, 8).bfloat16()},
            r"residual \[4, 8\] does not broadcast to the result \[5, 8\]",
        ),
        ({"activation": "tanh"}, "activation must be one of none, relu, .*, got 'tanh'"),
        ({"out_dtype": torch.float64}, "out_dtype must be one of torch.bfloat16, .*, got torch.float64"),
    ],
)
@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_wrong_arguments_are_named(changed: dict[str, Any], message: str, place: str) -> None:
    given: dict[str, Any] = {
        "a": elements("e4m3", 5, 64),
        "b": elements("e4m3", 8, 64),
        "scale_a": scales(127, 127, 5, 2),
        "scale_b": scales(127, 127, 8, 2),
        "out_dtype": torch.bfloat16,
    } | changed
    given = {name: x.to(place) if isinstance(x, Tensor) else x for name, x in given.items()}
    with pytest.raises(RuntimeError, match=message):
        scaled_gemm(**given)


def test_operands_on_two_devices_are_refused() -> None:
    a, b = elements("e4m3", 5, 64), elements("e4m3", 8, 64)
    for name in ("b", "scale_a", "bias"):
        given = {"a": a, "b": b, "scale_a": scales(127, 127, 5, 2), "scale_b": None, "bias": torch.ones(8)}
        given[name] = given[name].to("meta")  # type: ignore[union-attr]
        with pytest.raises(RuntimeError, match=f"{name} is on meta, a on cpu"):
            scaled_gemm(**given, out_dtype=torch.float32)


@pytest.mark.filterwarnings("ignore:.*autograd kernel was not registered")
def test_there_is_no_derivative() -> None:
    """The product is computed; backward raises, as it does of PyTorch's own operators."""
    a, b = elements("e4m3", 5, 64), elements("e4m3", 8, 64)
    bias, residual = torch.randn(8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    for addends in ((bias, None), (None, residual), (bias, residual)):
        result = scaled_gemm(a, b, None, None, addends[0], residual=addends[1], out_dtype=torch.float32)
        with torch.no_grad():
            same = scaled_gemm(a, b, None, None, addends[0], residual=addends[1], out_dtype=torch.float32)
        assert result.requires_grad
        assert not same.requires_grad
        assert torch.equal(result, same)
        with pytest.raises(RuntimeError, match=r"derivative for flycc::scaled_gemm is not implemented"):
            result.sum().backward()


def test_row_scales_multiply_in_one_order() -> None:
    """A's first, so that a sum of 2^18 leaves float32 for good where A's byte is 250, but not where B's is."""
    a = torch.full((1, 64), 64.0).to(torch.float8_e4m3fn)
    large, small = scales(250, 250, 1, 1), scales(4, 4, 1, 1)
    for x, y, expected in ((large, small, torch.inf), (small, large, 2.0**18)):
        check(torch.full((1, 1), expected), True, a, a, x, y, out_dtype=torch.float32)


@pytest.mark.parametrize("form", ["e4m3", "e2m1"])
def test_scales_that_are_packed_before(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of both operands, or of one where the other has row scales."""
    ring = MxConfig(GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3), packed=True)
    monkeypatch.setattr(runtime.family, "choose", lambda problem: ring)
    a, b = elements(form, 70, 352), elements(form, 65, 352)
    scale_a, scale_b = scales(125, 129, 70, 11), scales(125, 129, 65, 11)
    check(worth(a, scale_a) @ worth(b, scale_b).T, True, a, b, scale_a, scale_b, out_dtype=torch.bfloat16)
    rows = scales(125, 129, 65, 1)
    check(worth(a, scale_a) @ worth(b, rows).T, True, a, b, scale_a, rows, out_dtype=torch.bfloat16)
