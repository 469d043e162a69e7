"""Reading the torch dialect: who defines a value, constants behind operands, provenance names."""

from __future__ import annotations

from torch_mlir import ir

from flycc.dialects.constants import constant, producer

#: String attribute: the FX node that an op came from, or whose result it replaces.
NODE_ATTR = "flycc.node"
#: Unit attribute: the op may not be dropped when its results are unused.
IMPURE_ATTR = "flycc.impure"


def new_constant(number: int | float, before: ir.Operation) -> ir.Value:
    """A `torch.constant` of `number` in front of `before`."""
    kind = "int" if isinstance(number, int) else "float"
    with before.context, before.location:
        number_type = ir.IntegerType.get_signless(64) if kind == "int" else ir.F64Type.get()
        attribute = ir.IntegerAttr if kind == "int" else ir.FloatAttr
        op = ir.Operation.create(
            f"torch.constant.{kind}",
            [ir.Type.parse(f"!torch.{kind}")],
            attributes={"value": attribute.get(number_type, number)},
            ip=ir.InsertionPoint(before),
        )
    return op.results[0]


def int_list(value: ir.Value) -> list[int] | None:
    """The integers of a `torch.prim.ListConstruct` of constants, or None."""
    op = producer(value)
    if op is None or op.name != "torch.prim.ListConstruct":
        return None
    numbers = [constant(item) for item in op.operands]
    return [n for n in numbers if isinstance(n, int)] if None not in numbers else None


def text(value: ir.Value) -> str | None:
    """The string that `value` is, or None."""
    op = producer(value)
    return op.attributes["value"].value if op is not None and op.name == "torch.constant.str" else None


def is_none(value: ir.Value) -> bool:
    """Whether `value` is Python's None."""
    op = producer(value)
    return op is not None and op.name == "torch.constant.none"


def node_name(op: ir.Operation) -> str | None:
    """The FX node that `op` came from, where it is stamped."""
    return op.attributes[NODE_ATTR].value if NODE_ATTR in op.attributes else None


def value_name(value: ir.Value) -> str | None:
    """The FX node whose value `value` is one of, where it is stamped."""
    if not isinstance(value, ir.BlockArgument):
        return node_name(value.owner)
    function = value.owner.owner
    if "arg_attrs" not in function.attributes:
        return None
    attributes = function.attributes["arg_attrs"][value.arg_number]
    return attributes[NODE_ATTR].value if NODE_ATTR in attributes else None


def operator_name(op: ir.Operation) -> str:
    """The operator of PyTorch that `op` stands for, such as `aten.mm`; opaque ops say it in an attribute."""
    name = op.attributes["name"].value if op.name == "torch.operator" else op.name
    return name.removeprefix("torch.")


def users(value: ir.Value) -> list[ir.Operation]:
    """The ops that use `value`, once for each use, latest first."""
    return [use.owner.operation for use in value.uses]


def only_user(value: ir.Value) -> ir.Operation | None:
    """The op that alone uses `value`, and uses it once, or None."""
    found = users(value)
    return found[0] if len(found) == 1 else None


def nested_ops(module: ir.Operation) -> list[ir.Operation]:
    """Every op nested below `module`, in program order, an op before the ops of its regions."""
    ops: list[ir.Operation] = []
    for region in module.regions:
        for block in region:
            for view in block.operations:
                ops.append(view.operation)
                ops.extend(nested_ops(view.operation))
    return ops
