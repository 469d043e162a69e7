"""The range of E8M0 bytes, in FlyDSL: of a work-item, then of a workgroup, then of a launch.

An extent is a word with 255 - lowest in its low half and highest + 1 in its high half, of bytes that are not 255: 0 of
none, and the larger of two, half by half, of both. Bit 31 says that there is a 255.

Every workgroup puts its extent into memory and counts itself in; the last to come has those of all. They run on several
XCDs, whose L2s are not coherent: see `kernels/gemm/split.py`, whose order of fences and accesses this is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl.expr import range_constexpr, rocdl
from flydsl.expr.typing import T

from flycc.contracts.mx import NAN_BYTE, ZERO_BLOCK
from flycc.kernels.common.buffers import bounded
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.wave import uniform
from flycc.kernels.mx_quantize.config import THREADS

_NAN = 1 << 31
#: Bit sc1 of an access's cache policy: the scope of the device.
_DEVICE_SCOPE = 16
#: Workgroups' extents that a lane reads together.
_TOGETHER = 4


def of_byte(byte: fx.Int32) -> fx.Int32:
    """The extent of a byte that is not 255, 0 of one that is."""
    return (((byte + 1) & NAN_BYTE) << 16) | (NAN_BYTE - byte)


def halves(word: fx.Int32) -> fx.Vector:
    """The low and the high half of a word, to which one instruction does the same."""
    return fx.Vector.from_elements([word], fx.Int32).bitcast(fx.Uint16)


def larger(a: fx.Int32, b: fx.Int32) -> fx.Int32:
    """The larger halves of two words: of extents, without bit 31, the extent of both."""
    return fx.max(halves(a), halves(b)).bitcast(fx.Int32)[0]


@dataclass(frozen=True)
class Meeting:
    """Where the extents of `workgroups` meet; this one's number is `index`."""

    index: fx.Int32
    workgroups: fx.Int32
    partial: fx.Pointer
    arrived: fx.Pointer
    range: fx.Pointer


def publish(extent: fx.Int32, nan: Any, thread: fx.Int32, scratch: fx.Pointer, meeting: Meeting) -> None:
    """Has the last workgroup write the range of all, given a work-item's `extent` and whether it has seen a 255.

    `scratch` is int32 [waves] in LDS.
    """
    lane = thread % WAVE_SIZE
    extent = _over_wave(extent)
    any_nan = fx.Int64(rocdl.ballot(T.i64, nan.ir_value())) != 0
    extent = extent | any_nan.select(fx.Int32(_NAN - (1 << 32)), fx.Int32(0))
    fx.ptr_store(extent.ir_value(), scratch + uniform(thread // WAVE_SIZE))
    fx.gpu.barrier()
    words = [
        fx.Int32(fx.ptr_load(scratch + i, result_type=fx.Int32.ir_type)) for i in range(THREADS // WAVE_SIZE)
    ]
    whole = words[0]
    for word in words[1:]:
        whole = _both(whole, word)
    _meet(whole, thread, lane, meeting)


@flyc.jit
def _meet(extent: Any, thread: Any, lane: Any, meeting: Any) -> None:
    """The part of `publish` after which there is one extent in a workgroup."""
    if thread < WAVE_SIZE:
        before = fx.Int32(-1)
        if lane == 0:
            place = (meeting.index * 4).ir_value()
            zero = fx.Int32(0).ir_value()
            buffer = bounded(meeting.partial)
            rocdl.raw_ptr_buffer_store(extent.ir_value(), buffer, place, zero, aux=_policy())
            fx.llvm.memory_fence(syncscope=rocdl.SyncScope.Agent, ordering=fx.AtomicOrdering.Release)
            before = fx.llvm.atomic_add(meeting.arrived, fx.Int32(1), syncscope=rocdl.SyncScope.Agent)
        if uniform(before) == meeting.workgroups - 1:
            fx.llvm.memory_fence(syncscope=rocdl.SyncScope.Agent, ordering=fx.AtomicOrdering.Acquire)
            total, nans = fx.Int32(0), fx.Int32(0)
            for start in range(fx.Int32(0), meeting.workgroups, fx.Int32(WAVE_SIZE * _TOGETHER)):
                for i in range_constexpr(_TOGETHER):
                    word = _load(meeting, fx.Int32(start) + (lane + i * WAVE_SIZE))
                    total = larger(total, word & (_NAN - 1))
                    nans = nans | word
            total = _over_wave(total)
            any_nan = fx.Int64(rocdl.ballot(T.i64, (nans < 0).ir_value())) != 0
            if lane == 0:
                _write(total, any_nan, meeting)


def _write(extent: fx.Int32, nan: Any, meeting: Meeting) -> None:
    high = fx.Int32(fx.Uint32(extent) >> 16)
    none = high == 0
    low = none.select(fx.Int32(ZERO_BLOCK), NAN_BYTE - (extent & 0xFFFF))
    high = none.select(fx.Int32(ZERO_BLOCK), high - 1)
    for i, value in enumerate((low, high, nan.select(fx.Int32(1), fx.Int32(0)))):
        offset, zero = fx.Int32(4 * i).ir_value(), fx.Int32(0).ir_value()
        rocdl.raw_ptr_buffer_store(value.ir_value(), bounded(meeting.range), offset, zero)
    order = fx.AtomicOrdering.Monotonic
    fx.llvm.generic_store(meeting.arrived, fx.Int32(0), memory_order=order, syncscope=rocdl.SyncScope.Agent)


def _load(meeting: Meeting, index: fx.Int32) -> fx.Int32:
    """A workgroup's extent; that of none where there is no such workgroup."""
    buffer = bounded(meeting.partial, meeting.workgroups * 4)
    return fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, buffer, index * 4, fx.Int32(0), aux=_DEVICE_SCOPE))


def _both(a: fx.Int32, b: fx.Int32) -> fx.Int32:
    """The extent of both, bit 31 included."""
    return larger(a & (_NAN - 1), b & (_NAN - 1)) | ((a | b) & fx.Int32(_NAN - (1 << 32)))


def _over_wave(extent: fx.Int32) -> fx.Int32:
    for distance in (32, 16, 8, 4, 2, 1):
        extent = larger(extent, fx.Int32(fx.gpu.shuffle_xor(extent, distance, WAVE_SIZE)))
    return extent


def _policy() -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), _DEVICE_SCOPE)
