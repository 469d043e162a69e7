"""flycc-dce: removes the ops that a match left without users."""

from __future__ import annotations

from torch_mlir import ir

from flycc.passes.torch_ir import IMPURE_ATTR, NODE_ATTR, nested_ops

#: Ops without effects that may be removed although no importer vouches for them: what match passes fold.
_PURE = frozenset(
    f"torch.{name}"
    for name in (
        "constant.int",
        "constant.float",
        "constant.bool",
        "constant.none",
        "constant.device",
        "constant.str",
        "prim.ListConstruct",
        "aten.t",
        "aten.transpose.int",
        "aten.permute",
        "aten.expand",
        "aten.clone",
        "aten.detach",
        "aten.alias",
        "aten.view",
        "aten._unsafe_view",
        "aten.reshape",
        "aten.mm",
        "aten.bmm",
        "aten.addmm",
        "aten.baddbmm",
        "aten.linear",
        "aten.matmul",
        "aten._to_copy",
        "aten.add.Scalar",
        "aten.add.Tensor",
        "aten.mul.Tensor",
    )
)


def flycc_dce(module: ir.Operation) -> None:
    """Removes ops whose results nobody uses.

    An op stays if it is marked `flycc.impure`, has no result, or holds regions. Of the others, an op that the
    importer stamped with `flycc.node` goes (the importer marks the impure ones); without a stamp only
    flycc ops and ops known to be pure go, so an unknown `torch.operator` stays.

    Before:

        %wt = torch.aten.t %w {flycc.node = "t"} : ...
        %y = "flycc.gemm"(%x, %w) {layout = "NT", ...} : ...
        torch.operator "torch.aten.copy_"(%buffer, %x) {flycc.node = "copy_", flycc.impure} : ...

    After:

        %y = "flycc.gemm"(%x, %w) {layout = "NT", ...} : ...
        torch.operator "torch.aten.copy_"(%buffer, %x) {flycc.node = "copy_", flycc.impure} : ...
    """
    for op in reversed(nested_ops(module)):
        if _is_dead(op):
            op.erase()


def _is_dead(op: ir.Operation) -> bool:
    if IMPURE_ATTR in op.attributes or len(op.regions) or not len(op.results):
        return False
    if any(list(result.uses) for result in op.results):
        return False
    return NODE_ATTR in op.attributes or op.name.startswith("flycc.") or op.name in _PURE
