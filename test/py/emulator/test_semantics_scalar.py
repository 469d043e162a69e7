"""Scalar ALU instructions against definitions on Python integers: result and SCC."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from harness import SEED, batch, const, execute, integers

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind

WAVES = 64
M32, M64 = (1 << 32) - 1, (1 << 64) - 1
Result = tuple[int, bool | None]


def s(value: int, bits: int = 32) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def nonzero(function: Callable[..., int], mask: int) -> Callable[..., Result]:
    def evaluate(*values: int) -> Result:
        out = function(*values) & mask
        return out, out != 0

    return evaluate


def overflows(value: int) -> bool:
    return not -(1 << 31) <= value < 1 << 31


def bfe(value: int, control: int, bits: int, signed: bool) -> int:
    offset, width = control & (bits - 1), min(control >> 16 & 127, bits)
    if not width:
        return 0
    if not signed:
        return value >> offset & ((1 << width) - 1)
    width = min(width, bits - offset)
    return s(value >> offset, width)


def quads(value: int, bits: int, spread: bool) -> int:
    out = 0
    for quad in range(bits // 4):
        if value >> 4 * quad & 15:
            out |= 15 << 4 * quad if spread else 1 << quad
    return out


#: name: (function of the sources giving result and SCC, None if unchanged; bits of sources; bits of result).
CASES: dict[str, tuple[Callable[..., Result], tuple[int, ...], int]] = {
    "s_add_u32": (lambda a, b: (a + b, a + b > M32), (32, 32), 32),
    "s_sub_u32": (lambda a, b: (a - b, b > a), (32, 32), 32),
    "s_add_i32": (lambda a, b: (a + b, overflows(s(a) + s(b))), (32, 32), 32),
    "s_sub_i32": (lambda a, b: (a - b, overflows(s(a) - s(b))), (32, 32), 32),
    "s_mul_i32": (lambda a, b: (a * b, None), (32, 32), 32),
    "s_mul_hi_u32": (lambda a, b: (a * b >> 32, None), (32, 32), 32),
    "s_mul_hi_i32": (lambda a, b: (s(a) * s(b) >> 32, None), (32, 32), 32),
    "s_absdiff_i32": (nonzero(lambda a, b: abs(s(a) - s(b)), M32), (32, 32), 32),
    "s_abs_i32": (nonzero(lambda a: abs(s(a)), M32), (32,), 32),
    "s_min_i32": (lambda a, b: (min(s(a), s(b)), s(a) < s(b)), (32, 32), 32),
    "s_min_u32": (lambda a, b: (min(a, b), a < b), (32, 32), 32),
    "s_max_i32": (lambda a, b: (max(s(a), s(b)), s(a) > s(b)), (32, 32), 32),
    "s_max_u32": (lambda a, b: (max(a, b), a > b), (32, 32), 32),
    "s_bfm_b32": (lambda a, b: (((1 << (a & 31)) - 1) << (b & 31), None), (32, 32), 32),
    "s_bfm_b64": (lambda a, b: (((1 << (a & 63)) - 1) << (b & 63), None), (32, 32), 64),
    "s_bfe_u32": (nonzero(lambda a, b: bfe(a, b, 32, False), M32), (32, 32), 32),
    "s_bfe_i32": (nonzero(lambda a, b: bfe(a, b, 32, True), M32), (32, 32), 32),
    "s_bfe_u64": (nonzero(lambda a, b: bfe(a, b, 64, False), M64), (64, 32), 64),
    "s_bfe_i64": (nonzero(lambda a, b: bfe(a, b, 64, True), M64), (64, 32), 64),
    "s_sext_i32_i8": (lambda a: (s(a, 8), None), (32,), 32),
    "s_sext_i32_i16": (lambda a: (s(a, 16), None), (32,), 32),
    "s_pack_ll_b32_b16": (lambda a, b: (a & 0xFFFF | b << 16, None), (32, 32), 32),
    "s_pack_lh_b32_b16": (lambda a, b: (a & 0xFFFF | b >> 16 << 16, None), (32, 32), 32),
    "s_pack_hh_b32_b16": (lambda a, b: (a >> 16 | b >> 16 << 16, None), (32, 32), 32),
    "s_ashr_i32": (nonzero(lambda a, b: s(a) >> (b & 31), M32), (32, 32), 32),
    "s_ashr_i64": (nonzero(lambda a, b: s(a, 64) >> (b & 63), M64), (64, 32), 64),
    "s_lshl2_add_u32": (lambda a, b: ((a << 2) + b, (a << 2) + b > M32), (32, 32), 32),
    "s_bitreplicate_b64_b32": (
        lambda a: (sum((a >> i & 1) * 3 << 2 * i for i in range(32)), None),
        (32,),
        64,
    ),
    "s_bcnt1_i32_b64": (nonzero(lambda a: a.bit_count(), M32), (64,), 32),
    "s_bcnt0_i32_b32": (nonzero(lambda a: 32 - a.bit_count(), M32), (32,), 32),
    "s_ff1_i32_b32": (lambda a: ((a & -a).bit_length() - 1, None), (32,), 32),
    "s_ff1_i32_b64": (lambda a: ((a & -a).bit_length() - 1, None), (64,), 32),
    "s_flbit_i32_b32": (lambda a: (32 - a.bit_length() if a else -1, None), (32,), 32),
    "s_flbit_i32_b64": (lambda a: (64 - a.bit_length() if a else -1, None), (64,), 32),
    "s_wqm_b64": (nonzero(lambda a: quads(a, 64, True), M64), (64,), 64),
    "s_quadmask_b32": (nonzero(lambda a: quads(a, 32, False), M32), (32,), 32),
}
for _bits, _mask in ((32, M32), (64, M64)):
    for _name, _function in {
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "andn2": lambda a, b: a & ~b,
        "orn2": lambda a, b: a | ~b,
        "nand": lambda a, b: ~(a & b),
        "nor": lambda a, b: ~(a | b),
        "xnor": lambda a, b: ~(a ^ b),
    }.items():
        CASES[f"s_{_name}_b{_bits}"] = (nonzero(_function, _mask), (_bits, _bits), _bits)
    CASES[f"s_mov_b{_bits}"] = (lambda a: (a, None), (_bits,), _bits)
    CASES[f"s_not_b{_bits}"] = (nonzero(lambda a: ~a, _mask), (_bits,), _bits)
    CASES[f"s_brev_b{_bits}"] = (
        lambda a, n=_bits: (int(f"{a:0{n}b}"[::-1], 2), None),
        (_bits,),
        _bits,
    )
    CASES[f"s_lshl_b{_bits}"] = (nonzero(lambda a, b, n=_bits: a << (b & n - 1), _mask), (_bits, 32), _bits)
    CASES[f"s_lshr_b{_bits}"] = (nonzero(lambda a, b, n=_bits: a >> (b & n - 1), _mask), (_bits, 32), _bits)


def sgpr(index: int, bits: int = 32) -> Operand:
    return Operand(OperandKind.SGPR, index, bits // 32)


def values(rng: np.random.Generator, bits: int) -> np.ndarray:
    return integers(rng, bits).ravel()[:WAVES]


def put(state, index: int, data: np.ndarray) -> None:
    state.sgpr[:, index : index + data.dtype.itemsize // 4] = data[:, None].view(np.uint32)


def get(state, index: int, bits: int) -> list[int]:
    return [int(x) for x in (state.sgpr[:, index] if bits == 32 else state.sgpr64[:, index // 2])]


@pytest.mark.parametrize("name", CASES)
def test_matches_definition(name: str) -> None:
    function, widths, bits = CASES[name]
    rng = np.random.default_rng([SEED, *map(ord, name)])
    state = batch(waves_per_group=WAVES)
    sources = [values(rng, width) for width in widths]
    old_scc = rng.integers(0, 2, WAVES).astype(bool)
    state.scc[:] = old_scc
    for i, source in enumerate(sources):
        put(state, 10 + 2 * i, source)
    operands = tuple(sgpr(10 + 2 * i, width) for i, width in enumerate(widths))
    execute(state, Instruction(0, 4, name, "SOP2", (sgpr(20, bits),), operands))
    expected = [function(*map(int, row)) for row in zip(*sources, strict=True)]
    mask = (1 << bits) - 1
    assert get(state, 20, bits) == [value & mask for value, _ in expected], f"seed {SEED}"
    flags = [bool(o) if flag is None else flag for (_, flag), o in zip(expected, old_scc, strict=True)]
    assert state.scc.tolist() == flags, f"seed {SEED}"


@pytest.mark.parametrize("name", ["s_addc_u32", "s_subb_u32"])
def test_carries(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    state = batch(waves_per_group=WAVES)
    a, b, carry = values(rng, 32), values(rng, 32), rng.integers(0, 2, WAVES)
    put(state, 10, a)
    put(state, 12, b)
    state.scc[:] = carry.astype(bool)
    execute(state, Instruction(0, 4, name, "SOP2", (sgpr(20),), (sgpr(10), sgpr(12))))
    for i in range(WAVES):
        total = (
            int(a[i]) + int(b[i]) + int(carry[i])
            if name == "s_addc_u32"
            else int(a[i]) - int(b[i]) - int(carry[i])
        )
        assert int(state.sgpr[i, 20]) == total & M32
        assert bool(state.scc[i]) == (total > M32 or total < 0)


COMPARES = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


@pytest.mark.parametrize("condition", COMPARES)
@pytest.mark.parametrize("kind", ["i32", "u32"])
def test_compares(condition: str, kind: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, condition + kind)])
    state = batch(waves_per_group=WAVES)
    a, b = values(rng, 32), values(rng, 32)
    b[::3] = a[::3]
    put(state, 10, a)
    put(state, 12, b)
    as_number = s if kind == "i32" else int
    execute(state, Instruction(0, 4, f"s_cmp_{condition}_{kind}", "SOPC", (), (sgpr(10), sgpr(12))))
    expected = [COMPARES[condition](as_number(int(x)), as_number(int(y))) for x, y in zip(a, b, strict=True)]
    assert state.scc.tolist() == expected
    immediate = int(b[0]) & 0xFFFF
    mods = {"simm16": immediate}
    execute(state, Instruction(0, 4, f"s_cmpk_{condition}_{kind}", "SOPK", (), (sgpr(10),), mods))
    number = s(immediate, 16) if kind == "i32" else immediate
    assert state.scc.tolist() == [COMPARES[condition](as_number(int(x)), number) for x in a]


def test_immediate_forms_and_bits() -> None:
    rng = np.random.default_rng(SEED)
    state = batch(waves_per_group=WAVES)
    a = values(rng, 32)
    put(state, 20, a)
    execute(state, Instruction(0, 4, "s_addk_i32", "SOPK", (sgpr(20),), (), {"simm16": 0xFFFE}))
    assert get(state, 20, 32) == [(int(x) - 2) & M32 for x in a]
    execute(state, Instruction(0, 4, "s_movk_i32", "SOPK", (sgpr(21),), (), {"simm16": 0x8000}))
    assert set(get(state, 21, 32)) == {0xFFFF8000}
    execute(state, Instruction(0, 4, "s_bitset1_b32", "SOP1", (sgpr(21),), (const(3, 131),)))
    assert set(get(state, 21, 32)) == {0xFFFF8008}
    execute(state, Instruction(0, 4, "s_bitset0_b32", "SOP1", (sgpr(21),), (const(31, 159),)))
    assert set(get(state, 21, 32)) == {0x7FFF8008}
    execute(state, Instruction(0, 4, "s_bitcmp1_b32", "SOPC", (), (sgpr(20), const(0, 128))))
    assert state.scc.tolist() == [bool((int(x) - 2) & 1) for x in a]
    execute(state, Instruction(0, 4, "s_cselect_b32", "SOP2", (sgpr(22),), (sgpr(20), sgpr(21))))
    expected = [(int(x) - 2) & M32 if (int(x) - 2) & 1 else 0x7FFF8008 for x in a]
    assert get(state, 22, 32) == expected


def test_only_active_waves_are_written() -> None:
    rng = np.random.default_rng(SEED)
    state = batch(waves_per_group=WAVES)
    a, old = values(rng, 32), values(rng, 32)
    put(state, 10, a)
    put(state, 20, old)
    active = rng.integers(0, 2, WAVES).astype(bool)
    state.scc[:] = False
    state.activate(active)
    execute(state, Instruction(0, 4, "s_or_b32", "SOP2", (sgpr(20),), (sgpr(10), const(1, 129))))
    np.testing.assert_array_equal(state.sgpr[:, 20], np.where(active, a | 1, old))
    np.testing.assert_array_equal(state.scc, active)


def test_saveexec_family() -> None:
    functions = {
        "and": lambda a, e: a & e,
        "or": lambda a, e: a | e,
        "xor": lambda a, e: a ^ e,
        "andn2": lambda a, e: a & ~e,
        "orn2": lambda a, e: a | ~e,
        "andn1": lambda a, e: ~a & e,
        "orn1": lambda a, e: ~a | e,
        "nand": lambda a, e: ~(a & e),
        "nor": lambda a, e: ~(a | e),
        "xnor": lambda a, e: ~(a ^ e),
    }
    rng = np.random.default_rng(SEED)
    for name, function in functions.items():
        state = batch(waves_per_group=WAVES)
        a, lanes = values(rng, 64), values(rng, 64)
        put(state, 10, a)
        put(state, 126, lanes)
        state.exec_changed()
        execute(state, Instruction(0, 4, f"s_{name}_saveexec_b64", "SOP1", (sgpr(20, 64),), (sgpr(10, 64),)))
        expected = [function(int(x), int(e)) & M64 for x, e in zip(a, lanes, strict=True)]
        assert get(state, 126, 64) == expected, name
        assert get(state, 20, 64) == lanes.tolist(), name
        assert state.scc.tolist() == [value != 0 for value in expected], name
        bits = [[value >> lane & 1 for lane in range(64)] for value in expected]
        assert state.mask is not None
        np.testing.assert_array_equal(state.mask, np.array(bits, bool))
