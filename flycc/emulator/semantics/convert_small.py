"""Conversions to and from the formats of 8, 6 and 4 bits, with and without a scale.

A scale divides what is converted to a small format and multiplies what is converted from one; the result
is rounded once. Overflow of fp8 and bf8 follows MODE's FP16_OVFL: to the largest number if it is set, else
to NaN and infinity; the smaller formats always saturate, and hold the largest number for a NaN.

Stochastic rounding adds the top bits of the random operand, as many as the conversion from the source's
format drops of a normal number, below the last place, and cuts off; an element after the first takes the
next state of v_prng_b32. The ISA document leaves open what is done after the sum; cutting off is what
makes the rounding unbiased.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import numpy as np

from flycc.emulator.isa.instruction import Instruction, Operand
from flycc.emulator.semantics.convert import bf16_to_f32, f32_to_bf16
from flycc.emulator.semantics.operands import (
    F16,
    F32,
    U16,
    U32,
    Binder,
    Op,
    Source,
    is_vector,
    plain_source,
    reader,
    row,
    store,
    with_sign,
)
from flycc.emulator.semantics.small_floats import (
    FORMATS,
    VALUES,
    encode,
    next_random,
    pack,
    scale_of,
    unpack,
)
from flycc.emulator.semantics.vector import Form
from flycc.emulator.state import Batch

#: Mantissa bits of the formats that are converted from and to.
_MANTISSA = {"f32": 23, "f16": 10, "bf16": 7}

#: float64 [n, waves, 64] when the instruction executes.
Elements = Callable[[], np.ndarray]


def register_source(batch: Batch, operand: Operand, offset: int, dtype: np.dtype, half: int = 0) -> Source:
    """Register `offset` of a vector operand of several, or a scalar or constant one."""
    if is_vector(operand):
        operand = operand._replace(index=operand.index + offset, count=1)
    return plain_source(batch, operand, dtype, half)


def _widened(kind: str) -> Callable[[np.ndarray], np.ndarray]:
    if kind == "bf16":
        return lambda value: bf16_to_f32(value).astype(np.float64)
    return lambda value: value.astype(np.float64)


def _elements(batch: Batch, inst: Instruction, position: int, kind: str, count: int) -> Elements:
    """`count` elements of source `position`; a lone 16-bit one is in the half that op_sel picks."""
    operand = inst.src[position]
    negate, absolute = (bool(inst.mods.get(name, 0) >> position & 1) for name in ("neg", "abs"))
    sources: list[Source] = []
    for i in range(count):
        if kind == "f32":
            source = register_source(batch, operand, i, F32)
            sources.append(with_sign(source, F32, negate, absolute))
        else:
            half = i % 2 if count > 1 else inst.mods.get("op_sel", 0) >> position & 1
            dtype = F16 if kind == "f16" else U16
            sources.append(register_source(batch, operand, i // 2, dtype, half))
    read, widen, shape = reader(sources), _widened(kind), (batch.waves, 64)
    return lambda: np.stack([np.broadcast_to(widen(value), shape) for value in read()])


def _interleaved(even: Elements, odd: Elements) -> np.ndarray:
    first = even()
    return np.stack([first, odd()], axis=1).reshape(-1, *first.shape[1:])


def _scale(batch: Batch, inst: Instruction, scaled: bool) -> Callable[[], np.ndarray | float]:
    """The last source as a power of two, [waves, 64] or broadcastable to it; 1 for a form without one."""
    if not scaled:
        return lambda: 1.0
    read = reader([plain_source(batch, inst.src[-1], F32)])
    return lambda: scale_of(np.ascontiguousarray(read()[0]))


def _bind_to_small(target: str, kind: str, packing: str, stochastic: bool, scaled: bool) -> Binder:
    form = FORMATS[target]
    dropped = _MANTISSA[kind] - form.mantissa_bits

    def bind(batch: Batch, inst: Instruction) -> Op:
        if packing == "2xpk16":
            halves = [_elements(batch, inst, i, kind, 16) for i in range(2)]
            elements: Elements = partial(_interleaved, *halves)
        elif packing == "pk" and kind == "f32" and not stochastic:
            pair = [_elements(batch, inst, i, kind, 1) for i in range(2)]
            elements = lambda: np.concatenate([one() for one in pair])  # noqa: E731
        else:
            elements = _elements(batch, inst, 0, kind, {"": 1, "pk": 2, "pk32": 32}[packing])
        scale = _scale(batch, inst, scaled)
        random = reader([plain_source(batch, inst.src[1], U32)] if stochastic else [])
        put = _small_sink(
            batch, inst, form.bits, 32 if packing.endswith(("32", "16")) else 1 + (packing == "pk")
        )

        def op() -> None:
            values, dither = elements() / scale(), None
            if stochastic:
                state, draws = random()[0], []
                for _ in range(len(values)):
                    draws.append(np.broadcast_to(state, values.shape[1:]))
                    state = next_random(state)
                dither = np.ldexp((np.stack(draws) >> np.uint32(32 - dropped)).astype(np.float64), -dropped)
            put(encode(values, form, batch.mode.fp16_overflow, dither))

        return op

    return bind


def _small_sink(batch: Batch, inst: Instruction, bits: int, count: int) -> Callable[[np.ndarray], None]:
    """Write codes uint8 [count, waves, 64]: a byte or word that op_sel picks, the rest kept, or six dwords."""
    if count == 32:
        rows = [row(batch, inst.dst[0], i) for i in range(bits)]

        def put_rows(codes: np.ndarray) -> None:
            for target, words in zip(rows, pack(codes, bits), strict=True):
                store(batch, target, words)

        return put_rows
    dtype = np.dtype(f"u{bits * count // 8}")
    select = inst.mods.get("op_sel", 0)
    part = select >> 3 if dtype.itemsize == 2 else select >> 2
    target = row(batch, inst.dst[0]).view(dtype)[:, part :: 4 // dtype.itemsize]

    def put_part(codes: np.ndarray) -> None:
        value = codes[0].astype(dtype)
        if count == 2:
            value |= codes[1].astype(dtype) << dtype.type(bits)
        store(batch, target, value)

    return put_part


def _bind_from_small(source: str, kind: str, packing: str, scaled: bool) -> Binder:
    form, values = FORMATS[source], VALUES[source].astype(np.float64)
    count = {"": 1, "pk": 2, "pk32": 32}[packing]

    def bind(batch: Batch, inst: Instruction) -> Op:
        scale, put = _scale(batch, inst, scaled), _wide_sink(batch, inst, kind, count)
        operand, select = inst.src[0], inst.mods.get("op_sel", 0)
        width = form.bits * count
        used = form.bits if count == 32 else 1
        read = reader([register_source(batch, operand, i, U32) for i in range(used)])
        shift = np.uint32(0 if count == 32 else width * (select & (32 // width - 1)))

        def op() -> None:
            words = np.stack([np.broadcast_to(word, (batch.waves, 64)) for word in read()]) >> shift
            put(values[unpack(words, form.bits)[:count]] * scale())

        return op

    return bind


def _wide_sink(batch: Batch, inst: Instruction, kind: str, count: int) -> Callable[[np.ndarray], None]:
    """Write float64 [count, waves, 64] rounded to `kind`; a lone f16 into the half that op_sel picks."""
    rows = [row(batch, inst.dst[0], i) for i in range(max(1, count * (4 if kind == "f32" else 2) // 4))]
    if kind == "f32":
        targets = [r.view(F32) for r in rows]
    elif count == 1:
        targets = [rows[0].view(np.uint16)[:, inst.mods.get("op_sel", 0) >> 3 :: 2]]
    else:
        targets = [r.view(np.uint16)[:, half::2] for r in rows for half in range(2)]

    def put(values: np.ndarray) -> None:
        if kind == "f32":
            out = values.astype(np.float32)
        elif kind == "bf16":
            out = f32_to_bf16(values.astype(np.float32))  # a small format times a power of two is exact
        else:
            out = saturate_f16(values.astype(np.float16), values, batch.mode.fp16_overflow).view(np.uint16)
        for target, value in zip(targets, out, strict=True):
            store(batch, target, value)

    return put


def saturate_f16(rounded: np.ndarray, exact: np.ndarray, wanted: bool) -> np.ndarray:
    """float16 results with overflows turned into the largest number where MODE's FP16_OVFL wants that."""
    if not wanted:
        return rounded
    overflow = np.isinf(rounded) & ~np.isinf(exact)
    return np.where(overflow, np.copysign(np.float16(65504), rounded), rounded)


