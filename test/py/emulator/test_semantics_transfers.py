"""Every load and store of every memory, lane by lane on bytes; typed, swizzled and add-tid buffers; scalar stores."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from harness import SEED, SHAPE, WAVES, S, V, batch, const, execute, pack

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.isa.opcodes import OPCODES
from flycc.emulator.memory import AccessError
from flycc.emulator.semantics.operands import PRIVATE_APERTURE, SHARED_APERTURE

OFF = Operand(OperandKind.OFF, 0, 0)
DWORD = 0xFFFFFFFF
JUNK = 0xDEADBEEF
SIZE = 2048
WIDTHS = {"byte": 1, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}


def names(encoding: str, pattern: str) -> list[str]:
    return sorted(
        o.name for o in OPCODES.values() if o.encoding == encoding and re.fullmatch(pattern, o.name)
    )


def parse(name: str) -> tuple[int, bool, int | None]:
    """(bytes, signed, half of the register or None) of a load or store."""
    body = re.sub(r"^\w+?_(load|store)_(lds_)?", "", name)
    half = 1 if body.endswith("_d16_hi") else 0 if body.endswith("_d16") else None
    body = re.sub(r"_d16(_hi)?$", "", body)
    is_signed = body in ("sbyte", "sshort")
    return WIDTHS[body if body in WIDTHS else body[1:]], is_signed, half


def loaded(raw: bytes, name: str, old: list[int]) -> list[int]:
    """The registers after a load of `raw`."""
    size, is_signed, half = parse(name)
    if size >= 4:
        return [int.from_bytes(raw[i : i + 4], "little") for i in range(0, size, 4)]
    value = int.from_bytes(raw, "little", signed=is_signed)
    if half is None:
        return [value & DWORD]
    return [old[0] & ~(0xFFFF << 16 * half) | (value & 0xFFFF) << 16 * half]


def stored(registers: list[int], name: str) -> bytes:
    size, _, half = parse(name)
    if size < 4:
        return (registers[0] >> 16 * (half or 0) & (1 << 8 * size) - 1).to_bytes(size, "little")
    return b"".join(r.to_bytes(4, "little") for r in registers)


def machine(rng: np.random.Generator):
    """A batch of one workgroup, its memory buffer, and a lane mask."""
    state = batch(lds=SIZE, scratch=64)
    state.lds[:] = rng.integers(0, 256, state.lds.size)
    state.scratch[:] = rng.integers(0, 256, state.scratch.size)
    memory = rng.integers(0, 256, SIZE, dtype=np.uint8)
    base = state.memory.register(memory, name="memory")
    mask = rng.integers(0, 4, SHAPE) > 0
    state.sgpr64[:, 63] = pack(mask)
    state.exec_changed()
    state.vgpr[8:12] = JUNK
    state.vgpr[4:8] = rng.integers(0, 2**32, (4, *SHAPE), dtype=np.uint32)
    return state, memory, base, mask


def put_addresses(state, addresses: np.ndarray) -> None:
    state.vgpr[0], state.vgpr[1] = (addresses & DWORD).astype(np.uint32), (addresses >> 32).astype(np.uint32)


def registers(state, first: int, count: int, lane: tuple[int, int]) -> list[int]:
    return [int(state.vgpr[(first + i, *lane)]) for i in range(count)]


def check_load(state, name: str, where, memory_of, mask) -> None:
    size = parse(name)[0]
    count = max(size // 4, 1)
    for lane in np.ndindex(*SHAPE):
        raw = memory_of(lane)[int(where[lane]) :][:size].tobytes()
        expected = loaded(raw, name, [JUNK]) if mask[lane] else [JUNK] * count
        assert registers(state, 8, count, lane) == expected, f"lane {lane}, seed {SEED}"


def check_store(name: str, where, memory_of, before_of, mask, state) -> None:
    """What memory holds afterwards: the stored bytes, and no other changes."""
    size = parse(name)[0]
    expected = {id(memory_of(lane)): (memory_of(lane), before_of(lane).copy()) for lane in np.ndindex(*SHAPE)}
    for lane in np.ndindex(*SHAPE):
        if mask[lane]:
            raw = stored(registers(state, 4, max(size // 4, 1), lane), name)
            start = int(where[lane])
            expected[id(memory_of(lane))][1][start : start + size] = np.frombuffer(raw, np.uint8)
    for memory, wanted in expected.values():
        np.testing.assert_array_equal(memory, wanted, err_msg=f"seed {SEED}")


@pytest.mark.parametrize("base_register", [False, True])
@pytest.mark.parametrize("name", names("GLOBAL", r"global_(load|store)_(?!lds).*"))
def test_global(name: str, base_register: bool) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name), base_register])
    state, memory, base, mask = machine(rng)
    size = parse(name)[0]
    offset = -8
    where = np.arange(128).reshape(SHAPE) * 16 % (SIZE - 16) + (4 if size <= 12 else 0)
    mask[1, 63] = False  # whose place is the first lane's
    state.sgpr64[:, 63] = pack(mask)
    state.exec_changed()
    before = memory.copy()
    if base_register:
        state.sgpr[:, 4:6] = [base & DWORD, base >> 32]
        state.vgpr[0] = (where - offset).astype(np.uint32)
        address, saddr = Operand(V, 0), Operand(S, 4, 2)
    else:
        put_addresses(state, base + where - offset)
        address, saddr = Operand(V, 0, 2), OFF
    count = max(size // 4, 1)
    mods = {"offset": offset}
    if "load" in name:
        execute(state, Instruction(0, 8, name, "GLOBAL", (Operand(V, 8, count),), (address, saddr), mods))
        check_load(state, name, where, lambda lane: memory, mask)
    else:
        src = (address, Operand(V, 4, count), saddr)
        execute(state, Instruction(0, 8, name, "GLOBAL", (), src, mods))
        check_store(name, where, lambda lane: memory, lambda lane: before, mask, state)


@pytest.mark.parametrize("name", names("FLAT", r"flat_(load|store)_.*"))
def test_flat_reaches_memory_lds_and_scratch(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    state, memory, base, mask = machine(rng)
    size = parse(name)[0]
    space = rng.integers(0, 3, SHAPE)
    where = np.where(space == 2, 16 * rng.integers(0, 3, SHAPE), np.arange(128).reshape(SHAPE) * 16 % SIZE)
    high = np.where(space == 1, SHARED_APERTURE, PRIVATE_APERTURE).astype(np.int64) << 32
    put_addresses(state, np.where(space == 0, base, high) + where)
    own = state.scratch.reshape(*SHAPE, 64)

    def memory_of(lane):
        return (memory, state.lds, own[lane])[space[lane]]

    count = max(size // 4, 1)
    if "load" in name:
        execute(state, Instruction(0, 8, name, "FLAT", (Operand(V, 8, count),), (Operand(V, 0, 2),), {}))
        check_load(state, name, where, memory_of, mask)
        return
    kept = {lane: memory_of(lane).copy() for lane in np.ndindex(*SHAPE)}
    execute(state, Instruction(0, 8, name, "FLAT", (), (Operand(V, 0, 2), Operand(V, 4, count)), {}))
    for lane in np.ndindex(*SHAPE):
        start = int(where[lane])
        raw = stored(registers(state, 4, count, lane), name)
        got = memory_of(lane)[start : start + size].tobytes()
        assert got == (raw if mask[lane] else kept[lane][start : start + size].tobytes()), f"seed {SEED}"


def test_flat_past_the_end_of_scratch_faults() -> None:
    state, *_ = machine(np.random.default_rng(SEED))
    put_addresses(state, np.full(SHAPE, PRIVATE_APERTURE << 32, np.int64) + 61)
    with pytest.raises(AccessError, match="scratch"):
        execute(
            state, Instruction(0, 8, "flat_load_dword", "FLAT", (Operand(V, 8),), (Operand(V, 0, 2),), {})
        )


@pytest.mark.parametrize("name", names("SCRATCH", r"scratch_(load|store)_(?!lds).*"))
def test_scratch(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    state, _, _, mask = machine(rng)
    size = parse(name)[0]
    where = 16 * rng.integers(0, 3, SHAPE)
    state.vgpr[0] = (where - 8).astype(np.uint32)
    state.vgpr[0][where < 8] = 0
    where = np.maximum(where - 8, 0) + 8
    own = state.scratch.reshape(*SHAPE, 64)
    before = own.copy()
    count = max(size // 4, 1)
    if "load" in name:
        src = (Operand(V, 0), OFF)
        execute(state, Instruction(0, 8, name, "SCRATCH", (Operand(V, 8, count),), src, {"offset": 8}))
        check_load(state, name, where, lambda lane: own[lane], mask)
        return
    src = (Operand(V, 0), Operand(V, 4, count), OFF)
    execute(state, Instruction(0, 8, name, "SCRATCH", (), src, {"offset": 8}))
    for lane in np.ndindex(*SHAPE):
        expected = before[lane].copy()
        if mask[lane]:
            raw = stored(registers(state, 4, count, lane), name)
            expected[int(where[lane]) :][:size] = np.frombuffer(raw, np.uint8)
        np.testing.assert_array_equal(own[lane], expected, err_msg=f"seed {SEED}")


@pytest.mark.parametrize("name", names("MUBUF", r"buffer_(load|store)_(?!format).*"))
def test_buffer(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    state, memory, base, mask = machine(rng)
    size = parse(name)[0]
    where = np.arange(128).reshape(SHAPE) * 16
    state.vgpr[0] = where.astype(np.uint32)
    state.sgpr[:, 8:12] = [base & DWORD, base >> 32, SIZE, 0x27000]
    before = memory.copy()
    count = max(size // 4, 1)
    address = (Operand(V, 0), Operand(S, 8, 4), OFF)
    if "load" in name:
        inst = Instruction(0, 8, name, "MUBUF", (Operand(V, 8, count),), address, {"offen": 1})
        execute(state, inst)
        check_load(state, name, where, lambda lane: memory, mask)
    else:
        execute(state, Instruction(0, 8, name, "MUBUF", (), (Operand(V, 4, count), *address), {"offen": 1}))
        check_store(name, where, lambda lane: memory, lambda lane: before, mask, state)


LDS_LOADS = [
    *((n, "GLOBAL") for n in names("GLOBAL", r"global_load_lds_.*")),
    *((n, "SCRATCH") for n in names("SCRATCH", r"scratch_load_lds_.*")),
    *((f"buffer_load_{n}", "MUBUF") for n in ("ubyte", "sshort", "dword", "dwordx3", "dwordx4")),
]


@pytest.mark.parametrize(("name", "encoding"), LDS_LOADS)
def test_loads_to_lds(name: str, encoding: str) -> None:
    """Lane i's data goes to M0 + offset + i * size, a byte or short as a dword."""
    rng = np.random.default_rng([SEED, *map(ord, name)])
    state, memory, base, mask = machine(rng)
    state.lds[:] = 0xEE
    size = parse(name)[0]
    state.sgpr[:, 124] = [16, 1040]  # M0 of the two waves
    mods = {"offset": 4 if encoding == "GLOBAL" else 0}
    if encoding == "SCRATCH":
        where = 16 * rng.integers(0, 3, SHAPE)
        state.vgpr[0] = where.astype(np.uint32)
        memory_of, src = (lambda lane: state.scratch.reshape(*SHAPE, 64)[lane]), (Operand(V, 0), OFF)
    else:
        where = np.arange(128).reshape(SHAPE) * 16
        memory_of = lambda lane: memory  # noqa: E731
        if encoding == "GLOBAL":
            where = where % (SIZE - 64)
            put_addresses(state, base + where)
            where = where + 4
            src = (Operand(V, 0, 2), OFF)
        else:
            state.vgpr[0] = where.astype(np.uint32)
            state.sgpr[:, 8:12] = [base & DWORD, base >> 32, SIZE, 0x27000]
            src, mods = (Operand(V, 0), Operand(S, 8, 4), OFF), {"offen": 1, "lds": 1}
    execute(state, Instruction(0, 8, name, encoding, (), src, mods))
    expected = np.full(state.lds.size, 0xEE, np.uint8)
    step = max(size, 4)
    for wave, lane in np.ndindex(*SHAPE):
        start = int(state.sgpr[wave, 124]) + mods.get("offset", 0) + lane * step
        if mask[wave, lane] and start + step <= SIZE:
            raw = memory_of((wave, lane))[int(where[wave, lane]) :][:size].tobytes()
            value = loaded(raw, name, [0])
            expected[start : start + step] = np.frombuffer(
                b"".join(v.to_bytes(4, "little") for v in value), np.uint8
            )
    np.testing.assert_array_equal(state.lds, expected, err_msg=f"seed {SEED}")


