"""Shadow memory: arrays with one entry for every few bytes of a memory."""

from __future__ import annotations

import numpy as np

#: Bytes of a cell before an access asks for smaller ones: the widest access of a lane.
WIDEST = 16


class Shadow:
    """Named arrays over the cells of `size` bytes of memory.

    All cells are of one width, which shrinks when an access is narrower or less aligned: every access
    covers whole cells, so nothing is approximated, and wide accesses touch few.
    """

    def __init__(self, size: int, **fields: tuple[type, int]) -> None:
        self.width = WIDEST
        cells = -(-size // WIDEST)
        self._fields = {name: np.full(cells, fill, dtype) for name, (dtype, fill) in fields.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._fields[name]

    def cells(self, offsets: np.ndarray, size: int) -> np.ndarray:
        """The cells of accesses of `size` bytes at byte `offsets`, int64 [m]: int64 [m, cells each]."""
        if not offsets.size:
            return np.zeros((0, 1), np.int64)
        self._refine(int(np.bitwise_or.reduce(offsets)) | size)
        first = offsets // self.width
        count = size // self.width
        return first[:, None] if count == 1 else first[:, None] + np.arange(count)

    def _refine(self, bits: int) -> None:
        width = min(self.width, bits & -bits)
        if width < self.width:
            parts = self.width // width
            self._fields = {name: np.repeat(array, parts) for name, array in self._fields.items()}
            self.width = width
