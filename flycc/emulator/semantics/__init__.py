"""What instructions do: `bind` turns a decoded instruction into a function on a batch's arrays.

A binder resolves operands once for a batch; the function it returns executes the instruction on all
active waves and takes no arguments. Each module covers one class of instructions by a table.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np

from flycc.emulator.isa.instruction import Instruction
from flycc.emulator.semantics import (
    compare,
    convert,
    convert_small,
    floating,
    integer,
    lanes,
    lds,
    mfma,
    packed,
    salu,
    smem,
    vmem,
)
from flycc.emulator.semantics.operands import U16, U32, Binder, Op, UnsupportedInstruction
from flycc.emulator.semantics.salu import bind_scalar
from flycc.emulator.semantics.vector import Form, bind_form, rearranged
from flycc.emulator.state import Batch


@cache
def _binder(name: str) -> Binder | None:
    for module in (compare, convert_small, lanes, lds, packed, salu, smem, vmem):
        if name in module.BINDERS:
            return module.BINDERS[name]
    for table in (convert.FORMS, convert_small.FORMS, floating.FORMS, integer.FORMS):
        if name in table:
            form = table[name]
            return lambda batch, inst: bind_form(batch, inst, form)
    if name in salu.FORMS:
        scalar = salu.FORMS[name]
        return lambda batch, inst: bind_scalar(batch, inst, scalar)
    if name in ("v_bitop3_b32", "v_bitop3_b16"):
        dtype = U32 if name.endswith("32") else U16
        return partial(_bind_bitop3, dtype=dtype)
    return convert_small.lookup(name) or mfma.lookup(name)


def _bind_bitop3(batch: Batch, inst: Instruction, dtype: np.dtype) -> Op:
    function = integer.bitop3(inst.mods.get("bitop3", 0))
    return bind_form(batch, inst, Form(function, dtype, (dtype, dtype, dtype)))


def is_known(inst: Instruction) -> bool:
    """Whether the emulator has a meaning for this mnemonic."""
    return _binder(inst.name) is not None


def bind(batch: Batch, inst: Instruction) -> Op:
    """A function that executes `inst` on the batch. Raises UnsupportedInstruction."""
    binder = _binder(inst.name)
    if binder is None:
        raise UnsupportedInstruction(inst, "is not emulated")
    if inst.encoding in ("DPP", "SDWA"):
        return rearranged(batch, inst, binder)
    return binder(batch, inst)


__all__ = ["Binder", "Op", "UnsupportedInstruction", "bind", "is_known"]
