"""What match passes leave on ops: provenance of what was raised, reasons for what was not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.dialects.tensor import SHAPE_ATTR, SHAPES_ATTR, Dims
from flycc.passes.torch_ir import IMPURE_ATTR, node_name, operator_name

#: String attributes of an op that was not raised: why.
REASON_CODE_ATTR = "flycc.reason_code"
REASON_ATTR = "flycc.reason"
#: Array attribute of a flycc op: the FX nodes folded into it.
CONSUMED_ATTR = "flycc.consumed"
#: Array attribute of a flycc op: for each of its results the values of the FX graph that it replaces, a
#: node's name for the value of a node, `name#i` for result i of a node that has several.
RESULTS_ATTR = "flycc.results"


def refuse(op: ir.Operation, reason: Reason) -> None:
    """Leaves `op` as it is, with the reason."""
    with op.context:
        op.attributes[REASON_CODE_ATTR] = ir.StringAttr.get(reason.code)
        op.attributes[REASON_ATTR] = ir.StringAttr.get(reason.sentence)


class _Invalid(Exception):
    """The verifier's message on an op that was to stand for others."""


def match(op: ir.Operation, area: str, form: Callable[[ir.Operation], Reason | None]) -> None:
    """Raises `op` by `form`, or leaves it with the reason that `form` returns.

    That is `area`.invalid where the verifier refuses what it was raised to: a form's fault, for which the rest of
    the graph need not suffer.
    """
    try:
        reason = form(op)
    except _Invalid as invalid:
        reason = Reason(f"{area}.invalid", f"{operator_name(op)} would make an invalid op: {invalid}")
    if reason is not None:
        refuse(op, reason)


def verify(raised: ir.OpView) -> None:
    """To be called before `raised` gets uses: erases it if it is invalid, and lets `match` know."""
    try:
        raised.operation.verify()
    except ir.MLIRError as error:
        raised.operation.erase()
        raise _Invalid("; ".join(diagnostic.message for diagnostic in error.error_diagnostics)) from None


def replace(
    raised: ir.OpView,
    replaced: Sequence[Sequence[ir.Value]],
    folded: Iterable[ir.Operation],
    dims: Dims | None = None,
) -> None:
    """Verifies `raised`, makes each of its results stand for the values of torch ops in `replaced`, and stamps it.

    Of the ops `folded`, given users first, those that nothing uses any more are erased. `dims` is the shape of the one
    result where it is not that of the value it stands for: all that reads this must be views that take either.
    """
    verify(raised)
    folded = list(dict.fromkeys(folded))
    with raised.context:
        names = [ir.StringAttr.get(name) for op in reversed(folded) if (name := node_name(op)) is not None]
        if names:
            raised.attributes[CONSUMED_ATTR] = ir.ArrayAttr.get(list(dict.fromkeys(names)))
            references = [[ir.StringAttr.get(_reference(value)) for value in values] for values in replaced]
            raised.attributes[RESULTS_ATTR] = ir.ArrayAttr.get([ir.ArrayAttr.get(r) for r in references])
            shapes = [_shape(values[0]) if values else ir.ArrayAttr.get([]) for values in replaced]
            if dims is not None:
                shapes = [ir.ArrayAttr.get([ir.StringAttr.get(str(dim)) for dim in dims])]
            raised.attributes[SHAPES_ATTR] = ir.ArrayAttr.get(shapes)
    for result, values in zip(raised.results, replaced, strict=True):
        for value in values:
            value.replace_all_uses_with(result)
    for op in folded:
        if IMPURE_ATTR not in op.attributes and not any(list(result.uses) for result in op.results):
            op.erase()


def _reference(value: ir.Value) -> str:
    name = node_name(value.owner) or ""
    return name if SHAPES_ATTR not in value.owner.attributes else f"{name}#{value.result_number}"


def _shape(value: ir.Value) -> ir.Attribute:
    attributes = value.owner.attributes
    if SHAPES_ATTR in attributes:
        return attributes[SHAPES_ATTR][value.result_number]
    return attributes[SHAPE_ATTR] if SHAPE_ATTR in attributes else ir.ArrayAttr.get([])
