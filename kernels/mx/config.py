"""Configurations of MX products and the rules that choose among them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from flycc.contracts import GemmProblem, Reason
from flycc.contracts.scaled_gemm import BLOCK_K, ELEMENT_BITS, ElementFormat, ScaledGemmProblem
from flycc.kernels.common.machine import COMPUTE_UNITS
from flycc.kernels.gemm import config as dense
from flycc.kernels.gemm.config import MFMA_K, MFMA_MN, GemmConfig, Shares

#: Elements along K of an MFMA.
SLICE_ELEMENTS = 128
#: Rows whose scales lie together where scales are packed, and pairs of bytes of their run along K.
GROUP_ROWS, PACKED_K = 64, 64
#: Bytes of a line of memory.
LINE_BYTES = 128
#: Sums of a lane beside which there are registers for all else, and, of two waves of a SIMD, for what has to be.
_SPARING_SUMS, _MOST_SUMS = 128, 192
_RESULTS = ("bf16", "f16", "f32")


def pairs(element: ElementFormat, k: int) -> int:
    """Pairs of bytes of `k` elements."""
    return k * ELEMENT_BITS[element] // 16


def widest(problem: ScaledGemmProblem) -> ElementFormat:
    """The format whose pairs of bytes along K are counted: the wider one of the operands'."""
    return max(problem.format_a, problem.format_b, key=lambda element: ELEMENT_BITS[element])


def pairs_of_block(problem: ScaledGemmProblem) -> int:
    """Pairs of bytes, as K counts them, that share a block scale."""
    return pairs(widest(problem), BLOCK_K)


def pieces(problem: ScaledGemmProblem) -> tuple[int, int]:
    """Fragments of 16 bytes of A and of B that a lane feeds to one MFMA."""
    return (
        pairs(problem.format_a, SLICE_ELEMENTS) // MFMA_K,
        pairs(problem.format_b, SLICE_ELEMENTS) // MFMA_K,
    )


def counted(problem: ScaledGemmProblem) -> GemmProblem:
    """The product of 16-bit elements whose operands have as many bytes, those of the wider one: they take the same way
    to the MFMAs, which take as long."""
    k = pairs(widest(problem), problem.k) if isinstance(problem.k, int) else problem.k
    epilogue = replace(problem.epilogue, out_dtype=problem.epilogue.out_dtype or problem.dtype)
    return GemmProblem(
        "bf16",
        problem.m,
        problem.n,
        k,
        trans_b=True,
        bias=problem.bias,
        align_a=problem.align_a,
        align_b=problem.align_b,
        align_out=problem.align_out,
        align_bias=problem.align_bias,
        align_residual=problem.align_residual,
        epilogue=epilogue,
    )


