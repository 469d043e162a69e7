"""What an LDS access takes in the LDS: phases, and conflicts of banks.

The LDS has 64 banks of a dword. An access is served in phases of some lanes; a phase takes as many clocks as the
busiest bank has different dwords to serve in it (lanes with the same dword share). Which lanes form a phase:

    read, 4 bytes and less  all 64 lanes at once (256 bytes a clock; no source says it, the peak rate does)
    read, 8 bytes           2 phases of 32 lanes
    read, 16 bytes          4 phases of 16 lanes, lanes {0-3, 12-15, 20-27}, {4-11, 16-19, 28-31} and those + 32
    write, 8 bytes          4 phases of 16 lanes on 32 banks; other writes take the same 128 bytes a clock: 2 phases
                            of 32 lanes for 4 bytes and less, 8 of 8 lanes for 16 bytes (inferred, not published)
    12 bytes                as 16 bytes

Atomics count as writes of their size, a load to LDS as a write, and a transposed read as a read of its size, whose
cost is not published.
"""

from __future__ import annotations

import numpy as np

LANES = 64
BANKS_READ, BANKS_WRITE = 64, 32


def _consecutive(lanes: int) -> np.ndarray:
    return np.arange(LANES).reshape(-1, lanes)


_B128 = np.array(
    [[*range(4), *range(12, 16), *range(20, 28)], [*range(4, 12), *range(16, 20), *range(28, 32)]]
)
#: Lanes of each phase by bytes a lane.
READ_PHASES = {4: _consecutive(64), 8: _consecutive(32), 16: np.concatenate([_B128, _B128 + 32])}
WRITE_PHASES = {4: _consecutive(32), 8: _consecutive(16), 16: _consecutive(8)}


def clocks(addresses: np.ndarray, mask: np.ndarray, size: int, *, writes: bool) -> tuple[int, int]:
    """(clocks without conflicts, clocks) of one wave's access.

    `addresses` are byte offsets, [64]; `mask` bool [64]; `size` bytes a lane. A phase without lanes takes no time.
    """
    wide = 4 if size <= 4 else 8 if size <= 8 else 16
    phases = (WRITE_PHASES if writes else READ_PHASES)[wide]
    banks = BANKS_WRITE if writes else BANKS_READ
    busy = total = 0
    for lanes in phases:
        starts = addresses[lanes[mask[lanes]]].astype(np.int64)
        if starts.size:
            dwords = np.unique(starts[:, None] // 4 + np.arange(-(-size // 4)))
            busy += 1
            total += int(np.bincount(dwords % banks).max())
    return busy, total
