"""Shadow memory: arrays with one entry for every few bytes of a memory."""

from __future__ import annotations

import numpy as np

#: Bytes of a cell before an access asks for smaller ones: the widest access of a lane.
WIDEST = 16


class Shadow:
    """Named int32 arrays over the cells of `size` bytes of memory, 0 at first.

    All cells are of one width, which shrinks when an access is narrower or less aligned: every access
    covers whole cells, so nothing is approximated, and wide accesses touch few. Host memory is used for
    what has been touched (while the operating system hands out zeros lazily), and for all when cells shrink.
    """

    def __init__(self, size: int, *names: str) -> None:
        self.width = 0
        self._size, self._names = size, names
        self._arrays: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def cells(self, offsets: np.ndarray, size: int) -> np.ndarray:
        """The cells of accesses of `size` bytes at byte `offsets`, int64 [m]: int64 [m, cells each]."""
        bits = int(np.bitwise_or.reduce(offsets)) | size
        self._refine(min(bits & -bits, WIDEST))
        first = offsets // self.width
        count = size // self.width
        return first[:, None] if count == 1 else first[:, None] + np.arange(count)

    def _refine(self, width: int) -> None:
        if not self._arrays:
            self.width = width
            cells = -(-self._size // width)
            self._arrays = {name: np.zeros(cells, np.int32) for name in self._names}
        elif width < self.width:
            parts = self.width // width
            self._arrays = {name: np.repeat(array, parts) for name, array in self._arrays.items()}
            self.width = width