@dataclass(frozen=True, slots=True)
class MxConfig:
    """`tile` says how a workgroup computes one tile; its `tile_k` counts pairs of bytes, as `counted`.

    `packed` names the operands whose block scales are not as the problem has them, but as `kernels.mx.pack` puts them:
    as they are a tile's rows of scales are far apart, and of each line of memory a step along K takes 4 or 8 bytes.
    """

    tile: GemmConfig
    packed: bool = False

    @property
    def split(self) -> bool:
        """Whether several workgroups may share a tile."""
        return self.tile.split

    @property
    def waves(self) -> int:
        return self.tile.waves

    def check_strides(self, strides: Mapping[str, int]) -> Reason | None:
        """None if the kernel reaches everything with these strides (pairs of bytes, or elements of addends and results,
        by name), else why not."""
        reason = self.tile.check_strides(strides)
        return None if reason is None else Reason("scaled-gemm.stride", reason.sentence)

    def is_valid(self, problem: ScaledGemmProblem) -> Reason | None:
        """None if this configuration computes `problem`, else why it does not."""
        reason = _check_problem(problem) or self._check_formats(problem)
        if reason is not None:
            return reason
        reason = self.tile.is_valid(counted(problem))
        return (
            None
            if reason is None
            else Reason(reason.code.replace("gemm.", "scaled-gemm.", 1), reason.sentence)
        )

    def _check_formats(self, problem: ScaledGemmProblem) -> Reason | None:
        of_a, of_b = pieces(problem)
        if self.tile.tile_k % (MFMA_K * max(of_a, of_b)):
            sentence = f"{self}: tile_k must be a multiple of {MFMA_K * max(of_a, of_b)} for {problem}"
            return Reason("scaled-gemm.config", sentence)
        if of_a != of_b and self.tile.staged:
            sentence = f"{self}: elements of different sizes are not staged in LDS"
            return Reason("scaled-gemm.config", sentence)
        blocks = (
            self.tile.tile_m // self.tile.waves_m // MFMA_MN,
            self.tile.tile_n // self.tile.waves_n // MFMA_MN,
        )
        if self.packed and "block" not in (problem.scale_a, problem.scale_b):
            return Reason("scaled-gemm.config", f"{self}: there are no block scales to pack in {problem}")
        for count in blocks if self.packed else ():
            if not self.tile.ring or (count not in (1, 2) and count % 4):
                rows = "16, 32 or multiples of 64 rows"
                sentence = f"{self}: packed scales are those of rings whose waves have {rows}"
                return Reason("scaled-gemm.config", sentence)
        if self.tile.schedule == "ahead":
            return Reason("scaled-gemm.config", f"{self}: there are no registers to read ahead")
        return self._check_registers(problem)

    def _check_registers(self, problem: ScaledGemmProblem) -> Reason | None:
        """Beside many sums there are registers for little else: what else is known to spill is not taken."""
        kinds = {problem.scale_a, problem.scale_b}
        if self.tile.sums <= _SPARING_SUMS:
            return None
        if self.tile.sums > _MOST_SUMS or self.tile.schedule != "staggered":
            what = "its schedule"
        elif "e2m1" in (problem.format_a, problem.format_b):
            what = "elements of 4 bits"
        elif not kinds.isdisjoint(("row", "row_f32")):
            what = "scales of rows"
        elif "block" in kinds and not self.packed:
            what = "scales that are not packed"
        elif problem.epilogue.residual:
            what = "a residual"
        else:
            return None
        sentence = f"{self} has {self.tile.sums} sums a lane, so it would spill with {what}"
        return Reason("scaled-gemm.registers", sentence)

    def __str__(self) -> str:
        return f"{self.tile}{'_packed' * self.packed}"


def shares(problem: ScaledGemmProblem, config: MxConfig) -> Shares:
    """How workgroups share K, for `problem`, whose sizes must all be known: of a configuration with `split`."""
    of_bytes = counted(problem)
    return config.tile.shares(of_bytes.m, of_bytes.n, of_bytes.k, 1)  # type: ignore[arg-type]


