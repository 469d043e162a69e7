"""`flycc.scale_guard` and `flycc.versioned`: a result in two forms, and for which scales one may be the other."""

# No `from __future__ import annotations` here: the ops are built from their evaluated annotations.

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, get_args

from torch_mlir import ir
from torch_mlir.dialects.ext import Operand, Pure, Region, Result

from flycc.dialects.base import Flycc
from flycc.dialects.scaled_gemm import E8M0, Placement, Tree
from flycc.dialects.tensor import VTensor
from flycc.dialects.verifying import Fault, check_dims, has_attributes, segments, tensors, verify
from flycc.scales.guards import Bounds


class ScaleGuardOp(Flycc.Operation, name="scale_guard", traits=[Pure]):  # type: ignore[call-arg,name-defined]
    """Whether the scale bytes of a and b are within `Bounds`, its attributes.

    `a` and `b` are the operands' E8M0 scales, of any shape, or their ranges: si32 [3], the lowest and the highest byte
    other than 255, and whether there is one of 255, as `flycc::scale_range` has it. One that is absent is of an operand
    without scales, whose bytes are all 127.

    `a_blocks` and `b_blocks` say how many scales in a row of the tensor belong to one result, 0 that it is not known.
    Where it is 1, or where scales are given and not their range, the spread is that within a row, not that of all.

    `placement` and `tree` say of which form the bounds are: where that one has its scales, and in which order it sums
    (see `flycc.scaled_gemm`). Where the guard holds, it has the bits of the form with the MFMA's own scales.

        %g = "flycc.scale_guard"(%sa, %sb) {placement = "element", tree = "any", a_min = 2 : i64, a_max = 252 : i64,
             b_min = 2 : i64, b_max = 252 : i64, sum_min = 130 : i64, sum_max = 360 : i64, spread = 4 : i64,
             a_blocks = 2 : i64, b_blocks = 0 : i64, operandSegmentSizes = array<i32: 1, 1>}
            : (!torch.vtensor<[4,2],f8E8M0FNU>, !torch.vtensor<[3],si32>) -> !torch.vtensor<[],i1>
    """

    result: Result[VTensor]
    placement: ir.StringAttr
    a_min: ir.IntegerAttr
    a_max: ir.IntegerAttr
    b_min: ir.IntegerAttr
    b_max: ir.IntegerAttr
    sum_min: ir.IntegerAttr
    sum_max: ir.IntegerAttr
    spread: ir.IntegerAttr
    a_blocks: ir.IntegerAttr
    b_blocks: ir.IntegerAttr
    a: Operand[VTensor] | None = None
    b: Operand[VTensor] | None = None

    @property
    def bounds(self) -> Bounds:
        """The attributes together."""
        return Bounds(*(self.operation.attributes[field.name].value for field in fields(Bounds)))

    @property
    def blocks(self) -> tuple[int, int]:
        """`a_blocks` and `b_blocks`."""
        return self.a_blocks.value, self.b_blocks.value

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check_guard)


