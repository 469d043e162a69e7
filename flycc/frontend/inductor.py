"""The rest of a rebuilt graph, compiled by Inductor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch.fx import GraphModule


def compile_with_inductor(gm: GraphModule) -> Callable[[Sequence[Any]], Any]:
    """Compile an ATen-level graph that carries fake values, one from `compile_graph` for instance.

    Inductor decomposes the graph for itself and calls flycc's ops as they are. Returns a function of one list
    of inputs, as AOTAutograd prefers. Raises whatever Inductor raises.
    """
    from torch._inductor.compile_fx import compile_fx  # seconds to import, and only this option needs it

    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    # The outer AOTAutograd is still at work: its tracing context must not see this inner compilation.
    with torch.no_grad(), tracing(TracingContext(detect_fake_mode(inputs))):
        compiled = compile_fx(gm, inputs)
    return make_boxed_func(compiled)
