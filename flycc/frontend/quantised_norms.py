"""RMS norms whose rows are only quantised: `flycc::rms_norm_mx` does both in one launch."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from flycc.contracts import RmsNormProblem
from flycc.contracts.rms_norm import NormDtype
from flycc.contracts.scaled_gemm import BLOCK_K
from flycc.frontend.rebuild import Serve

#: Types of rows that are quantised as they are made, and of weights.
_ROWS: dict[torch.dtype, NormDtype] = {torch.bfloat16: "bf16", torch.float16: "f16"}
_WEIGHTS: dict[torch.dtype, NormDtype] = {**_ROWS, torch.float32: "f32"}


def fuse_quantised_norms(gm: GraphModule, serve: Serve) -> None:
    """Edits a rebuilt graph: where all that is done with a norm's rows is that they are quantised, in whole blocks and
    without a use of the range of scales, the norm does it, unless `serve` says why no kernel can.
    """
    nodes = gm.graph.find_nodes(op="call_function", target=torch.ops.flycc.mx_quantize.default)
    found = [chain for node in nodes if (chain := _Chain.to(node)) is not None]
    fused = [chain.fuse() for chain in found if serve(chain.problem(), chain.device) is None]
    if fused:
        gm.graph.lint()
        gm.recompile()


@dataclass(frozen=True)
class _Chain:
    """`norm`, its rows `y`, perhaps a `view` of them with the same rows, and `quantised`."""

    norm: Node
    y: Node
    view: Node | None
    quantised: Node

    @classmethod
    def to(cls, quantised: Node) -> _Chain | None:
        """The chain that ends with a node, if there is one whose links have no other users."""
        source, view = quantised.args[0], None
        if not isinstance(source, Node):
            return None
        if source.target is torch.ops.aten.view.default:
            view, source = source, source.args[0]
        if not isinstance(source, Node) or source.target is not operator.getitem or source.args[1] != 0:
            return None
        norm = source.args[0]
        assert isinstance(norm, Node)
        chain = cls(norm, source, view, quantised)
        is_norm = norm.target is torch.ops.flycc.rms_norm_fwd.default
        return chain if is_norm and chain._is_private() and chain._has_whole_blocks() else None

    @property
    def device(self) -> torch.device:
        return self.y.meta["val"].device

    def problem(self) -> RmsNormProblem:
        """What the fused op asks of a kernel."""
        (x, weight, residual, *_), options = self._arguments()
        sizes = x.meta["val"].shape
        rows = math.prod(sizes[:-1])
        return RmsNormProblem(
            _ROWS[x.meta["val"].dtype],
            rows if isinstance(rows, int) else str(rows),
            sizes[-1],
            "none" if weight is None else _WEIGHTS[weight.meta["val"].dtype],
            _ROWS[self.y.meta["val"].dtype],
            options["weight_offset"],
            options["cast_before_weight"],
            residual is not None,
            mx=options["format"],
            mx_rounding=options["rounding"],
        )

    def fuse(self) -> Node:
        """Puts the fused op in the place of the chain."""
        graph = self.norm.graph
        arguments, options = self._arguments()
        with graph.inserting_before(self.norm):
            fused = graph.call_function(torch.ops.flycc.rms_norm_mx.default, arguments, options)
            given = map_arg(arguments, lambda node: node.meta["val"])
            fused.meta["val"] = torch.ops.flycc.rms_norm_mx.default(*given, **options)
            results = [graph.call_function(operator.getitem, (fused, index)) for index in range(2)]
        for index, result in enumerate(results):
            result.meta["val"] = fused.meta["val"][index]
        for taker in list(self.quantised.users):
            result = results[int(taker.args[1])]  # type: ignore[arg-type]
            if self.view is None:
                taker.replace_all_uses_with(result)
                graph.erase_node(taker)
            else:
                *lead, _ = self.view.args[1]  # type: ignore[misc]
                taker.target = torch.ops.aten.view.default
                taker.args = (result, [*lead, taker.meta["val"].shape[-1]])
        for taker in list(self.norm.users):
            if taker is not self.y:
                taker.args = (fused, 2)
        for node in (self.quantised, self.view, self.y, self.norm):
            if node is not None:
                graph.erase_node(node)
        return fused

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Those of the fused op: x, weight, residual and eps, and the others by name."""
        options = {**self._defaults(self.norm), **self._defaults(self.quantised)}
        del options["want_rstd"]
        return self.norm.args, options

    @staticmethod
    def _defaults(node: Node) -> dict[str, Any]:
        """The values of what a node's op takes by name alone."""
        named = (argument for argument in node.target._schema.arguments if argument.kwarg_only)  # type: ignore[union-attr]
        return {one.name: node.kwargs.get(one.name, one.default_value) for one in named}

    def _is_private(self) -> bool:
        """Whether nothing else uses the rows, or the range of scales, or the norm's own statistics."""
        links = [self.y, *([] if self.view is None else [self.view])]
        takers = (*self.quantised.users, *self.norm.users)
        return all(len(link.users) == 1 for link in links) and all(
            taker.target is operator.getitem and taker.args[1] in (0, 1) for taker in takers
        )

    def _has_whole_blocks(self) -> bool:
        """Whether kernels take the types, and rows are whole blocks, which the view leaves as they are."""
        x, y = self.norm.args[0].meta["val"], self.y.meta["val"]  # type: ignore[union-attr]
        weight = self.norm.args[1]
        columns = y.shape[-1]
        return (
            x.dtype in _ROWS
            and y.dtype in _ROWS
            and (weight is None or weight.meta["val"].dtype in _WEIGHTS)  # type: ignore[union-attr]
            and isinstance(columns, int)
            and columns % BLOCK_K == 0
            and (self.view is None or self.view.meta["val"].shape[-1] == columns)
        )
