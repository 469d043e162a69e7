"""Every error that flycc raises on purpose, in one place to import from."""

from flycc.codegen.errors import CompileError, MissingLinker, UnsupportedTarget
from flycc.contracts import FlyccError, Reason
from flycc.options import OptionError
from flycc.runtime.device import DeviceError

__all__ = [
    "CompileError",
    "DeviceError",
    "FlyccError",
    "MissingLinker",
    "OptionError",
    "Reason",
    "UnsupportedTarget",
]
