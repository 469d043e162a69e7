"""From flycc ops, or a kernel module, to a stage of the kernel's lowering. Imports FlyDSL when called."""

from __future__ import annotations

from collections.abc import Callable

from torch_mlir import ir

from flycc.contracts import FlyccError, Reason
from flycc.dialects.gemm import GemmOp, problem
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
    from flycc.kernels.gemm import choose, kernel

    specs = {}
    served: dict[str, list[str]] = {}
    for op in nested_ops(module.operation):
        if not isinstance(op.opview, GemmOp):
            continue
        gemm = problem(op.opview)
        config = choose(gemm)
        if isinstance(config, Reason):
            raise At(op.location, config)
        spec = kernel(gemm, config)
        specs[spec.key] = spec
        served.setdefault(spec.key, []).append(str(gemm))
    if not specs:
        raise FlyccError(Reason("opt.no-kernel", f"--emit={stage}: no flycc op in the module needs a kernel"))
    return [
        _commented(lower(spec, stop_after=stage, on_stage=observe), stage, served[key])
        for key, spec in specs.items()
    ]


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
