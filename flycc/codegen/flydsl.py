"""Everything of FlyDSL that is not in its public interface; checked against FlyDSL 0.5.

The rest of flycc sees modules as opaque values and errors as CompileError.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flycc.codegen.errors import CompileError
from flycc.contracts import Reason
from flycc.kernels.common.spec import KernelSpec

#: Sizes, and alignments, of the types in the LLVM dialect that `kernels.common.spec.ArgType` has.
_ARGUMENT_BYTES = {"i32": 4, "f32": 4, "i64": 8, "!llvm.ptr": 8}

#: FlyDSL keeps its trace in globals and its target in the environment: one user at a time.
_LOCK = threading.RLock()


@contextlib.contextmanager
def session(target: str) -> Iterator[None]:
    """An MLIR context for `target`, within which the functions below work.

    FlyDSL takes its target, and much that changes the code, from environment variables. Inside, they say
    `target` and nothing else; afterwards the environment and the exception hook are as before.
    """
    with _LOCK:
        saved = {name: os.environ.pop(name) for name in list(os.environ) if _steers_flydsl(name)}
        hook = sys.excepthook
        os.environ.update(ARCH=target, FLYDSL_GPU_ARCH=target)
        try:
            from flydsl.compiler import jit_function

            with jit_function._create_mlir_context(), jit_function.CompilationContext.compile_hints({}):
                yield
        finally:
            sys.excepthook = hook
            for name in list(os.environ):
                if _steers_flydsl(name):
                    del os.environ[name]
            os.environ.update(saved)


def _steers_flydsl(name: str) -> bool:
    return name in ("ARCH", "HSA_OVERRIDE_GFX_VERSION", "COMPILE_ONLY") or name.startswith("FLYDSL_")


def trace(spec: KernelSpec) -> str:
    """The text of the fly module that the kernel's Python text traces to, without source locations."""
    try:
        host, arguments = spec.trace()
        bound_self, arguments = host._split_self(arguments)
        host._ensure_sig()
        bound = host._sig.bind(*arguments)
        bound.apply_defaults()
        host._resolve_arguments(bound.arguments)
        from flydsl._mlir import ir

        with _no_locations():
            traced = host._trace(ir.Context.current, host._sig, bound, bound_self, execute=False)
        return str(traced.module)
    except Exception as error:
        raise _failure("trace", error) from error


@contextlib.contextmanager
def _no_locations() -> Iterator[None]:
    """FlyDSL thinks that every op made inside lies within a location that is known: none.

    It would walk the Python stack for each, a quarter of the time of a trace, and the text has no locations.
    """
    from flydsl._mlir import ir
    from flydsl.expr import meta

    nowhere = ir.Location.unknown()
    meta._tls.active_loc = nowhere
    try:
        with nowhere:
            yield
    finally:
        meta._tls.active_loc = None


def parse(text: str) -> Any:
    """A module from its text."""
    from flydsl._mlir import ir

    try:
        return ir.Module.parse(text)
    except Exception as error:
        raise _failure("parse", error) from error


def fragments(target: str) -> tuple[list[str], str]:
    """FlyDSL's pass pipeline for `target`: what leads to the LLVM dialect, and what makes the binary."""
    from flydsl.compiler.backends import get_backend

    *passes, binary = get_backend("rocm", arch=target).pipeline_fragments(compile_hints={})
    return passes, binary


def run(stage: str, module: Any, pipeline: str) -> None:
    """Runs one pipeline fragment on `module`, in place."""
    from flydsl._mlir.passmanager import PassManager

    try:
        PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
    except Exception as error:
        raise _failure(stage, error) from error


def preload_arguments(module: Any, dwords: int) -> None:
    """Marks the leading arguments of a module's kernels, in the LLVM dialect, to be in SGPRs when a wave starts: those
    that are numbers or pointers and lie in the first `dwords` of the kernel argument segment. Kernels with arguments
    that are marked already are left as they are.
    """
    from flydsl._mlir import ir

    marked = ir.DictAttr.get({"llvm.inreg": ir.UnitAttr.get()})
    plain = ir.DictAttr.get({})
    for op in _only(module, "gpu.module").regions[0].blocks[0].operations:
        if "rocdl.kernel" not in op.attributes or "arg_attrs" in op.attributes:
            continue
        marks, end = [], 0
        for argument in op.regions[0].blocks[0].arguments:
            size = _ARGUMENT_BYTES.get(str(argument.type).partition("<")[0], 4 * dwords + 1)
            end += -end % size + size
            marks.append(marked if end <= 4 * dwords else plain)
        op.attributes["arg_attrs"] = ir.ArrayAttr.get(marks)


def llvm_ir(module: Any) -> str:
    """LLVM IR of the kernels in a module that is in the LLVM dialect."""
    from flydsl._mlir._mlir_libs._mlirDialectsLLVM import translate_module_to_llvmir

    return translate_module_to_llvmir(_only(module, "gpu.module"))


def serialize(stage: str, module: Any, form: str, toolkit: Path) -> bytes:
    """The kernels of a module in the LLVM dialect: `form` is "isa" for assembly, "fatbin" for an ELF.

    `toolkit` holds the linker, and no character that a pipeline's text gives a meaning to.
    """
    from flydsl._mlir.dialects import gpu

    copy = parse(str(module))
    run(stage, copy, f'gpu-module-to-binary{{format={form} toolkit="{toolkit}"}}')
    binary = _only(copy, "gpu.binary")
    return bytes(gpu.ObjectAttr(binary.attributes["objects"][0]).object)


def _only(module: Any, name: str) -> Any:
    found = [op.operation for op in module.body.operations if op.operation.name == name]
    if len(found) != 1:
        raise CompileError(Reason("codegen.module", f"expected one {name} in the module, found {len(found)}"))
    return found[0]


def _failure(stage: str, error: Exception) -> CompileError:
    """MLIR's notes are left out: they print the op that an error is about, which may be the whole module."""
    text = " ".join(str(error).partition("\n note: ")[0].split())[:300]
    return CompileError(Reason("codegen.stage", f"{stage}: {type(error).__name__}: {text}"))
