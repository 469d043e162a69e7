"""What epilogues of all kinds of products share: the pointwise ops behind a product, and what is said of them."""

from __future__ import annotations

from collections.abc import Collection

from torch_mlir import ir

from flycc.contracts import Reason
from flycc.contracts.gemm import Activation
from flycc.dialects.tensor import stamped
from flycc.passes.torch_ir import constant, is_none, only_user, operator_name, text

#: Unit attribute of an op that is not to be folded: no kernel serves what it would be part of.
UNFUSED_ATTR = "flycc.unfused"
#: Array attribute of a product: the FX nodes, last ones first, that were folded into it.
FUSED_ATTR = "flycc.fused"

CASTS = ("aten._to_copy", "prims.convert_element_type")
COPIES = ("aten.alias", "aten.detach", "aten.clone", "aten.view", "aten._unsafe_view", "aten.reshape")


class Apart(Exception):
    """An op cannot be folded."""

    def __init__(self, what: str, sentence: str) -> None:
        self.reason = Reason(f"epilogue.{what}", sentence)


def kind(root: ir.Operation) -> str:
    """The name of an operator of PyTorch without its namespace."""
    return operator_name(root).partition(".")[2]


def activation(op: ir.Operation) -> Activation | None:
    """The activation that `op` by itself is."""
    name = operator_name(op)
    if name == "aten.gelu":
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(text(op.operands[1]) or "")  # type: ignore[return-value]
    if name == "aten.clamp_min":
        return "relu" if constant(op.operands[1]) == 0 else None
    return {"aten.relu": "relu", "aten.silu": "silu"}.get(name)  # type: ignore[return-value]


def activation_of(uses: list[ir.Operation]) -> list[ir.Operation]:
    """The ops among `uses`, those of a product, that make one activation of it, its result first; none if they make
    several."""
    found = [[use] for use in uses if activation(use) is not None]
    for use in uses:
        if operator_name(use) == "aten.sigmoid":
            factor = only_user(use.results[0])
            if factor is not None and factor in uses and operator_name(factor) == "aten.mul.Tensor":
                found.append([factor, use])
    return found[0] if len(found) == 1 else []


def is_only_cast(op: ir.Operation) -> bool:
    """Whether a cast changes nothing but the element type."""
    options = list(op.operands)[2:]  # layout, device, pin_memory, non_blocking, memory_format
    return all(is_none(option) or constant(option) is False for option in options)


def is_last_cast(op: ir.Operation, steps: Collection[str]) -> bool:
    """Whether `op` is a cast to f32 and what uses that is none of the operators `steps` of an epilogue."""
    if operator_name(op) not in CASTS:
        return False
    result = stamped(op.results[0])
    if result is None or result.dtype != "f32":
        return False
    user = only_user(op.results[0])
    return user is None or operator_name(user) not in steps
