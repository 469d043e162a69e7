"""What the kernels of the gradients of heads wider than 256 have in common, in FlyDSL.

The two waves of a *pair* share 32 columns, which are keys for dK and dV, queries for dQ. The first, *role* 0, makes S
and P, the second, role 1, dP: each of one operand's rows in registers and of the other's that come through LDS. dS is
the product of what both have found, float32, which they exchange. So a wave has all of one operand, 128 registers at
512, and room for the sums of 512 columns of gradients; heads and values are filled up to the same dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import flydsl.expr as fx

from flycc.kernels.attention.backward_common import Turn, in_loop, in_turn, lane_again
from flycc.kernels.attention.backward_variant import BackwardVariant
from flycc.kernels.attention.exchange import Exchange
from flycc.kernels.attention.mfma import BLOCK, RESULTS, SLICE, product
from flycc.kernels.attention.operands import valid
from flycc.kernels.attention.tiles import CHUNK, Ring, Rows, loads_of_tile
from flycc.kernels.common.machine import WAVE_SIZE
from flycc.kernels.common.vectors import ELEMENTS

#: Tiles of each operand that LDS holds: one that is read, one on its way.
STAGES = 2
#: Products between the reads of operands and their use.
AHEAD = 2


@dataclass(frozen=True)
class Pair:
    """A wave of a pair, and tiles of 32 rows of two operands, of which it multiplies rows of number `role` with those
    that it has: Q and dO, or K and V. `dims` are elements of their rows."""

    variant: BackwardVariant
    rings: tuple[Ring, Ring]
    aimed: list[list[fx.Int32]]
    strides: tuple[fx.Int64, fx.Int64]
    dims: tuple[fx.Int32, fx.Int32]
    exchange: Exchange
    rest: fx.Pointer
    wave: fx.Int32

    @classmethod
    def of(
        cls,
        variant: BackwardVariant,
        strides: tuple[fx.Int64, fx.Int64],
        dims: tuple[fx.Int32, fx.Int32],
        thread: fx.Int32,
        wave: fx.Int32,
        in_lds: int = 0,
    ) -> Pair:
        """`strides` are those of the operands' rows; of a wave's, `in_lds` slices lie in LDS."""
        config = variant.config
        dim, threads = config.head_dim, config.block
        size = STAGES * loads_of_tile(BLOCK, dim, threads) * threads * CHUNK
        shared = fx.SharedAllocator()
        tiles = shared.allocate(fx.Array[fx.Int16, 2 * size, 16]).peek().ptr
        # For dK and dV only waves of role 0 have something for the others.
        both = config.what == "dq"
        sent = shared.allocate(fx.Array[fx.Float32, threads * RESULTS // (1 if both else 2), 16]).peek().ptr
        rest = shared.allocate(fx.Array[fx.Int16, max(in_lds * threads * CHUNK, CHUNK), 16]).peek().ptr
        first, second = (
            Ring(place, BLOCK, dim, STAGES, threads, thread, wave) for place in (tiles, tiles + size)
        )
        rings = first, second
        places = (wave, wave ^ 1) if both else (wave // 2, wave // 2)
        exchange = Exchange(sent, thread % WAVE_SIZE, *places)
        return cls(variant, rings, aim(rings, strides, dims), strides, dims, exchange, rest, wave)

    def anew(self) -> Pair:
        """The same, but that what follows from the lane is computed again, and not kept in registers until then."""
        lane = lane_again()
        thread = self.wave * WAVE_SIZE + lane
        first, second = (replace(ring, thread=thread) for ring in self.rings)
        return replace(
            self,
            rings=(first, second),
            aimed=aim((first, second), self.strides, self.dims),
            exchange=replace(self.exchange, lane=lane),
        )

    @property
    def role(self) -> fx.Int32:
        return self.wave % 2

    @property
    def scores(self) -> Any:
        """Whether this wave is the one that has scores."""
        return self.role == 0

    @property
    def lane(self) -> fx.Int32:
        return self.exchange.lane

    @property
    def loads(self) -> int:
        """Load instructions of a wave for a tile of both operands."""
        return 2 * self.rings[0].loads

    @property
    def ragged(self) -> bool:
        """Whether rows may end inside of 16 bytes."""
        return self.variant.ragged_head or self.variant.ragged_value

    @property
    def nothing(self) -> list[fx.Vector]:
        """As operands of the products over a row."""
        return [fx.Vector.filled(CHUNK, 0, fx.Int16)] * (self.variant.config.head_dim // SLICE)

    def ring(self, number: fx.Int32) -> Ring:
        """That of operand `number`, which may differ from wave to wave."""
        first = self.rings[0]
        return replace(first, pointer=first.pointer + number * (STAGES * first.stage_elements))

    def fill(self, stage: fx.Int32, rows: Sequence[Rows]) -> None:
        """Starts the loads of a tile of each operand; beyond the last row there are zeros."""
        for ring, of_ring, aimed in zip(self.rings, rows, self.aimed, strict=True):
            ring.fill(stage, of_ring, aimed)

    def products(self, stage: fx.Int32, own: Own) -> fx.Vector:
        """Of 32 rows of the wave's tile and its `own`."""
        sums = [fx.Vector.filled(RESULTS, 0.0, fx.Float32)]
        element = ELEMENTS[self.variant.dtype]
        slices = in_loop(self.ring(self.role).row_slices(stage, 0))
        dim = self.scores.select(*self.dims)

        def read(number: int) -> tuple[fx.Vector, fx.Vector]:
            rows = slices.load(number)
            if self.ragged:
                rows = valid(rows, 2 * number + self.lane // BLOCK, dim)
            return rows, own.load(number, self.lane)

        def multiply(both: tuple[fx.Vector, fx.Vector]) -> None:
            sums[0] = product(element, *both, sums[0])

        numbers = range(self.variant.config.head_dim // SLICE)
        in_turn([Turn(partial(read, number), multiply) for number in numbers], AHEAD)
        return sums[0]


@dataclass(frozen=True)
class Own:
    """A wave's rows, as operands of products over them: the first slices in registers, the others in LDS from `rest`
    on, [slice][64 lanes][8]."""

    first: list[fx.Vector]
    rest: fx.Pointer

    @classmethod
    def of(cls, slices: list[fx.Vector], pair: Pair, in_lds: int) -> Own:
        """The last `in_lds` of the slices lie in LDS."""
        own = cls(slices[: len(slices) - in_lds], pair.rest + pair.wave * (in_lds * WAVE_SIZE * CHUNK))
        for number, operand in enumerate(slices[len(own.first) :]):
            fx.ptr_store(operand.ir_value(), own.place(number, pair.lane))
        return own

    def load(self, number: int, lane: fx.Int32) -> fx.Vector:
        if number < len(self.first):
            return self.first[number]
        place = self.place(number - len(self.first), lane)
        return fx.Vector(fx.ptr_load(place, result_type=fx.Vector.make_type(CHUNK, fx.Int16)))

    def place(self, number: int, lane: fx.Int32) -> fx.Pointer:
        return self.rest + (lane * CHUNK + number * (WAVE_SIZE * CHUNK))


def aim(
    rings: tuple[Ring, Ring], strides: tuple[fx.Int64, fx.Int64], dims: tuple[fx.Int32, fx.Int32]
) -> list[list[fx.Int32]]:
    """Of each ring's loads."""
    return [ring.aim(fx.Int32(stride), dim) for ring, stride, dim in zip(rings, strides, dims, strict=True)]
