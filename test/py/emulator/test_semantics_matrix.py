"""Every matrix instruction against products of exact numbers, element by element from the documented layout.

The reference knows a lane's registers as one long integer, the formats by ml_dtypes' tables, and the place
of every element by the formulas of the ISA document; it shares nothing with the emulator.
"""

from __future__ import annotations

import re
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from exact import fma, rounded
from harness import SEED, V, batch, const, execute

from flycc.emulator.isa.instruction import Instruction, Operand
from flycc.emulator.isa.opcodes import OPCODES
from flycc.emulator.state import Mode

WAVES = 2
A_AT, B_AT, C_AT, D_AT, INDEX_AT, SCALE_AT = 0, 8, 16, 48, 90, 92
DTYPES = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "i8": np.int8,
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
    "fp6": ml_dtypes.float6_e2m3fn,
    "bf6": ml_dtypes.float6_e3m2fn,
    "fp4": ml_dtypes.float4_e2m1fn,
}
BITS = {"f32": 32, "bf16": 16, "f16": 16, "i8": 8, "fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4}
F8F6F4 = ("fp8", "bf8", "fp6", "bf6", "fp4")
NAME = re.compile(r"v_(mfma|smfmac)_(f32|i32)_(\d+)x\d+x(\d+)(?:_(\d+)b)?_(\w+)")
OPCODES_BY_NAME = {o.name: o for o in OPCODES.values() if o.encoding == "MAI" and "accvgpr" not in o.name}
PLAIN = sorted(name for name in OPCODES_BY_NAME if "f64" not in name and "f8f6f4" not in name)


def operand(rng: np.random.Generator, kind: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(register rows uint32 [r, WAVES, 64], values float64 [WAVES, 64, count]) of random finite elements."""
    bits, dtype = BITS[kind], DTYPES[kind]
    shape = (WAVES, 64, count)
    if kind == "i8":
        codes = rng.integers(0, 256, shape)
        values = codes.astype(np.uint8).view(np.int8).astype(np.float64)
    elif bits >= 16:
        made = (rng.standard_normal(shape) * 4).astype(dtype)
        codes, values = made.view(f"u{bits // 8}").astype(np.uint64), made.astype(np.float64)
    else:
        table = np.arange(1 << bits, dtype=np.uint8).view(dtype).astype(np.float64)
        finite = np.flatnonzero(np.isfinite(table) & (abs(table) < 100))
        codes = rng.choice(finite, shape)
        values = table[codes]
    rows = np.zeros((bits * count // 32, WAVES, 64), np.uint32)
    for wave, lane in np.ndindex(WAVES, 64):
        whole = sum(int(code) << bits * j for j, code in enumerate(codes[wave, lane]))
        for r in range(len(rows)):
            rows[r, wave, lane] = whole >> 32 * r & 0xFFFFFFFF
    return rows, values


def matrices(values: np.ndarray, size: int, blocks: int, halves: bool = False) -> np.ndarray:
    """Elements [WAVES, 64, n] at their places: [WAVES, blocks, size, K]."""
    count = values.shape[-1]
    depth = count * (64 // size if blocks == 1 else 1)
    out = np.full((WAVES, blocks, size, depth), np.nan)
    for lane in range(64):
        group = lane // size
        for j in range(count):
            if blocks > 1:
                out[:, group, lane % size, j] = values[:, lane, j]
            elif halves:
                k = 16 * group + j % 16 + (depth // 2) * (j // 16)
                out[:, 0, lane % size, k] = values[:, lane, j]
            else:
                out[:, 0, lane % size, count * group + j] = values[:, lane, j]
    assert not np.isnan(out).any()
    return out


def result_place(register: int, lane: int, size: int) -> tuple[int, int, int]:
    """(block, row, column) of a result register's lane."""
    if size == 4:
        return lane // 4, register, lane % 4
    if size == 16:
        return register // 4, 4 * (lane // 16) + register % 4, lane % 16
    return (
        register // 16,
        8 * (register // 4 % 4) + 4 * (lane // 32) + register % 4,
        lane % 32,
    )


def as_matrices(rows: np.ndarray, size: int, blocks: int) -> np.ndarray:
    """Result registers [n, WAVES, 64] to [WAVES, blocks, size, size]."""
    out = np.zeros((WAVES, blocks, size, size), rows.dtype)
    for register in range(len(rows)):
        for lane in range(64):
            block, row, column = result_place(register, lane, size)
            out[:, block, row, column] = rows[register, :, lane]
    return out


def run(
    name: str, rng: np.random.Generator, sources: dict[int, np.ndarray], operands, mods, count, order="fast"
):
    """Execute with the given register rows; returns (C, D) as rows of the accumulator's type."""
    state = batch(waves_per_group=WAVES, mode=Mode(mfma_order=order))
    for first, rows in sources.items():
        state.vgpr[first : first + len(rows)] = rows
    dtype = np.dtype("i4" if "_i32_" in name else "f4")
    if dtype.kind == "i":
        c = rng.integers(-(2**31), 2**31, (count, WAVES, 64)).astype(dtype)
    else:
        c = (rng.standard_normal((count, WAVES, 64)) * 8).astype(dtype)
    sparse = "smfmac" in name
    start = D_AT if sparse else C_AT
    state.vgpr[start : start + count] = c.view(np.uint32)
    scaled = "scale" in name
    inst = Instruction(
        0,
        16 if scaled else 8,
        name,
        "MAI_SCALED" if scaled else "MAI",
        (Operand(V, D_AT, count),),
        operands,
        mods,
    )
    execute(state, inst)
    return c, state.vgpr[D_AT : D_AT + count].view(dtype)


def check(got: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, what: str) -> None:
    """A B + C [WAVES, blocks, M, N] of a [..., M, K] and b [..., N, K], within (K + 1) 2^-24 of the magnitudes."""
    if got.dtype.kind == "i":
        exact = (a.astype(np.int64) @ b.astype(np.int64).swapaxes(-1, -2)) + c
        np.testing.assert_array_equal(got, exact.astype(np.int32), err_msg=what)
        return
    exact = a @ b.swapaxes(-1, -2) + c
    size = abs(a) @ abs(b).swapaxes(-1, -2) + abs(c)
    # K exact products and K additions in any order (Higham, "Accuracy and Stability of Numerical
    # Algorithms", 4.2), of which float64 itself contributes less than a hundredth.
    assert (abs(got - exact) <= 1.01 * (a.shape[-1] + 1) * 2.0**-24 * size).all(), what


@pytest.mark.parametrize("name", PLAIN)
def test_every_product(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    kind, _, size, depth, blocks, _ = NAME.fullmatch(name).groups()
    size, depth, blocks = int(size), int(depth), int(blocks or 1)
    opcode = OPCODES_BY_NAME[name]
    type_a, type_b = opcode.src[:2]
    a_rows, a_values = operand(rng, type_a.element, type_a.repeat)
    b_rows, b_values = operand(rng, type_b.element, type_b.repeat)
    count = size * size * blocks // 64
    operands = [Operand(V, A_AT, len(a_rows)), Operand(V, B_AT, len(b_rows))]
    sources, mods = {A_AT: a_rows, B_AT: b_rows}, {}
    if kind == "smfmac":
        a_values, index, mods = spread(rng, a_values)
        sources[INDEX_AT] = index
        operands.append(Operand(V, INDEX_AT, 1))
    else:
        operands.append(Operand(V, C_AT, count))
    c, d = run(name, rng, sources, tuple(operands), mods, count)
    a, b = matrices(a_values, size, blocks), matrices(b_values, size, blocks)
    assert a.shape[-1] == depth
    check(as_matrices(d, size, blocks), a, b, as_matrices(c, size, blocks), f"seed {SEED}")


def spread(rng: np.random.Generator, held: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Sparse elements [WAVES, 64, n] at random places among 2 n; their indices in a random set of the register."""
    count = held.shape[-1]
    sets = 32 // (2 * count)
    part = int(rng.integers(sets))
    dense = np.zeros((WAVES, 64, 2 * count))
    index = rng.integers(0, 2**32, (1, WAVES, 64), dtype=np.uint64).astype(object)
    for wave, lane in np.ndindex(WAVES, 64):
        bits = 0
        for pair in range(count // 2):
            for i, place in enumerate(rng.permutation(4)[:2]):
                dense[wave, lane, 4 * pair + place] = held[wave, lane, 2 * pair + i]
                bits |= int(place) << 2 * (2 * pair + i)
        mask = ((1 << 2 * count) - 1) << 2 * count * part
        index[0, wave, lane] = index[0, wave, lane] & ~mask | bits << 2 * count * part
    return dense, index.astype(np.uint32), {"abid": part}


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("b_kind", F8F6F4)
@pytest.mark.parametrize("a_kind", F8F6F4)
def test_f8f6f4(a_kind: str, b_kind: str, size: int, scale: bool) -> None:
    rng = np.random.default_rng([SEED, *map(ord, a_kind + b_kind), size, scale])
    rows, values = zip(operand(rng, a_kind, 32), operand(rng, b_kind, 32), strict=True)
    a, b = (
        matrices(v, size, 1, halves=kind in ("fp8", "bf8"))
        for v, kind in zip(values, (a_kind, b_kind), strict=True)
    )
    shape = "16x16x128" if size == 16 else "32x32x64"
    name = f"v_mfma_{'scale_' * scale}f32_{shape}_f8f6f4"
    count = size * size // 64
    mods = {"cbsz": F8F6F4.index(a_kind), "blgp": F8F6F4.index(b_kind)}
    sources = {A_AT: rows[0], B_AT: rows[1]}
    operands = [Operand(V, A_AT, len(rows[0])), Operand(V, B_AT, len(rows[1])), Operand(V, C_AT, count)]
    if scale:
        exponents = rng.integers(107, 148, (2, WAVES, 64, 4)).astype(np.uint8)
        sources[SCALE_AT] = exponents.view(np.uint32)[..., 0]
        operands += [Operand(V, SCALE_AT, 1), Operand(V, SCALE_AT + 1, 1)]
        picks = rng.integers(0, 4, 2)
        mods["op_sel"] = int(picks[0] & 1 | (picks[1] & 1) << 1)
        mods["op_sel_hi"] = int(picks[0] >> 1 | (picks[1] >> 1) << 1)
        for i, matrix in enumerate((a, b)):
            for lane in range(64):
                k = 32 * (lane // size)
                power = 2.0 ** (exponents[i, :, lane, picks[i]].astype(float) - 127)
                matrix[:, 0, lane % size, k : k + 32] *= power[:, None]
    c, d = run(name, rng, sources, tuple(operands), mods, count)
    check(as_matrices(d, size, 1), a, b, as_matrices(c, size, 1), f"seed {SEED}")


def test_extreme_scales() -> None:
    """2^127 times 2^-127 is 1, though 448 * 2^127 is no float32; an exponent of 255 is NaN."""
    state = batch()
    state.vgpr[A_AT : A_AT + 8], state.vgpr[B_AT : B_AT + 8] = 0x7E7E7E7E, 0x38383838  # fp8 448 and 1
    state.vgpr[SCALE_AT], state.vgpr[SCALE_AT + 1] = 254, 0
    state.vgpr[SCALE_AT, 1] = 255
    operands = (
        Operand(V, A_AT, 8), Operand(V, B_AT, 8), const(0, 128), Operand(V, SCALE_AT), Operand(V, SCALE_AT + 1),
    )  # fmt: skip
    name = "v_mfma_scale_f32_16x16x128_f8f6f4"
    execute(state, Instruction(0, 16, name, "MAI_SCALED", (Operand(V, D_AT, 4),), operands, {"op_sel_hi": 0}))
    got = state.vgpr[D_AT : D_AT + 4].view(np.float32)
    np.testing.assert_array_equal(got[:, 0], 128 * 448)
    assert np.isnan(got[:, 1]).all()


LANE_OF = {
    0: lambda lane: lane,
    1: lambda lane: lane % 32,
    2: lambda lane: lane % 32 + 32,
    3: lambda lane: (lane + 16) % 64,
    **{4 + i: (lambda lane, i=i: lane % 16 + 16 * i) for i in range(4)},
}


@pytest.mark.parametrize("blgp", range(8))
def test_lane_groups_of_b(blgp: int) -> None:
    rng = np.random.default_rng([SEED, blgp])
    a_rows, a_values = operand(rng, "bf16", 4)
    b_rows, b_values = operand(rng, "bf16", 4)
    operands = (Operand(V, A_AT, 2), Operand(V, B_AT, 2), Operand(V, C_AT, 32))
    name = "v_mfma_f32_32x32x4_2b_bf16"
    c, d = run(name, rng, {A_AT: a_rows, B_AT: b_rows}, operands, {"blgp": blgp}, 32)
    moved = np.stack([b_values[:, LANE_OF[blgp](lane)] for lane in range(64)], axis=1)
    a, b = matrices(a_values, 32, 2), matrices(moved, 32, 2)
    check(as_matrices(d, 32, 2), a, b, as_matrices(c, 32, 2), f"seed {SEED}")


@pytest.mark.parametrize(("cbsz", "abid"), [(1, 0), (1, 1), (2, 3), (3, 5), (4, 0), (4, 15)])
def test_blocks_of_a_are_broadcast(cbsz: int, abid: int) -> None:
    rng = np.random.default_rng([SEED, cbsz, abid])
    a_rows, a_values = operand(rng, "f16", 4)
    b_rows, b_values = operand(rng, "f16", 4)
    operands = (Operand(V, A_AT, 2), Operand(V, B_AT, 2), Operand(V, C_AT, 4))
    name = "v_mfma_f32_4x4x4_16b_f16"
    c, d = run(name, rng, {A_AT: a_rows, B_AT: b_rows}, operands, {"cbsz": cbsz, "abid": abid}, 4)
    a, b = matrices(a_values, 4, 16), matrices(b_values, 4, 16)
    a = np.stack([a[:, block // 2**cbsz * 2**cbsz + abid] for block in range(16)], axis=1)
    check(as_matrices(d, 4, 16), a, b, as_matrices(c, 4, 16), f"seed {SEED}")


ORDERED = [
    "v_mfma_f32_16x16x32_bf16",
    "v_mfma_f32_32x32x2_f32",
    "v_mfma_f32_4x4x4_16b_f16",
    "v_mfma_f32_16x16x32_fp8_bf8",
]


@pytest.mark.parametrize("name", ORDERED)
def test_orders_of_the_sum(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    form = NAME.fullmatch(name)
    size, blocks = int(form[3]), int(form[5] or 1)
    type_a, type_b = OPCODES_BY_NAME[name].src[:2]
    a_rows, a_values = operand(rng, type_a.element, type_a.repeat)
    b_rows, b_values = operand(rng, type_b.element, type_b.repeat)
    count = size * size * blocks // 64
    a, b = matrices(a_values, size, blocks), matrices(b_values, size, blocks)
    operands = (Operand(V, A_AT, len(a_rows)), Operand(V, B_AT, len(b_rows)), Operand(V, C_AT, count))
    seed = int(rng.integers(2**31))
    for order in ("exact", "sequential"):
        c, d = run(
            name, np.random.default_rng(seed), {A_AT: a_rows, B_AT: b_rows}, operands, {}, count, order
        )
        c, d = as_matrices(c, size, blocks), as_matrices(d, size, blocks)
        for _ in range(60):
            wave, block, m, n = (int(rng.integers(limit)) for limit in c.shape)
            start = float(c[wave, block, m, n])
            pairs = list(zip(a[wave, block, m].tolist(), b[wave, block, n].tolist(), strict=True))
            if order == "exact":
                expected = float(
                    rounded(sum((Fraction(x) * Fraction(y) for x, y in pairs), Fraction(start)), "f32")
                )
            else:
                expected = start
                for x, y in pairs:
                    expected = fma(x, y, expected, "f32")
            assert float(d[wave, block, m, n]) == expected, f"{order}, seed {SEED}"


@pytest.mark.parametrize("order", ["fast", "sequential", "exact"])
@pytest.mark.parametrize("negated", range(0, 8, 3))
@pytest.mark.parametrize("name", ["v_mfma_f64_16x16x4_f64", "v_mfma_f64_4x4x4_4b_f64"])
def test_float64(name: str, negated: int, order: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name), negated])
    state = batch(waves_per_group=WAVES, mode=Mode(mfma_order=order))
    count = 4 if "16x16" in name else 1
    a, b = (rng.standard_normal((WAVES, 64)) for _ in range(2))
    c = rng.standard_normal((count, WAVES, 64))
    for first, values in ((A_AT, a[None]), (B_AT, b[None]), (C_AT, c)):
        state.vgpr[first : first + 2 * len(values)] = (
            values[..., None].view(np.uint32).transpose(0, 3, 1, 2).reshape(-1, WAVES, 64)
        )
    operands = (Operand(V, A_AT, 2), Operand(V, B_AT, 2), Operand(V, C_AT, 2 * count))
    execute(
        state, Instruction(0, 8, name, "MAI", (Operand(V, D_AT, 2 * count),), operands, {"blgp": negated})
    )
    rows = state.vgpr[D_AT : D_AT + 2 * count].reshape(count, 2, WAVES, 64).transpose(0, 2, 3, 1)
    got = np.ascontiguousarray(rows).view(np.float64)[..., 0]
    sign = [-1 if negated >> i & 1 else 1 for i in range(3)]
    for register, wave, lane in np.ndindex(count, WAVES, 64):
        if count == 4:
            row, column, block, lanes = 4 * register + lane // 16, lane % 16, 0, 16
        else:
            row, column, block, lanes = lane // 16, lane % 4, lane // 4 % 4, 4
        first = lanes * block * (count == 1)
        products = [
            Fraction(float(a[wave, first + row + 16 * k]))
            * Fraction(float(b[wave, first + column + 16 * k]))
            * sign[0]
            * sign[1]
            for k in range(4)
        ]
        exact = sum(products, Fraction(float(c[register, wave, lane])) * sign[2])
        size = sum(map(abs, products)) + abs(Fraction(float(c[register, wave, lane])))
        # One rounding, or at most one for each of four products and four additions.
        bound = size * Fraction(1, 2**53) * (1 if order == "exact" else 8)
        assert abs(Fraction(float(got[register, wave, lane])) - exact) <= bound, f"seed {SEED}"


def test_inline_addend_and_inactive_waves() -> None:
    state = batch(waves_per_group=3)
    state.vgpr[:8] = 0x3F803F80  # bf16 ones
    active = np.array([True, False, True])
    state.activate(active)
    operands = (Operand(V, 0, 4), Operand(V, 4, 4), const(0x3F800000, 242))
    execute(state, Instruction(0, 8, "v_mfma_f32_16x16x32_bf16", "MAI", (Operand(V, 8, 4),), operands))
    np.testing.assert_array_equal(state.vgpr[8:12, active].view(np.float32), 33.0)
    assert not state.vgpr[8:12, 1].any()


def test_exec_does_not_apply() -> None:
    state = batch()
    state.vgpr[:8] = 0x3F803F80
    state.sgpr64[:, 63] = 0
    state.exec_changed()
    operands = (Operand(V, 0, 4), Operand(V, 4, 4), const(0, 128))
    execute(state, Instruction(0, 8, "v_mfma_f32_16x16x32_bf16", "MAI", (Operand(V, 8, 4),), operands))
    np.testing.assert_array_equal(state.vgpr[8:12].view(np.float32), 32.0)
