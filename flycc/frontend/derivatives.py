"""Dynamo graphs in which autograd records an operator that has no derivative."""

from __future__ import annotations

from torch import Tensor
from torch.fx import GraphModule

_WITHOUT = ("flycc::scaled_gemm", "flycc::scaled_grouped_gemm")


def check_derivatives(gm: GraphModule) -> None:
    """Raises RuntimeError where AOTAutograd would trace a backward pass without such an operator's gradients.

    PyTorch's own operators that have no derivative raise the same then.
    """
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            packet = getattr(node.target, "overloadpacket", node.target)
            name = getattr(packet, "_qualified_op_name", None)
            value = node.meta.get("example_value")
            if name in _WITHOUT and isinstance(value, Tensor) and value.requires_grad:
                raise RuntimeError(f"derivative for {name} is not implemented")
