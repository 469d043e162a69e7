"""Handing a rebuilt graph to Inductor, which compiles all but our operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx


def compile_with_inductor(gm: GraphModule) -> Callable[..., Any]:
    """Inductor's compiled form of an ATen-level graph whose nodes have their fake values in `meta["val"]`.

    Our operators are opaque to it. The graph was traced without decompositions, which Inductor's lowerings
    need, so it is traced once more with them.
    """
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    modes = [value.fake_mode for value in inputs if isinstance(value, torch._subclasses.FakeTensor)]
    with modes[0] if modes else torch._subclasses.FakeTensorMode():
        decomposed = make_fx(gm, decomposition_table=select_decomp_table(), _allow_non_fake_inputs=True)(
            *inputs
        )
    return compile_fx_inner(decomposed, inputs)
