"""FX to FX: import, match, rebuild."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule
from torch_mlir.ir import ArrayAttr, Context, Module, StringAttr

from flycc import dialects
from flycc.contracts import FlyccError, Problem, Reason
from flycc.dialects.tensor import SHAPE_ATTR
from flycc.frontend.flex_attention import flex_refusals
from flycc.frontend.importer import import_graph
from flycc.frontend.nodes import target_name
from flycc.frontend.quantised_norms import fuse_quantised_norms
from flycc.frontend.rebuild import Match, Serve, keep_apart, pass_refusals, rebuild_graph
from flycc.frontend.report import Report, report_failure, report_graph
from flycc.frontend.unpacked_elements import Unpacked, find_unpacked
from flycc.frontend.written_attention import written_refusals
from flycc.passes.dequantized_reading import UNPACKED_ATTR
from flycc.passes.pipeline import run_pipeline
from flycc.passes.place_scales import MODE_ATTR
from flycc.passes.torch_ir import nested_ops, node_name
from flycc.passes.written_attention import SOFTMAXES

_numbers = itertools.count()


def compile_graph(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    serve: Serve = lambda problem, device: None,
    relaxed_scales: bool = False,
    describe: Callable[[Problem], str] = lambda problem: "",
) -> tuple[GraphModule, Report]:
    """The graph of `gm` with kernel calls for what kernels serve, and what became of every candidate.

    `gm` is an ATen-level graph from AOTAutograd, forward or backward, traced without decompositions, with its
    nodes' fake values in `meta["val"]`. It is not changed; where it cannot be imported or rebuilt it is
    returned as it is and the report's `failure` says why. `example_inputs` are there for the backend
    protocol: all that is needed is in the metadata. `serve` says why a kernel cannot serve a matched op whose
    tensors are on a device, or None if it can. `relaxed_scales` says that block scales may be moved without a proof.
    `describe` says which launches serve a problem, "" where there is nothing to say.
    """
    number = next(_numbers)
    try:
        apart: dict[str, Reason] = {}
        unpacked = find_unpacked(gm)
        while True:
            module = import_graph(gm, dialects.load(Context()))
            if relaxed_scales:
                module.operation.attributes[MODE_ATTR] = StringAttr.get("relaxed", module.context)
            _stamp(module, unpacked)
            keep_apart(module, apart.keys())
            run_pipeline(module)
            rebuilt, matches = rebuild_graph(gm, module, serve, number)
            # A product whose epilogue no kernel can take is served without; of attention its products are.
            refused = {
                match: parts for match in matches if match.reason is not None and (parts := _parts(gm, match))
            }
            if not refused:
                fuse_quantised_norms(rebuilt, serve)
                matches = [_described(match, describe) for match in matches]
                earlier = written_refusals(gm) | flex_refusals(gm)
                report = report_graph(gm, matches, {**pass_refusals(module), **apart, **earlier})
                report.number = number
                return rebuilt, report
            for match, parts in refused.items():
                assert match.reason is not None
                reason = match.reason
                if match.fused:
                    sentence = f"fused into {match.node}, no kernel serves it: {reason}"
                    reason = Reason("epilogue.unserved", sentence)
                apart |= dict.fromkeys(parts, reason)
    except FlyccError as error:
        return gm, report_failure(gm, error.reason)
    # A fault of ours must not become the model's. MLIR's error text can hold the whole module.
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return gm, report_failure(gm, Reason("compile.internal", f"a fault in flycc: {text}"))


def _described(match: Match, describe: Callable[[Problem], str]) -> Match:
    if match.posed is None or match.reason is not None:
        return match
    return replace(match, detail="; ".join(filter(None, (match.detail, describe(match.posed)))))


def _parts(gm: GraphModule, match: Match) -> tuple[str, ...]:
    """The nodes of a match to keep apart so that what else it is made of may be served."""
    softmaxes = (
        node.name
        for node in gm.graph.nodes
        if node.name in match.consumed and target_name(node).removesuffix(".default") in SOFTMAXES
    )
    return match.fused or tuple(softmaxes)


def _stamp(module: Module, unpacked: list[Unpacked]) -> None:
    """Says of the ops whose results are elements unpacked by hand from which bytes and by which nodes."""
    by_name = {each.elements: each for each in unpacked}
    for op in nested_ops(module.operation) if by_name else ():
        found = by_name.get(node_name(op) or "")
        if found is not None and SHAPE_ATTR in op.attributes:
            names = [StringAttr.get(name, module.context) for name in (found.packed, *found.between)]
            op.attributes[UNPACKED_ATTR] = ArrayAttr.get(names, module.context)