def _bind_stochastic_16(kind: str) -> Binder:
    """v_cvt_sr_f16_f32, v_cvt_sr_bf16_f32."""
    dropped = 23 - _MANTISSA[kind]

    def bind(batch: Batch, inst: Instruction) -> Op:
        value = _elements(batch, inst, 0, "f32", 1)
        random = reader([plain_source(batch, inst.src[1], U32)])
        target = row(batch, inst.dst[0]).view(np.uint16)[:, inst.mods.get("op_sel", 0) >> 3 :: 2]

        def op() -> None:
            exact = value()[0]
            dither = np.ldexp((random()[0] >> np.uint32(32 - dropped)).astype(np.float64), -dropped)
            rounded = _round_stochastic(exact, dither, kind)
            if kind == "bf16":
                store(batch, target, f32_to_bf16(rounded.astype(np.float32)))
            else:
                half = saturate_f16(rounded.astype(np.float16), exact, batch.mode.fp16_overflow)
                store(batch, target, half.view(np.uint16))

        return op

    return bind


def _round_stochastic(value: np.ndarray, dither: np.ndarray, kind: str) -> np.ndarray:
    """float64 values of `kind`'s precision: the magnitude plus `dither` last places, cut off."""
    mantissa, least = _MANTISSA[kind], -14 if kind == "f16" else -126
    exponent = np.maximum(np.frexp(np.abs(value))[1] - 1, least)
    whole = np.floor(np.ldexp(np.abs(value), mantissa - exponent) + dither)
    return np.where(np.isfinite(value), np.copysign(np.ldexp(whole, exponent - mantissa), value), value)


