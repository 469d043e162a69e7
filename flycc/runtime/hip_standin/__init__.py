"""A stand-in for AMD's HIP runtime library: its entry points in C, its GPUs emulated.

Whatever launches kernels through libamdhip64 runs on the CPU with it, unmodified:

    with hip_standin.installed() as standin, standin.registered(a, b, out):
        launcher(a, b, out)  # FlyDSL's own, on CPU tensors

Here device memory is host memory, and a pointer is the same number on both sides.
"""

from flycc.runtime.hip_standin.build import SONAME, build
from flycc.runtime.hip_standin.standin import HipStandin, Settings, installed

__all__ = ["SONAME", "HipStandin", "Settings", "build", "installed"]
