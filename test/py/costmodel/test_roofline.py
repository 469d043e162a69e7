"""The roofs are the published ones."""

from __future__ import annotations

import pytest

from flycc.costmodel.prediction import InstructionCost
from flycc.costmodel.roofline import bandwidth_tb_s, matrix_peak_tflops


def cost(text: str, unit: str = "MFMA") -> InstructionCost:
    return InstructionCost(0, text, unit, 1, 4, 0, "", -1)


@pytest.mark.parametrize(
    ("text", "pflops"),
    [
        ("v_mfma_f32_16x16x32_bf16 v[0:3], v[4:7], v[8:11], v[0:3]", 2.5),
        ("v_mfma_f32_32x32x16_f16 v[0:15], v[16:19], v[20:23], v[0:15]", 2.5),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3]", 5.0),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:7], v[8:11], v[0:3] cbsz:4 blgp:4", 10.0),
    ],
)
def test_matrix_peak(text: str, pflops: float) -> None:
    """AMD's data sheet of the MI355X gives one or two digits."""
    assert matrix_peak_tflops([cost(text)]) == pytest.approx(1e3 * pflops, rel=0.01)


def test_the_fastest_instruction_sets_the_peak() -> None:
    slow, fast = (
        cost("v_mfma_f32_16x16x4_f32 v[0:3], v4, v5, v[0:3]"),
        cost("v_mfma_f32_16x16x32_bf16 v[0:3]"),
    )
    assert matrix_peak_tflops([slow]) < matrix_peak_tflops([slow, fast]) == matrix_peak_tflops([fast])
    assert matrix_peak_tflops([cost("v_add_f32_e32 v0, v1, v2", "VALU")]) == 0


def test_nearer_levels_are_faster() -> None:
    roofs = bandwidth_tb_s()
    assert all(least <= most for least, most in roofs.values())
    assert roofs["hbm"][1] < roofs["mall"][0] <= roofs["mall"][1] < roofs["l2"][0]
