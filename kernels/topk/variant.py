"""What a top-k binary is specialised on: everything but the sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from flycc.kernels.common.machine import WAVE_SIZE


@dataclass(frozen=True, slots=True)
class SelectVariant:
    """Radix selection, one workgroup of `threads` for a chunk of a row, `digit_bits` of the keys a pass.

    A lane takes `items` elements of a tile, `vector` to a load. `reading` is "once" if the chunk is one tile that
    stays in registers. "tiles" are read once too, one after the other, each of at least k elements but the last
    (no `capacity` of 0). In "passes" each pass reads the chunk again. The selected elements are gathered in LDS, which
    has room for `capacity` of them (a power of two), and come out best first if `sorted`. `mapped` says that
    the elements come with their indices, `partial` that the results are the input of another launch, with
    int32 indices. `capacity` 0 is for any number: results are then unsorted, straight to memory.
    """

    dtype: str
    largest: bool
    threads: int
    items: int
    vector: int
    digit_bits: int
    reading: Literal["once", "tiles", "passes"]
    capacity: int
    sorted: bool
    mapped: bool = False
    partial: bool = False

    #: Rows of a workgroup.
    rows: ClassVar[int] = 1

    @property
    def waves(self) -> int:
        return self.threads // WAVE_SIZE

    @property
    def loads(self) -> int:
        """Loads a lane needs for its share of a tile."""
        return self.items // self.vector

    @property
    def tile(self) -> int:
        """Elements of a tile."""
        return self.threads * self.items

    @property
    def symbol(self) -> str:
        marks = "".join(
            letter
            for letter, on in (
                ("s", self.sorted),
                ("m", self.mapped),
                ("p", self.partial),
            )
            if on
        )
        order = "max" if self.largest else "min"
        shape = f"t{self.threads}_i{self.items}_v{self.vector}_d{self.digit_bits}_c{self.capacity}"
        return f"topk_select_{self.dtype}_{order}_{shape}_{self.reading}_{marks or 'n'}"


@dataclass(frozen=True, slots=True)
class RegisterVariant:
    """The best `keep` (a power of two) of a row in registers: `lanes` of a wave share a row.

    A lane takes `loads` times `vector` elements of a tile, a multiple of `keep`. A workgroup has `threads`
    work-items. `mapped` and `partial` as in `SelectVariant`.
    """

    dtype: str
    largest: bool
    threads: int
    lanes: int
    keep: int
    vector: int
    loads: int
    mapped: bool = False
    partial: bool = False

    @property
    def rows(self) -> int:
        """Rows of a workgroup."""
        return self.threads // self.lanes

    @property
    def tile(self) -> int:
        """Elements of a tile."""
        return self.lanes * self.vector * self.loads

    @property
    def symbol(self) -> str:
        marks = ("m" if self.mapped else "") + ("p" if self.partial else "")
        order = "max" if self.largest else "min"
        shape = f"t{self.threads}_l{self.lanes}_k{self.keep}_v{self.vector}x{self.loads}"
        return f"topk_register_{self.dtype}_{order}_{shape}_{marks or 'n'}"


@dataclass(frozen=True, slots=True)
class SortVariant:
    """All of a row in order, one workgroup of `threads` for a row. `mapped` as in `SelectVariant`."""

    dtype: str
    largest: bool
    threads: int
    mapped: bool
    vector: ClassVar[int] = 1
    partial: ClassVar[bool] = False
    #: Rows of a workgroup.
    rows: ClassVar[int] = 1

    @property
    def waves(self) -> int:
        return self.threads // WAVE_SIZE

    @property
    def symbol(self) -> str:
        order = "max" if self.largest else "min"
        return f"topk_sort_{self.dtype}_{order}_t{self.threads}_{'m' if self.mapped else 'n'}"


Variant: TypeAlias = SelectVariant | RegisterVariant | SortVariant
