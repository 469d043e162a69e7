"""Matrix instructions against float64 products, with operands laid out by the documented formulas."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from harness import SEED, A, V, batch, const, execute

from flycc.emulator.isa.instruction import Instruction, Operand

DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "i8": np.int8,
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
}
#: (accumulator, size, K, A's type, B's type)
FORMS = [
    ("f32", 16, 32, "bf16", "bf16"),
    ("f32", 32, 16, "bf16", "bf16"),
    ("f32", 16, 16, "bf16", "bf16"),
    ("f32", 32, 8, "bf16", "bf16"),
    ("f32", 16, 32, "f16", "f16"),
    ("f32", 32, 16, "f16", "f16"),
    ("f32", 16, 16, "f16", "f16"),
    ("f32", 32, 8, "f16", "f16"),
    ("f32", 16, 4, "f32", "f32"),
    ("f32", 32, 2, "f32", "f32"),
    ("i32", 16, 32, "i8", "i8"),
    ("i32", 32, 16, "i8", "i8"),
    ("i32", 16, 64, "i8", "i8"),
    ("f32", 16, 32, "fp8", "fp8"),
    ("f32", 32, 16, "bf8", "fp8"),
    ("f32", 16, 32, "fp8", "bf8"),
]
WAVES = 3


def mnemonic(accumulator: str, size: int, depth: int, a: str, b: str) -> str:
    types = a if a == b and a not in ("fp8", "bf8") else f"{a}_{b}"
    return f"v_mfma_{accumulator}_{size}x{size}x{depth}_{types}"


def operand_rows(matrix: np.ndarray) -> np.ndarray:
    """[waves, size, K] to register rows: lane l holds row l mod size, K from (l div size) * per_lane on."""
    waves, size, depth = matrix.shape
    groups = 64 // size
    per_lane = depth // groups
    lanes = matrix.reshape(waves, size, groups, per_lane).transpose(0, 2, 1, 3).reshape(waves, 64, per_lane)
    packed = np.ascontiguousarray(lanes).view(np.uint32)
    return np.moveaxis(packed, -1, 0)


def result_position(register: int, lane: int, size: int) -> tuple[int, int]:
    if size == 16:
        return 4 * (lane // 16) + register, lane % 16
    return 8 * (register // 4) + 4 * (lane // 32) + register % 4, lane % 32


def result_matrix(rows: np.ndarray, size: int) -> np.ndarray:
    """Register rows [n, waves, 64] to [waves, size, size]."""
    out = np.zeros((rows.shape[1], size, size), rows.dtype)
    for register in range(len(rows)):
        for lane in range(64):
            out[:, *result_position(register, lane, size)] = rows[register, :, lane]
    return out


def multiply(
    form: tuple, rng: np.random.Generator, *, in_place: bool, addend: Operand | None = None, active=None
):
    accumulator, size, depth, type_a, type_b = form
    state = batch(waves_per_group=WAVES)
    matrices = []
    for base, kind in ((0, type_a), (8, type_b)):
        dtype = DTYPES[kind]
        if kind == "i8":
            matrix = rng.integers(-128, 128, (WAVES, size, depth)).astype(dtype)
        else:
            matrix = rng.standard_normal((WAVES, size, depth)).astype(dtype)
        rows = operand_rows(matrix)
        state.vgpr[base : base + len(rows)] = rows
        matrices.append((matrix, Operand(V, base, len(rows))))
    count = size * size // 64
    result = np.dtype("i4" if accumulator == "i32" else "f4")
    c = (
        rng.integers(-(2**31), 2**31, (count, WAVES, 64)).astype(result)
        if accumulator == "i32"
        else rng.standard_normal((count, WAVES, 64)).astype(result)
    )
    source = Operand(A, 16, count)
    state.vgpr[64 + 16 : 64 + 16 + count] = c.view(np.uint32)
    target = source if in_place else Operand(V, 20, count)
    if active is not None:
        state.activate(active)
    execute(
        state,
        Instruction(
            0, 8, mnemonic(*form), "MAI", (target,), (matrices[0][1], matrices[1][1], addend or source)
        ),
    )
    start = 64 + 16 if in_place else 20
    got = result_matrix(state.vgpr[start : start + count].view(result), size)
    return matrices[0][0], matrices[1][0], result_matrix(c, size), got


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: mnemonic(*form))
def test_product(form: tuple, in_place: bool) -> None:
    rng = np.random.default_rng([SEED, *map(ord, mnemonic(*form))])
    a, b, c, got = multiply(form, rng, in_place=in_place)
    if form[0] == "i32":
        exact = a.astype(np.int64) @ b.astype(np.int64).swapaxes(1, 2) + c
        np.testing.assert_array_equal(got, exact.astype(np.int32))
        return
    wide = [m.astype(np.float64) for m in (a, b)]
    exact = wide[0] @ wide[1].swapaxes(1, 2) + c
    magnitude = np.abs(wide[0]) @ np.abs(wide[1]).swapaxes(1, 2) + np.abs(c)
    # K products (rounded if float32) and K additions in any order: (K + 1) roundings of 2^-24 relative to the
    # sum of magnitudes (Higham, "Accuracy and Stability of Numerical Algorithms", 3.1).
    assert (np.abs(got - exact) <= (form[2] + 1) * 2.0**-24 * 1.01 * magnitude).all(), f"seed {SEED}"


def test_inline_addend_and_inactive_waves() -> None:
    form = FORMS[0]
    rng = np.random.default_rng(SEED)
    active = np.array([True, False, True])
    a, b, _, got = multiply(form, rng, in_place=False, addend=const(0x3F800000, 242), active=active)
    exact = a.astype(np.float64) @ b.astype(np.float64).swapaxes(1, 2) + 1.0
    assert np.abs(got[active] - exact[active]).max() < 1e-4 < np.abs(exact).max()
    assert not got[1].any()


def test_exec_does_not_apply() -> None:
    state = batch()
    state.vgpr[:8] = 0x3F803F80  # bf16 ones
    state.sgpr64[:, 63] = 0
    state.exec_changed()
    operands = (Operand(V, 0, 4), Operand(V, 4, 4), const(0, 128))
    execute(state, Instruction(0, 8, "v_mfma_f32_16x16x32_bf16", "MAI", (Operand(V, 8, 4),), operands))
    np.testing.assert_array_equal(state.vgpr[8:12].view(np.float32), 32.0)


def test_float64_product() -> None:
    rng = np.random.default_rng(SEED)
    state = batch(waves_per_group=WAVES)
    a, b = (rng.standard_normal((WAVES, 16, 4)) for _ in range(2))
    for base, matrix in ((0, a), (2, b)):
        lanes = np.ascontiguousarray(matrix.transpose(0, 2, 1).reshape(WAVES, 64))  # lane = 16 k + row
        state.vgpr[base], state.vgpr[base + 1] = (lanes[..., None].view(np.uint32)[..., i] for i in range(2))
    operands = (Operand(V, 0, 2), Operand(V, 2, 2), const(0, 128))
    execute(state, Instruction(0, 8, "v_mfma_f64_16x16x4_f64", "MAI", (Operand(V, 8, 8),), operands))
    pairs = np.stack([state.vgpr[8:16:2], state.vgpr[9:16:2]], axis=-1).view(np.float64)[..., 0]
    exact = a @ b.swapaxes(1, 2)
    for register in range(4):
        for lane in range(64):
            np.testing.assert_allclose(
                pairs[register, :, lane], exact[:, 4 * register + lane // 16, lane % 16], rtol=1e-12
            )
