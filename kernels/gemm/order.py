"""In which order workgroups take the tiles of a product, and the parts of tiles.

Workgroups go to the XCDs in turns, and each XCD has an L2 of its own. So an XCD gets consecutive tiles, and those run
through the result in bands of `BAND` tiles along M: the tiles that an XCD computes at a time are a near-square. Where K
is split, all first parts come first, then all second ones: parts of a tile have no operands in common.
"""

from __future__ import annotations

from dataclasses import dataclass

import flydsl.expr as fx

from flycc.kernels.common.machine import XCDS
from flycc.kernels.gemm.config import GemmConfig

#: Tiles along M of a band: an XCD has 32 compute units, and each holds one tile of 256 x 256.
BAND = 4


@dataclass(frozen=True)
class Share:
    """What a workgroup computes: part number `part` out of `parts` of tile number `tile`, out of `tiles`."""

    tile: fx.Int32
    tiles: fx.Int32
    part: fx.Int32
    parts: fx.Int32


def share_of(
    workgroup: fx.Int32, m: fx.Int32, n: fx.Int32, config: GemmConfig, parts: fx.Int32, whole: fx.Int32
) -> Share:
    """The first `whole` tiles (a multiple of `XCDS`) are computed as they are, the others in `parts` parts each."""
    tiles = tiles_of(m, n, config)
    rest = tiles - whole
    split = workgroup >= whole
    first = split.select(whole, fx.Int32(0))
    number = fx.Int32(on_xcd(workgroup - first, split.select(rest * parts, whole)))
    divisor = split.select(rest, fx.max(whole, fx.Int32(1)))
    part = fx.Uint32(number) // fx.Uint32(divisor)
    tile = first + fx.Int32(fx.Uint32(number) % fx.Uint32(divisor))
    return Share(tile, tiles, fx.Int32(part), split.select(parts, fx.Int32(1)))


def tile_of(workgroup: fx.Int32, m: fx.Int32, n: fx.Int32, config: GemmConfig) -> tuple[fx.Int32, fx.Int32]:
    """The tile (along M, along N) of a workgroup out of as many as there are tiles; each is taken once."""
    return place_of(fx.Int32(on_xcd(workgroup, tiles_of(m, n, config))), m, n, config)


def tiles_of(m: fx.Int32, n: fx.Int32, config: GemmConfig) -> fx.Int32:
    """The tiles that cover `m` x `n` results."""
    return fx.Int32(_tiles(m, config.tile_m) * _tiles(n, config.tile_n))


def place_of(tile: fx.Int32, m: fx.Int32, n: fx.Int32, config: GemmConfig) -> tuple[fx.Int32, fx.Int32]:
    """Where a tile lies (along M, along N), by its number."""
    tiles_m, tiles_n = _tiles(m, config.tile_m), _tiles(n, config.tile_n)
    number = fx.Uint32(tile)
    band, inside = number // (tiles_n * BAND), number % (tiles_n * BAND)
    height = fx.min(tiles_m - band * BAND, fx.Uint32(BAND))
    return fx.Int32(band * BAND + inside % height), fx.Int32(inside // height)


def on_xcd(workgroup: fx.Int32, count: fx.Int32) -> fx.Uint32:
    """A number for each of `count` workgroups, such that those of an XCD have consecutive ones."""
    number = fx.Uint32(workgroup)
    each, more = fx.Uint32(count) // XCDS, fx.Uint32(count) % XCDS
    xcd = number % XCDS
    # The first `more` XCDs have one workgroup more than the others.
    return xcd * each + fx.min(xcd, more) + number // XCDS


def _tiles(size: fx.Int32, tile: int) -> fx.Uint32:
    return fx.Uint32(size + (tile - 1)) // tile
