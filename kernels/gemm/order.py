"""In which order workgroups take the tiles of a product.

Workgroups go to the XCDs in turns, and each XCD has an L2 of its own. So an XCD gets consecutive tiles, and those run
through the result in bands of `BAND` tiles along M: the tiles that an XCD computes at a time are a near-square.
"""

from __future__ import annotations

import flydsl.expr as fx

from flycc.kernels.common.machine import XCDS
from flycc.kernels.gemm.config import GemmConfig

#: Tiles along M of a band: an XCD has 32 compute units, and each holds one tile of 256 x 256.
BAND = 4


def tile_of(workgroup: fx.Int32, m: fx.Int32, n: fx.Int32, config: GemmConfig) -> tuple[fx.Int32, fx.Int32]:
    """The tile (along M, along N) of a workgroup out of as many as there are tiles; each is taken once."""
    tiles_m, tiles_n = _tiles(m, config.tile_m), _tiles(n, config.tile_n)
    number = fx.Uint32(workgroup)
    each, more = tiles_m * tiles_n // XCDS, tiles_m * tiles_n % XCDS
    xcd = number % XCDS
    # The first `more` XCDs have one workgroup more than the others.
    tile = xcd * each + fx.min(xcd, more) + number // XCDS
    band, inside = tile // (tiles_n * BAND), tile % (tiles_n * BAND)
    height = fx.min(tiles_m - band * BAND, fx.Uint32(BAND))
    return fx.Int32(band * BAND + inside % height), fx.Int32(inside // height)


def _tiles(size: fx.Int32, tile: int) -> fx.Uint32:
    return fx.Uint32(size + (tile - 1)) // tile
