"""match-scaled-grouped-gemm: raises torch's scaled products by group to `flycc.scaled_grouped_gemm`."""

from __future__ import annotations

from collections.abc import Callable

from torch_mlir import ir

from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.dialects.scaled_grouped_gemm import build_scaled_grouped_gemm
from flycc.dialects.tensor import Dim, contradict, same, show
from flycc.passes.matching import match, replace
from flycc.passes.new_ops import viewed
from flycc.passes.scaled_operands import (
    BLOCK,
    PLAIN,
    Refused,
    Scale,
    addend,
    check_contraction,
    check_types,
    count_k,
    known,
    laid_out,
    refusing,
    spelled_out,
    stored,
    take_scale,
    transposed_operand,
)
from flycc.passes.torch_ir import is_none, nested_ops, operator_name


def match_scaled_grouped_gemm(module: ir.Operation) -> None:
    """Raises `torch.nn.functional.scaled_grouped_mm` to `flycc.scaled_grouped_gemm`, folding transposes.

    Before:

        %wt = torch.aten.transpose.int %w, %last, %before : !torch.vtensor<[2,16,64],f8E4M3FN>, ...
        %y = torch.operator "torch.aten._scaled_grouped_mm_v2"(%x, %wt, %sx, %int3, %int0, %sw, ...) : ...

    After:

        %y = "flycc.scaled_grouped_gemm"(%x, %w, %sx, %sw, %offsets) : ... -> !torch.vtensor<[4,16],bf16>

    Of PyTorch's forms and recipes those are raised that share out rows among groups and have plain scales of blocks of
    1x32. What fed the op stays, for flycc-dce or for other users. An op that is not raised gets the attributes
    `flycc.reason_code` and `flycc.reason`; one that nobody uses is passed over.
    """
    for op in [op for op in nested_ops(module) if operator_name(op) in _FORMS]:
        if list(op.results[0].uses):
            match(op, "scaled-grouped-gemm", refusing("scaled-grouped-gemm", _FORMS[operator_name(op)]))


def _first_form(op: ir.Operation) -> None:
    """`_scaled_grouped_mm`: PyTorch has bytes for it in tiles of NVIDIA's only, and none on ROCm."""
    scale = known("scale_a", op.operands[2])
    raise Refused(
        "recipe",
        f"scale_a is {scale}; kernels take blocks of 1x32 without tiles, which scaled_grouped_mm names",
    )


def _second_form(op: ir.Operation) -> None:
    a, b, *operands = spelled_out(op)
    scale_a, scale_b = take_scale("scale_a", operands), take_scale("scale_b", operands)
    offsets, bias, _, *dims, _ = (
        operands  # the result's type says what out_dtype is, and sums are never fast ones
    )
    check_contraction(dims)
    left, right, result = known("a", a), known("b", b), known("the result", op.results[0])
    check_types(left, right, result)
    if (len(left.dims), len(right.dims)) != (2, 3) or is_none(offsets):
        raise Refused(
            "groups", f"a is {left} and b is {right}; groups of rows are accepted, [M, K] and [G, K, N]"
        )
    k = count_k(left, right)
    rows = stored(a, transposed=False)
    columns, looked_through = transposed_operand(b, op)
    groups, _, n = right.dims
    raised = build_scaled_grouped_gemm(
        a if rows is None else rows.value,
        columns,
        laid_out("scale_a", _plain("scale_a", scale_a), a, 0, k, op),
        _by_group(_plain("scale_b", scale_b), groups, n, k, op),
        offsets,
        addend("the bias", bias, (groups, n), result.dtype, op),
        op.results[0].type,
        before=op,
    )
    replace(raised, [[op.results[0]]], [op, *looked_through, *(() if rows is None else rows.looked_through)])


def _plain(name: str, scale: Scale) -> Scale:
    if scale.recipe == BLOCK and scale.swizzle == PLAIN:
        return scale
    raise Refused(
        "recipe",
        f"{name} is of recipe {scale.recipe}, swizzle {scale.swizzle}; plain BlockWise1x32 is needed",
    )


def _by_group(scale: Scale, groups: Dim, n: Dim, k: Dim, before: ir.Operation) -> ir.Value:
    """The scales [G, N, ceil(K / 32)], which may have their last dimensions in one."""
    tensor = known("scale_b", scale.value)
    blocks = -(-k // BLOCK_K) if isinstance(k, int) else None
    wanted = (groups, n, blocks)
    contradicts = len(tensor.dims) != 3 or any(map(contradict, tensor.dims, wanted))
    # Their number is G * N * ceil(K / 32), so two of the sizes say the third.
    if not contradicts and sum(map(same, tensor.dims, wanted)) >= 2:
        return scale.value
    if (
        isinstance(groups, int)
        and isinstance(n, int)
        and blocks is not None
        and tensor.dims == (groups, n * blocks)
    ):
        return viewed(scale.value, (groups, n, blocks), before)
    raise Refused("scale", f"scale_b is {show(tensor.dims)}; {show(wanted)} is needed")


def _own_form(op: ir.Operation) -> None:
    """flycc's own operator, called by an earlier rewrite or by whoever likes."""
    a, b, scale_a, scale_b, offsets, bias, _ = op.operands
    result = known("the result", op.results[0])
    bias_dims = known("b", b).dims[:2]
    raised = build_scaled_grouped_gemm(
        a,
        b,
        scale_a,
        scale_b,
        offsets,
        addend("the bias", bias, bias_dims, result.dtype, op),
        op.results[0].type,
        before=op,
    )
    replace(raised, [[op.results[0]]], [op])


_FORMS: dict[str, Callable[[ir.Operation], None]] = {
    "aten._scaled_grouped_mm": _first_form,
    "aten._scaled_grouped_mm_v2": _second_form,
    "flycc.scaled_grouped_gemm": _own_form,
}