#: Bits of the components, by data_format.
FORMATS = {
    1: (8,),
    2: (16,),
    3: (8, 8),
    4: (32,),
    5: (16, 16),
    9: (10, 10, 10, 2),
    10: (8, 8, 8, 8),
    11: (32, 32),
    12: (16, 16, 16, 16),
    13: (32, 32, 32),
    14: (32, 32, 32, 32),
}
NUMBERS = {"unorm": 0, "snorm": 1, "uscaled": 2, "sscaled": 3, "uint": 4, "sint": 5, "float": 7}


def component(code: int, bits: int, number: str) -> float | int:
    is_negative = code >> bits - 1
    as_signed = code - (is_negative << bits)
    if number == "float":
        return struct.unpack("<f" if bits == 32 else "<e", code.to_bytes(bits // 8, "little"))[0]
    return {
        "unorm": code / ((1 << bits) - 1),
        "snorm": max(as_signed / ((1 << bits - 1) - 1), -1.0),
        "uscaled": float(code),
        "sscaled": float(as_signed),
        "uint": code,
        "sint": as_signed & DWORD,
    }[number]


def typed_cases():
    for data, bits in FORMATS.items():
        for number in NUMBERS:
            if number == "float" and min(bits) < 16:
                continue
            if max(bits) == 32 and number in ("unorm", "snorm", "uscaled", "sscaled"):
                continue
            yield data, number


@pytest.mark.parametrize(("data", "number"), list(typed_cases()))
def test_typed_loads_and_stores(data: int, number: str) -> None:
    rng = np.random.default_rng([SEED, data, *map(ord, number)])
    state, memory, base, mask = machine(rng)
    bits = FORMATS[data]
    size = sum(bits) // 8
    if number == "float":  # finite numbers
        floats = rng.standard_normal(SIZE // (min(bits) // 8)).astype(f"f{min(bits) // 8}")
        memory[:] = floats.view(np.uint8)
    where = np.arange(128).reshape(SHAPE) * 16
    state.vgpr[0] = where.astype(np.uint32)
    picks = (4, 5, 6, 7)
    word = NUMBERS[number] << 12 | data << 15 | sum(pick << 3 * i for i, pick in enumerate(picks))
    state.sgpr[:, 8:12] = [base & DWORD, base >> 32, SIZE, word]
    address = (Operand(V, 0), Operand(S, 8, 4), OFF)
    inst = Instruction(0, 8, "buffer_load_format_xyzw", "MUBUF", (Operand(V, 8, 4),), address, {"offen": 1})
    execute(state, inst)
    one = 1 if number in ("uint", "sint") else 1.0
    for lane in np.ndindex(*SHAPE):
        code = int.from_bytes(memory[int(where[lane]) :][:size].tobytes(), "little")
        expected, at = [], 0
        for width in bits:
            expected.append(component(code >> at & (1 << width) - 1, width, number))
            at += width
        expected += [0, 0, 0, one][len(expected) :]
        if not mask[lane]:
            assert registers(state, 8, 4, lane) == [JUNK] * 4
            continue
        got = registers(state, 8, 4, lane)
        if number in ("uint", "sint"):
            assert got == expected, f"seed {SEED}"
        else:
            assert got == [int(np.float32(v).view(np.uint32)) for v in expected], f"seed {SEED}"
    # Storing what was loaded gives the same bytes: the conversions are inverse to each other, but for the
    # two codes of -1 that snorm has.
    before = memory.copy()
    memory[:] = 0x5A
    store = Instruction(
        0, 8, "buffer_store_format_xyzw", "MUBUF", (), (Operand(V, 8, 4), *address), {"offen": 1}
    )
    execute(state, store)
    for lane in np.ndindex(*SHAPE):
        start = int(where[lane])
        got, wanted = memory[start : start + size], before[start : start + size]
        if not mask[lane]:
            assert (got == 0x5A).all()
        elif number != "snorm":
            np.testing.assert_array_equal(got, wanted, err_msg=f"seed {SEED}")
        else:
            low = [1 << w - 1 for w in bits]
            codes = [int.from_bytes(x.tobytes(), "little") for x in (got, wanted)]
            at = 0
            for width, least in zip(bits, low, strict=True):
                parts = [c >> at & (1 << width) - 1 for c in codes]
                assert parts[0] == (least + 1 if parts[1] == least else parts[1])
                at += width
        assert (memory[start + size : start + 16] == 0x5A).all()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_typed_d16(count: int) -> None:
    """16-bit components in halves of registers, of unorm8 and of half floats; the rest of a register is kept."""
    rng = np.random.default_rng([SEED, count])
    suffix = "xyzw"[:count]
    for data, number, width in ((10, "unorm", 8), (12, "float", 16)):
        state, memory, base, _ = machine(rng)
        state.sgpr64[:, 63] = DWORD << 32 | DWORD
        state.exec_changed()
        if number == "float":
            memory[:] = rng.standard_normal(SIZE // 2).astype(np.float16).view(np.uint8)
        where = np.arange(128).reshape(SHAPE) * 16
        state.vgpr[0] = where.astype(np.uint32)
        word = NUMBERS[number] << 12 | data << 15 | 0o7654
        state.sgpr[:, 8:12] = [base & DWORD, base >> 32, SIZE, word]
        address = (Operand(V, 0), Operand(S, 8, 4), OFF)
        name = f"buffer_load_format_d16_{suffix}"
        execute(state, Instruction(0, 8, name, "MUBUF", (Operand(V, 8, 2),), address, {"offen": 1}))
        for lane in np.ndindex(*SHAPE):
            halves = [x for r in registers(state, 8, 2, lane) for x in (r & 0xFFFF, r >> 16)]
            raw = memory[int(where[lane]) :][: 4 * width // 8].tobytes()
            code = int.from_bytes(raw, "little")
            for i, half in enumerate(halves):
                if i >= count:
                    assert half == (JUNK & 0xFFFF, JUNK >> 16)[i % 2]
                    continue
                value = component(code >> width * i & (1 << width) - 1, width, number)
                assert half == int(np.float16(np.float32(value)).view(np.uint16)), f"seed {SEED}"
        before = memory.copy()
        memory[:] = 0
        name = f"buffer_store_format_d16_{suffix}"
        execute(state, Instruction(0, 8, name, "MUBUF", (), (Operand(V, 8, 2), *address), {"offen": 1}))
        used = width * count // 8
        for lane in np.ndindex(*SHAPE):
            got, wanted = (m[int(where[lane]) :][: 4 * width // 8] for m in (memory, before))
            np.testing.assert_array_equal(got[:used], wanted[:used], err_msg=f"seed {SEED}")
            assert not got[used:].any()


def test_typed_d16_high_half_and_selections() -> None:
    state, memory, base, _ = machine(np.random.default_rng(SEED))
    state.sgpr64[:, 63] = DWORD << 32 | DWORD
    state.exec_changed()
    where = np.arange(128).reshape(SHAPE) * 16
    state.vgpr[0] = where.astype(np.uint32)
    # x is the third component, y is 1, z is 0, w is the first.
    word = NUMBERS["uint"] << 12 | 10 << 15 | 6 | 1 << 3 | 0 << 6 | 4 << 9
    state.sgpr[:, 8:12] = [base & DWORD, base >> 32, SIZE, word]
    address = (Operand(V, 0), Operand(S, 8, 4), OFF)
    execute(
        state,
        Instruction(0, 8, "buffer_load_format_xyzw", "MUBUF", (Operand(V, 8, 4),), address, {"offen": 1}),
    )
    parts = memory[where[..., None] + np.arange(4)]
    for register, wanted in enumerate((parts[..., 2], 1, 0, parts[..., 0])):
        np.testing.assert_array_equal(state.vgpr[8 + register], np.broadcast_to(wanted, SHAPE))
    state.vgpr[8] = JUNK
    execute(
        state,
        Instruction(0, 8, "buffer_load_format_d16_hi_x", "MUBUF", (Operand(V, 8),), address, {"offen": 1}),
    )
    np.testing.assert_array_equal(state.vgpr[8], parts[..., 2].astype(np.uint32) << 16 | JUNK & 0xFFFF)
    memory[:] = 0
    name = "buffer_store_format_d16_hi_x"
    execute(state, Instruction(0, 8, name, "MUBUF", (), (Operand(V, 8), *address), {"offen": 1}))
    np.testing.assert_array_equal(memory[where], parts[..., 2])
    assert not memory[where + 1].any()


@pytest.mark.parametrize("add_tid", [False, True])
@pytest.mark.parametrize("index_stride", range(4))
def test_swizzled_buffers(index_stride: int, add_tid: bool) -> None:
    """The dwords of 8 << index_stride elements are interleaved (ISA document, "Swizzled buffer addressing")."""
    rng = np.random.default_rng([SEED, index_stride, add_tid])
    state = batch()
    stride, elements = 16, 192
    memory = rng.integers(0, 2**32, elements * stride // 4, dtype=np.uint32)
    base = state.memory.register(memory, name="memory")
    index = rng.integers(0, elements + 8 - 64 * add_tid, SHAPE)
    offset = 4 * rng.integers(0, 5, SHAPE)
    state.vgpr[0], state.vgpr[1] = index.astype(np.uint32), offset.astype(np.uint32)
    words = [base & DWORD, base >> 32 | stride << 16 | 1 << 31, elements, index_stride << 21 | add_tid << 23]
    state.sgpr[:, 8:12] = words
    src = (Operand(V, 0, 2), Operand(S, 8, 4), const(0, 128))
    mods = {"offen": 1, "idxen": 1}
    execute(state, Instruction(0, 8, "buffer_load_dword", "MUBUF", (Operand(V, 8),), src, mods))
    group = 8 << index_stride
    for wave, lane in np.ndindex(*SHAPE):
        i, within = int(index[wave, lane]) + lane * add_tid, int(offset[wave, lane])
        at = (i // group * stride + within) * group + i % group * 4
        expected = int(memory[at // 4]) if i < elements and within < stride else 0
        assert int(state.vgpr[8, wave, lane]) == expected, f"seed {SEED}"


def test_add_tid_without_swizzling() -> None:
    state = batch()
    memory = np.arange(64 * 3, dtype=np.uint32)
    base = state.memory.register(memory, name="memory")
    state.sgpr[:, 8:12] = [base & DWORD, base >> 32 | 12 << 16, 64, 1 << 23]
    src = (OFF, Operand(S, 8, 4), const(0, 128))
    execute(state, Instruction(0, 8, "buffer_load_dword", "MUBUF", (Operand(V, 8),), src, {"offset": 4}))
    np.testing.assert_array_equal(state.vgpr[8], np.broadcast_to(3 * np.arange(64) + 1, SHAPE))


@pytest.mark.parametrize("is_buffer", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_scalar_stores(count: int, is_buffer: bool) -> None:
    rng = np.random.default_rng([SEED, count, is_buffer])
    state = batch()
    memory = rng.integers(0, 2**32, 64, dtype=np.uint32)
    before = memory.copy()
    base = state.memory.register(memory, name="memory")
    state.sgpr[:, 4:8] = rng.integers(0, 2**32, (WAVES, 4), dtype=np.uint32)
    state.sgpr[:, 12:16] = [base & DWORD, base >> 32, 40, 0]
    state.sgpr[:, 16] = [16, 32]
    name = f"s_{'buffer_' * is_buffer}store_dword{'' if count == 1 else f'x{count}'}"
    src = (Operand(S, 4, count), Operand(S, 12, 4 if is_buffer else 2), Operand(S, 16))
    execute(state, Instruction(0, 8, name, "SMEM", (), src, {}))
    for wave, start in enumerate((4, 8)):
        for i in range(count):
            if not is_buffer or 4 * (start + i) + 4 <= 40:
                before[start + i] = state.sgpr[wave, 4 + i]
    np.testing.assert_array_equal(memory, before, err_msg=f"seed {SEED}")


def test_lds_by_lane_number_and_six_bit_transpose() -> None:
    rng = np.random.default_rng(SEED)
    state = batch(lds=4096)
    state.lds[:] = rng.integers(0, 256, state.lds.size)
    state.sgpr[:, 124] = [64, 1024]
    execute(state, Instruction(0, 8, "ds_read_addtid_b32", "DS", (Operand(V, 8),), (), {"offset": 8}))
    for wave, lane in np.ndindex(*SHAPE):
        start = int(state.sgpr[wave, 124]) + 8 + 4 * lane
        assert state.lds[start : start + 4].view(np.uint32)[0] == state.vgpr[8, wave, lane]
    state.vgpr[9] = ~state.vgpr[8]
    execute(state, Instruction(0, 8, "ds_write_addtid_b32", "DS", (), (Operand(V, 9),), {"offset": 8}))
    execute(state, Instruction(0, 8, "ds_read_addtid_b32", "DS", (Operand(V, 10),), (), {"offset": 8}))
    np.testing.assert_array_equal(state.vgpr[10], state.vgpr[9])
    state.vgpr[0] = (np.arange(128).reshape(SHAPE) * 12).astype(np.uint32)
    execute(state, Instruction(0, 8, "ds_read_b96_tr_b6", "DS", (Operand(V, 12, 3),), (Operand(V, 0),), {}))
    for wave, lane in np.ndindex(*SHAPE):
        got = sum(int(state.vgpr[12 + i, wave, lane]) << 32 * i for i in range(3))
        for element in range(16):
            source = wave * 64 + lane // 16 * 16 + element
            row = int.from_bytes(state.lds[12 * source : 12 * source + 12].tobytes(), "little")
            assert got >> 6 * element & 63 == row >> 6 * (lane % 16) & 63
