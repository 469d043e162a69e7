"""Executes single instructions on chosen register contents, for tests against scalar references."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from flycc.emulator.elf import Kernel
from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.memory import Memory
from flycc.emulator.semantics import bind
from flycc.emulator.state import Batch, Mode

#: Fresh every run unless FLYCC_TEST_SEED repeats one: see test/py/conftest.py.
SEED = int(os.environ["FLYCC_TEST_SEED"])

WAVES = 2
SHAPE = (WAVES, 64)

V, S, A = OperandKind.VGPR, OperandKind.SGPR, OperandKind.AGPR


def descriptor(**changes: object) -> Kernel:
    """A kernel descriptor of default modes."""
    fields: dict[str, object] = {
        "name": "test",
        "entry": 0,
        "code_size": 0,
        "kernarg_size": 0,
        "kernarg_align": 8,
        "lds_bytes": 0,
        "scratch_bytes": 0,
        "vgpr_count": 128,
        "accum_offset": 64,
        "sgpr_count": 96,
        "user_sgprs": (),
        "enable_workgroup_id_x": True,
        "enable_workgroup_id_y": False,
        "enable_workgroup_id_z": False,
        "workitem_dims": 1,
        "round_mode_32": 0,
        "round_mode_16_64": 0,
        "denorm_mode_32": 3,
        "denorm_mode_16_64": 3,
        "dx10_clamp": True,
        "ieee_mode": True,
        "fp16_overflow": False,
        "kernarg_preload": (0, 0),
        "args": (),
        "max_workgroup_size": 1024,
    }
    return Kernel(**{**fields, **changes})  # type: ignore[arg-type]


def batch(
    *, groups: int = 1, waves_per_group: int = WAVES, lds: int = 0, scratch: int = 0, mode: Mode | None = None
) -> Batch:
    """A batch in its reset state: 64 architectural and 64 accumulation registers."""
    made = Batch(descriptor(), groups, waves_per_group, 128, 64, lds, scratch, mode=mode or Mode())
    made.reset(Memory(), np.zeros((groups, 3), np.int64))
    return made


def const(value: int, index: int = 255) -> Operand:
    return Operand(OperandKind.CONST, index, 1, value)


#: Names of the instructions that tests of this process executed: see test/py/conftest.py.
executed: set[str] = set()


def words(values: np.ndarray) -> np.ndarray:
    """Any values [waves, 64] as uint32 rows [n, waves, 64]; narrower ones zero-extended."""
    if values.dtype.itemsize < 4:
        return values.view(f"u{values.dtype.itemsize}").astype(np.uint32)[None]
    return np.moveaxis(np.ascontiguousarray(values)[..., None].view(np.uint32), -1, 0)


def execute(state: Batch, inst: Instruction) -> None:
    """Execute one instruction and let what it loads land."""
    executed.add(inst.name)
    with np.errstate(all="ignore"):
        bind(state, inst)()
    state.wait(0, 0)


def vector(
    name: str,
    sources: Sequence[np.ndarray | Operand],
    out: type = np.uint32,
    *,
    encoding: str = "VOP3",
    mods: dict[str, int] | None = None,
    old: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    mode: Mode | None = None,
) -> np.ndarray:
    """The result of a vector instruction on sources [waves, 64] (v2, v4, ...) as `out` [waves, 64].

    16-bit results are the whole register. `old` is the destination's value before.
    """
    state = batch(mode=mode)
    operands = []
    for i, source in enumerate(sources):
        if isinstance(source, Operand):
            operands.append(source)
            continue
        rows = words(source)
        state.vgpr[2 + 2 * i : 2 + 2 * i + len(rows)] = rows
        operands.append(Operand(V, 2 + 2 * i, len(rows)))
    dtype = np.dtype(out)
    count = max(dtype.itemsize // 4, 1)
    if old is not None:
        state.vgpr[20 : 20 + count] = words(old)
    if mask is not None:
        state.sgpr64[:, 63] = pack(mask)
        state.exec_changed()
    execute(state, Instruction(0, 8, name, encoding, (Operand(V, 20, count),), tuple(operands), mods or {}))
    rows = state.vgpr[20 : 20 + count]
    return np.ascontiguousarray(np.moveaxis(rows, 0, -1)).view(out if dtype.itemsize >= 4 else np.uint32)[
        ..., 0
    ]


def pack(mask: np.ndarray) -> np.ndarray:
    """bool [waves, 64] to uint64 [waves]."""
    return (mask.astype(np.uint64) << np.arange(64, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)


def unpack(lanes: np.ndarray) -> np.ndarray:
    """uint64 [waves] to bool [waves, 64]."""
    return (lanes[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).astype(bool)


def integers(rng: np.random.Generator, bits: int) -> np.ndarray:
    """Unsigned integers [waves, 64] that are random in size, with the extremes among them."""
    special = [
        0,
        1,
        2,
        31,
        32,
        63,
        2 ** (bits - 1) - 1,
        2 ** (bits - 1),
        2**bits - 1,
        2**bits - 2,
        0x00FFFFFF,
        0x00800000,
    ]
    values = [
        int(rng.integers(0, 2**bits, dtype=np.uint64)) >> int(rng.integers(0, bits))
        for _ in range(WAVES * 64)
    ]
    for at in rng.permutation(WAVES * 64)[: WAVES * 24]:
        values[at] = special[int(rng.integers(len(special)))] & (2**bits - 1)
    return np.array(values, np.uint64).astype(f"u{bits // 8}").reshape(SHAPE)


def floats(rng: np.random.Generator, dtype: type, *, spread: int | None = None) -> np.ndarray:
    """Floats [waves, 64]: random bits, numbers of 2**-spread to 2**spread, and every special value."""
    info = np.finfo(dtype)
    bits = 8 * info.dtype.itemsize
    unsigned = np.dtype(f"u{info.dtype.itemsize}")
    raw = rng.integers(0, 2**bits, WAVES * 64, dtype=np.uint64).astype(unsigned).view(dtype)
    spread = spread or 4
    near = (rng.standard_normal(WAVES * 64) * 2.0 ** rng.integers(-spread, spread + 1, WAVES * 64)).astype(
        dtype
    )
    tiny, largest = info.smallest_subnormal, info.max
    special = np.array(
        [
            0.0,
            -0.0,
            1,
            -1,
            0.5,
            np.inf,
            -np.inf,
            np.nan,
            tiny,
            -tiny,
            info.smallest_normal,
            largest,
            -largest,
        ],
        dtype,
    )
    signalling = (np.array(np.inf, dtype).view(unsigned) | unsigned.type(1)).view(dtype)
    pool = np.append(special, signalling)
    kind = rng.integers(0, 3, WAVES * 64)
    values = np.where(kind == 0, raw, np.where(kind == 1, near, pool[rng.integers(0, len(pool), WAVES * 64)]))
    return values.astype(dtype).reshape(SHAPE)
