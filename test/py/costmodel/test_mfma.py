"""Costs of matrix instructions: every one the emulator knows, against clocks in AMD's documents where listed."""

from __future__ import annotations

import re

import pytest

from flycc.costmodel.mfma import mfma
from flycc.emulator.isa.table_matrix import MAI

NAMES = re.findall(r"\bv_s?mf\w+", MAI)


@pytest.mark.parametrize("name", NAMES)
def test_every_matrix_instruction_has_a_cost(name: str) -> None:
    cost = mfma(name, name)
    m, n, k = (int(size) for size in re.search(r"_(\d+)x(\d+)x(\d+)", name).groups())  # type: ignore[union-attr]
    blocks = int((re.search(r"_(\d+)b_", name) or [0, 1])[1])
    assert cost.macs == m * n * k * blocks // (2 if "smfmac" in name else 1)
    assert cost.clk % 4 == 0  # whole passes
    assert 8 <= cost.clk <= 64


#: Passes (4 clk) of LLVM's scheduling model for gfx940 and gfx950.
@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("v_mfma_f32_4x4x4_16b_f16", 2),
        ("v_mfma_f32_16x16x4_4b_f16", 8),
        ("v_mfma_f32_32x32x4_2b_f16", 16),
        ("v_mfma_f32_16x16x4_f32", 8),
        ("v_mfma_f32_32x32x2_f32", 16),
        ("v_mfma_f32_32x32x8_f16", 8),
        ("v_mfma_i32_16x16x64_i8", 4),
        ("v_mfma_f64_16x16x4_f64", 16),
        ("v_smfmac_f32_16x16x64_bf16", 4),
    ],
)
def test_passes(name: str, passes: int) -> None:
    assert mfma(name, name).clk == 4 * passes


def test_no_matrix_instruction() -> None:
    with pytest.raises(ValueError, match="'v_add_f32' is no matrix instruction"):
        mfma("v_add_f32", "v_add_f32 v0, v1, v2")
