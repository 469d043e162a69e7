"""Kernels of attention are traced for every combination of what a score can have.

In processes of their own, as what is wrong in a trace may end the process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from flycc import codegen
from flycc.contracts.sdpa import SdpaBackwardProblem, SdpaProblem
from flycc.kernels import attention
from flycc.kernels.common.spec import KernelSpec

FLAGS = ("lower", "upper", "documents", "alibi", "softcap", "dropout")


def problems(dim: int) -> Iterator[SdpaProblem]:
    # bf16 is as f32, but for one conversion.
    for mask, *flags in product(("none", "bool", "f16", "f32"), *[(False, True)] * len(FLAGS)):
        yield SdpaProblem(
            "bf16", 1, 2, 1, 400, 500, dim, dim, mask, **dict(zip(FLAGS, flags, strict=True)), lse=True
        )


def spec(what: str, problem: SdpaProblem) -> KernelSpec:
    if what in ("forward", "decode"):
        (step, *_) = attention.plan(problem)
        assert step.what == what
        return attention.step_kernel(problem, step)
    backward = SdpaBackwardProblem(problem)
    (step,) = (step for step in attention.plan_backward(backward) if step.what == what)
    return attention.backward_kernel(backward, step.config)


def specs(what: str, dim: int) -> Iterator[KernelSpec]:
    for problem in problems(dim):
        if what != "decode":
            yield spec(what, problem)
        elif not problem.dropout:
            yield spec(what, replace(problem, queries=1))


def trace(kernels: Iterator[KernelSpec]) -> None:
    for kernel in kernels:
        print(kernel.symbol, flush=True)
        codegen.lower(kernel, stop_after="fly")


def traced_apart(*arguments: str) -> list[str]:
    """The symbols of the kernels that were traced."""
    ran = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    symbols = ran.stdout.splitlines()
    assert ran.returncode == 0, f"{symbols[-1:]}: {ran.stderr[-1000:]}"
    return symbols


def test_a_softcap_in_a_band_without_a_mask() -> None:
    (symbol,) = traced_apart("softcap")
    assert symbol.startswith("sdpa_dkv_")


@pytest.mark.nightly
@pytest.mark.parametrize("dim", [63, 128, 512])
@pytest.mark.parametrize("what", ["forward", "decode", "dkv", "dq"])
def test_all(what: str, dim: int) -> None:
    symbols = traced_apart(what, str(dim))
    assert len({*symbols}) == len(symbols) == (128 if what == "decode" else 256)


if __name__ == "__main__":
    what, *dims = sys.argv[1:]
    if what == "softcap":
        trace(
            iter(
                [
                    spec(
                        "dkv",
                        SdpaProblem("bf16", 1, 2, 1, 40, 50, 64, 64, upper=True, softcap=True, lse=True),
                    )
                ]
            )
        )
    else:
        trace(specs(what, int(dims[0])))
