"""Traced kernels to gfx950 code objects: named stages, linker, cache. Imports FlyDSL only to compile."""

from flycc.codegen.cache import CodeObjectCache
from flycc.codegen.compile import Compiled, compile_kernel
from flycc.codegen.errors import CompileError, MissingLinker, UnsupportedTarget
from flycc.codegen.linker import Linker, find_linker
from flycc.codegen.stages import GROUPS, lower, stage_names

__all__ = [
    "GROUPS",
    "CodeObjectCache",
    "CompileError",
    "Compiled",
    "Linker",
    "MissingLinker",
    "UnsupportedTarget",
    "compile_kernel",
    "find_linker",
    "lower",
    "stage_names",
]
