"""`torch.ops.flycc.scaled_grouped_gemm`: products of MX-scaled rows by group (tokens by expert)."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from flycc.contracts import ScaledGroupedGemmProblem
from flycc.runtime.device import Device
from flycc.runtime.gemm import differ
from flycc.runtime.library import LIBRARY
from flycc.runtime.scaled_gemm import DTYPES
from flycc.runtime.scaled_operands import ScaledOperand

LIBRARY.define(
    "scaled_grouped_gemm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor offsets, Tensor? bias=None, *, "
    "ScalarType out_dtype) -> Tensor"
)


def prepare(problem: ScaledGroupedGemmProblem, device: Device) -> None:
    """There is no kernel yet: PyTorch computes every problem."""


def scaled_grouped_gemm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype,
) -> Tensor:
    """For each group g of rows of `a`, `A_g @ B[g].T + bias[g]` of scaled operands, summed in float32 and rounded once.

    Args:
        a: [T, K] of float8_e4m3fn or float8_e5m2, or [T, K / 2] of float4_e2m1fn_x2, rows by group. Any strides.
        b: [G, N, K] or [G, N, K / 2], likewise; of the type of `a` or of another.
        scale_a: float8_e8m0fnu [T, ceil(K / 32)], one for each block of 32 along K.
        scale_b: float8_e8m0fnu [G, N, ceil(K / 32)].
        offsets: int32 [G], where each group ends, ascending. It is not read by the host, but where PyTorch computes.
        bias: [G, N], a row for each group, of `out_dtype`; or None.
        out_dtype: bfloat16, float16 or float32.

    Returns a contiguous [T, N]; rows of no group are not written.
    """
    out, left, right = _checked(a, b, scale_a, scale_b, offsets, bias, out_dtype)
    if not out.numel() or not offsets.numel():
        return out
    return _pytorch(left, right, offsets, bias, out)


def _pytorch(a: ScaledOperand, b: ScaledOperand, offsets: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """The same by PyTorch's own operators, sums in float64."""
    start, rows = 0, a.elements()
    for group, end in enumerate(offsets.tolist()):
        weights = ScaledOperand(b.format, b.data[group], b.kind, None if b.scale is None else b.scale[group])
        sums = (rows[start:end] @ weights.elements().T).float()
        out[start:end] = sums if bias is None else sums + bias[group]
        start = end
    return out


def _checked(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> tuple[Tensor, ScaledOperand, ScaledOperand]:
    """The uninitialised result and the operands; all arguments are checked."""
    operands = []
    for name, data, scale, rank in (("a", a, scale_a, 2), ("b", b, scale_b, 3)):
        if data.dim() != rank:
            _fail(f"{name} must have {rank} dimensions, got {list(data.shape)}")
        operand = ScaledOperand.of(data, scale)
        if isinstance(operand, str):
            _fail(f"{name} {list(data.shape)} {operand}")
        if operand.kind != "block":
            _fail(
                f"scale_{name} must have a byte for each block of 32 along K, got {scale.dtype} {list(scale.shape)}"
            )
        operands.append(operand)
    left, right = operands
    torch._check(
        left.k == right.k,
        lambda: f"flycc::scaled_grouped_gemm: a has K = {left.k}, b has K = {right.k} elements a row",
    )
    groups, n = b.shape[0], b.shape[1]
    if offsets.dtype != torch.int32 or offsets.dim() != 1 or differ(offsets.shape[0], groups):
        _fail(f"offsets must be {torch.int32} [{groups}], got {offsets.dtype} {list(offsets.shape)}")
    if out_dtype not in DTYPES:
        _fail(f"out_dtype must be one of {', '.join(map(str, DTYPES))}, got {out_dtype}")
    if bias is not None:
        if bias.dim() != 2 or differ(bias.shape[0], groups) or differ(bias.shape[1], n):
            _fail(f"bias must be [{groups}, {n}], a row for each group, got {list(bias.shape)}")
        if bias.dtype != out_dtype:
            _fail(f"bias is {bias.dtype}; it must be that of the result, {out_dtype}")
    return a.new_empty((a.shape[0], n), dtype=out_dtype), left, right


def _fail(sentence: str) -> NoReturn:
    raise RuntimeError(f"flycc::scaled_grouped_gemm: {sentence}")


def _scaled_grouped_gemm_fake(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype,
) -> Tensor:
    return _checked(a, b, scale_a, scale_b, offsets, bias, out_dtype)[0]


LIBRARY.impl("scaled_grouped_gemm", scaled_grouped_gemm, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::scaled_grouped_gemm", _scaled_grouped_gemm_fake, lib=LIBRARY)
