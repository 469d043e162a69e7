"""What the SIMDs of a compute unit share: the LDS pipe, and the path from L1's bus to memory, in clocks.

A pipe or level serves requests one after another, as fast as its bytes a clock allow; how long a result then travels
is a latency. Nothing is reordered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flycc.costmodel.machine import Machine
from flycc.costmodel.streams import Op


@dataclass(frozen=True, slots=True)
class Supply:
    """What one compute unit gets from beyond L1: clocks a byte of each path, and latencies in clk.

    `link` from L2; `deep` from MALL or HBM, for a byte of a workgroup's fresh lines whether or not L2 holds it (so less
    than the price of a byte there); `store` to L2; `drain` of stores to memory.
    """

    link: float
    deep: float
    store: float
    drain: float
    fresh_latency: int


class LdsPath:
    """The LDS: a queue of instructions before one pipe. `busy` is clk of the pipe."""

    __slots__ = ("_at", "_free", "_left", "busy")

    def __init__(self, machine: Machine) -> None:
        self._left = [0] * machine.lds_queue  # when the latest so many instructions left the queue
        self._at = 0
        self._free = 0
        self.busy = 0

    @property
    def room(self) -> int:
        """When the queue takes another instruction."""
        return self._left[self._at]

    @property
    def drained(self) -> int:
        """When the pipe has done all that it was given."""
        return self._free

    def access(self, at: int, op: Op) -> int:
        """An LDS instruction issued at `at`; when its result is there."""
        begin = max(at, self._free)
        self.occupy(begin, op.clk)
        self._left[self._at] = begin
        self._at = (self._at + 1) % len(self._left)
        return begin + op.latency

    def occupy(self, at: int, clk: int) -> None:
        """The pipe is taken for `clk`, also by a load that writes to LDS."""
        self._free = max(at, self._free) + clk
        self.busy += clk


class GlobalPath:
    """The memory instructions' way: a queue for each SIMD, L1's bus, the link to L2, and what lies beyond."""

    __slots__ = (
        "_at", "_deep", "_l1", "_left", "_link", "_machine", "_store", "_supply", "deep_busy", "l1_busy", "link_busy",
    )  # fmt: skip

    def __init__(self, machine: Machine, supply: Supply) -> None:
        self._machine, self._supply = machine, supply
        self._left = [[0] * machine.l1_queue for _ in range(machine.simds_per_cu)]
        self._at = [0] * machine.simds_per_cu
        self._l1 = 0  # when the bus is free, and so on
        self._link = self._deep = self._store = 0.0
        self.l1_busy = 0
        self.link_busy = self.deep_busy = 0.0

    def room(self, simd: int) -> int:
        """When the SIMD's queue takes another instruction."""
        return self._left[simd][self._at[simd]]

    @property
    def drained(self) -> int:
        """When all that was stored and asked for has arrived, waited for or not."""
        return math.ceil(max(self._l1, self._link, self._store, self._deep))

    def access(self, at: int, simd: int, op: Op, *, cold: bool) -> int:
        """A memory instruction issued at `at`; when it is complete. `cold`: nothing knows its page yet."""
        begin = max(at, self._l1)
        self._l1 = begin + op.clk
        self.l1_busy += op.clk
        place = self._at[simd]
        self._left[simd][place] = begin
        self._at[simd] = (place + 1) % self._machine.l1_queue
        if op.store:
            return self._stored(begin, op)
        done, latency = float(self._l1), op.latency or self._machine.l1_hit_clk
        if op.fresh or op.again:
            latency = self._supply.fresh_latency if op.fresh else self._machine.l2_hit_clk
            done = max(done, self._fetched(begin, op))
        if cold:
            latency = max(latency, at + self._machine.global_cold_clk - int(done))
        return int(done) + latency

    def _fetched(self, begin: int, op: Op) -> float:
        clk = (op.fresh + op.again) * self._supply.link
        self._link = max(self._link, begin) + clk
        self.link_busy += clk
        clk = op.fresh * self._supply.deep
        if clk:
            self._deep = max(self._deep, begin) + clk
            self.deep_busy += clk
            return max(self._link, self._deep)
        return self._link

    def _stored(self, begin: int, op: Op) -> int:
        self._store = max(self._store, begin) + op.store * self._supply.store
        clk = op.store * self._supply.drain
        self._deep = max(self._deep, begin) + clk
        self.deep_busy += clk
        return int(max(self._l1, self._store)) + op.latency
