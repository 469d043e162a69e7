"""v_mfma_scale on blocks whose sums are exact: every order of the sum gives the bits of the exact integer dot product.

MXFP4 with scale bytes within the bounds of `flycc.scales` (docs/scale-placement.md, Theorem 6), and for every format
the moves of bytes between the two scale operands that change no bit.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from harness import SEED, V, batch, const, execute
from test_semantics_matrix import (
    A_AT,
    B_AT,
    D_AT,
    F8F6F4,
    SCALE_AT,
    WAVES,
    as_matrices,
    matrices,
    operand,
)

from flycc.emulator.isa.instruction import Instruction, Operand
from flycc.emulator.state import Mode
from flycc.scales.formats import E2M1
from flycc.scales.ranges import Range, order_free

ORDERS = ("fast", "sequential", "exact")
SIZES = (16, 32)


def product(
    kinds: tuple[str, str], rows: tuple[np.ndarray, np.ndarray], scales: np.ndarray, size: int, order: str
) -> np.ndarray:
    """float32 [WAVES, size, size] of operand registers and scale bytes [2, WAVES, 64] of lanes; C is 0."""
    state = batch(waves_per_group=WAVES, mode=Mode(mfma_order=order))
    for first, registers in zip((A_AT, B_AT), rows, strict=True):
        state.vgpr[first : first + len(registers)] = registers
    state.vgpr[SCALE_AT : SCALE_AT + 2] = scales
    count = size * size // 64
    operands = (
        Operand(V, A_AT, len(rows[0])), Operand(V, B_AT, len(rows[1])), const(0, 128),
        Operand(V, SCALE_AT, 1), Operand(V, SCALE_AT + 1, 1),
    )  # fmt: skip
    mods = {"cbsz": F8F6F4.index(kinds[0]), "blgp": F8F6F4.index(kinds[1]), "op_sel_hi": 0}
    name = f"v_mfma_scale_f32_{'16x16x128' if size == 16 else '32x32x64'}_f8f6f4"
    execute(state, Instruction(0, 16, name, "MAI_SCALED", (Operand(V, D_AT, count),), operands, mods))
    return as_matrices(state.vgpr[D_AT : D_AT + count].view(np.float32), size, 1)[:, 0]


def by_block(scales: np.ndarray, size: int) -> np.ndarray:
    """Scale bytes [WAVES, 64] of lanes to [WAVES, size, blocks of 32 along K]."""
    return scales.reshape(WAVES, 64 // size, size).swapaxes(1, 2)


def filled(code: int) -> np.ndarray:
    """Operand registers of fp4, all elements with one code."""
    return np.full((4, WAVES, 64), 0x11111111 * code, np.uint32)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lowest", [107, 130, 254, 360])
def test_exact_sums(lowest: int, size: int, order: str) -> None:
    rng = np.random.default_rng([SEED, lowest, size, len(order)])
    rows, values = zip(operand(rng, "fp4", 32), operand(rng, "fp4", 32), strict=True)
    k = 2048 // size
    first = int(rng.integers(max(0, lowest - 245), min(245, lowest) + 1))
    scales = np.array([first, lowest - first])[:, None, None] + rng.integers(5, size=(2, WAVES, 64))
    ranges = [Range(int(side.min()), int(side.max())) for side in scales]
    assert order_free(E2M1, E2M1, k, *ranges)
    got = product(("fp4", "fp4"), rows, scales.astype(np.uint32), size, order)
    # Integers in units of 2^(lowest - 254 - 2), of 24 bits by Theorem 6: int64 sums are exact.
    a, b = ((2 * matrices(v, size, 1)[:, 0]).astype(np.int64) for v in values)
    a, b = (
        x << np.repeat(by_block(side - least, size), 32, axis=-1)
        for x, side, least in zip((a, b), scales, (first, lowest - first), strict=True)
    )
    exact = np.ldexp((a @ b.swapaxes(-1, -2)).astype(np.float64), lowest - 256)
    assert (exact == exact.astype(np.float32)).all()
    np.testing.assert_array_equal(got, exact.astype(np.float32), err_msg=f"seed {SEED}")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", SIZES)
def test_ends_of_the_bound(size: int, order: str) -> None:
    """0.25 at s = -147 is 2^-149, and 36 K at the highest s of K products is finite; bytes 0 and 254 are numbers."""
    k = 2048 // size
    one = filled(0)
    one[0, :, 0] = 1  # row 0 (column 0) has one element, 0.5, at k = 0
    scales = np.zeros((2, WAVES, 64), np.uint32)
    scales[1] = 107
    got = product(("fp4", "fp4"), (one, one), scales, size, order)
    assert (got[:, 0, 0].view(np.uint32) == 1).all()
    assert not got[:, 1:].any()
    highest = 127 - (36 * k).bit_length() + 1
    for sign, code in ((1, 7), (-1, 15)):
        scales[0], scales[1] = 254, highest  # s is then 127 plus `highest` - 127
        got = product(("fp4", "fp4"), (filled(7), filled(code)), scales, size, order)
        assert (got == np.float32(sign * 36 * k * 2.0**highest)).all()
        assert np.isfinite(got).all()
        scales[1] = highest + 1
        assert np.isinf(product(("fp4", "fp4"), (filled(7), filled(code)), scales, size, order)).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("side", [0, 1])
def test_a_byte_of_nan(side: int, size: int) -> None:
    """Makes its block's row or column NaN, of zeros too; the others are as they were."""
    rng = np.random.default_rng([SEED, side, size])
    rows = [operand(rng, "fp4", 32)[0] for _ in range(2)]
    scales = rng.integers(120, 130, (2, WAVES, 64)).astype(np.uint32)
    before = product(("fp4", "fp4"), tuple(rows), scales, size, "fast")
    lane = int(rng.integers(64))
    rows[side][:, :, lane] = 0
    scales[side, :, lane] = 255
    got = product(("fp4", "fp4"), tuple(rows), scales, size, "fast")
    if side:
        got, before = got.swapaxes(-1, -2), before.swapaxes(-1, -2)
    row = lane % size
    assert np.isnan(got[:, row]).all()
    rest = np.arange(size) != row
    np.testing.assert_array_equal(got[:, rest], before[:, rest])


