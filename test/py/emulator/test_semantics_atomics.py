"""Every atomic of every memory, and the LDS exchanges, lane after lane on Python numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from harness import SEED, SHAPE, WAVES, S, V, batch, execute, pack

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.isa.opcodes import OPCODES

OFF = Operand(OperandKind.OFF, 0, 0)
CELLS = 16
DWORD = 0xFFFFFFFF

#: update(old, first operand, second operand, bits) of unsigned numbers.
INTEGER: dict[str, Callable[[int, int, int, int], int]] = {
    "swap": lambda old, a, b, n: a,
    "add": lambda old, a, b, n: old + a,
    "sub": lambda old, a, b, n: old - a,
    "rsub": lambda old, a, b, n: a - old,
    "smin": lambda old, a, b, n: min(old, a, key=lambda x: signed(x, n)),
    "umin": lambda old, a, b, n: min(old, a),
    "smax": lambda old, a, b, n: max(old, a, key=lambda x: signed(x, n)),
    "umax": lambda old, a, b, n: max(old, a),
    "and": lambda old, a, b, n: old & a,
    "or": lambda old, a, b, n: old | a,
    "xor": lambda old, a, b, n: old ^ a,
    "inc": lambda old, a, b, n: 0 if old >= a else old + 1,
    "dec": lambda old, a, b, n: a if old == 0 or old > a else old - 1,
    "cmpswap": lambda old, new, compare, n: new if old == compare else old,
    "cmpst": lambda old, compare, new, n: new if old == compare else old,
    "mskor": lambda old, mask, value, n: old & ~mask | value,
    "wrap": lambda old, a, b, n: old - a if old >= a else old + b,
    "condxchg32": lambda old, a, b, n: sum(
        (a >> s & 0x7FFFFFFF if a >> s + 31 & 1 else old >> s & DWORD) << s for s in (0, 32)
    ),
}
DS_NAMES = {"min_i": "smin", "max_i": "smax", "min_u": "umin", "max_u": "umax", "wrxchg": "swap"}


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) * (value >> bits - 1)


def update(operation: str, kind: str, old: int, a: int, b: int) -> int:
    """The new bits of a cell."""
    bits = int(re.search(r"\d+$", kind)[0])
    if operation.startswith("pk_add"):
        dtype = np.float16 if kind == "f16" else ml_dtypes.bfloat16
        parts = [np.array([x & 0xFFFF, x >> 16], np.uint16).view(dtype).astype(np.float32) for x in (old, a)]
        low, high = (parts[0] + parts[1]).astype(dtype).view(np.uint16).tolist()
        return low | high << 16
    if not kind.startswith("f"):
        return INTEGER[operation](old, a, b, bits) & ((1 << bits) - 1)
    x, y, z = (np.array(v, f"u{bits // 8}").view(f"f{bits // 8}") for v in (old, a, b))
    with np.errstate(all="ignore"):
        result = {
            "add": lambda: x + y,
            "min": lambda: y if y < x else x,
            "max": lambda: y if y > x else x,
            "cmpst": lambda: z if x == y else x,
        }[operation]()
    return int(np.asarray(result).view(f"u{bits // 8}"))


def operands(rng: np.random.Generator, operation: str, kind: str, count: int) -> np.ndarray:
    """`count` bit patterns: collisions of values are likely; floats are numbers without -0."""
    bits = 32 if operation.startswith("pk_") else int(re.search(r"\d+$", kind)[0])
    if operation.startswith("pk_"):
        dtype = np.float16 if kind == "f16" else ml_dtypes.bfloat16
        return rng.integers(1, 100, (count, 2)).astype(dtype).view(np.uint32)[:, 0].astype(np.uint64)
    if kind.startswith("f"):
        return rng.integers(1, 9, count).astype(f"f{bits // 8}").view(f"u{bits // 8}").astype(np.uint64)
    small = rng.integers(0, 4, count, dtype=np.uint64)
    wide = rng.integers(0, 2**bits, count, dtype=np.uint64, endpoint=False)
    return np.where(rng.integers(0, 2, count), small, wide)


def parse(name: str) -> tuple[str, str, bool]:
    """(operation, type of the cell, returns by its name) of an atomic."""
    if name.startswith("ds_"):
        match = re.fullmatch(r"ds_(\w+?)(_rtn)?_((?:b|u|i|f|bf)\d+)", name)
        operation, kind = match[1], match[3]
        operation = DS_NAMES.get(f"{operation}_{kind[0]}", DS_NAMES.get(operation, operation))
        return operation, kind, match[2] is not None
    body = name.split("atomic_")[1]
    wide = body.endswith("_x2")
    body = body.removesuffix("_x2")
    floating = re.fullmatch(r"(\w+)_(b?f\d+)", body)
    if floating:
        return floating[1], floating[2], False
    return body, "u64" if wide else "u32", False


DS = sorted(
    o.name
    for o in OPCODES.values()
    if o.encoding == "DS"
    and re.match(
        r"ds_(add|sub|rsub|inc|dec|min|max|and|or|xor|mskor|wrxchg|cmpst|wrap|pk_add|condxchg)", o.name
    )
    and "wrxchg2" not in o.name
    and "addtid" not in o.name
)
MEMORY = sorted(
    (o.name, o.encoding)
    for o in OPCODES.values()
    if "atomic_" in o.name and o.encoding in ("GLOBAL", "FLAT", "MUBUF")
)
SCALAR = sorted(o.name for o in OPCODES.values() if "atomic_" in o.name and o.encoding == "SMEM")


def rows_of(values: np.ndarray, size: int) -> np.ndarray:
    """Bit patterns [2, 64] as register rows [size / 4, 2, 64]."""
    return np.stack([(values >> np.uint64(32 * i)).astype(np.uint32) for i in range(size // 4)])


def expect(operation, kind, cells, order, first, second):
    """Run the lanes `order` on `cells` (a list, in place); returns the old values by lane."""
    old = {}
    for lane, cell in order:
        old[lane] = cells[cell]
        cells[cell] = update(operation, kind, cells[cell], int(first[lane]), int(second[lane]))
    return old


def prepare(rng: np.random.Generator, operation: str, kind: str):
    size = 4 if operation.startswith("pk_") else int(re.search(r"\d+$", kind)[0]) // 8
    cells = operands(rng, operation, kind, CELLS)
    first, second = (operands(rng, operation, kind, WAVES * 64).reshape(SHAPE) for _ in range(2))
    where = rng.integers(0, CELLS, SHAPE)
    mask = rng.integers(0, 4, SHAPE) > 0
    return size, cells, first, second, where, mask


def check(state, size: int, returns: bool, mask, old: dict, register: int, junk: int) -> None:
    for lane in np.ndindex(*SHAPE):
        got = sum(int(state.vgpr[(register + i, *lane)]) << 32 * i for i in range(size // 4))
        kept = sum(junk << 32 * i for i in range(size // 4))
        assert got == (old[lane] if returns and mask[lane] else kept), f"lane {lane}, seed {SEED}"


@pytest.mark.parametrize("name", DS)
def test_lds(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    operation, kind, returns = parse(name)
    size, cells, first, second, where, mask = prepare(rng, operation, kind)
    state = batch(lds=512)  # both waves are of one workgroup
    state.lds[64 : 64 + CELLS * size] = cells.astype(f"u{size}").view(np.uint8)
    state.vgpr[0] = (where * size).astype(np.uint32)
    count = size // 4
    state.vgpr[2 : 2 + count], state.vgpr[4 : 4 + count] = rows_of(first, size), rows_of(second, size)
    state.vgpr[6:8] = 7
    state.sgpr64[:, 63] = pack(mask)
    state.exec_changed()
    src = [Operand(V, 0), Operand(V, 2, count), Operand(V, 4, count)]
    opcode = next(o for o in OPCODES.values() if o.name == name)
    dst = (Operand(V, 6, count),) * returns
    execute(state, Instruction(0, 8, name, "DS", dst, tuple(src[: len(opcode.src)]), {"offset": 64}))
    expected = cells.tolist()
    order = [(lane, int(where[lane])) for lane in np.ndindex(*SHAPE) if mask[lane]]
    old = expect(operation, kind, expected, order, first, second)
    assert state.lds[64 : 64 + CELLS * size].view(f"u{size}").tolist() == expected, f"seed {SEED}"
    check(state, size, returns, mask, old, 6, 7)


@pytest.mark.parametrize("returns", [False, True])
@pytest.mark.parametrize(("name", "encoding"), MEMORY)
def test_memory(name: str, encoding: str, returns: bool) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name), returns])
    operation, kind, _ = parse(name)
    size, cells, first, second, where, mask = prepare(rng, operation, kind)
    state = batch()
    memory = cells.astype(f"u{size}")
    base = state.memory.register(memory, name="cells")
    count = size // 4
    data_count = 2 * count if operation == "cmpswap" else count
    state.vgpr[2 : 2 + count] = rows_of(first, size)
    state.vgpr[2 + count : 2 + 2 * count] = rows_of(second, size)
    state.vgpr[6:8] = 7
    state.sgpr64[:, 63] = pack(mask)
    state.exec_changed()
    data = Operand(V, 2, data_count)
    addresses = (base + where * size).astype(np.uint64)
    if encoding == "MUBUF":
        state.sgpr[:, 8:12] = [base & DWORD, base >> 32, CELLS * size, 0x27000]
        state.vgpr[0] = (where * size).astype(np.uint32)
        src, mods = (data, Operand(V, 0), Operand(S, 8, 4), OFF), {"offen": 1}
        if returns:  # the old value comes back in the data's registers
            state.vgpr[2 : 2 + count] = rows_of(first, size)
    else:
        state.vgpr[0:2] = rows_of(addresses, 8)
        src, mods = (Operand(V, 0, 2), data, *((OFF,) if encoding == "GLOBAL" else ())), {}
    target = 2 if encoding == "MUBUF" else 6
    before = state.vgpr[2:4].copy()
    dst = (Operand(V, target, count),) * returns
    execute(state, Instruction(0, 8, name, encoding, dst, src, {**mods, "sc0": int(returns)}))
    expected = cells.tolist()
    order = [(lane, int(where[lane])) for lane in np.ndindex(*SHAPE) if mask[lane]]
    old = expect(operation, kind, expected, order, first, second)
    assert memory.tolist() == expected, f"seed {SEED}"
    if encoding != "MUBUF":
        check(state, size, returns, mask, old, 6, 7)
    elif returns:
        for lane in np.ndindex(*SHAPE):
            got = [int(state.vgpr[(2 + i, *lane)]) for i in range(count)]
            kept = [int(before[(i, *lane)]) for i in range(count)]
            assert got == ([old[lane] >> 32 * i & DWORD for i in range(count)] if mask[lane] else kept)


@pytest.mark.parametrize("name", SCALAR)
def test_scalar(name: str) -> None:
    rng = np.random.default_rng([SEED, *map(ord, name)])
    operation, kind, _ = parse(name)
    size = int(kind[1:]) // 8
    count = size // 4
    cells = operands(rng, operation, kind, CELLS)
    state = batch()
    memory = cells.astype(f"u{size}")
    base = state.memory.register(memory, name="cells")
    first, second = (operands(rng, operation, kind, WAVES) for _ in range(2))
    for wave in range(WAVES):
        for i in range(count):
            state.sgpr[wave, 4 + i] = int(first[wave]) >> 32 * i & DWORD
            state.sgpr[wave, 4 + count + i] = int(second[wave]) >> 32 * i & DWORD
    is_buffer = "buffer" in name
    state.sgpr[:, 12:16] = [base & DWORD, base >> 32, CELLS * size, 0]
    state.sgpr[:, 16] = 3 * size
    data = Operand(S, 4, count * (2 if operation == "cmpswap" else 1))
    src = (data, Operand(S, 12, 4 if is_buffer else 2), Operand(S, 16))
    execute(state, Instruction(0, 8, name, "SMEM", (Operand(S, 4, count),), src, {"glc": 1}))
    expected = cells.tolist()
    order = [(wave, 3) for wave in range(WAVES)]
    old = expect(operation, kind, expected, order, first, second)
    assert memory.tolist() == expected, f"seed {SEED}"
    for wave in range(WAVES):
        assert sum(int(state.sgpr[wave, 4 + i]) << 32 * i for i in range(count)) == old[wave]


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("stride", ["", "st64"])
def test_paired_exchange(bits: int, stride: str) -> None:
    rng = np.random.default_rng([SEED, bits])
    state = batch(lds=1 << 16)
    size = bits // 8
    count, unit = bits // 32, size * (64 if stride else 1)
    state.lds[:] = rng.integers(0, 256, state.lds.size)
    before = state.lds.copy()
    address = (rng.permutation(WAVES * 64).reshape(SHAPE) * 2 * size).astype(np.uint32)
    state.vgpr[0] = address
    data = rng.integers(0, 2**32, (2 * count, *SHAPE), dtype=np.uint32)
    state.vgpr[2 : 2 + 2 * count] = data
    src = (Operand(V, 0), Operand(V, 2, count), Operand(V, 2 + count, count))
    mods = {"offset0": 0, "offset1": 1}
    name = f"ds_wrxchg2{stride}_rtn_b{bits}"
    execute(state, Instruction(0, 8, name, "DS", (Operand(V, 8, 2 * count),), src, mods))
    for half in range(2):
        for lane in np.ndindex(*SHAPE):
            start = int(address[lane]) + half * unit
            new = np.ascontiguousarray(data[(slice(half * count, (half + 1) * count), *lane)]).tobytes()
            old = np.ascontiguousarray(
                state.vgpr[(slice(8 + half * count, 8 + (half + 1) * count), *lane)]
            ).tobytes()
            if not stride:  # with st64 the cells of different lanes may meet
                assert state.lds[start : start + size].tobytes() == new
                assert before[start : start + size].tobytes() == old
    if stride:
        written = {
            data[(slice(h * count, (h + 1) * count), *lane)].tobytes()
            for h in range(2)
            for lane in np.ndindex(*SHAPE)
        }
        changed = state.lds.reshape(-1, size)[(state.lds != before).reshape(-1, size).any(axis=1)]
        assert len(changed) > 64
        assert {row.tobytes() for row in changed} <= written


@pytest.mark.parametrize(("name", "sign"), [("ds_append", 1), ("ds_consume", -1)])
def test_counters(name: str, sign: int) -> None:
    rng = np.random.default_rng([SEED, sign + 1])
    state = batch(lds=64)
    mask = rng.integers(0, 2, SHAPE) > 0
    state.lds[:] = 0
    state.lds[24:28] = np.array([1000], np.uint32).view(np.uint8)
    state.sgpr[:, 124] = 16
    state.sgpr64[:, 63] = pack(mask)
    state.exec_changed()
    execute(state, Instruction(0, 8, name, "DS", (Operand(V, 2),), (), {"offset": 8}))
    total = 1000
    for wave in range(WAVES):
        assert (state.vgpr[2, wave][mask[wave]] == total).all()
        total += sign * int(mask[wave].sum())
    assert state.lds[24:28].view(np.uint32)[0] == total
