"""place-scales: scales where kernels apply them fastest, by proof, behind a guard, or as the relaxed mode says."""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.contracts.scaled_gemm import BLOCK_K, ELEMENT_BITS, ElementFormat
from flycc.dialects.gemm import GemmOp
from flycc.dialects.scale_guard import build_scale_guard
from flycc.dialects.scaled_gemm import FORMATS, ScaledGemmOp, build_scaled_gemm, elements
from flycc.dialects.sizes import known
from flycc.dialects.tensor import Dim, Dims, show, stamped
from flycc.passes.dequantized_reading import (
    Dequantized,
    Source,
    near_miss,
    read_dequantized,
    read_scales,
    scale_columns,
)
from flycc.passes.matching import match, verify
from flycc.passes.new_ops import new_list, new_op, tensor_type
from flycc.passes.torch_ir import constant, nested_ops, new_constant, operator_name, producer
from flycc.passes.versioning import supersede, version
from flycc.passes.views import ONE, REPEATS, Extent, Factor
from flycc.scales.bounds import element_bytes, exponent_max, exponent_min
from flycc.scales.formats import BIAS, FLOAT_TYPES, Format
from flycc.scales.formats import FORMATS as THEORY
from flycc.scales.guards import Bounds
from flycc.scales.ranges import UNKNOWN, Range, quantised, spread_limit

#: String attribute of the module: "relaxed" where scales may be moved without a proof; otherwise they may not.
MODE_ATTR = "flycc.scale_placement"
#: String attribute of a product: where its scales stand, within which bounds, and why; for people.
PLACEMENT_ATTR = "flycc.placement"

#: Whether the matrix unit of the form as written flushes subnormals is not known; bounds for that hold either way.
_FLUSH = True


#: PyTorch's number of float4_e2m1fn_x2.
_FLOAT4_E2M1FN_X2 = 45


def place_scales(module: ir.Operation) -> None:
    """Leaves the scales of dequantised operands to the MFMA, and takes those that K does not change out of the sum.

    A `flycc.gemm` whose operands are both elements times E8M0 scales becomes a `flycc.versioned`. Its guarded form
    leaves the scales to the MFMA. Its guard is that operands dequantise exactly (Theorem 2 of docs/scale-placement.md)
    and that every partial sum is exact, in whichever order PyTorch or a kernel adds (Theorem 6).

    Before:

        %da = torch.operator "torch.flycc.mx_dequantize"(%a, %sa, %bf16) : ... -> !torch.vtensor<[4,64],bf16>
        %db = torch.operator "torch.flycc.mx_dequantize"(%b, %sb, %bf16) : ... -> !torch.vtensor<[16,64],bf16>
        %y = "flycc.gemm"(%da, %db) {layout = "NT", ...} : ... -> !torch.vtensor<[4,16],bf16>

    After:

        %g = "flycc.scale_guard"(%sa, %sb) {placement = "element", tree = "any", spread = 10 : i64, ...} : ...
        %v = "flycc.versioned"(%g) ({
          %s = "flycc.scaled_gemm"(%a, %b, %sa, %sb) {placement = "operand", tree = "mfma", ...} : ...
          "flycc.yield"(%s) : ...
        }, {
          ... (as before)
          "flycc.yield"(%y) : ...
        }) : (!torch.vtensor<[],i1>) -> !torch.vtensor<[4,16],bf16>

    In a `flycc.scaled_gemm`, block scales that do not change along K become scales of rows, "hoisted" out of the sum
    (Theorem 5), if none is left in it, for then the K loop loads no scales: behind a guard, unless what wrote the
    scales keeps them within its bounds. Scales of 1 are dropped.

    Where the module's `flycc.scale_placement` is "relaxed", these forms stand without a guard, and so do those that no
    guard could be given. What was decided and why is left in `flycc.placement`.
    """
    relaxed = MODE_ATTR in module.attributes and module.attributes[MODE_ATTR].value == "relaxed"
    for op in nested_ops(module):
        view = op.opview
        if op.parent is not None and op.parent.operation.name == "flycc.versioned":
            continue
        if isinstance(view, GemmOp):
            _place_dequantized(view, relaxed)
        elif isinstance(view, ScaledGemmOp):
            _place_hoisted(view, relaxed)