@pytest.mark.parametrize("a_kind", F8F6F4)
@pytest.mark.parametrize("b_kind", ["fp8", "bf8", "fp4"])
def test_bytes_move_between_the_operands(a_kind: str, b_kind: str) -> None:
    """Only the sums of bytes count, for every element that is a number, in every format; not so for different sums."""
    rng = np.random.default_rng([SEED, *map(ord, a_kind + b_kind)])
    rows = operand(rng, a_kind, 32)[0], operand(rng, b_kind, 32)[0]
    size = 16
    total = rng.integers(
        200, 308, (1, 4, 1)
    )  # a sum for each block of 32 along K, whatever the row and column
    everywhere = np.broadcast_to(total, (WAVES, 4, size)).reshape(WAVES, 64)
    results = []
    for _ in range(3):
        share = np.broadcast_to(
            rng.integers(np.maximum(0, total - 254), np.minimum(254, total) + 1), (WAVES, 4, size)
        )
        scales = np.stack([share.reshape(WAVES, 64), everywhere - share.reshape(WAVES, 64)]).astype(np.uint32)
        results.append(product((a_kind, b_kind), rows, scales, size, "fast"))
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0], err_msg=f"seed {SEED}")
    scales[0] = np.where(scales[0] == 254, 253, scales[0] + 1)
    assert (product((a_kind, b_kind), rows, scales.astype(np.uint32), size, "fast") != results[0]).any()


def test_the_exact_dot_of_one_row() -> None:
    """The reference of the tests above, once more by fractions and element by element."""
    rng = np.random.default_rng([SEED, 1])
    rows, values = zip(operand(rng, "fp4", 32), operand(rng, "fp4", 32), strict=True)
    scales = rng.integers(122, 127, (2, WAVES, 64)).astype(np.uint32)
    got = product(("fp4", "fp4"), rows, scales, 16, "exact")
    a, b = (matrices(v, 16, 1)[0, 0] for v in values)
    ea, eb = (by_block(side.astype(int) - 127, 16)[0] for side in scales)
    for m, n in rng.integers(16, size=(8, 2)):
        exact = sum(
            Fraction(float(a[m, k]))
            * Fraction(float(b[n, k]))
            * Fraction(2) ** int(ea[m, k // 32] + eb[n, k // 32])
            for k in range(128)
        )
        assert Fraction(float(got[0, m, n])) == exact
