"""Every error that flycc raises on purpose, in one place to import from.

What a backend raises reaches the caller of a compiled function as `torch._dynamo.exc.BackendCompilerFailed`;
`flycc_error_in(error)` finds ours in it.
"""

from flycc.backend import Refused
from flycc.codegen.errors import CompileError, MissingLinker, UnsupportedTarget
from flycc.contracts import FlyccError, Reason, flycc_error_in
from flycc.options import OptionError
from flycc.passes.pipeline import PipelineError
from flycc.runtime.device import DeviceError

__all__ = [
    "CompileError",
    "DeviceError",
    "FlyccError",
    "MissingLinker",
    "OptionError",
    "PipelineError",
    "Reason",
    "Refused",
    "UnsupportedTarget",
    "flycc_error_in",
]