@dataclass(frozen=True)
class _Side:
    """An operand that is elements [rows, K], row-major, times scales with `columns` as `scale_columns` has them."""

    elements: ir.Value
    scales: ir.Value
    rows: Extent
    k: int
    columns: int
    read: Dequantized

    @property
    def format(self) -> Format:
        """Of the elements."""
        return _format(self.elements)

    @property
    def stored(self) -> int:
        """Places of a row in memory."""
        return self.k * ELEMENT_BITS[_name(self.elements)] // 8

    @property
    def hoisted(self) -> bool:
        """Whether its scales can stand outside of a sum along K of more than one block."""
        return self.columns < 2 and self.k > BLOCK_K


def _format(data: ir.Value) -> Format:
    return THEORY[_name(data)]


def _name(data: ir.Value) -> ElementFormat:
    """The format of elements; bytes are pairs of e2m1 that the graph unpacks itself."""
    dtype = known(data).dtype
    return "e2m1" if dtype == "ui8" else FORMATS[dtype]


def _place_dequantized(gemm: GemmOp, relaxed: bool) -> None:
    left, right = read_dequantized(gemm.a), read_dequantized(gemm.b)
    if left is None or right is None:
        _note_near_miss(gemm, left, right)
        return
    a, b = _side(left, gemm.trans_a), _side(right, not gemm.trans_b)
    bounds: Bounds | None = None
    if a is None or b is None:
        name = "a" if a is None else "b"
        unserved: str | None = (
            f"{name} is not row-major along K, of a size that is known, with scales of blocks of 32, of rows or of all"
        )
    else:
        unserved = _unserved(gemm)
        bounds, formats = _exact_bounds(a, b), f"{a.format.name} x {b.format.name}"
        if unserved is None and not relaxed:
            if bounds is None:
                unserved = f"float32 sums of {a.k} products of {formats} depend on their order, whatever the scales are"
            elif not bounds.satisfiable:
                unserved = f"no scales are within {bounds}"
    if a is None or b is None or unserved is not None:
        _note(gemm.operation, f"as written: {unserved}")
        return

    def raise_product(op: ir.Operation) -> Reason | None:
        guarded = _scaled_form(gemm, a, b)
        guard = None
        if not relaxed:
            assert bounds is not None
            scales = a.scales, b.scales
            blocks = max(a.columns, 1), max(b.columns, 1)
            guard = build_scale_guard(
                *scales, bounds, placement="element", tree="any", blocks=blocks, before=op
            ).result
        versioned = version(op, guarded, guard, (*reversed(b.read.ops), *reversed(a.read.ops)))
        why = f"then {a.k} products of {formats} have one sum in every order; as written elsewhere"
        text = "relaxed: no proof of equal bits" if relaxed else f"where {bounds}: {why}"
        _note(versioned.operation, f"operand (from element, tree any), {text}")
        return None

    match(gemm.operation, "scale-placement", raise_product)


def _note_near_miss(gemm: GemmOp, left: Dequantized | None, right: Dequantized | None) -> None:
    """Says why operands that look like elements times scales, or stand beside such, are not taken for that."""
    sides = {"a": (left, gemm.a), "b": (right, gemm.b)}
    missed = {name: near_miss(value) for name, (read, value) in sides.items() if read is None}
    near = left is not None or right is not None or any(missed.values())
    if near:
        why = [f"{name}: {text or 'no elements times scales'}" for name, text in missed.items()]
        _note(gemm.operation, f"as written: {'; '.join(why)}")


def _side(read: Dequantized, transposed: bool) -> _Side | None:
    """The operand with K as its last dimension; None where its elements or scales lie as no kernel reads them."""
    rank = len(read.elements.view.dims)
    order = [*range(rank - 2), rank - 1, rank - 2] if transposed else list(range(rank))
    view, met = read.elements.view.permute(order), read.scales.view.permute(order)
    k, rows = view.size(slice(-1, None)), view.size(slice(None, -1))
    if k.symbols or view.factors() != (Factor(rows * k, ONE),):
        return None
    columns = scale_columns(met, rows, k.number)
    if columns is None:
        return None
    return _Side(read.elements.value, read.scales.value, rows, k.number, columns, read)


def _unserved(gemm: GemmOp) -> str | None:
    """What of the product's form `flycc.scaled_gemm` lacks, or None."""
    if gemm.b2 is not None or gemm.preactivation is not None or gemm.scale != 1:
        return "products of MX operands have no gate, no scale of their sums and no preactivation"
    result, b = known(gemm.result), known(gemm.b)
    if len(b.dims) != 2:
        return f"a batch of right operands, {show(b.dims)}; one is accepted"
    if len(result.dims) > 2 and sum(not isinstance(dim, int) for dim in result.dims) > 1:
        return f"more than one size of the result {show(result.dims)} is known at run time only"
    for name, addend, dims in (
        ("bias", gemm.bias, result.dims[-1:]),
        ("residual", gemm.residual, result.dims),
    ):
        given = None if addend is None else stamped(addend)
        if given is not None and (given.dims != dims or given.dtype != result.dtype):
            return f"its {name} is {given}; {result.dtype}{show(dims)} is accepted"
    return None


