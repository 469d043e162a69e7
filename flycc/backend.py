"""The backend itself: from Dynamo's graph to something that runs, one step a line."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.fx import GraphModule

from flycc import frontend, tuning
from flycc.contracts import FlyccError, Problem, Reason
from flycc.options import Options
from flycc.record import add_graph, add_notes, phase
from flycc.runtime import ops, refusals
from flycc.runtime.mx_weight import mx_weight

# From here on every launch of this process asks the tuning tables, whoever compiled it.
tuning.install()
# And every trace has shape rules for MX-scaled products that are right.
frontend.mend_scaled_mm()


class Refused(FlyccError):
    """Something was left to PyTorch, and `strict` was asked for."""


def flycc_backend(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph; what `torch.compile(..., backend="flycc")` calls.

    Args:
        gm: the Dynamo-level graph.
        example_inputs: its inputs, fake or real.
        options: see `flycc.options.Options`. Raises `OptionError` for a name or value it does not take.
        mode: only None and "default" are accepted.
    """
    chosen = Options.parse(options, mode)
    frontend.check_derivatives(gm)
    with phase("keep flex_attention whole"):
        for reason in frontend.keep_flex_attention(gm):
            leave_to_pytorch(reason, chosen)
    with phase("roll up expert loops"):
        add_notes([*frontend.roll_up_expert_loops(gm), *frontend.stack_products(gm)])
    if chosen.mx is not None:
        with phase("quantise linear layers"):
            add_notes(frontend.quantize_linears(gm, example_inputs, chosen.mx, chosen.mx_keep, mx_weight))
    with phase("keep composites whole"):
        whole = frontend.keep_whole(gm)
    compilers = {
        f"{name}_compiler": functools.partial(compile_aten, options=chosen, kind=kind)
        for name, kind in (("fw", "forward"), ("bw", "backward"), ("inference", "inference"))
    }
    # No decompositions: the passes match what the user wrote, not what another backend likes.
    return aot_autograd(**compilers)(whole, list(example_inputs))


def compile_aten(
    gm: GraphModule, example_inputs: Sequence[Any], *, options: Options, kind: str
) -> Callable[..., Any]:
    """Compile one ATen graph of AOTAutograd: match, rebuild, and leave the rest to the fallback."""
    with phase("import, match, rebuild"):
        rebuilt, report = frontend.compile_graph(
            gm,
            example_inputs,
            serve=functools.partial(serve, autotune=options.autotune),
            relaxed_scales=options.scale_placement == "relaxed",
            describe=ops.describe,
        )
    add_graph(kind, report)
    if report.failure:
        leave_to_pytorch(report.failure, options)
    if options.strict and (refused := report.refused()):
        raise Refused(refused[0])
    compiled = run_rest(rebuilt, options)
    return strictly(compiled) if options.strict else compiled


def serve(problem: Problem, device: torch.device, *, autotune: tuning.Autotune) -> Reason | None:
    """Tune and compile the kernel of a matched op, or say why the op stays on PyTorch."""
    with phase("tune kernels"):
        tuning.prepare(problem, device, autotune)
    with phase("compile kernels"):
        return ops.serve(problem, device)


def run_rest(gm: GraphModule, options: Options) -> Callable[..., Any]:
    """Who runs the rebuilt graph: PyTorch op by op, or Inductor, which calls our operators as they are.

    Like `strictly`, returns a boxed function: its one argument is the list of inputs.
    """
    if options.fallback == "inductor":
        try:
            with phase("inductor"):
                return frontend.compile_with_inductor(gm)
        except Exception as error:  # Inductor's failure must not become the model's
            text = " ".join(str(error).split())[:300]
            leave_to_pytorch(Reason("fallback.inductor", f"{type(error).__name__}: {text}"), options)
    return make_boxed_func(gm.forward)


def strictly(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`compiled`, with every refusal at run time an error."""

    def run(arguments: list[Any]) -> Any:
        with refusals.strict():
            return compiled(arguments)

    # AOTAutograd passes one list instead of arguments to what says so, and can then free inputs early.
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def leave_to_pytorch(reason: Reason, options: Options) -> None:
    """A whole graph, or flex_attention, stays with eager PyTorch: an error in strict mode, else one warning."""
    if options.strict:
        raise Refused(reason)
    what = "flex_attention" if reason.code.startswith("flex.") else "a graph"
    warnings.warn(f"flycc leaves {what} to PyTorch: {reason}", RuntimeWarning, stacklevel=2)
