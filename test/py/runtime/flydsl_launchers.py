"""Runs FlyDSL's own launchers on CPU tensors: a program, since FlyDSL binds to one HIP library for good.

`python flydsl_launchers.py CASE` exits with 0 if the results are right.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

from flycc.codegen.linker import find_linker
from flycc.contracts import GemmProblem
from flycc.emulator import MemoryFault
from flycc.kernels import gemm
from flycc.runtime import hip_standin

#: What FlyDSL calls for one launch.
LAUNCHED = Counter(hipModuleLoadData=1, hipModuleGetFunction=1, hipModuleLaunchKernel=1)


def add(standin: hip_standin.HipStandin) -> None:
    """Also launches again, with another size and on a stream of its own."""
    import flydsl.expr as fx
    import flydsl_kernels

    for n, stream in ((1, None), (1000, None), (129, 2)):
        a, b, out = torch.randn(1024), torch.randn(1024), torch.full((1024,), 7.0)
        options = {} if stream is None else {"stream": fx.Stream(stream)}
        with standin.registered(a, b, out):
            flydsl_kernels.add(a, b, out, n, **options)
        assert torch.equal(out[:n], (a + b)[:n])
        assert (out[n:] == 7.0).all()
    # The module is loaded once.
    assert standin.calls == Counter(hipModuleLoadData=1, hipModuleGetFunction=3, hipModuleLaunchKernel=3)


def copy(standin: hip_standin.HipStandin) -> None:
    import flydsl_kernels

    source = torch.randn(48, 96).bfloat16()
    out = torch.zeros_like(source)
    with standin.registered(source, out):
        flydsl_kernels.copy(source, out)
    assert torch.equal(source, out)
    assert standin.calls == LAUNCHED


def multiply(standin: hip_standin.HipStandin) -> None:
    """Products of small integers are exact in float32, in any order."""
    import flydsl_kernels

    a, b = (torch.randint(-8, 9, (32, 16)).half() for _ in range(2))
    out = torch.full((32, 32), 7.0)
    with standin.registered(a, b, out):
        flydsl_kernels.multiply(a, b, out)
    assert torch.equal(out, a.float() @ b.float().T)


def gemm_launcher(standin: hip_standin.HipStandin) -> None:
    """The host function of flycc's own GEMM, which flycc itself only traces."""
    import flydsl.expr as fx

    from flycc.kernels.common.arguments import placeholders

    m, n, k = 65, 48, 100
    a, b = (torch.randint(-8, 9, shape).bfloat16() for shape in ((m, k), (k, n)))
    out = torch.full((m, n), 7.0).bfloat16()
    problem = GemmProblem("bf16", m, n, k)
    config = gemm.choose(problem)
    launch, _ = gemm.kernel(problem, config).build()
    sizes = {"m": m, "n": n, "k": k, "ld_a": k, "ld_b": n, "ld_out": n}
    given = {"a": a.data_ptr(), "b": b.data_ptr(), "out": out.data_ptr()}
    elements = dict.fromkeys(gemm.KERNARG.names, fx.BFloat16) | {"partial": fx.Float32, "arrived": fx.Int32}
    arguments = placeholders(gemm.KERNARG, elements, gemm.ABSENT | sizes | given)
    grid = gemm.launch(problem, config).grid
    with standin.registered(a, b, out):
        launch(*arguments, *(fx.Int32(size) for size in grid))
    # Integers below 2^24 are exact in float32; bfloat16 rounds the sum once.
    assert torch.equal(out, (a.float() @ b.float()).bfloat16())


def unregistered(standin: hip_standin.HipStandin) -> None:
    """A kernel that leaves the tensors it was lent has a fault, which the block raises; later ones run."""
    import flydsl_kernels

    a, b, out = torch.randn(256), torch.randn(256), torch.zeros(256)
    for lent in ((a, b), (a, b, out[:255])):
        try:
            with standin.registered(*lent):
                flydsl_kernels.add(a, b, out, 256)
        except MemoryFault as fault:
            print(fault)
        else:
            raise AssertionError("no fault")
    with standin.registered(a, b, out):
        flydsl_kernels.add(a, b, out, 256)
    assert torch.equal(out, a + b)


CASES = {"add": add, "copy": copy, "multiply": multiply, "gemm": gemm_launcher, "unregistered": unregistered}


def main() -> None:
    """Set up FlyDSL's environment, install the stand-in, and run a case."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ |= {"ARCH": "gfx950", "FLYDSL_GPU_ARCH": "gfx950", "FLYDSL_RUNTIME_ENABLE_CACHE": "0"}
        os.environ["ROCM_PATH"] = str(find_linker().toolkit(Path(scratch)))
        with hip_standin.installed() as standin:
            CASES[sys.argv[1]](standin)


if __name__ == "__main__":
    main()