FORMS: dict[str, Form] = {"v_prng_b32": Form(next_random, U32, (U32,))}
for _name in ("fp8", "bf8"):
    FORMS[f"v_cvt_f32_{_name}"] = Form(lambda code, t=VALUES[_name]: t[code & np.uint32(255)], F32, (U32,))

BINDERS: dict[str, Binder] = {
    "v_cvt_sr_f16_f32": _bind_stochastic_16("f16"),
    "v_cvt_sr_bf16_f32": _bind_stochastic_16("bf16"),
}
for _name in ("fp8", "bf8"):
    BINDERS[f"v_cvt_pk_f32_{_name}"] = _bind_from_small(_name, "f32", "pk", scaled=False)
    BINDERS[f"v_cvt_pk_{_name}_f32"] = _bind_to_small(_name, "f32", "pk", False, scaled=False)
    BINDERS[f"v_cvt_sr_{_name}_f32"] = _bind_to_small(_name, "f32", "", True, scaled=False)

_SCALED = re.compile(r"v_cvt_scalef32_(sr_)?(?:(pk|pk32|2xpk16)_)?(\w+?)_(\w+)")


def lookup(name: str) -> Binder | None:
    """The binder of a scaled conversion, None for any other name."""
    match = _SCALED.fullmatch(name)
    if match is None:
        return None
    stochastic, packing, to, source = match.groups()
    if to in FORMATS:
        return _bind_to_small(to, source, packing or "", bool(stochastic), scaled=True)
    return _bind_from_small(source, to, packing or "", scaled=True)
