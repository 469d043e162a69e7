"""Operands of matrix instructions: register rows expanded to matrices of numbers.

Of an MxNxK instruction lane l holds elements of row (of A) or column (of B) l mod M. With one block the
lanes' groups, g = l div M, hold runs of K: element j of a lane's n is k = n g + j, but for the 8-bit
formats of f8f6f4, whose 32 elements are two halves, k = 16 g + j mod 16 + K/2 (j div 16). With several
blocks every group of M lanes is a block, and its lanes hold all of K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flycc.emulator.isa.instruction import Operand
from flycc.emulator.semantics.operands import U32, first_row, plain_source, reader, rows
from flycc.emulator.semantics.small_floats import FORMATS, VALUES, power_of_two, unpack
from flycc.emulator.state import LANES, Batch

#: Expands packed register rows, uint32 [r, waves, 64], into [elements per register, r, waves, 64] of `out`.
Expand = Callable[[np.ndarray, np.ndarray], None]

_HIGH = np.uint32(0xFFFF_0000)
_16 = np.uint32(16)


def _expand_bf16(packed: np.ndarray, out: np.ndarray) -> None:
    bits = out.view(np.uint32)
    np.left_shift(packed, _16, out=bits[0])
    np.bitwise_and(packed, _HIGH, out=bits[1])


def _expand_f16(packed: np.ndarray, out: np.ndarray) -> None:
    halves = packed.view(np.float16)
    out[0] = halves[..., 0::2]
    out[1] = halves[..., 1::2]


def _expand_f32(packed: np.ndarray, out: np.ndarray) -> None:
    out[0] = packed.view(np.float32)


def _expand_i8(packed: np.ndarray, out: np.ndarray) -> None:
    parts = packed.view(np.int8)
    for i in range(4):
        out[i] = parts[..., i::4]


def _expand_bytes(table: np.ndarray) -> Expand:
    def expand(packed: np.ndarray, out: np.ndarray) -> None:
        parts = packed.view(np.uint8)
        for i in range(4):
            out[i] = table[parts[..., i::4]]

    return expand


def _expand_fields(table: np.ndarray, bits: int) -> Expand:
    """Fields that straddle registers: all of a lane's elements count as one register's."""

    def expand(packed: np.ndarray, out: np.ndarray) -> None:
        out[:, 0] = table[unpack(packed, bits)]

    return expand


class Element(NamedTuple):
    """An operand's element type: its width, and how registers of it are expanded."""

    bits: int
    expand: Expand

    def split(self, registers: int) -> tuple[int, int]:
        """Elements per register and registers, as `expand` sees them."""
        return (32 // self.bits, registers) if self.bits >= 8 else (32 * registers // self.bits, 1)


ELEMENTS: dict[str, Element] = {
    "f32": Element(32, _expand_f32),
    "bf16": Element(16, _expand_bf16),
    "f16": Element(16, _expand_f16),
    "i8": Element(8, _expand_i8),
}
for _name, _form in FORMATS.items():
    _table = VALUES[_name]
    ELEMENTS[_name] = Element(
        _form.bits, _expand_bytes(_table) if _form.bits == 8 else _expand_fields(_table, _form.bits)
    )

#: The formats of f8f6f4 by what cbsz (of A) and blgp (of B) hold.
F8F6F4 = ("fp8", "bf8", "fp6", "bf6", "fp4")

#: The lane whose element a lane of B gets, by blgp (ISA document, "Matrix arithmetic: BLGP").
_LANE = np.arange(LANES)
LANE_GROUPS = (
    _LANE,
    _LANE % 32,
    32 + _LANE % 32,
    (_LANE + 16) % 64,
    *(16 * group + _LANE % 16 for group in range(4)),
)


@dataclass(frozen=True)
class Fragment:
    """An operand: `read` gives [waves, K, size] or [waves, blocks, K, size]; `depth` is k of each row of K."""

    read: Callable[[], np.ndarray]
    depth: np.ndarray


def bind_fragment(
    batch: Batch,
    operand: Operand,
    element: Element,
    size: int,
    dtype: np.dtype,
    *,
    blocks: int = 1,
    halves: bool = False,
    lanes: np.ndarray | None = None,
) -> Fragment:
    """A dense operand. `halves` says that a lane's elements are two halves; `lanes` permutes the lanes."""
    per_register, registers = element.split(operand.count)
    index = np.add.outer(np.arange(per_register), per_register * np.arange(registers))  # j, as stored
    count = index.size
    if blocks == 1:
        groups = np.arange(LANES // size)
        depth = np.add.outer(index, count * groups)
        if halves:
            depth = np.add.outer(index % 16 + count * len(groups) // 2 * (index // 16), 16 * groups)
    else:
        depth = index

    def as_matrix(expanded: np.ndarray) -> np.ndarray:
        if blocks == 1:
            return expanded.reshape(batch.waves, depth.size, size)
        return expanded.reshape(batch.waves, count, blocks, size).swapaxes(1, 2)

    first, kind = first_row(batch, operand), (element, dtype)
    known = None if lanes is not None else batch.fragments.find(first, operand.count, kind)
    if known is not None:
        matrix = as_matrix(known)
        return Fragment(lambda: matrix, depth.reshape(-1))
    packed = rows(batch, operand)
    shape = (batch.waves, per_register, registers, LANES)
    if lanes is None:
        expanded = batch.fragments.make(first, operand.count, kind, shape, dtype)
    else:
        expanded = np.empty(shape, dtype)
    by_lane, made = expanded.transpose(1, 2, 0, 3), as_matrix(expanded)

    def fragment() -> np.ndarray:
        element.expand(packed if lanes is None else np.ascontiguousarray(packed[..., lanes]), by_lane)
        return made

    return Fragment(fragment, depth.reshape(-1))


def bind_sparse_fragment(
    batch: Batch, operand: Operand, element: Element, size: int, dtype: np.dtype, index: Operand, part: int
) -> Fragment:
    """A sparse A: of every four elements along K two are held, at the places that 2-bit indices give.

    A lane's indices are consecutive from the low bits of its register `index`; where they need less
    than 32 bits, `part` says which of the sets.
    """
    packed, where = rows(batch, operand), rows(batch, index, 1)[0]
    per_register, registers = element.split(operand.count)
    held = per_register * registers
    count, groups = 2 * held, LANES // size
    expanded = np.empty((per_register, registers, batch.waves, LANES), dtype)
    dense = np.zeros((count, batch.waves, LANES), dtype)
    depth = np.add.outer(np.arange(count), count * np.arange(groups)).reshape(-1)

    def fragment() -> np.ndarray:
        element.expand(packed, expanded)
        values = expanded.swapaxes(0, 1).reshape(held, batch.waves, LANES)
        dense.fill(0)
        for i in range(held):
            place = where >> np.uint32(2 * held * part % 32 + 2 * i) & np.uint32(3)
            at = (4 * (i // 2) + place.astype(np.intp))[None]
            np.put_along_axis(dense, at, values[i : i + 1], axis=0)
        return dense.swapaxes(0, 1).reshape(batch.waves, count * groups, size)

    return Fragment(fragment, depth)


def scaled(batch: Batch, fragment: Fragment, operand: Operand, byte: int, size: int) -> Fragment:
    """`fragment` (float64) times its scales: byte `byte` of lane l of `operand` is that of k = 32 (l div M) on."""
    read = reader([plain_source(batch, operand, U32)])
    block = fragment.depth // 32

    def multiplied() -> np.ndarray:
        exponents = np.broadcast_to(read()[0] >> np.uint32(8 * byte) & np.uint32(255), (batch.waves, LANES))
        scales = power_of_two(exponents).reshape(batch.waves, LANES // size, size)
        return fragment.read() * scales[:, block]

    return Fragment(multiplied, fragment.depth)