def _exact_bounds(a: _Side, b: _Side) -> Bounds | None:
    """Where operands dequantise exactly and every partial sum is exact; None if some are not for any scales."""
    spread = spread_limit(a.format, b.format, a.k)
    if spread is None:
        return None
    least, most = exponent_min(a.format, b.format, _FLUSH), exponent_max(a.format, b.format, a.k)
    bounds = Bounds(spread=spread).within(sum=(least + 2 * BIAS, most + 2 * BIAS))
    for name, side in (("a", a), ("b", b)):
        for wide in side.read.types:
            bounds = bounds.within(**{name: element_bytes(side.format, FLOAT_TYPES[wide], _FLUSH)})
        for wide in side.read.scales.types:
            held = FLOAT_TYPES[wide]
            bounds = bounds.within(**{name: (held.normal + BIAS, held.greatest + BIAS)})
    return bounds if not (a.hoisted or b.hoisted) else _inside(bounds, least, most)


def _hoisted_bounds(a: Format, b: Format, k: int) -> Bounds:
    """Where the scales of a row and of a column may multiply the finished sum, one after the other."""
    least, most = exponent_min(a, b, _FLUSH), exponent_max(a, b, k)
    return _inside(Bounds(), least, most).within(sum=(least + 2 * BIAS, most + 2 * BIAS))


def _inside(bounds: Bounds, least: int, most: int) -> Bounds:
    """`bounds` within which each byte alone, too, keeps products and sums exact: what is left once another is hoisted.

    A sum that is multiplied with the scale of its row and then with that of its column is a number in between, too.
    """
    alone = (least + BIAS, most + BIAS)
    return bounds.within(a=alone, b=alone)


def _scaled_form(gemm: GemmOp, a: _Side, b: _Side) -> list[ir.Operation]:
    """The product of the elements with scales, in front of `gemm`: ops in order, the last of which has the result."""
    before, result = gemm.operation, known(gemm.result)
    operands = {}
    for name, side in (("a", a), ("b", b)):
        rows = None if side.rows.symbols else side.rows.number
        operands[name] = _matrix(side.elements, rows, side.stored, before)
        operands[f"scale_{name}"] = _matrix(
            side.scales, rows if side.columns else 1, side.columns or 1, before
        )
    rows, columns = None if a.rows.symbols else a.rows.number, result.dims[-1]
    residual = gemm.residual
    scaled = build_scaled_gemm(
        operands["a"],
        operands["b"],
        operands["scale_a"],
        operands["scale_b"],
        gemm.bias,
        gemm.result.type if len(result.dims) == 2 else tensor_type((rows, columns), result.dtype, before),
        placement="hoisted" if a.hoisted or b.hoisted else "operand",
        residual=None if residual is None else _matrix(residual, rows, columns, before),
        activation=gemm.activation,
        before=before,
    )
    verify(scaled)
    if len(result.dims) == 2:
        return [scaled.operation]
    return [scaled.operation, _reshaped(scaled.result, result.dims, before).owner]


def _matrix(value: ir.Value, rows: Dim, columns: Dim, before: ir.Operation) -> ir.Value:
    """`value` as a matrix of so many columns, seen as it is where it is one already."""
    tensor = known(value)
    if len(tensor.dims) != 2 or tensor.dims[1] != columns:
        value = _reshaped(value, (rows, columns), before)
    if tensor.dtype != "ui8":
        return value
    e2m1 = new_constant(_FLOAT4_E2M1FN_X2, before)
    return new_op("view.dtype", [value, e2m1], known(value).dims, "f4E2M1FN", before)


def _reshaped(value: ir.Value, dims: Dims, before: ir.Operation) -> ir.Value:
    """`value` in other dimensions, of which one at most is not a number."""
    sizes = new_list([dim if isinstance(dim, int) else -1 for dim in dims], before)
    return new_op("reshape", [value, sizes], dims, known(value).dtype, before)


