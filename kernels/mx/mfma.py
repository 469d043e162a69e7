"""The scaled MFMA, and its block scales on their way from memory.

Along K an MFMA takes 128 elements, four blocks. Lane group g (of 16 lanes) gives it the scales of block g of its rows;
which elements it gives depends on their size: 32 successive ones of 4 bits, 16 bytes; of 8 bits twice 16, those from 16
g on and those from 64 + 16 g on. Both are the 16 bytes number g of a run of 64, as of 16-bit elements, so that operands
take the same way (`kernels.gemm`): of 4-bit elements one such run, a *piece*, feeds an MFMA, of 8-bit elements two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.contracts.scaled_gemm import ElementFormat
from flycc.kernels.common.buffers import bounded, checked
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.gemm.config import MFMA_MN
from flycc.kernels.gemm.mfma import Fragment, Mfma
from flycc.kernels.gemm.operand import Lane
from flycc.kernels.mx.config import PACKED_K

#: The formats as v_mfma_scale_f32_16x16x128_f8f6f4 numbers them.
_CODES: dict[ElementFormat, int] = {"e4m3": 0, "e5m2": 1, "e2m1": 4}
#: A byte of scale 1, four times.
_ONES = 0x7F7F7F7F
#: Blocks along K of an MFMA: its scales fill a dword.
_OF_SLICE = 4
#: MFMA blocks whose scales share a dword.
_OF_GROUP = 4


@dataclass(frozen=True)
class BlockScales:
    """The block scales of a wave's rows of one operand: bytes [rows][`stride`] from `pointer` on, at the workgroup's
    first row and element along K.

    A lane obtains those of its row of each of `blocks` MFMA blocks, of which the first begins at row `first`; `slices`
    MFMAs along K make a step. They come in dwords that hold all four blocks of an MFMA, or, where rows are not aligned,
    byte by byte, each lane group its own.
    """

    pointer: fx.Pointer
    stride: fx.Int32
    rows_left: fx.Int32
    first: fx.Int32
    blocks: int
    slices: int
    #: Bytes of a load that are aligned and lie wholly inside a row or outside.
    vector: int
    #: Elements along K, as positions count them, that share a scale.
    block_k: int
    lane: Lane

    @property
    def width(self) -> int:
        """Bytes of a load."""
        return min(self.vector, _OF_SLICE * (self.slices & -self.slices)) if self.vector > 1 else 1

    @property
    def loads(self) -> int:
        """Load instructions of a step."""
        return self.blocks * self.slices // max(1, self.width // _OF_SLICE)

    def load(self, k: fx.Int32, left: fx.Int32 | None) -> list[fx.Int32]:
        """Of each MFMA block the scales of the step at `k`, a dword for each MFMA."""
        buffer = bounded(self.pointer + fx.Int64(fx.Uint32(k) // self.block_k))
        words = []
        for block in range(self.blocks):
            row = self.first + self.lane.row + block * MFMA_MN
            place = checked(row < self.rows_left, row * self.stride)
            for number in range(0, self.slices, max(1, self.width // _OF_SLICE)):
                words += self._load(buffer, place, number * _OF_SLICE, left)
        return words

    def _load(self, buffer: Any, place: fx.Int32, first: int, left: fx.Int32 | None) -> list[fx.Int32]:
        """A load from scale number `first` of the step on."""
        offset = fx.Int32(first)
        if self.width == 1:
            offset = self.lane.group + first
        if left is not None:
            place = checked(offset * self.block_k < left, place)
        place = place + offset
        if self.width == 1:
            return [
                fx.Int32(fx.Uint32(fx.Uint8(rocdl.raw_ptr_buffer_load(T.i8, buffer, place, fx.Int32(0)))))
            ]
        return _load_words(buffer, self.width // _OF_SLICE, place)

    @property
    def words(self) -> int:
        """Dwords of a step."""
        return self.blocks * self.slices

    def own(self, words: Sequence[fx.Int32], block: int, slice_number: int) -> tuple[fx.Int32, int]:
        """A register, and the number of the byte of it that is the scale that this lane gives to an MFMA."""
        word = words[block * self.slices + slice_number]
        return (word if self.width == 1 else fx.Int32(fx.Uint32(word) >> fx.Uint32(self.lane.group * 8))), 0


@dataclass(frozen=True)
class PackedScales:
    """Block scales of a wave's rows as `kernels.mx.pack` has put them: uint8 [rows / 64][steps][64 lanes][slices][4],
    where a step is 64 pairs of bytes along K and number i of four is the lane's of the MFMA block i of the 64 rows.

    `pointer` is at the 64 rows that `first` lies in and at the workgroup's first step, `groups` 64 rows apart by
    `stride` bytes; of `groups_left` there are scales. Of fewer than four `blocks` in a wave the first is number `part`
    of its 64 rows.
    """

    pointer: fx.Pointer
    stride: fx.Int32
    groups_left: fx.Int32
    part: fx.Int32
    blocks: int
    slices: int
    steps: int
    lane: Lane

    @property
    def groups(self) -> int:
        """Of 64 rows, those of a wave."""
        return max(1, self.blocks // _OF_GROUP)

    @property
    def loads(self) -> int:
        """Load instructions of a step."""
        return self.groups * self.steps

    @property
    def words(self) -> int:
        """Dwords of a step."""
        return self.groups * self.steps * self.slices

    def load(self, k: fx.Int32, left: fx.Int32 | None) -> list[fx.Int32]:
        """Of each 64 rows the scales of the step at `k`, a dword for each MFMA along K."""
        of_step = WAVE_SIZE * _OF_GROUP * self.slices
        first = fx.Uint32(k) // PACKED_K
        start = self.pointer + fx.Int64(first) * of_step
        offset = self.lane.thread % WAVE_SIZE * (_OF_GROUP * self.slices)
        words = []
        for group in range(self.groups):
            for step in range(self.steps):
                exists = fx.Int32(group) < self.groups_left
                if left is not None:
                    exists = exists & (left > step * PACKED_K)
                # Lanes have the same offset in all of them.
                size = exists.select(fx.Int32(of_step), fx.Int32(0))
                buffer = bounded(start + (step * of_step + fx.Int64(self.stride) * group), size)
                words += _load_words(buffer, self.slices, offset)
        if self.blocks < _OF_GROUP:
            words = [fx.Int32(fx.Uint32(word) >> fx.Uint32(self.part * 8)) for word in words]
        return words

    def own(self, words: Sequence[fx.Int32], block: int, slice_number: int) -> tuple[fx.Int32, int]:
        """A register, and the number of the byte of it that is the scale that this lane gives to an MFMA."""
        group, byte = divmod(block, _OF_GROUP)
        return words[group * self.steps * self.slices + slice_number], byte


def _load_words(buffer: Any, count: int, offset: fx.Int32) -> list[fx.Int32]:
    if count == 1:
        return [fx.Int32(rocdl.raw_ptr_buffer_load(T.i32, buffer, offset, fx.Int32(0)))]
    kind = fx.Vector.make_type(count, fx.Int32)
    vector = fx.Vector(rocdl.raw_ptr_buffer_load(kind, buffer, offset, fx.Int32(0)))
    return [vector[i] for i in range(count)]


Scales: TypeAlias = BlockScales | PackedScales


@dataclass(frozen=True)
class ScaledMfma(Mfma):
    """v_mfma_scale_f32_16x16x128_f8f6f4. An operand without block scales has scale 1."""

    formats: tuple[ElementFormat, ElementFormat]
    of_slice: tuple[int, int]
    scales: tuple[Scales | None, Scales | None]

    @property
    def pieces(self) -> tuple[int, int]:
        return self.of_slice

    @property
    def loads(self) -> int:
        return sum(scales.loads for scales in self.scales if scales is not None)

    def beside(self, k: fx.Int32, left: fx.Int32 | None) -> list[fx.Int32]:
        return [word for scales in self.scales if scales is not None for word in scales.load(k, left)]

    def multiply(
        self,
        a: Sequence[Fragment],
        b: Sequence[Fragment],
        acc: list[fx.Vector],
        beside: list[fx.Int32],
        slice_number: int = 0,
        first: int = 0,
    ) -> list[fx.Vector]:
        result_type = fx.Vector.make_type(4, fx.Float32)
        of_a, of_b = self.scales
        words_a = of_a.words if of_a is not None else 0
        scale_a = self._own(of_a, beside[:words_a], slice_number, first, len(a))
        scale_b = self._own(of_b, beside[words_a:], slice_number, 0, len(b))
        codes = [_CODES[element] for element in reversed(self.formats)]
        left = [(fragment.bitcast(fx.Int32), scale) for fragment, scale in zip(b, scale_b, strict=True)]
        right = [(fragment.bitcast(fx.Int32), scale) for fragment, scale in zip(a, scale_a, strict=True)]
        found = []
        for number, total in enumerate(acc):
            (n, scale_n), (m, scale_m) = left[number // len(a)], right[number % len(a)]
            operands = [n, m, total, *codes, scale_n[1], scale_n[0], scale_m[1], scale_m[0]]
            found.append(fx.Vector(rocdl.mfma_scale_f32_16x16x128_f8f6f4(result_type, operands)))
        return found

    @staticmethod
    def _own(
        scales: Scales | None, words: list[fx.Int32], slice_number: int, first: int, blocks: int
    ) -> list[tuple[fx.Int32, int]]:
        if scales is None:
            return [(fx.Int32(_ONES), 0)] * blocks
        return [scales.own(words, first + i, slice_number) for i in range(blocks)]
