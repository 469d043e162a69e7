"""Which probabilities dropout keeps: Philox4x32-10 as `contracts.sdpa.kept` has it, in FlyDSL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T

from flycc.contracts.sdpa import PHILOX_KEY_STEPS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS
from flycc.kernels.attention.scores import NEIGHBOURS, Place


@dataclass(frozen=True)
class Dropout:
    """Dropout of a head: `seed` and `offset` are those of `kept`, `threshold` is what that compares with.

    p becomes p / (1 - dropout_p) where it is kept, else 0.
    """

    seed: tuple[fx.Uint32, fx.Uint32]  # lower half first
    offset: fx.Uint32
    batch_head: fx.Uint32
    threshold: fx.Uint32

    @classmethod
    def of(cls, seed: fx.Pointer, batch_head: fx.Int32, threshold: fx.Int32) -> Dropout:
        """`seed` is int64 [2] in memory, here as int32: the seed and the offset."""
        words = [fx.Uint32(fx.Int32(fx.ptr_load(seed + i, result_type=T.i32))) for i in range(3)]
        words = [fx.Uint32(fx.Int32(rocdl.readfirstlane(T.i32, word.ir_value()))) for word in words]
        return cls((words[0], words[1]), words[2], fx.Uint32(batch_head), fx.Uint32(threshold))

    def kept(self, place: Place) -> list[Any]:
        """Whether each of a lane's results is kept."""
        groups = place.steps[::NEIGHBOURS]
        if place.along_keys:
            query = fx.Uint32(place.of_column)
            words = [self._random(query, fx.Uint32(place.of_rows + step)) for step in groups]
            return [word >= self.threshold for four in words for word in four]
        return [keep for step in groups for keep in self._kept_of_queries(place, step)]

    def _kept_of_queries(self, place: Place, step: int) -> list[Any]:
        """Of a lane's key and 4 queries from `step` on. Words are those of 4 keys, here of 4 neighbouring lanes: each
        of these gets those of one query, and has the bits of its key from the others."""
        key, quad_lane = fx.Uint32(place.of_column), place.key % NEIGHBOURS
        four = self._random(fx.Uint32(place.of_rows + step + quad_lane), key)
        bits = fx.Int32(0)
        for i, word in enumerate(four):
            bits = bits | (word >= self.threshold).select(fx.Int32(1 << i), fx.Int32(0))
        own = fx.Int32(1) << quad_lane
        kept = []
        for lane in range(NEIGHBOURS):
            same = lane * 0b01010101  # quad_perm: of each four lanes, that of this number
            there = rocdl.update_dpp(T.i32, bits.ir_value(), bits.ir_value(), same, 0xF, 0xF, True)
            kept.append((fx.Int32(there) & own) != 0)
        return kept

    def _random(self, query: fx.Uint32, key: fx.Uint32) -> list[fx.Uint32]:
        """4 words, of the keys from key / 4 * 4 on."""
        counter = [key >> 2, query, self.batch_head, self.offset]
        first_key, second_key = self.seed
        for turn in range(PHILOX_ROUNDS):
            first, second = (
                fx.Uint64(counter[2 * i]) * fx.Uint64(multiplier)
                for i, multiplier in enumerate(PHILOX_MULTIPLIERS)
            )
            steps = [fx.Uint32(turn * step & 0xFFFFFFFF) for step in PHILOX_KEY_STEPS]
            counter = [
                fx.Uint32(second >> 32) ^ counter[1] ^ (first_key + steps[0]),
                fx.Uint32(second),
                fx.Uint32(first >> 32) ^ counter[3] ^ (second_key + steps[1]),
                fx.Uint32(first),
            ]
        return counter
