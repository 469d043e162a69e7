"""flycc::scaled_grouped_gemm as a PyTorch operator: values, types, layouts, empty sizes, and wrong arguments.

Sums are exact in float32, as in `test_scaled_gemm`: rounded once, they are the only right result.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pytorchs_way import by_pytorch
from scaled_values import TYPES, elements, scales, worth
from torch import Tensor

from flycc.runtime import refusals
from flycc.runtime import scaled_grouped_gemm as runtime

scaled_grouped_gemm = torch.ops.flycc.scaled_grouped_gemm
COUNTS = [0, 1, 67, 0, 130, 3]
TOTAL, GROUPS, N, K, BLOCKS = sum(COUNTS), len(COUNTS), 24, 70, 3
OFFSETS = torch.tensor(COUNTS).cumsum(0).int()


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    """Results are the kernels', but inside of `by_pytorch`."""
    torch.manual_seed(int(os.environ["FLYCC_TEST_SEED"]))
    with refusals.strict():
        yield


def arguments(form_a: str = "e4m3", form_b: str = "e4m3", n: int = N, k: int = K) -> dict[str, Any]:
    blocks = -(-k // 32)
    return {
        "a": elements(form_a, TOTAL, k),
        "b": elements(form_b, GROUPS, n, k),
        "scale_a": scales(125, 129, TOTAL, blocks),
        "scale_b": scales(125, 129, GROUPS, n, blocks),
        "offsets": OFFSETS,
        "out_dtype": torch.bfloat16,
    }


def exact(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offsets: Tensor, out_dtype: torch.dtype
) -> Tensor:
    """The product of each group in float64, rounded once."""
    rows, weights = worth(a, scale_a), worth(b, scale_b)
    ends = offsets.tolist()
    groups = zip([0, *ends[:-1]], ends, weights, strict=True)
    return torch.cat([rows[start:end] @ weight.T for start, end, weight in groups]).to(out_dtype)


def check(given: dict[str, Any], expected: Tensor, kernel: bool) -> None:
    """PyTorch's operators and, if `kernel`, a launch give `expected`."""
    with by_pytorch(runtime):
        assert torch.equal(scaled_grouped_gemm(**given), expected)
    if kernel:
        result = scaled_grouped_gemm(**given)
        assert torch.equal(result, expected)
        assert result.is_contiguous()


@pytest.mark.parametrize(("form_a", "form_b"), [*itertools.product(TYPES, TYPES)])
def test_types(form_a: str, form_b: str) -> None:
    """Empty and ragged groups, a last block that is short, every mix of types."""
    given = arguments(form_a, form_b)
    check(given, exact(**given), (form_a, form_b) in {("e4m3", "e4m3"), ("e5m2", "e2m1"), ("e2m1", "e2m1")})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("columns", [False, True])
def test_a_bias_is_a_row_for_each_group(dtype: torch.dtype, columns: bool) -> None:
    given = arguments() | {"out_dtype": dtype}
    bias = torch.randint(-9, 10, (N, GROUPS)).to(dtype).mT
    bias = bias if columns else bias.contiguous()
    rows = bias.double().repeat_interleave(torch.tensor(COUNTS), 0)
    expected = exact(**given | {"out_dtype": torch.float64}) + rows
    check(given | {"bias": bias}, expected.to(dtype), dtype == torch.float32)


def test_strides_and_offsets() -> None:
    """Rows with gaps from odd addresses, weights stored the other way around, scales and offsets with gaps."""
    given = arguments()
    given["a"] = elements("e4m3", TOTAL + 3, 99)[3:, 5 : 5 + K]
    given["b"] = elements("e2m1", GROUPS, K // 2, 2 * N).mT
    given["scale_a"] = scales(125, 129, 5, TOTAL).mT[:, 1:4]
    given["scale_b"] = scales(125, 129, GROUPS + 1, N, 7)[1:, :, 2:5]
    given["offsets"] = torch.stack([OFFSETS, torch.full_like(OFFSETS, 9)], 1)[:, 0]
    check(given, exact(**given), True)


def test_rows_of_no_group_change_nothing() -> None:
    given = arguments()
    longer = given | {
        "a": torch.cat([given["a"].view(torch.uint8), torch.full((20, K), 0x7F, dtype=torch.uint8)]).view(
            torch.float8_e4m3fn
        ),
        "scale_a": scales(255, 255, TOTAL + 20, BLOCKS),
    }
    longer["scale_a"].view(torch.uint8)[:TOTAL] = given["scale_a"].view(torch.uint8)
    result = scaled_grouped_gemm(**longer)
    assert result.shape == (TOTAL + 20, N)
    assert torch.equal(result[:TOTAL], exact(**given))


@pytest.mark.parametrize(("n", "k"), [(N, 0), (0, K)])
def test_empty_sizes(n: int, k: int) -> None:
    """An empty sum is zero."""
    result = scaled_grouped_gemm(**arguments(n=n, k=k))
    assert torch.equal(result, torch.zeros(TOTAL, n, dtype=torch.bfloat16))


def test_no_groups_write_nothing() -> None:
    given = arguments()
    given |= {name: given[name][:0] for name in ("b", "scale_b", "offsets")}
    assert scaled_grouped_gemm(**given).shape == (TOTAL, N)


@pytest.mark.filterwarnings("ignore:.*autograd kernel was not registered")
def test_there_is_no_derivative() -> None:
    given = arguments() | {"bias": torch.zeros(GROUPS, N, dtype=torch.bfloat16, requires_grad=True)}
    with pytest.raises(RuntimeError, match="derivative for flycc::scaled_grouped_gemm is not implemented"):
        scaled_grouped_gemm(**given).sum().backward()


def test_the_operator_is_legal() -> None:
    given = arguments()
    dtype = given.pop("out_dtype")
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(
        scaled_grouped_gemm.default, (*given.values(),), {"out_dtype": dtype}, test_utils=tests
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": torch.zeros(TOTAL, K)}, r"a \[201, 70\] is torch.float32; torch.float8_e4m3fn, "),
        ({"b": elements("e4m3", N, K)}, r"b must have 3 dimensions, got \[24, 70\]"),
        ({"b": elements("e4m3", GROUPS, N, 72)}, "a has K = 70, b has K = 72"),
        (
            {"scale_a": torch.ones(TOTAL, 1)},
            "scale_a must have a byte for each block of 32 along K, got torch.float32",
        ),
        (
            {"scale_b": scales(127, 127, GROUPS, N * BLOCKS)},
            r"scale_b is torch.float8_e8m0fnu \[6, 72\]; of b",
        ),
        ({"offsets": OFFSETS.long()}, r"offsets must be torch.int32 \[6\], got torch.int64 \[6\]"),
        ({"offsets": OFFSETS[1:]}, r"offsets must be torch.int32 \[6\], got torch.int32 \[5\]"),
        ({"bias": torch.ones(N).bfloat16()}, r"bias must be \[6, 24\], a row for each group, got \[24\]"),
        (
            {"bias": torch.ones(GROUPS, N)},
            "bias is torch.float32; it must be that of the result, torch.bfloat16",
        ),
        ({"out_dtype": torch.int8}, "out_dtype must be one of torch.bfloat16, .*, got torch.int8"),
    ],
)
@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_wrong_arguments_are_named(changed: dict[str, Any], message: str, place: str) -> None:
    given = {name: x.to(place) if isinstance(x, Tensor) else x for name, x in (arguments() | changed).items()}
    with pytest.raises(RuntimeError, match=message):
        scaled_grouped_gemm(**given)
