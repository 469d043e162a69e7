"""The rest of a rebuilt graph, compiled by Inductor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts, statically_known_true


def compile_with_inductor(gm: GraphModule) -> Callable[[Sequence[Any]], Any]:
    """Compile an ATen-level graph that carries fake values, one from `compile_graph` for instance.

    Inductor decomposes the graph for itself and calls flycc's ops as they are. The compiled graph's outputs
    have the strides of `gm`'s. `gm` is only read. Returns a function of one list of inputs, as AOTAutograd
    prefers. Raises whatever Inductor raises, and ValueError where an output cannot get its strides.
    """
    from torch._inductor.compile_fx import compile_fx  # seconds to import, and only this option needs it

    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    # The outer AOTAutograd is still at work: its tracing context must not see this inner compilation.
    with torch.no_grad(), tracing(TracingContext(detect_fake_mode(inputs))):
        compiled = compile_fx(_KeepStrides(gm), inputs)
    return make_boxed_func(compiled)


class _KeepStrides(torch.nn.Module):
    """A graph whose outputs keep their strides when it is traced again with decompositions.

    A decomposition may choose other strides than the op: `cat` of one tensor and an empty one, say, keeps the
    tensor's. Inductor keeps to the strides that its own trace saw, but AOTAutograd has traced the backward
    graph, and Dynamo what follows, for the strides in `gm`.
    """

    def __init__(self, gm: GraphModule) -> None:
        super().__init__()
        self.gm = gm
        [output] = gm.graph.find_nodes(op="output")
        vals = [node.meta.get("val") if isinstance(node, Node) else None for node in output.args[0]]
        self._expected = [_Strides(val) if isinstance(val, Tensor) else None for val in vals]

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        # An interpreter, as AOTAutograd runs graphs: it gives sizes that depend on data their symbols again.
        outputs = PropagateUnbackedSymInts(self.gm).run(*inputs)
        return tuple(
            output if expected is None else expected.impose(output)
            for output, expected in zip(outputs, self._expected, strict=True)
        )


class _Strides:
    """The strides of `val`, for tensors of the same sizes."""

    def __init__(self, val: Tensor) -> None:
        self._strides = val.stride()
        # Dimensions from the largest stride to the smallest; this adds no guards on symbolic sizes.
        order, _ = compute_elementwise_output_logical_to_physical_perm(val)
        self._order = order
        self._inverse = [order.index(dim) for dim in range(len(order))]

    def impose(self, tensor: Tensor) -> Tensor:
        """`tensor` itself if it has these strides, else a copy. Raises ValueError."""
        if self._of(tensor):
            return tensor
        dense = tensor.permute(self._order).contiguous().permute(self._inverse)
        if not self._of(dense):
            raise ValueError(
                f"Inductor's decompositions give an output strides {tensor.stride()} in place of "
                f"{self._strides}, which no dense copy has"
            )
        return dense

    def _of(self, tensor: Tensor) -> bool:
        return all(
            statically_known_true(size <= 1) or statically_known_true(stride == wanted)
            for size, stride, wanted in zip(tensor.shape, tensor.stride(), self._strides, strict=True)
        )
