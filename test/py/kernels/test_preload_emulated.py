"""Kernel arguments in registers: loads of operands wait for no memory; firmware that cannot preload is served too."""

from __future__ import annotations

import os
from dataclasses import replace

import emulated_gemm
import numpy as np
import pytest
from emulated_gemm import Gemm, Stored, bound, reference

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.codegen.compile import Compiled
from flycc.contracts import GemmProblem, GroupedGemmProblem, RmsNormProblem, TopkProblem
from flycc.emulator.program import Kernel
from flycc.kernels import gemm, grouped_gemm, rms_norm, topk
from flycc.kernels.common.spec import KernelSpec
from flycc.kernels.gemm import GemmConfig

DIRECT = GemmConfig(16, 16, 128, waves_k=4, staged=False)
PRODUCT = GemmProblem("bf16", 16, 64, 1024, trans_b=True)


def chosen(problem: GroupedGemmProblem | RmsNormProblem | TopkProblem) -> KernelSpec:
    if isinstance(problem, TopkProblem):
        config = topk.choose(problem)
        assert isinstance(config, topk.TopkConfig)
        return topk.kernel(config.steps[0].variant)
    family = rms_norm if isinstance(problem, RmsNormProblem) else grouped_gemm
    return family.kernel(problem, family.choose(problem))  # type: ignore[arg-type, attr-defined]


@pytest.mark.parametrize(
    "spec",
    [
        gemm.kernel(PRODUCT, DIRECT),
        gemm.kernel(PRODUCT, replace(DIRECT, splits=2)),
        chosen(GroupedGemmProblem("bf16", "m", 4, 64, 64, 64)),
        chosen(RmsNormProblem("bf16", 64, 4096, weight="bf16", residual=True)),
        chosen(TopkProblem("f32", 64, 512, 8)),
    ],
    ids=lambda spec: spec.family,
)
def test_the_first_load_waits_for_nothing(spec: KernelSpec) -> None:
    kernel = emulator.load(compile_kernel(spec).elf).kernels[spec.symbol]
    address = kernel.descriptor.start
    assert address == kernel.descriptor.entry + 256
    while not (inst := kernel.instruction(address)).name.startswith(("buffer_load", "global_load")):
        assert inst.name != "s_waitcnt"
        address += inst.size


def unable_to_preload(compiled: Compiled) -> Kernel:
    """The kernel on firmware that starts waves at the kernel's entry, with nothing in the registers meant for
    arguments."""
    loaded = emulator.CodeObject.parse(compiled.elf)
    kernel = loaded.kernels[compiled.symbol]
    sgprs = tuple(s._replace(what="unused") if s.what == "kernarg_preload" else s for s in kernel.user_sgprs)
    assert sgprs != kernel.user_sgprs
    return Kernel(replace(kernel, kernarg_preload=(0, 0), user_sgprs=sgprs), loaded)


@pytest.mark.parametrize("batch", [1, 2])
def test_old_firmware_computes_the_same(monkeypatch: pytest.MonkeyPatch, batch: int) -> None:
    rng = np.random.default_rng(int(os.environ["FLYCC_TEST_SEED"]))
    a, b = (Stored(rng.standard_normal((batch, rows, 520)), "bf16") for rows in (5, 24))
    case = Gemm("bf16", a, b, trans_b=True)
    new = case.run(DIRECT)
    assert (abs(new.out - reference(case)[0]) <= bound(case)).all()
    monkeypatch.setattr(emulated_gemm, "loaded", unable_to_preload)
    old = case.run(DIRECT)
    assert (new.memory == old.memory).all()
    # The prologue: loads of arguments, a wait and a branch.
    assert 3 <= old.instructions_per_wave - new.instructions_per_wave <= 8