def _check_problem(problem: ScaledGemmProblem) -> Reason | None:
    if problem.dtype not in _RESULTS:
        return Reason("scaled-gemm.dtype", f"results of {problem.dtype}: {', '.join(_RESULTS)} are taken")
    if not isinstance(problem.k, int):
        return Reason("scaled-gemm.size", f"k = {problem.k}: a known number of elements is taken")
    narrow = min(ELEMENT_BITS[problem.format_a], ELEMENT_BITS[problem.format_b])
    if problem.k % (16 // narrow):
        sentence = f"k = {problem.k}: a multiple of {16 // narrow} is taken, whole pairs of bytes of each row"
        return Reason("scaled-gemm.size", sentence)
    if problem.epilogue.gated:
        return Reason("scaled-gemm.epilogue", "a gated product takes two products")
    for name in ("align_scale_a", "align_scale_b"):
        if getattr(problem, name) not in (1, 2, 4, 8, 16):
            sentence = f"{name} = {getattr(problem, name)}: must be 1, 2, 4, 8 or 16 bytes"
            return Reason("scaled-gemm.align", sentence)
    return None


#: Each wave loads operands for itself, K split over the waves: for few rows, where a step takes 32 bytes or more of a
#: row's scales, and for more, where tiles are square.
_DECODE = (
    GemmConfig(16, 16, 128, waves_k=4, staged=False),
    GemmConfig(16, 32, 128, waves_k=4, staged=False),
    GemmConfig(16, 64, 128, waves_k=4, staged=False),
    GemmConfig(32, 32, 128, waves_k=4, staged=False),
    GemmConfig(32, 64, 128, waves_k=4, staged=False),
)
_SQUARE = (
    GemmConfig(32, 32, 128, waves_k=4, staged=False),
    GemmConfig(64, 64, 64, waves_k=4, staged=False),
)
_DECODE_ROWS, _ANY_ROWS = 32, 1 << 31
#: Bytes beside those used that a compute unit gets in the time in which scales are packed: each step along K takes a
#: few of a line of memory of each row of a tile.
_PACKING_BYTES = 300_000
#: Bytes of scales that lanes load at least where rows are aligned.
_DWORD = 4


def candidates(problem: ScaledGemmProblem) -> Iterator[MxConfig]:
    """Every shipped configuration that computes `problem`, the likeliest first."""
    if _check_problem(problem) is not None:
        return
    for tile in _tiles(problem):
        for config in (MxConfig(tile, _packing_pays(problem, tile)), MxConfig(tile)):
            if config.is_valid(problem) is None:
                yield config
                break


def _tiles(problem: ScaledGemmProblem) -> Iterator[GemmConfig]:
    """The dense product's, the likeliest first.

    Waves that load operands themselves wait for their first ones in each workgroup: of more than a few rows they come
    first only where no compute unit has two, or where elements are of different sizes, for which there is nothing else.
    """
    product = counted(problem)
    of_a, of_b = pieces(problem)
    m, n, k = (size if isinstance(size, int) else 0 for size in (product.m, product.n, product.k))
    if not (m and n and k) or m <= _DECODE_ROWS:
        yield from dense.candidates(product, _DECODE, _DECODE_ROWS)
        return
    direct = dense.candidates(product, _SQUARE, _ANY_ROWS)
    first = next(direct)
    if of_a != of_b or first.shares(m, n, k, 1).workgroups <= COMPUTE_UNITS:
        yield first
        yield from direct
    else:
        yield from dense.candidates(product, _DECODE, _DECODE_ROWS)


def _packing_pays(problem: ScaledGemmProblem, tile: GemmConfig) -> bool:
    """Whether scales had better be packed before."""
    product = counted(problem)
    sizes = product.m, product.n, product.k
    if not tile.ring or "block" not in (problem.scale_a, problem.scale_b):
        return False
    assert isinstance(problem.k, int), "_check_problem"
    if math.gcd(-(-problem.k // BLOCK_K), problem.align_scale_a, problem.align_scale_b) < _DWORD:
        return True  # they would be loaded byte by byte
    m, n, k = (size if isinstance(size, int) else 0 for size in sizes)
    shares = tile.shares(m, n, k, 1)
    each = -(-shares.workgroups // COMPUTE_UNITS)
    wasted = each * shares.part_k // tile.step_k * (tile.tile_m + tile.tile_n) * LINE_BYTES
    return wasted > _PACKING_BYTES


#: Serves whatever any configuration serves.
_ANY = MxConfig(GemmConfig(32, 64, 64, waves_k=4, staged=False))


def choose(problem: ScaledGemmProblem) -> MxConfig | Reason:
    """The configuration to run `problem` with, or why none does."""
    found = next(candidates(problem), None)
    if found is not None:
        return found
    reason = _ANY.is_valid(problem)
    return _ANY if reason is None else reason
