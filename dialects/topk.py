"""`flycc.topk`: the k largest or smallest elements along a dimension, and where they are."""

# No `from __future__ import annotations` here: the op is built from its evaluated annotations.

from typing import cast

from torch_mlir import ir
from torch_mlir.dialects.ext import Operand, Pure, Result

from flycc.contracts.topk import TopkDtype, TopkProblem
from flycc.dialects.base import Flycc, create
from flycc.dialects.constants import constant
from flycc.dialects.sizes import known, named, row_alignment, rows
from flycc.dialects.tensor import Dim, Dims, Tensor, TorchInt, VTensor
from flycc.dialects.verifying import Fault, check_dims, check_dtype, has_attributes, tensors, verify

#: Element types, and how Problems spell them.
DTYPES = {"f32": "f32", "bf16": "bf16", "f16": "f16", "si32": "i32"}

_FLAGS = dict.fromkeys(("keep_dim", "largest", "sorted"), ir.BoolAttr)


class TopkOp(Flycc.Operation, name="topk", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """The `k` largest (or smallest) elements of `x` along dimension `dim`, and their si64 indices there.

    NaN is larger than every number. Equal values are taken in the order of their indices. With `sorted` they
    come best first. `x` is f32, bf16, f16 or si32. Results have the shape of x
    with k in place of the size of `dim`; without `keep_dim`, for which k must be a constant 1, without it.

        %values, %indices = "flycc.topk"(%x, %k)
            {dim = 1 : i64, keep_dim = true, largest = true, sorted = true}
            : (!torch.vtensor<[4,16],f32>, !torch.int)
            -> (!torch.vtensor<[4,3],f32>, !torch.vtensor<[4,3],si64>)
    """

    x: Operand[VTensor]
    k: Operand[TorchInt]
    values: Result[VTensor]
    indices: Result[VTensor]
    dim: ir.IntegerAttr
    keep_dim: ir.IntegerAttr
    largest: ir.IntegerAttr
    sorted: ir.IntegerAttr

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check)


def build_topk(
    x: ir.Value,
    k: ir.Value,
    results: tuple[ir.Type, ir.Type],
    *,
    dim: int,
    keep_dim: bool = True,
    largest: bool,
    sorted: bool = True,
    before: ir.Operation,
) -> TopkOp:
    """Creates a `flycc.topk` in front of `before`; `results` are the types of values and indices."""
    flags = {
        "keep_dim": keep_dim,
        "largest": largest,
        "sorted": sorted,
    }
    attributes: dict[str, ir.Attribute] = {
        name: ir.BoolAttr.get(flag, before.context) for name, flag in flags.items()
    }
    attributes["dim"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64, before.context), dim)
    return create("flycc.topk", (x, k), results, attributes, before=before, segmented=False)


def result_dims(x: Dims, dim: int, k: Dim, keep_dim: bool) -> Dims:
    """Shape of both results."""
    return (*x[:dim], *([k] if keep_dim else []), *x[dim + 1 :])


def problem(op: TopkOp) -> TopkProblem:
    """The Problem that a verified `flycc.topk` poses: one row for every place in the other dimensions.

    A dynamic size becomes its symbol from the stamps, or else "N", "K" or "B<i>". The alignment assumes
    contiguous rows at 16-byte-aligned addresses.
    """
    x, values, dim = known(op.x), known(op.values), op.dim.value
    k = constant(op.k)
    return TopkProblem(
        dtype=cast(TopkDtype, DTYPES[x.dtype]),
        rows=rows((*x.dims[:dim], *x.dims[dim + 1 :])),
        columns=named(x.dims[dim], "N"),
        k=k if isinstance(k, int) else named(values.dims[dim], "K"),
        largest=op.largest.value,
        sorted=op.sorted.value,
        align=row_alignment(Tensor((x.dims[dim],), x.dtype)),
    )


def _check(op: ir.Operation) -> None:
    declared = has_attributes(op, {"dim": ir.IntegerAttr, **_FLAGS})
    if not declared or len(op.operands) != 2 or len(op.results) != 2:
        return  # MLIR checks the declaration next, and reports what is not as declared
    values = tensors({"x": op.operands[0], "values": op.results[0], "indices": op.results[1]})
    x, dim, keep_dim = values["x"], op.attributes["dim"].value, op.attributes["keep_dim"].value
    check_dtype("x", x, tuple(DTYPES))
    if not 0 <= dim < len(x.dims):
        raise Fault(
            f"dim must be 0 to {len(x.dims) - 1}, got {dim}" if x.dims else "x must have rank 1 or more"
        )
    k = constant(op.operands[1])
    if not keep_dim and k != 1:
        raise Fault(f"k must be a constant 1 without keep_dim, got {'a run-time value' if k is None else k}")
    size = x.dims[dim]
    if isinstance(k, int) and (k < 0 or (isinstance(size, int) and k > size)):
        raise Fault(f"k must be 0 to {'the size of dim' if size is None else size}, got {k}")
    check_dtype("values", values["values"], (x.dtype,))
    check_dtype("indices", values["indices"], ("si64",))
    expected = result_dims(x.dims, dim, k if isinstance(k, int) else None, keep_dim)
    check_dims("values", values["values"], expected)
    check_dims("indices", values["indices"], expected)