def _place_hoisted(product: ScaledGemmOp, relaxed: bool) -> None:
    """Takes scales that K does not change out of the sum, where they are the MFMA's operands."""
    placement, rows = product.placement.value, (known(product.a), known(product.b))
    _note(product.operation, f"{placement} (tree {product.tree}): where the graph has them")
    k = next((size for size in map(elements, rows) if isinstance(size, int)), 0)
    read = [None if scale is None else read_scales(scale) for scale in (product.scale_a, product.scale_b)]
    ones = [scale is not None and _is_one(scale) for scale in read]
    moved = [
        k > BLOCK_K and scale is not None and not one and _is_of_rows(scale)
        for scale, one in zip(read, ones, strict=True)
    ]
    stays = [
        kind == "block" and not (one or is_moved)
        for kind, one, is_moved in zip(product.scale_kinds, ones, moved, strict=True)
    ]
    if any(moved) and any(stays):
        moved = [False, False]
        _note(
            product.operation,
            f"{placement} (tree {product.tree}): one operand's blocks differ, so all are loaded",
        )
    if placement != "operand" or not any((*ones, *moved)):
        return
    new = [
        None if one else scale.value if is_moved and scale is not None else given
        for given, scale, one, is_moved in zip(
            (product.scale_a, product.scale_b), read, ones, moved, strict=True
        )
    ]
    formats = _format(product.a), _format(product.b)
    bounds = _hoisted_bounds(*formats, k)
    ranges = [_known_range(scale) for scale in new]
    proved = not any(moved) or bounds.holds(ranges[0], ranges[1])
    feeding = [op for scale in read if scale is not None for op in reversed(scale.ops)]
    sources = [
        producer(scale.value) for scale, one in zip(read, ones, strict=True) if scale is not None and one
    ]
    feeding += [op for op in sources if op is not None]

    def raise_product(op: ir.Operation) -> Reason | None:
        raised = build_scaled_gemm(
            product.a,
            product.b,
            new[0],
            new[1],
            product.bias,
            product.result.type,
            placement="hoisted" if any(moved) else "operand",
            residual=product.residual,
            activation=product.activation,
            before=op,
        )
        verify(raised)
        text = f"{raised.placement.value} (tree {raised.tree})"
        if not any(moved):
            text += ": scales of 1 are dropped"
        elif relaxed:
            text += ", relaxed: no proof of equal bits"
        elif proved:
            text += f", proved: a in {ranges[0]} and b in {ranges[1]} are within {bounds}"
        else:
            text += f", where {bounds}: scales that are the same along K; operand elsewhere"
        if proved or relaxed:
            supersede(op, raised.operation, feeding)
            _note(raised.operation, text)
        else:
            guard = build_scale_guard(new[0], new[1], bounds, placement="hoisted", tree="mfma", before=op)
            _note(version(op, [raised.operation], guard.result, feeding).operation, text)
        return None

    match(product.operation, "scale-placement", raise_product)


def _is_of_rows(scale: Source) -> bool:
    """Whether a matrix of scales is [rows, 1], or [1, 1], repeated along K."""
    tensor = stamped(scale.value)
    rows, blocks = scale.view.size(slice(0, 1)), scale.view.size(slice(1, None))
    forms = (Factor(rows, ONE), Factor(blocks, REPEATS)), (Factor(rows * blocks, REPEATS),)
    return tensor is not None and tensor.dims[1:] == (1,) and scale.view.factors() in forms


def _is_one(scale: Source) -> bool:
    """Whether all scales provably are 1, byte 127."""
    op = producer(scale.value)
    name = None if op is None else operator_name(op)
    return name == "aten.ones" or (op is not None and name == "aten.full" and constant(op.operands[1]) == 1)


def _known_range(scale: ir.Value | None) -> Range:
    """Within which the bytes of scales are that flycc's own quantiser has written; of others nothing is known."""
    if scale is None:
        return Range(BIAS, BIAS)
    read = read_scales(scale)
    op = None if read is None else producer(read.value)
    if op is None or operator_name(op) != "flycc.mx_quantize":
        return UNKNOWN
    x = stamped(op.operands[0])
    texts = [producer(operand) for operand in list(op.operands)[1:3]]
    if x is None or x.dtype not in FLOAT_TYPES or any(text is None for text in texts):
        return UNKNOWN
    format_name, rounding = (text.attributes["value"].value for text in texts if text is not None)
    return quantised(THEORY[format_name], FLOAT_TYPES[x.dtype], rounding)


def _note(op: ir.Operation, text: str) -> None:
    with op.context:
        op.attributes[PLACEMENT_ATTR] = ir.StringAttr.get(text)
