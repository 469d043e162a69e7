"""In which order workgroups take tiles of the rows of all heads.

Workgroups go to the XCDs in turns. An XCD has the tiles of neighbouring heads, so that what these walk through stays in
its L2, and of a head those first that walk furthest. Heads of few tiles are taken `together`, as many as an XCD has
compute units for: the furthest walks of all, then the next ones. So the compute units that are done first, with the
shortest walks, are the ones that get the furthest of the next heads; head by head they would get some of each, and end
1.2 times as late as all together could if heads have four tiles, 1.1 times if eight.
"""

from __future__ import annotations

import flydsl.expr as fx

from flycc.kernels.attention.config import TOGETHER
from flycc.kernels.common.machine import COMPUTE_UNITS, XCDS
from flycc.kernels.gemm.order import on_xcd


def tile_of(workgroup: fx.Int32, tiles: fx.Int32, heads: fx.Int32, uneven: bool) -> tuple[fx.Int32, fx.Int32]:
    """The head, out of `heads` of all batches, of a workgroup's tile, and the tile's place in the order of the head's
    `tiles`; `uneven` says that some walk further than others."""
    number = fx.Uint32(on_xcd(workgroup, tiles * heads))
    together = _together(tiles, heads) if uneven else fx.Uint32(1)
    of_group = fx.Uint32(tiles) * together
    group = number // of_group
    rest = number - group * of_group
    place = rest // together
    return fx.Int32(group * together + (rest - place * together)), fx.Int32(place)


def _together(tiles: fx.Int32, heads: fx.Int32) -> fx.Uint32:
    """A number of heads that those of each XCD are a multiple of."""
    found = fx.Uint32(1)
    for count in TOGETHER:
        fits = (fx.Uint32(heads) % fx.Uint32(XCDS * count) == 0) & (tiles * count <= COMPUTE_UNITS // XCDS)
        found = fits.select(fx.Uint32(count), found)
    return found