class VersionedOp(Flycc.Operation, name="versioned"):  # type: ignore[call-arg,name-defined]
    """A result in two forms: the region `guarded`, where `guard` holds, and the region `written`.

    `written` is what the graph says, and always right; `guarded` may stand for it where the guard holds. Without one
    it is taken whatever the scales are, which only the relaxed placement of scales does. Each region is one block
    without arguments that ends with a `flycc.yield` of a value of the result's type; both may use what is computed
    before the op.

        %y = "flycc.versioned"(%g) ({
          %fast = "flycc.scaled_gemm"(%a, %b, %sa, %sb) ...
          "flycc.yield"(%fast) : (!torch.vtensor<[4,16],bf16>) -> ()
        }, {
          %slow = "flycc.gemm"(%da, %db) ...
          "flycc.yield"(%slow) : (!torch.vtensor<[4,16],bf16>) -> ()
        }) {operandSegmentSizes = array<i32: 1>} : (!torch.vtensor<[],i1>) -> !torch.vtensor<[4,16],bf16>
    """

    result: Result[VTensor]
    guarded: Region
    written: Region
    guard: Operand[VTensor] | None = None

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier."""
        return verify(op, _check_versioned)


class YieldOp(Flycc.Operation, name="yield", traits=[ir.IsTerminatorTrait]):  # type: ignore[call-arg,name-defined]
    """Ends a region of a `flycc.versioned`, whose result is its operand."""

    value: Operand[VTensor]


def build_scale_guard(
    a: ir.Value | None,
    b: ir.Value | None,
    bounds: Bounds,
    *,
    placement: Placement,
    tree: Tree,
    before: ir.Operation,
    blocks: tuple[int, int] = (0, 0),
) -> ScaleGuardOp:
    """Creates a `flycc.scale_guard` in front of `before`, with its location."""
    with before.context:
        i64 = ir.IntegerType.get_signless(64)
        op = ScaleGuardOp(
            ir.Type.parse("!torch.vtensor<[],i1>"),
            ir.StringAttr.get(placement),
            *(ir.IntegerAttr.get(i64, value) for value in (*asdict(bounds).values(), *blocks)),
            a=a,
            b=b,
            loc=before.location,
            ip=ir.InsertionPoint(before),
        )
        op.attributes["tree"] = ir.StringAttr.get(tree)
    return op


def build_versioned(guard: ir.Value | None, result_type: ir.Type, *, before: ir.Operation) -> VersionedOp:
    """Creates a `flycc.versioned` in front of `before`, with its location; both regions have an empty block."""
    with before.context:
        operands = [] if guard is None else [guard]
        segments = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands)])}
        op = ir.Operation.create(
            "flycc.versioned",
            [result_type],
            operands,
            segments,
            regions=2,
            loc=before.location,
            ip=ir.InsertionPoint(before),
        )
        for region in op.regions:
            region.blocks.append()
    view: VersionedOp = op.opview
    return view


def build_yield(value: ir.Value, block: ir.Block) -> ir.Operation:
    """Ends `block`."""
    with block.owner.context, block.owner.location:
        return ir.Operation.create("flycc.yield", [], [value], ip=ir.InsertionPoint(block))


def yielded(region: Any) -> ir.Value:
    """The value of a region of a verified `flycc.versioned`."""
    return region.blocks[0].operations[-1].operation.operands[0]


def _check_guard(op: ir.Operation) -> None:
    names = [field.name for field in fields(Bounds)]
    declared = {"placement": ir.StringAttr} | dict.fromkeys([*names, "a_blocks", "b_blocks"], ir.IntegerAttr)
    if not has_attributes(op, declared) or len(op.results) != 1:
        return  # MLIR checks the declaration next, and reports what is not as declared
    placement = op.attributes["placement"].value
    _one_of("placement", placement, get_args(Placement))
    if "tree" not in op.attributes:
        raise Fault(f'tree must be stated: what "{placement}" is equal to depends on it')
    tree = op.attributes["tree"]
    _one_of("tree", tree.value if isinstance(tree, ir.StringAttr) else str(tree), get_args(Tree))
    free = Bounds()
    for name in names:
        value, most = op.attributes[name].value, getattr(free, name.replace("min", "max"))
        if not 0 <= value <= most:
            raise Fault(f"{name} must be from 0 to {most}, got {value}")
    for name in ("a_blocks", "b_blocks"):
        if op.attributes[name].value < 0:
            raise Fault(f"{name} must not be negative, got {op.attributes[name].value}")
    given = segments(op, "operandSegmentSizes", op.operands, "a? b?")
    if not given:
        raise Fault("a or b must be given: without, nothing is left to ask at run time")
    values = tensors(given | {"result": op.results[0]})
    for name in given:
        tensor = values[name]
        if tensor.dtype == "si32":
            check_dims(f"{name}, a range,", tensor, (3,))
        elif tensor.dtype != E8M0:
            raise Fault(f"{name} must be of {E8M0}, or a range of si32 [3], got {tensor}")
    check_dims("result", values["result"], ())
    if values["result"].dtype != "i1":
        raise Fault(f"element type of result must be i1, got {values['result'].dtype}")


def _check_versioned(op: ir.Operation) -> None:
    if len(op.regions) != 2 or len(op.results) != 1:
        return  # MLIR checks the declaration next, and reports what is not as declared
    given = segments(op, "operandSegmentSizes", op.operands, "guard?")
    if given and str(given["guard"].type) != "!torch.vtensor<[],i1>":
        raise Fault(f"guard must be !torch.vtensor<[],i1>, got {given['guard'].type}")
    result = op.results[0].type
    for name, region in zip(("guarded", "written"), op.regions, strict=True):
        blocks: Sequence[ir.Block] = list(region.blocks)
        if len(blocks) != 1 or len(blocks[0].arguments):
            raise Fault(f"{name} must be one block without arguments")
        operations = list(blocks[0].operations)
        last = operations[-1].operation if operations else None
        if last is None or last.name != "flycc.yield":
            raise Fault(f"{name} must end with a flycc.yield")
        if [value.type for value in last.operands] != [result]:
            types = ", ".join(str(value.type) for value in last.operands)
            raise Fault(f"{name} must yield the type of the result, {result}, got {types or 'nothing'}")


def _one_of(name: str, given: str, accepted: tuple[str, ...]) -> None:
    if given not in accepted:
        raise Fault(f"{name} must be one of {', '.join(accepted)}, got {given}")
