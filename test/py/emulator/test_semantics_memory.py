"""LDS, buffer, global and scratch instructions against a byte-wise model."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from harness import SEED, SHAPE, WAVES, S, V, batch, const, execute, integers, pack

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.memory import AccessError

OFF = Operand(OperandKind.OFF, 0, 0)
LDS_SIZE = 4096

#: suffix: (bytes in memory, signed, half of the register or None)
NARROW = {
    "ubyte": (1, False, None),
    "sbyte": (1, True, None),
    "ushort": (2, False, None),
    "sshort": (2, True, None),
    "ubyte_d16": (1, False, 0),
    "sbyte_d16_hi": (1, True, 1),
    "short_d16": (2, False, 0),
    "short_d16_hi": (2, False, 1),
}
DS_NARROW = {
    "u8": "ubyte",
    "i8": "sbyte",
    "u16": "ushort",
    "i16": "sshort",
    "u8_d16": "ubyte_d16",
    "u16_d16_hi": "short_d16_hi",
}


def expected_register(raw: bytes, signed: bool, half: int | None, old: int) -> int:
    value = int.from_bytes(raw, "little", signed=signed)
    if half is None:
        return value & 0xFFFFFFFF
    return old & ~(0xFFFF << 16 * half) | (value & 0xFFFF) << 16 * half


def some_lanes(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 4, SHAPE) > 0


def machine(
    rng: np.random.Generator, mask: np.ndarray | None = None, *, lds: int = LDS_SIZE, scratch: int = 0
):
    state = batch(lds=lds, scratch=scratch)
    state.vgpr[2:32] = rng.integers(0, 2**32, (30, *SHAPE), dtype=np.uint32)
    state.lds[:] = rng.integers(0, 256, state.lds.size)
    if mask is not None:
        state.sgpr64[:, 63] = pack(mask)
        state.exec_changed()
    return state


def ds(state, name: str, dst: tuple, *src: Operand, **mods: int) -> None:
    execute(state, Instruction(0, 8, name, "DS", dst, src, mods))


@pytest.mark.parametrize("name", DS_NARROW)
def test_narrow_lds_reads(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    mask = some_lanes(rng)
    state = machine(rng, mask)
    size, signed, half = NARROW[DS_NARROW[name]]
    address = rng.integers(0, LDS_SIZE - 64, SHAPE).astype(np.uint32) // size * size
    state.vgpr[0], old = address, state.vgpr[2].copy()
    ds(state, f"ds_read_{name}", (Operand(V, 2),), Operand(V, 0), offset=16)
    for at in np.ndindex(*SHAPE):
        raw = state.lds[int(address[at]) + 16 :][:size].tobytes()
        expected = expected_register(raw, signed, half, int(old[at])) if mask[at] else int(old[at])
        assert int(state.vgpr[2][at]) == expected


@pytest.mark.parametrize("bits", [32, 64, 96, 128])
@pytest.mark.parametrize("align", [4, 16])
def test_wide_lds_accesses(bits: int, align: int) -> None:
    rng = np.random.default_rng([SEED, bits, align])
    mask = some_lanes(rng)
    state = machine(rng, mask)
    count = bits // 32
    address = (
        rng.permutation(WAVES * 64).reshape(SHAPE) * 16 + (align == 4) * 4 * rng.integers(0, 5 - count, SHAPE)
    ).astype(np.uint32)
    state.vgpr[0] = address
    before, data = state.lds.copy(), state.vgpr[4 : 4 + count].copy()
    ds(state, f"ds_write_b{bits}", (), Operand(V, 0), Operand(V, 4, count), offset=32)
    for at in np.argwhere(mask):
        start = int(address[tuple(at)]) + 32
        before[start : start + 4 * count] = data[:, *at].copy().view(np.uint8)
    np.testing.assert_array_equal(state.lds, before)
    ds(state, f"ds_read_b{bits}", (Operand(V, 8, count),), Operand(V, 0), offset=32)
    np.testing.assert_array_equal(state.vgpr[8 : 8 + count][:, mask], data[:, mask])


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("stride", ["", "st64"])
def test_paired_lds_accesses(bits: int, stride: str) -> None:
    rng = np.random.default_rng([SEED, bits])
    state = machine(rng, lds=1 << 16)
    count, unit = bits // 32, bits // 8 * (64 if stride else 1)
    address = (rng.permutation(WAVES * 64).reshape(SHAPE) * 32).astype(np.uint32)
    state.vgpr[0] = address
    data = state.vgpr[4 : 4 + 2 * count].copy()
    pair = Operand(V, 4, count), Operand(V, 4 + count, count)
    ds(state, f"ds_write2{stride}_b{bits}", (), Operand(V, 0), *pair, offset0=1, offset1=3)
    for at in np.ndindex(*SHAPE):
        for half, offset in ((0, 1), (1, 3)):
            start = int(address[at]) + offset * unit
            raw = np.ascontiguousarray(data[half * count : half * count + count, *at]).tobytes()
            if not stride:  # with st64 the two of different lanes may overlap
                assert state.lds[start : start + 4 * count].tobytes() == raw
    ds(state, f"ds_read2{stride}_b{bits}", (Operand(V, 8, 2 * count),), Operand(V, 0), offset0=1, offset1=3)
    for at in np.ndindex(*SHAPE):
        for half, offset in ((0, 1), (1, 3)):
            start = int(address[at]) + offset * unit
            got = np.ascontiguousarray(state.vgpr[8 + half * count : 8 + half * count + count, *at])
            assert got.tobytes() == state.lds[start : start + 4 * count].tobytes()


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_transposed_lds_read(bits: int) -> None:
    """16 lanes read a row-major matrix of 16 columns, 8 bytes each in order; lane i gets column i."""
    rng = np.random.default_rng([SEED, bits])
    state = machine(rng)
    height = 64 // bits
    matrices = rng.integers(0, 1 << bits, (WAVES, 4, height, 16))
    for wave in range(WAVES):
        for group in range(4):
            flat = matrices[wave, group].ravel().tolist()
            number = sum(value << bits * i for i, value in enumerate(flat))
            start = (wave * 4 + group) * 128
            state.lds[start : start + 128] = np.frombuffer(number.to_bytes(128, "little"), np.uint8)
    lane = np.arange(64)
    state.vgpr[0] = np.arange(WAVES)[:, None] * 512 + lane * 8
    ds(state, f"ds_read_b64_tr_b{bits}", (Operand(V, 2, 2),), Operand(V, 0))
    for wave, at in np.ndindex(*SHAPE):
        column = matrices[wave, at // 16, :, at % 16].tolist()
        expected = sum(value << bits * i for i, value in enumerate(column))
        assert int(state.vgpr[2, wave, at]) | int(state.vgpr[3, wave, at]) << 32 == expected


def test_permutes() -> None:
    rng = np.random.default_rng(SEED)
    mask = some_lanes(rng)
    state = machine(rng, mask)
    data = state.vgpr[3].copy()
    target = rng.integers(0, 64, SHAPE).astype(np.uint32)
    state.vgpr[0] = target * 4
    old = state.vgpr[6].copy()
    ds(state, "ds_bpermute_b32", (Operand(V, 5),), Operand(V, 0), Operand(V, 3))
    ds(state, "ds_permute_b32", (Operand(V, 6),), Operand(V, 0), Operand(V, 3))
    for wave, lane in np.argwhere(mask):
        source = int(target[wave, lane])
        assert state.vgpr[5, wave, lane] == (data[wave, source] if mask[wave, source] else 0)
        senders = [i for i in range(64) if mask[wave, i] and target[wave, i] == lane]
        assert state.vgpr[6, wave, lane] == (data[wave, senders[-1]] if senders else 0)
    np.testing.assert_array_equal(state.vgpr[6][~mask], old[~mask])


@pytest.mark.parametrize(
    ("pattern", "source"),
    [
        (0x8000 | 0x1B, lambda lane: lane // 4 * 4 + 3 - lane % 4),
        (0x1F | 0x10 << 10, lambda lane: lane ^ 16),
        (0x18 | 0x02 << 5, lambda lane: lane & 32 | lane & 24 | 2),
        (0xC000 | 5 << 5, lambda lane: lane & 32 | (lane + 5) % 32),
        (0xC400 | 3 << 5, lambda lane: lane & 32 | (lane - 3) % 32),
    ],
)
def test_swizzle(pattern: int, source: Callable[[int], int]) -> None:
    rng = np.random.default_rng(SEED)
    state = machine(rng)
    data = state.vgpr[3].copy()
    ds(state, "ds_swizzle_b32", (Operand(V, 5),), Operand(V, 3), offset=pattern)
    np.testing.assert_array_equal(state.vgpr[5], data[:, [source(lane) for lane in range(64)]])


ATOMICS: dict[str, Callable[[int, int], int]] = {
    "add_u32": lambda old, x: old + x & 0xFFFFFFFF,
    "sub_u32": lambda old, x: old - x & 0xFFFFFFFF,
    "and_b32": lambda old, x: old & x,
    "or_b32": lambda old, x: old | x,
    "max_u32": max,
    "min_u32": min,
    "inc_u32": lambda old, x: 0 if old >= x else old + 1,
    "dec_u32": lambda old, x: x if old == 0 or old > x else old - 1,
    "wrxchg_b32": lambda old, x: x,
}


@pytest.mark.parametrize("name", ATOMICS)
def test_lds_atomics_go_lane_by_lane(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    mask = some_lanes(rng)
    state = machine(rng, mask)
    cells = state.lds.view(np.uint32).tolist()
    state.vgpr[0] = rng.integers(0, 8, SHAPE) * 4
    state.vgpr[3] = integers(rng, 32)
    old = state.vgpr[5].copy()
    operation, kind = name.split("_")
    ds(state, f"ds_{operation}_rtn_{kind}", (Operand(V, 5),), Operand(V, 0), Operand(V, 3))
    for wave, lane in np.ndindex(*SHAPE):
        if not mask[wave, lane]:
            assert state.vgpr[5, wave, lane] == old[wave, lane]
            continue
        cell = int(state.vgpr[0, wave, lane]) // 4
        assert int(state.vgpr[5, wave, lane]) == cells[cell]
        cells[cell] = ATOMICS[name](cells[cell], int(state.vgpr[3, wave, lane]))
    assert state.lds.view(np.uint32).tolist() == cells


def test_lds_addresses_wrap_at_32_bits() -> None:
    """A base below zero plus an offset beyond it: what LLVM makes of an index that is never negative itself."""
    state = machine(np.random.default_rng(SEED))
    cells = state.lds.view(np.uint32).copy()
    state.vgpr[0] = np.uint32(2**32 - 16)
    ds(state, "ds_read_b32", (Operand(V, 2),), Operand(V, 0), offset=24)
    assert (state.vgpr[2] == cells[2]).all()
    ds(state, "ds_read_b32", (Operand(V, 2),), Operand(V, 0), offset=12)
    assert not state.vgpr[2].any()


def test_global_float_atomics() -> None:
    rng = np.random.default_rng(SEED)
    state = machine(rng)
    numbers = rng.integers(-8, 9, SHAPE).astype(np.float32)
    packed = rng.integers(-8, 9, (*SHAPE, 2)).astype(ml_dtypes.bfloat16)
    sums, pairs = np.zeros(4, np.float32), np.zeros((4, 2), ml_dtypes.bfloat16)
    cell = rng.integers(0, 4, SHAPE)
    for array, values, name in (
        (sums, numbers, "add_f32"),
        (pairs, packed.view(np.uint32)[..., 0], "pk_add_bf16"),
    ):
        address = state.memory.register(array) + cell.astype(np.uint64) * 4
        state.vgpr[0], state.vgpr[1] = address.astype(np.uint32), (address >> np.uint64(32)).astype(np.uint32)
        state.vgpr[3] = values.view(np.uint32)
        sources = (Operand(V, 0, 2), Operand(V, 3), OFF)
        execute(state, Instruction(0, 8, f"global_atomic_{name}", "GLOBAL", (), sources))
    for i in range(4):
        assert sums[i] == numbers[cell == i].sum()  # small whole numbers: exact in any order
        np.testing.assert_array_equal(
            pairs[i].astype(np.float32),
            packed[cell == i].astype(np.float32).sum(axis=0).astype(ml_dtypes.bfloat16).astype(np.float32),
        )


def buffer_words(base: int, records: int, stride: int = 0) -> list[int]:
    return [base & 0xFFFFFFFF, base >> 32 & 0xFFFF | stride << 16, records, 0x00027000]


@pytest.mark.parametrize(
    "suffix", ["ubyte", "sshort", "short_d16_hi", "dword", "dwordx2", "dwordx3", "dwordx4"]
)
@pytest.mark.parametrize("uniform", [True, False])
def test_buffer_loads_beyond_num_records_read_zero(suffix: str, uniform: bool) -> None:
    rng = np.random.default_rng([SEED, *map(ord, suffix), uniform])
    mask = some_lanes(rng)
    state = machine(rng, mask)
    size, signed, half = NARROW.get(
        suffix, (4 * int(suffix[6:] or 1) if suffix.startswith("dword") else 0, False, None)
    )
    data = rng.integers(0, 256, 1000, dtype=np.uint8)
    base = state.memory.register(data)
    records = [1000, 1000] if uniform else [1000, 500]
    for wave in range(WAVES):
        state.sgpr[wave, 8:12] = buffer_words(base, records[wave])
    state.sgpr[:, 12] = 8
    step = min(size, 4)
    offset = rng.integers(0, 1100, SHAPE).astype(np.uint32) // step * step
    offset[:, :8] = [0xFFFFFFF0] * 4 + [0x80000000] * 4
    state.vgpr[0] = offset
    count = max(size // 4, 1)
    old = state.vgpr[4 : 4 + count].copy()
    sources = (Operand(V, 0), Operand(S, 8, 4), Operand(S, 12))
    mods = {"offen": 1, "offset": 20}
    execute(
        state, Instruction(0, 8, f"buffer_load_{suffix}", "MUBUF", (Operand(V, 4, count),), sources, mods)
    )
    for wave, lane in np.ndindex(*SHAPE):
        start = (int(offset[wave, lane]) + 20) % 2**32 + 8
        for i in range(count):
            at = start + 4 * i
            raw = data[at : at + step].tobytes() if at + step <= records[wave] else bytes(step)
            expected = (
                expected_register(raw, signed, half, int(old[i, wave, lane]))
                if size < 4
                else int.from_bytes(raw, "little")
            )
            if not mask[wave, lane]:
                expected = int(old[i, wave, lane])
            assert int(state.vgpr[4 + i, wave, lane]) == expected, (wave, lane, i, SEED)


@pytest.mark.parametrize("suffix", ["byte", "short_d16_hi", "dword", "dwordx4"])
def test_buffer_stores_beyond_num_records_are_dropped(suffix: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, suffix)])
    mask = some_lanes(rng)
    state = machine(rng, mask)
    size = {"byte": 1, "short_d16_hi": 2}.get(suffix, 4 * int(suffix[6:] or 1) if "dword" in suffix else 0)
    data = rng.integers(0, 256, 1600, dtype=np.uint8)
    base = state.memory.register(data)
    state.sgpr[:, 8:12] = buffer_words(base, 1500)
    offset = (rng.permutation(WAVES * 64).reshape(SHAPE) * 16 + 4).astype(np.uint32)
    state.vgpr[0] = offset
    count = max(size // 4, 1)
    values = state.vgpr[4 : 4 + count].copy()
    sources = (Operand(V, 4, count), Operand(V, 0), Operand(S, 8, 4), const(0, 128))
    expected = data.copy()
    execute(state, Instruction(0, 8, f"buffer_store_{suffix}", "MUBUF", (), sources, {"offen": 1}))
    for wave, lane in np.argwhere(mask):
        raw = np.ascontiguousarray(values[:, wave, lane]).tobytes()
        raw = raw[2:4] if suffix.endswith("hi") else raw[:size]
        for i in range(0, size, 4):
            start, piece = int(offset[wave, lane]) + i, raw[i : i + 4]
            if start + len(piece) <= 1500:
                expected[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
    np.testing.assert_array_equal(data, expected)


def test_buffer_index_and_stride() -> None:
    rng = np.random.default_rng(SEED)
    state = machine(rng)
    data = rng.integers(0, 2**32, 40, dtype=np.uint32)
    state.sgpr[:, 8:12] = buffer_words(state.memory.register(data), 10, stride=16)
    index = rng.integers(0, 14, SHAPE).astype(np.uint32)
    state.vgpr[0], state.vgpr[1] = index, 4
    sources = (Operand(V, 0, 2), Operand(S, 8, 4), const(0, 128))
    mods = {"idxen": 1, "offen": 1, "offset": 8}
    execute(state, Instruction(0, 8, "buffer_load_dword", "MUBUF", (Operand(V, 4),), sources, mods))
    expected = np.where(index < 10, data[np.minimum(index, 9) * 4 + 3], 0)
    np.testing.assert_array_equal(state.vgpr[4], expected)


def test_scratch_is_private_to_lanes() -> None:
    rng = np.random.default_rng(SEED)
    mask = some_lanes(rng)
    state = machine(rng, mask, scratch=64)
    data = state.vgpr[4:6].copy()
    state.sgpr[:, 8] = 8
    at = (rng.integers(0, 10, SHAPE) * 4).astype(np.uint32)
    state.vgpr[0] = at
    execute(
        state,
        Instruction(
            0,
            8,
            "scratch_store_dwordx2",
            "SCRATCH",
            (),
            (Operand(V, 0), Operand(V, 4, 2), Operand(S, 8)),
            {"offset": 4},
        ),
    )
    execute(
        state,
        Instruction(
            0,
            8,
            "scratch_load_dwordx2",
            "SCRATCH",
            (Operand(V, 6, 2),),
            (Operand(V, 0), Operand(S, 8)),
            {"offset": 4},
        ),
    )
    np.testing.assert_array_equal(state.vgpr[6:8][:, mask], data[:, mask])
    assert not state.scratch.reshape(*SHAPE, 64)[~mask].any()
    with pytest.raises(AccessError, match="past the 64 bytes of scratch"):
        execute(
            state,
            Instruction(0, 8, "scratch_load_dword", "SCRATCH", (Operand(V, 6),), (OFF, OFF), {"offset": 64}),
        )


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_scalar_loads(count: int) -> None:
    rng = np.random.default_rng([SEED, count])
    state = machine(rng)
    data = rng.integers(0, 2**32, 64, dtype=np.uint32)
    base = state.memory.register(data)
    state.sgpr64[:, 4] = base
    state.sgpr[:, 10] = [0, 64]  # byte offsets of the two waves
    suffix = f"x{count}" if count > 1 else ""
    target = Operand(S, 32, count)
    execute(
        state,
        Instruction(
            0,
            8,
            f"s_load_dword{suffix}",
            "SMEM",
            (target,),
            (Operand(S, 8, 2), Operand(S, 10)),
            {"offset": 8},
        ),
    )
    for wave in range(WAVES):
        np.testing.assert_array_equal(
            state.sgpr[wave, 32 : 32 + count], data[2 + 16 * wave : 2 + 16 * wave + count]
        )
    state.sgpr[:, 12:16] = buffer_words(base, 16)
    execute(
        state,
        Instruction(
            0, 8, f"s_buffer_load_dword{suffix}", "SMEM", (target,), (Operand(S, 12, 4), OFF), {"offset": 8}
        ),
    )
    expected = [data[2 + i] if 2 + i < 4 else 0 for i in range(count)]
    np.testing.assert_array_equal(state.sgpr[:, 32 : 32 + count], np.array([expected] * WAVES))


def test_wait_counters_are_in_order_per_wave() -> None:
    state = batch()
    landed: list[tuple[int, list[bool] | None]] = []

    def entry(number: int):
        return lambda waves: landed.append((number, None if waves is None else waves.tolist()))

    queue = state.vmcnt
    for number in range(3):
        queue.push(None, entry(number))
    queue.wait(None, 2)
    assert landed == [(0, None)]
    queue.push(np.array([True, False]), entry(3))
    queue.wait(np.array([False, True]), 1)  # wave 1 has two outstanding
    assert landed[1:] == [(1, [False, True])]
    queue.wait(None, 0)
    assert landed[2:] == [(1, [True, False]), (2, [True, True]), (3, [True, False])]
    queue.wait(None, 0)
    assert len(landed) == 5
