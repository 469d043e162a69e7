"""How long a configuration takes, in closed form: microseconds of CPU instead of the cost model's tenths of a second.

`lower_us` is what no schedule can beat on the cost model's machine: the busiest pipe or path. `estimate_us` adds the
latencies that are not hidden. The first prunes, the second orders what is left, and chooses where no table has the
shape. All constants are the cost model's (`flycc.costmodel.machine`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from flycc.contracts import GemmProblem, GroupedGemmProblem, RmsNormProblem
from flycc.contracts.scaled_gemm import BLOCK_K, ScaledGemmProblem
from flycc.costmodel import MI350
from flycc.costmodel.mfma import mfma
from flycc.kernels.gemm import GemmConfig, Shares, product_columns
from flycc.kernels.gemm.config import ELEMENT_BYTES, MFMA_K, MFMA_MN, divided
from flycc.kernels.gemm.space import unshared, vgprs
from flycc.kernels.grouped_gemm import GroupedGemmConfig
from flycc.kernels.mx import MxConfig, counted, pairs_of_block
from flycc.kernels.rms_norm import RmsNormConfig
from flycc.kernels.rms_norm.config import BYTES

Problem: TypeAlias = GemmProblem | GroupedGemmProblem | RmsNormProblem | ScaledGemmProblem
Config: TypeAlias = GemmConfig | GroupedGemmConfig | MxConfig | RmsNormConfig

_GHZ = MI350.hypotheses[0].peak_ghz
_MFMA_CLK = mfma("v_mfma_f32_16x16x32_bf16", "").clk
#: Bytes of a clock that a compute unit's LDS takes or gives: 32 banks of 4.
_LDS_BYTES_PER_CLK = 128
#: clk of a workgroup before and after its main loop: starting, the first loads from cold caches, storing.
_ENDS_CLK = MI350.wave_start_clk + MI350.global_cold_clk + MI350.store_clk
_NEXT_CLK = MI350.wave_restart_clk + MI350.hbm_clk + MI350.store_clk
#: Results of the matrix pipe, waits and barriers that one turn of a loop cannot hide from its own waves.
_TURN_CLK = 100


def lower_us(problem: Problem, config: Config) -> float:
    """What the pipes, paths and memory take at least, launch included; in us. All sizes must be known."""
    if (product := _product(problem, config)) is not None:
        clk = product.each * product.steps * max(product.paces)
        return max(clk / _GHZ / 1e3, product.hbm_us) + MI350.launch_us[0]
    return _norm_hbm_us(problem) + MI350.launch_us[0]  # type: ignore[arg-type]


def estimate_us(problem: Problem, config: Config) -> float:
    """What it takes, about, launch included; in us. All sizes must be known."""
    if (product := _product(problem, config)) is not None:
        return product.us + MI350.launch_us[1]
    return _norm_us(problem, config)  # type: ignore[arg-type]


def _product(problem: Problem, config: Config) -> _Product | None:
    """A product of any family; None for what is none."""
    if isinstance(problem, ScaledGemmProblem):
        assert isinstance(config, MxConfig)
        return _Product.of(counted(problem), config.tile, _scales(problem, config))
    problem, config = _ungrouped(problem, config)
    return _Product.of(problem, config) if isinstance(problem, GemmProblem) else None  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Scales:
    """`step_bytes` are those that one row's scales for a step along K move from L2, `unique` those in memory;
    `packing_us` the launch that packs them."""

    step_bytes: int = 0
    unique: int = 0
    packing_us: float = 0.0


_NO_SCALES = _Scales()


def _scales(problem: ScaledGemmProblem, config: MxConfig) -> _Scales:
    """Block scales: whole lines of rows as they are, or what is used where they are packed."""
    if "block" not in (problem.scale_a, problem.scale_b):
        return _NO_SCALES
    used = config.tile.step_k // pairs_of_block(problem)
    lines = -(-used // MI350.line_bytes) * MI350.line_bytes
    rows = _known(problem.m) + _known(problem.n)
    unique = rows * -(-_known(problem.k) // BLOCK_K)
    packing_us = _ENDS_CLK / _GHZ / 1e3 + 2 * unique / MI350.hbm_tb_s / 1e6 if config.packed else 0.0
    return _Scales(used if config.packed else lines, unique, packing_us)


def _ungrouped(problem: Any, config: Any) -> tuple[Any, Any]:
    """Of groups, taken to be equal, a batch of products: as many tiles, and as much to fetch."""
    if not isinstance(problem, GroupedGemmProblem):
        return problem, config
    groups = _known(problem.groups)
    each = -(-_known(getattr(problem, problem.ragged)) // groups)
    sizes: dict[str, Any] = {problem.ragged: each, "batch": groups}
    batch = replace(problem.group, **sizes)
    return batch, divided(unshared(config.tile), batch) if config.tile.split else config.tile


@dataclass(frozen=True, slots=True)
class _Product:
    """`each` workgroups are those of the busiest compute unit, of which `resident` run at a time; `steps` along K.

    `paces` are clk that a workgroup's step takes of the matrix pipes, LDS, L1, and the path from L2; `alone` those it
    takes one workgroup that has the compute unit for itself. `extra_us` are adding up parts and packing scales.
    """

    each: int
    resident: int
    steps: int
    paces: tuple[float, ...]
    alone: float
    hbm_us: float
    extra_us: float

    @classmethod
    def of(cls, problem: GemmProblem, config: GemmConfig, scales: _Scales = _NO_SCALES) -> _Product:
        n = _known(product_columns(problem))
        m, k, batch = (_known(size) for size in (problem.m, problem.k, problem.batch))
        shares = config.shares(m, n, k, batch)
        groups = shares.workgroups * batch
        each = -(-groups // MI350.cus)
        resident = min(each, _resident(config))
        simds = min(MI350.simds_per_cu, resident * config.waves)
        rows = min(config.tile_m, m) + min(config.tile_n, n)
        loaded = rows * config.step_k * ELEMENT_BYTES
        # Whole lines: L1 has lost the rest of one by the next step.
        fetched = rows * -(-config.step_k * ELEMENT_BYTES // MI350.line_bytes) * MI350.line_bytes
        fetched += rows * scales.step_bytes
        blocks = config.tile_m * config.tile_n * config.step_k // (MFMA_MN * MFMA_MN * MFMA_K)
        fed = (config.tile_m // config.waves_m + config.tile_n // config.waves_n) * config.tile_k
        lds = (loaded + config.waves * fed * ELEMENT_BYTES) / _LDS_BYTES_PER_CLK if config.staged else 0.0
        pipes = blocks * _MFMA_CLK / simds
        paces = (
            pipes,
            lds,
            loaded / MI350.l1_bytes_per_clk,
            fetched / MI350.operand_bytes_per_clk,
        )
        if config.ring:  # all loads run while tiles before are multiplied
            alone = max(*paces, blocks * _MFMA_CLK / min(MI350.simds_per_cu, config.waves))
        elif config.staged:  # the loads of the next step run while this one is multiplied
            multiply = blocks * _MFMA_CLK / min(MI350.simds_per_cu, config.waves)
            alone = max(MI350.hbm_clk + paces[3], multiply + lds / 2) + lds / 2 + _TURN_CLK
        else:  # no wave waits for another, but each for its loads, which run while a step is multiplied
            alone = MI350.hbm_clk + max(paces[3], blocks * _MFMA_CLK) / config.waves
        epilogue = problem.epilogue
        results = m * _known(problem.n) * (1 + epilogue.residual + epilogue.preactivation)
        unique = (m * k + n * k + results) * ELEMENT_BYTES * batch + scales.unique
        steps = -(-(k if shares.whole else min(k, shares.part_k)) // config.step_k)
        hbm_us = unique / MI350.hbm_tb_s / 1e6
        return cls(each, resident, steps, paces, alone, hbm_us, _adding_us(shares) + scales.packing_us)

    @property
    def us(self) -> float:
        """Rounds of resident workgroups, each as slow as its busiest path or as one workgroup alone."""

        def round_clk(workgroups: int) -> float:
            return self.steps * max(workgroups * max(self.paces), self.alone)

        full, rest = divmod(self.each, self.resident)
        clk = full * round_clk(self.resident) + (round_clk(rest) if rest else 0.0)
        clk += (full - 1 + (rest > 0)) * _NEXT_CLK
        return max(clk / _GHZ / 1e3, self.hbm_us) + _ENDS_CLK / _GHZ / 1e3 + self.extra_us


def _adding_us(shares: Shares) -> float:
    """What it takes to add up parts: their way to memory and back, and latencies. As the model has it, in which each of
    them is the last one to come."""
    if shares.parts == 1:
        return 0.0
    tile = 4 * shares.config.tile_m * shares.config.tile_n
    groups = shares.batch * (shares.tiles - shares.whole) * shares.parts
    moved_us = groups * (shares.parts - 1) * tile / MI350.hbm_tb_s / 1e6
    own_us = (shares.parts - 1) * tile / MI350.operand_bytes_per_clk / _GHZ / 1e3
    latency_us = (MI350.atomic_clk + MI350.hbm_clk) / _GHZ / 1e3
    # A last round in parts is modelled as a launch of its own.
    again_us = _ENDS_CLK / _GHZ / 1e3 if shares.whole else 0.0
    return max(moved_us, own_us) + latency_us + again_us


def _resident(config: GemmConfig) -> int:
    """Workgroups of a compute unit, by registers, LDS and waves; at least one."""
    by_registers = MI350.simds_per_cu * (MI350.vgprs_per_lane // vgprs(config)) // config.waves
    by_waves = MI350.simds_per_cu * MI350.waves_per_simd // config.waves
    by_lds = MI350.lds_bytes_per_cu // config.lds_bytes if config.lds_bytes else by_waves
    return max(1, min(by_registers, by_waves, by_lds))


def _norm_hbm_us(problem: RmsNormProblem) -> float:
    elements = _known(problem.rows) * _known(problem.columns)
    sides = 1 + problem.residual
    nbytes = elements * (BYTES[problem.dtype] * (2 * sides - 1) + BYTES[problem.out_dtype])
    return nbytes / MI350.hbm_tb_s / 1e6


def _norm_us(problem: RmsNormProblem, config: RmsNormConfig) -> float:
    """Rounds of rows: each takes the latency of a read, of the reduction and of a write."""
    groups = -(-_known(problem.rows) // config.rows)
    waves = -(-config.block // 64)
    resident = max(1, MI350.simds_per_cu * MI350.waves_per_simd // waves)
    rounds = math.ceil(groups / (MI350.cus * resident))
    turn = MI350.hbm_clk * (2 if config.stream else 1) + config.slots * MI350.slot_clk * 8
    clk = rounds * turn + _ENDS_CLK
    return max(clk / _GHZ / 1e3, _norm_hbm_us(problem)) + MI350.launch_us[1]


def _known(size: int | str) -> int:
    if not isinstance(size, int):
        raise ValueError(f"size: got {size!r}; only problems whose sizes are all known can be timed")
    return size
