"""Putting a `flycc.versioned` in the place of an op, which stays in it as the form that is written."""

from __future__ import annotations

from collections.abc import Iterable

from torch_mlir import ir

from flycc.dialects.scale_guard import VersionedOp, build_versioned, build_yield
from flycc.dialects.tensor import SHAPE_ATTR, SHAPES_ATTR
from flycc.passes.epilogues import FUSED_ATTR
from flycc.passes.matching import CONSUMED_ATTR, RESULTS_ATTR
from flycc.passes.torch_ir import NODE_ATTR, node_name, users

#: Array attribute of a `flycc.versioned`: the FX nodes that make operands of the form that is written.
FEEDING_ATTR = "flycc.feeding"


_STAMPS = (NODE_ATTR, SHAPE_ATTR, SHAPES_ATTR, RESULTS_ATTR, CONSUMED_ATTR, FUSED_ATTR)


def supersede(op: ir.Operation, better: ir.Operation, feeding: Iterable[ir.Operation]) -> None:
    """Puts `better`, of one result, in the place of `op`, with what `op` says of where it came from.

    It stands for the ops `feeding`, too, as far as nothing else needs them.
    """
    for attribute in _STAMPS:
        if attribute in op.attributes:
            better.attributes[attribute] = op.attributes[attribute]
    with op.context:
        names = [ir.StringAttr.get(name) for each in feeding if (name := node_name(each)) is not None]
        if names:
            better.attributes[CONSUMED_ATTR] = ir.ArrayAttr.get([*better.attributes[CONSUMED_ATTR], *names])
    op.results[0].replace_all_uses_with(better.results[0])
    op.erase()


def version(
    written: ir.Operation,
    guarded: list[ir.Operation],
    guard: ir.Value | None,
    feeding: Iterable[ir.Operation],
) -> VersionedOp:
    """Puts a `flycc.versioned` of two forms in the place of `written`, an op of one result.

    `guarded` are ops in front of `written`, in order, the last of which has the result. Of the ops `feeding` what is
    written, given users first, those that nothing else uses go with it, so that they run only where it does.
    """
    versioned = build_versioned(guard, written.results[0].type, before=written)
    for attribute in _STAMPS:
        if attribute in written.attributes:
            versioned.operation.attributes[attribute] = written.attributes[attribute]
    end = build_yield(guarded[-1].results[0], versioned.guarded.blocks[0])
    for op in guarded:
        op.move_before(end)
    written.results[0].replace_all_uses_with(versioned.result)
    block = versioned.written.blocks[0]
    written.move_before(build_yield(written.results[0], block))
    inside, names = [written], dict[str, None]()
    for op in dict.fromkeys(feeding):
        if (name := node_name(op)) is not None:
            names[name] = None
        if all(user in inside for result in op.results for user in users(result)):
            op.move_before(inside[-1])
            inside.append(op)
    with written.context:
        feeders = [ir.StringAttr.get(name) for name in reversed(names)]
        versioned.operation.attributes[FEEDING_ATTR] = ir.ArrayAttr.get(feeders)
    return versioned
