"""Scalar ALU instructions: one value a wave, and the scalar condition code SCC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand, OperandKind
from flycc.emulator.semantics.integer import (
    find_high,
    find_high_signed,
    find_low,
    mul_high,
    reverse_bits,
)
from flycc.emulator.semantics.operands import (
    I32,
    I64,
    U32,
    U64,
    Binder,
    Op,
    UnsupportedInstruction,
    constant,
    reader,
    scalar_sink,
    scalar_source,
    scc_sink,
)
from flycc.emulator.semantics.waits import bind_waitcnt
from flycc.emulator.state import EXEC, Batch

_U = np.uint32
_EXEC = Operand(OperandKind.SGPR, EXEC, 2)


class Scalar(NamedTuple):
    """`function(*sources) -> result`, or with `scc` -> (result, scc).

    `out` is None for compares, whose one result is SCC. `reads_scc` passes the condition code (bool
    [waves]) as the last argument, `reads_dst` the old destination as the first.
    """

    function: Callable[..., Any]
    out: np.dtype | None
    sources: tuple[np.dtype, ...]
    scc: bool = False
    reads_scc: bool = False
    reads_dst: bool = False


def bind_scalar(batch: Batch, inst: Instruction, form: Scalar) -> Op:
    """A closure that executes one scalar instruction."""
    sources = [scalar_source(batch, s, t) for s, t in zip(inst.src, form.sources, strict=False)]
    if len(sources) < len(form.sources):  # SOPK: the 16-bit immediate, sign- or zero-extended by type
        dtype = form.sources[-1]
        immediate = inst.mods["simm16"]
        if dtype.kind == "i" and immediate & 0x8000:
            immediate -= 0x10000
        sources.append(constant(immediate, dtype))
    if form.reads_dst:
        sources.insert(0, scalar_source(batch, inst.dst[0], form.out or U32))
    if form.reads_scc:
        sources.append(batch.scc)
    read = reader(sources)
    put_scc = scc_sink(batch)
    function = form.function
    if form.out is None:
        return lambda: put_scc(function(*read()))
    put = scalar_sink(batch, inst.dst[0], form.out)
    if not form.scc:
        return lambda: put(function(*read()))

    def op() -> None:
        value, flag = function(*read())
        put(value)
        put_scc(flag)

    return op


def _nonzero(function: Callable[..., Any]) -> Callable[..., Any]:
    """A result with SCC = result is not zero."""

    def evaluate(*values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        out = function(*values)
        return out, out != 0

    return evaluate


def _add(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    return total, total < a


def _addc(a: np.ndarray, b: np.ndarray, carry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    wide = np.add(a, b, dtype=np.uint64) + carry
    return wide.astype(_U), wide > 0xFFFF_FFFF


def _subb(a: np.ndarray, b: np.ndarray, borrow: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    wide = np.subtract(a, b, dtype=np.int64) - borrow
    return wide.astype(_U), wide < 0


def _add_signed(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _sub_signed(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a - b
    return total, ((a ^ b) & (a ^ total)) < 0


def _shift(function: np.ufunc) -> Callable[..., Any]:
    def evaluate(value: np.ndarray, amount: np.ndarray) -> np.ndarray:
        width = 8 * value.dtype.itemsize
        return function(value, (amount & _U(width - 1)).astype(value.dtype))

    return evaluate


def _bfe(value: np.ndarray, control: np.ndarray) -> np.ndarray:
    """s_bfe: bits 4:0 (5:0 for 64 bits) of the control are the offset, 22:16 the width."""
    bits = 8 * value.dtype.itemsize
    offset = (control & _U(bits - 1)).astype(np.int64)
    width = np.minimum((control >> _U(16) & _U(0x7F)).astype(np.int64), bits)
    drop = (bits - np.minimum(width, bits - offset)).astype(value.dtype)
    moved = value >> offset.astype(value.dtype)
    # Shifting up and down again by `drop` extends from the top of the field; by all bits gives 0.
    inside = np.where(drop == bits, 0, drop).astype(value.dtype)
    return np.where(width == 0, value.dtype.type(0), (moved << inside) >> inside)


def _bfm(dtype: np.dtype) -> Callable[..., Any]:
    kind, limit = dtype.type, _U(8 * dtype.itemsize - 1)

    def evaluate(width: np.ndarray, offset: np.ndarray) -> np.ndarray:
        ones = (kind(1) << (width & limit).astype(dtype)) - kind(1)
        return ones << (offset & limit).astype(dtype)

    return evaluate


def _pick(larger: Callable[..., Any], choose: np.ufunc) -> Callable[..., Any]:
    """s_min and s_max: SCC says that source 0 was taken."""
    return lambda a, b: (choose(a, b), larger(a, b))


def _shift_add(amount: int) -> Callable[..., Any]:
    def evaluate(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wide = (a.astype(np.uint64) << np.uint64(amount)) + b
        return wide.astype(_U), wide > 0xFFFF_FFFF

    return evaluate


def _pack(low_shift: int, high_shift: int) -> Callable[..., Any]:
    return lambda a, b: (a >> _U(low_shift) & _U(0xFFFF)) | (b >> _U(high_shift)) << _U(16)


def _set_bit(value: int) -> Callable[..., Any]:
    def evaluate(old: np.ndarray, index: np.ndarray) -> np.ndarray:
        bit = old.dtype.type(1) << (index & _U(8 * old.dtype.itemsize - 1)).astype(old.dtype)
        return old | bit if value else old & ~bit

    return evaluate


def _test_bit(value: int) -> Callable[..., Any]:
    def evaluate(word: np.ndarray, index: np.ndarray) -> np.ndarray:
        shift = (index & _U(8 * word.dtype.itemsize - 1)).astype(word.dtype)
        return (word >> shift & word.dtype.type(1)) == value

    return evaluate


def _ones(value: np.ndarray) -> np.ndarray:
    return np.bitwise_count(value).astype(_U)


def _quad_mask(value: np.ndarray, spread: bool) -> np.ndarray:
    """One bit per group of four bits: packed (s_quadmask), or spread over the four (s_wqm)."""
    out = np.zeros_like(value)
    one = value.dtype.type(1)
    for quad in range(2 * value.dtype.itemsize):
        on = (value >> value.dtype.type(4 * quad) & value.dtype.type(15)) != 0
        out |= (on * (one * 15 if spread else one)) << value.dtype.type(4 * quad if spread else quad)
    return out


def _replicate(value: np.ndarray) -> np.ndarray:
    """s_bitreplicate: every bit twice."""
    wide = np.ascontiguousarray(np.broadcast_to(value, (max(value.size, 1),)))
    bits = np.unpackbits(wide[:, None].view(np.uint8), axis=1, bitorder="little")
    return np.packbits(np.repeat(bits, 2, axis=1), axis=1, bitorder="little").view(np.uint64)[:, 0]


FORMS: dict[str, Scalar] = {
    "s_add_u32": Scalar(_add, U32, (U32, U32), scc=True),
    "s_sub_u32": Scalar(lambda a, b: (a - b, b > a), U32, (U32, U32), scc=True),
    "s_add_i32": Scalar(_add_signed, I32, (I32, I32), scc=True),
    "s_sub_i32": Scalar(_sub_signed, I32, (I32, I32), scc=True),
    "s_addc_u32": Scalar(_addc, U32, (U32, U32), scc=True, reads_scc=True),
    "s_subb_u32": Scalar(_subb, U32, (U32, U32), scc=True, reads_scc=True),
    "s_mul_i32": Scalar(np.multiply, U32, (U32, U32)),
    "s_mul_hi_u32": Scalar(mul_high, U32, (U32, U32)),
    "s_mul_hi_i32": Scalar(mul_high, I32, (I32, I32)),
    "s_absdiff_i32": Scalar(
        _nonzero(lambda a, b: np.maximum(a, b) - np.minimum(a, b)), I32, (I32, I32), scc=True
    ),
    "s_abs_i32": Scalar(_nonzero(np.abs), I32, (I32,), scc=True),
    "s_bfm_b32": Scalar(_bfm(U32), U32, (U32, U32)),
    "s_bfm_b64": Scalar(_bfm(U64), U64, (U32, U32)),
    "s_sext_i32_i8": Scalar(lambda a: a << 24 >> 24, I32, (I32,)),
    "s_sext_i32_i16": Scalar(lambda a: a << 16 >> 16, I32, (I32,)),
    "s_pack_ll_b32_b16": Scalar(_pack(0, 0), U32, (U32, U32)),
    "s_pack_lh_b32_b16": Scalar(_pack(0, 16), U32, (U32, U32)),
    "s_pack_hh_b32_b16": Scalar(_pack(16, 16), U32, (U32, U32)),
    "s_bitreplicate_b64_b32": Scalar(_replicate, U64, (U32,)),
    "s_movk_i32": Scalar(np.positive, I32, (I32,)),
    "s_cmovk_i32": Scalar(
        lambda old, k, scc: np.where(scc, k, old), I32, (I32,), reads_dst=True, reads_scc=True
    ),
    "s_addk_i32": Scalar(_add_signed, I32, (I32,), scc=True, reads_dst=True),
    "s_mulk_i32": Scalar(np.multiply, I32, (I32,), reads_dst=True),
    "s_flbit_i32": Scalar(find_high_signed, U32, (I32,)),
    "s_flbit_i32_i64": Scalar(find_high_signed, U32, (I64,)),
    "s_min_i32": Scalar(_pick(np.less, np.minimum), I32, (I32, I32), scc=True),
    "s_min_u32": Scalar(_pick(np.less, np.minimum), U32, (U32, U32), scc=True),
    "s_max_i32": Scalar(_pick(np.greater, np.maximum), I32, (I32, I32), scc=True),
    "s_max_u32": Scalar(_pick(np.greater, np.maximum), U32, (U32, U32), scc=True),
    "s_ashr_i32": Scalar(_nonzero(_shift(np.right_shift)), I32, (I32, U32), scc=True),
    "s_ashr_i64": Scalar(_nonzero(_shift(np.right_shift)), I64, (I64, U32), scc=True),
    "s_bfe_i32": Scalar(_nonzero(_bfe), I32, (I32, U32), scc=True),
    "s_bfe_i64": Scalar(_nonzero(_bfe), I64, (I64, U32), scc=True),
}
for _amount in range(1, 5):
    FORMS[f"s_lshl{_amount}_add_u32"] = Scalar(_shift_add(_amount), U32, (U32, U32), scc=True)

#: Two-operand logic: also the operation of the saveexec instructions.
LOGIC: dict[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}

for _bits, _type in (("b32", U32), ("b64", U64)):
    for _name, _function in LOGIC.items():
        FORMS[f"s_{_name}_{_bits}"] = Scalar(_nonzero(_function), _type, (_type, _type), scc=True)
    FORMS[f"s_mov_{_bits}"] = Scalar(np.positive, _type, (_type,))
    FORMS[f"s_not_{_bits}"] = Scalar(_nonzero(np.invert), _type, (_type,), scc=True)
    FORMS[f"s_brev_{_bits}"] = Scalar(reverse_bits, _type, (_type,))
    FORMS[f"s_cmov_{_bits}"] = Scalar(
        lambda old, a, scc: np.where(scc, a, old), _type, (_type,), reads_dst=True, reads_scc=True
    )
    FORMS[f"s_cselect_{_bits}"] = Scalar(
        lambda a, b, scc: np.where(scc, a, b), _type, (_type, _type), reads_scc=True
    )
    FORMS[f"s_lshl_{_bits}"] = Scalar(_nonzero(_shift(np.left_shift)), _type, (_type, U32), scc=True)
    FORMS[f"s_lshr_{_bits}"] = Scalar(_nonzero(_shift(np.right_shift)), _type, (_type, U32), scc=True)
    FORMS[f"s_bfe_{_bits.replace('b', 'u')}"] = Scalar(_nonzero(_bfe), _type, (_type, U32), scc=True)
    FORMS[f"s_bcnt1_i32_{_bits}"] = Scalar(_nonzero(_ones), U32, (_type,), scc=True)
    FORMS[f"s_bcnt0_i32_{_bits}"] = Scalar(_nonzero(lambda a: _ones(~a)), U32, (_type,), scc=True)
    FORMS[f"s_ff1_i32_{_bits}"] = Scalar(find_low, U32, (_type,))
    FORMS[f"s_ff0_i32_{_bits}"] = Scalar(lambda a: find_low(~a), U32, (_type,))
    FORMS[f"s_flbit_i32_{_bits}"] = Scalar(find_high, U32, (_type,))
    FORMS[f"s_wqm_{_bits}"] = Scalar(_nonzero(lambda a: _quad_mask(a, True)), _type, (_type,), scc=True)
    FORMS[f"s_quadmask_{_bits}"] = Scalar(_nonzero(lambda a: _quad_mask(a, False)), _type, (_type,), scc=True)
    for _value in (0, 1):
        FORMS[f"s_bitset{_value}_{_bits}"] = Scalar(_set_bit(_value), _type, (U32,), reads_dst=True)
        FORMS[f"s_bitcmp{_value}_{_bits}"] = Scalar(_test_bit(_value), None, (_type, U32))

_COMPARES = {
    "eq": np.equal,
    "lg": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}
for _name, _function in _COMPARES.items():
    for _suffix, _type in (("i32", I32), ("u32", U32)):
        FORMS[f"s_cmp_{_name}_{_suffix}"] = Scalar(_function, None, (_type, _type))
        FORMS[f"s_cmpk_{_name}_{_suffix}"] = Scalar(_function, None, (_type, _type))
for _name in ("eq", "lg"):
    FORMS[f"s_cmp_{_name}_u64"] = Scalar(_COMPARES[_name], None, (U64, U64))


def _bind_saveexec(function: Callable[..., Any], saves: bool) -> Binder:
    """s_<op>_saveexec: sdst = EXEC, EXEC = op(source, EXEC); s_<op>_wrexec: sdst = EXEC = the result."""

    def bind(batch: Batch, inst: Instruction) -> Op:
        read = reader([scalar_source(batch, inst.src[0], U64)])
        put, put_exec = scalar_sink(batch, inst.dst[0], U64), scalar_sink(batch, _EXEC, U64)
        lanes = batch.sgpr64[:, EXEC // 2]
        put_scc = scc_sink(batch)

        def op() -> None:
            old = lanes.copy()
            new = function(read()[0], old)
            put(old if saves else new)
            put_exec(new)
            put_scc(new != 0)

        return op

    return bind


def _bind_getpc(batch: Batch, inst: Instruction) -> Op:
    put = scalar_sink(batch, inst.dst[0], U64)
    after = inst.address + inst.size
    return lambda: put(np.uint64(batch.code_base + after))  # type: ignore[arg-type]


def _bind_nothing(batch: Batch, inst: Instruction) -> Op:
    return lambda: None


HW_REG_MODE = 1


#: Bits of MODE: rounding, denormals of float32 and of the other two, DX10_CLAMP, IEEE, FP16_OVFL.
_ROUNDING, _DENORMALS_32, _DENORMALS_16_64 = 0x0F, 0x30, 0xC0
_DX10_CLAMP, _FP16_OVERFLOW = 0x100, 1 << 23


def _bind_setreg(batch: Batch, inst: Instruction) -> Op:
    """s_setreg: of MODE the denormal bits, DX10_CLAMP and FP16_OVFL, for all waves of the batch at once."""
    control = inst.mods["simm16"]
    register, offset, width = control & 0x3F, control >> 6 & 31, (control >> 11) + 1
    if register != HW_REG_MODE:
        raise UnsupportedInstruction(inst, f"hardware register {register} is not emulated")
    touched = ((1 << width) - 1) << offset & 0xFFFF_FFFF
    mode = batch.mode
    given = reader([scalar_source(batch, inst.src[0], U32)]) if inst.src else None

    def op() -> None:
        if given is None:
            value = inst.mods["imm"]
        else:
            values = np.atleast_1d(given()[0])
            values = values if batch.active is None or values.size == 1 else values[batch.active]
            value = int(values[0])
            if (values != values[0]).any():
                raise UnsupportedInstruction(inst, "waves of different modes are not emulated")
        field = value << offset & touched
        if field & _ROUNDING:
            raise UnsupportedInstruction(inst, "only rounding to nearest even is emulated")
        keeps = [bool(field & bits) for bits in (_DENORMALS_32, _DENORMALS_16_64) if touched & bits]
        if not mode.may_flush and not all(keeps):
            raise UnsupportedInstruction(inst, "denormals can be turned off only in kernels that start so")
        if touched & _DENORMALS_32:
            mode.denormals_f32 = bool(field & _DENORMALS_32)
        if touched & _DENORMALS_16_64:
            mode.denormals_f16_f64 = bool(field & _DENORMALS_16_64)
        if touched & _DX10_CLAMP:
            mode.dx10_clamp = bool(field & _DX10_CLAMP)
        if touched & _FP16_OVERFLOW:
            mode.fp16_overflow = bool(field & _FP16_OVERFLOW)

    return op


def _bind_getreg(batch: Batch, inst: Instruction) -> Op:
    control = inst.mods["simm16"]
    register, offset, width = control & 0x3F, control >> 6 & 31, (control >> 11) + 1
    if register != HW_REG_MODE:
        raise UnsupportedInstruction(inst, f"hardware register {register} is not emulated")
    put, mode = scalar_sink(batch, inst.dst[0], U32), batch.mode

    def op() -> None:
        bits = (
            _DENORMALS_32 * mode.denormals_f32
            | _DENORMALS_16_64 * mode.denormals_f16_f64
            | _DX10_CLAMP * mode.dx10_clamp
            | _FP16_OVERFLOW * mode.fp16_overflow
        )
        put(np.uint32(bits >> offset & ((1 << width) - 1)))  # type: ignore[arg-type]

    return op


BINDERS: dict[str, Binder] = {
    "s_getpc_b64": _bind_getpc,
    "s_waitcnt": bind_waitcnt,
    "s_setreg_imm32_b32": _bind_setreg,
    "s_setreg_b32": _bind_setreg,
    "s_getreg_b32": _bind_getreg,
}
for _name in ("nop", "sleep", "setprio", "sethalt", "incperflevel", "decperflevel", "sendmsg", "wakeup"):
    BINDERS[f"s_{_name}"] = _bind_nothing
for _name in ("inv", "wb", "inv_vol", "wb_vol"):
    BINDERS[f"s_dcache_{_name}"] = _bind_nothing
BINDERS["s_icache_inv"] = _bind_nothing
for _name, _function in LOGIC.items():
    BINDERS[f"s_{_name}_saveexec_b64"] = _bind_saveexec(_function, saves=True)
BINDERS["s_andn1_saveexec_b64"] = _bind_saveexec(lambda a, b: ~a & b, saves=True)
BINDERS["s_orn1_saveexec_b64"] = _bind_saveexec(lambda a, b: ~a | b, saves=True)
BINDERS["s_andn1_wrexec_b64"] = _bind_saveexec(lambda a, b: ~a & b, saves=False)
BINDERS["s_andn2_wrexec_b64"] = _bind_saveexec(LOGIC["andn2"], saves=False)
