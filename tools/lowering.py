"""From flycc ops, or a kernel module, to a stage of the kernel's lowering. Imports FlyDSL when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_mlir import ir

from flycc.contracts import (
    FlyccError,
    GemmProblem,
    GroupedGemmProblem,
    Problem,
    Reason,
    RmsNormBackwardProblem,
    RmsNormProblem,
    ScaledGemmProblem,
    ScaledGroupedGemmProblem,
    TopkProblem,
)
from flycc.contracts.mx import MxDequantizeProblem, MxQuantizeProblem, ScaleRangeProblem
from flycc.dialects import problem
from flycc.dialects.base import Flycc
from flycc.passes.torch_ir import nested_ops
from flycc.tools.diagnostics import At

#: Called with the name and the result of every stage.
Observer = Callable[[str, str | bytes], None]


def known_stages() -> tuple[str, ...]:
    """Every stage of a kernel's lowering, in order."""
    from flycc.codegen import stage_names

    return stage_names()


def lower_module(module: ir.Module, stage: str, observe: Observer) -> list[bytes]:
    """The kernels that the flycc ops of `module` need, each once, at `stage`.

    Text starts with comments that name the problems the kernel serves. Raises FlyccError, among others for an
    op that no kernel serves and a module without flycc ops.
    """
    from flycc.codegen import lower

    specs = {}
    served: dict[str, list[str]] = {}
    for op in nested_ops(module.operation):
        if not isinstance(op.opview, Flycc.Operation):
            continue
        posed = problem(op.opview)
        kernels = _kernels(posed)
        if isinstance(kernels, Reason):
            raise At(op.location, kernels)
        for spec in kernels:
            specs[spec.key] = spec
            served.setdefault(spec.key, []).append(str(posed))
    if not specs:
        raise FlyccError(Reason("opt.no-kernel", f"--emit={stage}: no flycc op in the module needs a kernel"))
    return [
        _commented(lower(spec, stop_after=stage, on_stage=observe), stage, served[key])
        for key, spec in specs.items()
    ]


def _kernels(problem: Problem) -> list[Any] | Reason:
    """The KernelSpec of each launch that serves `problem`, or why none does."""
    from flycc.kernels import gemm, grouped_gemm, mx, mx_grouped, mx_quantize, rms_norm, topk

    #: What chooses a configuration and makes the one kernel, by the type of problem.
    families: dict[type, tuple[Any, Any]] = {
        GemmProblem: (gemm.choose, gemm.kernel),
        GroupedGemmProblem: (grouped_gemm.choose, grouped_gemm.kernel),
        MxDequantizeProblem: (mx_quantize.choose, mx_quantize.dequantize_kernel),
        MxQuantizeProblem: (mx_quantize.choose, mx_quantize.quantize_kernel),
        RmsNormProblem: (rms_norm.choose, rms_norm.kernel),
        ScaledGemmProblem: (mx.choose, mx.kernel),
        ScaledGroupedGemmProblem: (mx_grouped.choose, mx_grouped.kernel),
    }
    match problem:
        case RmsNormBackwardProblem():
            steps = rms_norm.plan_backward(problem)
            if isinstance(steps, Reason):
                return steps
            return [rms_norm.backward_kernel(problem, step.config, step.what) for step in steps]
        case TopkProblem():
            selection = topk.choose(problem)
            return (
                selection
                if isinstance(selection, Reason)
                else [topk.kernel(s.variant) for s in selection.steps]
            )
        case ScaleRangeProblem():
            return [mx_quantize.range_kernel(problem)]
        case _:
            choose, kernel = families[type(problem)]
            config = choose(problem)
            return config if isinstance(config, Reason) else [kernel(problem, config)]


def lower_kernel(text: str, start_after: str, stage: str, observe: Observer) -> bytes:
    """The kernel module `text`, as stage `start_after` left it, at `stage`."""
    from flycc.codegen import lower

    return _commented(lower(text, start_after=start_after, stop_after=stage, on_stage=observe), stage, [])


def _commented(result: str | bytes, stage: str, problems: list[str]) -> bytes:
    if isinstance(result, bytes):
        return result
    comment = ";" if stage in ("llvm", "isa") else "//"
    heading = "".join(f"{comment} {problem}\n" for problem in dict.fromkeys(problems))
    return (heading + result.rstrip("\n") + "\n").encode()
