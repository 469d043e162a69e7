"""`torch.ops.flycc.scaled_gemm`: products of MX-scaled operands."""

from __future__ import annotations

from typing import NoReturn, get_args

import torch
from torch import Tensor

from flycc.contracts import ScaledGemmProblem
from flycc.contracts.gemm import Activation
from flycc.runtime.device import Device
from flycc.runtime.gemm import ACTIVATIONS, broadcasts
from flycc.runtime.library import LIBRARY
from flycc.runtime.scaled_operands import ScaledOperand

#: Types of results.
DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
LIBRARY.define(
    "scaled_gemm(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias=None, *, Tensor? residual=None, "
    'str activation="none", ScalarType out_dtype) -> Tensor'
)


def prepare(problem: ScaledGemmProblem, device: Device) -> None:
    """There is no kernel yet: PyTorch computes every problem."""


def scaled_gemm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    activation: Activation = "none",
    out_dtype: torch.dtype,
) -> Tensor:
    """`activation(A @ B.T + bias) + residual` of scaled operands, summed in float32 and rounded once to `out_dtype`.

    Args:
        a: [M, K] of float8_e4m3fn or float8_e5m2, or [M, K / 2] of float4_e2m1fn_x2, two elements along K each, the
            first in the low half. Any strides.
        b: [N, K] or [N, K / 2], likewise; of the type of `a` or of another.
        scale_a: None for none; float8_e8m0fnu [M, ceil(K / 32)], one for each block of 32 along K; or float8_e8m0fnu or
            float32 [M, 1], one for each row, or [1, 1], one for all. Where a row has one block, its byte is a block's.
        scale_b: the same of `b`, with N rows.
        bias: broadcastable to the result, or None; of `out_dtype`, as the residual.
        residual: broadcastable to the result, or None.
        out_dtype: bfloat16, float16 or float32.

    Returns a contiguous [M, N].
    """
    out, left, right = _checked(a, b, scale_a, scale_b, bias, residual, activation, out_dtype)
    if not out.numel():
        return out
    return out.copy_(_pytorch(left, right, bias, residual, activation))


def _pytorch(
    a: ScaledOperand, b: ScaledOperand, bias: Tensor | None, residual: Tensor | None, activation: Activation
) -> Tensor:
    """The float32 result by PyTorch's own operators: sums of scaled elements in float64, which holds each of them
    exactly, rounded to float32 before the epilogue."""
    sums = a.elements() @ b.elements().T
    if (rows := a.row_scales()) is not None:
        sums = sums * rows
    if (columns := b.row_scales()) is not None:
        sums = sums * columns.T
    y = sums.float()
    if bias is not None:
        y = y + bias
    y = ACTIVATIONS[activation](y)
    return y if residual is None else y + residual


def _checked(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: Activation,
    out_dtype: torch.dtype,
) -> tuple[Tensor, ScaledOperand, ScaledOperand]:
    """The uninitialised result and the operands; all arguments are checked."""
    operands = []
    for name, data, scale in (("a", a, scale_a), ("b", b, scale_b)):
        if data.dim() != 2:
            fail(f"{name} must have 2 dimensions, got {list(data.shape)}")
        operand = ScaledOperand.of(data, scale)
        if isinstance(operand, str):
            fail(f"{name} {list(data.shape)} {operand}")
        operands.append(operand)
    left, right = operands
    torch._check(
        left.k == right.k,
        lambda: f"flycc::scaled_gemm: a has K = {left.k}, b has K = {right.k} elements a row",
    )
    if out_dtype not in DTYPES:
        fail(f"out_dtype must be one of {', '.join(map(str, DTYPES))}, got {out_dtype}")
    if activation not in ACTIVATIONS:
        fail(f"activation must be one of {', '.join(get_args(Activation))}, got {activation!r}")
    shape = (a.shape[0], b.shape[0])
    for name, addend in (("bias", bias), ("residual", residual)):
        if addend is None:
            continue
        if addend.dtype != out_dtype:
            fail(f"{name} is {addend.dtype}; it must be that of the result, {out_dtype}")
        if not broadcasts(addend.shape, shape):
            fail(f"{name} {list(addend.shape)} does not broadcast to the result {list(shape)}")
    return a.new_empty(shape, dtype=out_dtype), left, right


def fail(sentence: str) -> NoReturn:
    raise RuntimeError(f"flycc::scaled_gemm: {sentence}")


def _scaled_gemm_fake(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    activation: Activation = "none",
    out_dtype: torch.dtype,
) -> Tensor:
    return _checked(a, b, scale_a, scale_b, bias, residual, activation, out_dtype)[0]


LIBRARY.impl("scaled_gemm", scaled_gemm, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::scaled_gemm", _scaled_gemm_fake, lib=LIBRARY)
