"""Modelled times of Triton's MX-scaled products, by tl.dot_scaled with scales as they lie: the best of a sweep."""

from __future__ import annotations

from functools import cache

import numpy as np

from flycc.benchmarks.triton_kernels import Compiled, compile_kernel, scaled_product
from flycc.benchmarks.triton_products import GROUP, Config, carried_on, fastest, traced
from flycc.contracts.scaled_gemm import BLOCK_K, ELEMENT_BITS, ElementFormat
from flycc.costmodel import Prediction
from flycc.emulator.trace import Trace

#: By format, the tiles that were the fastest of some kind of shape among 30 that were modelled: 16 rows, 3 stages, 16
#: waves and MFMAs of 32 x 32 were not, or by less than 5 %.
SWEEP: dict[ElementFormat, list[Config]] = {
    "e4m3": [
        Config(32, 32, 512, 4, 2), Config(32, 64, 256, 4, 2), Config(64, 64, 256, 4, 2), Config(128, 64, 256, 4, 2),
        Config(128, 128, 128, 4, 2), Config(128, 256, 128, 8, 2), Config(256, 256, 128, 8, 2),
    ],
    "e2m1": [
        Config(32, 32, 1024, 4, 2), Config(32, 64, 1024, 4, 2), Config(64, 64, 512, 4, 2), Config(64, 128, 512, 4, 2),
        Config(128, 128, 512, 4, 2), Config(128, 256, 256, 8, 2), Config(256, 256, 128, 8, 2),
    ],
}  # fmt: skip
#: Fewer tiles leave most compute units without work, and more are for larger tiles, where there are any.
FEWEST_TILES, MOST_TILES = 64, 1024


def suits(config: Config, m: int, n: int, k: int) -> bool:
    """Whether a tile is worth modelling for a shape, of which it divides n and k."""
    tiles = -(-m // config.bm) * (n // config.bn)
    largest = config.bm == config.bn == 256
    return (
        n % config.bn == k % config.bk == 0
        and config.bm <= max(32, m)
        and (largest or tiles <= MOST_TILES)
        and (config.bm == config.bn == 32 or tiles >= FEWEST_TILES)
    )


def best(element: ElementFormat, m: int, n: int, k: int) -> tuple[Config, Prediction]:
    """The fastest, as modelled, of those that suit."""
    sweep = [config for config in SWEEP[element] if suits(config, m, n, k)]
    return fastest((config, model(element, config, m, n, k)) for config in sweep)


def model(element: ElementFormat, config: Config, m: int, n: int, k: int) -> Prediction:
    """The modelled launch of a product under a config that suits it; rows up to a whole tile are computed."""
    rows, packed = -(-m // config.bm), 8 // ELEMENT_BITS[element]
    m, grid = rows * config.bm, (rows * (n // config.bn), 1, 1)

    def trace(steps: int) -> Trace:
        short = steps * config.bk
        elements, scales = (
            [np.zeros((size, short // each), np.uint8) for size in (m, n)] for each in (packed, BLOCK_K)
        )
        operands = [*elements, *scales, np.zeros((m, n), np.uint16)]
        return traced(compiled(element, config), grid, [*operands, *map(np.int32, (m, n, short))])

    return carried_on(trace, k // config.bk)


@cache
def compiled(element: ElementFormat, config: Config) -> Compiled:
    """The kernel for bf16 results."""
    types = (
        dict.fromkeys(("a", "b", "scale_a", "scale_b"), "*u8") | {"c": "*bf16"} | dict.fromkeys("mnk", "i32")
    )
    tile = {"BM": config.bm, "BN": config.bn, "BK": config.bk, "GROUP": GROUP}
    of_format = {"FORMAT": element, "PACKED": 8 // ELEMENT_BITS[element]}
    return compile_kernel(
        scaled_product,
        types,
        {**tile, **of_format},
        config.warps,
        aligned=types,
        num_stages=config.stages,
        matrix_instr_nonkdim=16,
    )
