"""PyTorch's shape rules for MX-scaled products, mended: what is traced, what is refused, and what stays PyTorch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, _meta_registrations
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import ScalingType, SwizzleType

from flycc.frontend import mend_scaled_mm, scaled_mm_meta

MX, ROWS = ScalingType.BlockWise1x32, ScalingType.RowWise
PLAIN, SWIZZLED = SwizzleType.NO_SWIZZLE, SwizzleType.SWIZZLE_32_4_4
TYPES = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float4_e2m1fn_x2)
M, N, K = 5, 7, 70

mend_scaled_mm()


def rules() -> Any:
    return getattr(_meta_registrations, scaled_mm_meta._NAME)


def operand(rows: int, k: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(rows, k // 2 if dtype == torch.float4_e2m1fn_x2 else k, dtype=dtype)


def scales(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float8_e8m0fnu)


def traced(function: Callable[..., Tensor], *arguments: Tensor, dynamic: bool) -> Any:
    """What Dynamo says that `function` returns."""
    seen = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        seen.append(graph.graph.output_node().args[0][0].meta["example_value"])  # type: ignore[index, union-attr]
        return lambda *_: (torch.empty(()),)

    torch._dynamo.reset()
    torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)(*arguments)
    return seen[0]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("swizzle", [None, PLAIN, SWIZZLED])
@pytest.mark.parametrize(("type_a", "type_b"), [*itertools.product(TYPES, TYPES)])
def test_products_are_traced(
    type_a: torch.dtype, type_b: torch.dtype, swizzle: SwizzleType | None, dynamic: bool
) -> None:
    shapes = [(512,), (128, 4)] if swizzle is SWIZZLED else [(M, 3), (N, 3)]
    result = traced(
        lambda a, b, x, y: F.scaled_mm(a, b.t(), x, MX, y, MX, swizzle, swizzle, output_dtype=torch.float16),
        operand(M, K, type_a),
        operand(N, K, type_b),
        *(scales(*shape) for shape in shapes),
        dynamic=dynamic,
    )
    assert result.dtype == torch.float16
    assert result.dim() == 2
    if not dynamic:
        assert result.shape == (M, N)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(3, N, 3), (3, N * 3)])
def test_grouped_products_are_traced(shape: tuple[int, ...], dtype: torch.dtype, dynamic: bool) -> None:
    b = operand(3 * N, K, dtype)
    result = traced(
        lambda a, b, x, y, offs: F.scaled_grouped_mm(a, b.mT, x, MX, y, MX, PLAIN, PLAIN, offs=offs),
        operand(M, K, dtype),
        torch.empty(3, N, b.shape[1], dtype=dtype),
        scales(M, 3),
        scales(*shape),
        torch.tensor([2, 2, M], dtype=torch.int32),
        dynamic=dynamic,
    )
    assert result.dtype == torch.bfloat16
    if not dynamic:
        assert result.shape == (M, N)


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "k_b", "swizzle", "message"),
    [
        ((M, 2), (N, 3), K, PLAIN, "scale_a must have 15 elements"),
        ((M, 3), (M, 3), K, PLAIN, "scale_b must have 21 elements"),
        ((M, 3), (N, 3), K, SWIZZLED, "scale_a must have 512 elements"),
        ((M, 3), (N, 3), 72, PLAIN, "K = 70 elements, mat2 has 72"),
    ],
)
def test_wrong_sizes_are_refused(
    shape_a: tuple[int, ...], shape_b: tuple[int, ...], k_b: int, swizzle: SwizzleType, message: str
) -> None:
    with FakeTensorMode():
        a, b = operand(M, K, TYPES[0]), operand(N, k_b, TYPES[2])
        scaled = [scales(*shape_a)], [MX], [scales(*shape_b)], [MX]
        with pytest.raises(ValueError, match=message):
            rules()(a, b.t(), *scaled, None, torch.bfloat16, [swizzle], [swizzle])


def test_wrong_results_and_offsets_are_refused() -> None:
    with FakeTensorMode():
        a, b = operand(M, K, TYPES[0]), operand(N, K, TYPES[0])
        scaled = [scales(M, 3)], [MX], [scales(N, 3)], [MX]
        with pytest.raises(ValueError, match=f"bias must have {N} elements, got .{N + 1}."):
            rules()(a, b.t(), *scaled, torch.empty(N + 1), torch.float32)
        with pytest.raises(
            ValueError, match=r"out_dtype of an MX product must be .*, got torch.float8_e4m3fn"
        ):
            rules()(a, b.t(), *scaled, None, None)
        weights = torch.stack([b.view(torch.uint8)] * 2).view(b.dtype).transpose(1, 2)
        for offsets in (torch.empty(2, dtype=torch.int64), torch.empty(3, dtype=torch.int32)):
            with pytest.raises(ValueError, match=r"offs must be torch.int32 .2., got"):
                torch.nn.functional.scaled_grouped_mm(
                    a, weights, scales(M, 3), MX, scales(2, N, 3), MX, offs=offsets
                )


def test_other_recipes_and_devices_stay_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    with FakeTensorMode():
        a, b = operand(M, K, TYPES[0]), operand(N, K, TYPES[0])
        with pytest.raises(ValueError, match="scale_a must have shape"):
            rules()(a, b.t(), [torch.ones(N, 1)], [ROWS], [torch.ones(1, N)], [ROWS])
    on_gpu = [x.to("meta") for x in (operand(64, 256, TYPES[0]), operand(96, 256, TYPES[0]))]
    with pytest.raises(RuntimeError, match="for MX scaling scale_a must have"):
        rules()(on_gpu[0], on_gpu[1].t(), [scales(64, 8)], [MX], [scales(96, 8)], [MX])


def test_what_is_right_or_of_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scaled_mm_meta._are_right(rules())
    before = rules()
    mend_scaled_mm()
    assert rules() is before
    broken = before.__wrapped__
    assert not scaled_mm_meta._are_right(broken)
    monkeypatch.setattr(_meta_registrations, scaled_mm_meta._NAME, broken)
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    mend_scaled_mm()
    assert rules() is broken
