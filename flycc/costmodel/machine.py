"""What the cost model knows of gfx950 (MI350/MI355X): every constant, its unit in its name and its source.

[S] read in a public source (ISA and LLVM documents, AMD's guides and data sheets), [M] measured or derived by this
project from public measurements, [?] an assumption that nothing we know of confirms. `clk` is one core clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """One explanation of why large matrix products stop short of the peak; a prediction carries them all.

    Dynamic power grows with frequency times voltage squared, so with the cube of the clock, and with the share of all
    MFMA pipes of the device that is busy: up to `free_activity` of it the clock is `peak_ghz`, beyond it falls with the
    cube root. `operand_tb_s` is what all compute units together get from L2.
    """

    name: str
    peak_ghz: float
    free_activity: float
    operand_tb_s: float

    def ghz(self, activity: float) -> float:
        """The clock at which that share, 0 to 1, of the device's MFMA pipes is busy."""
        if activity <= self.free_activity:
            return self.peak_ghz
        return self.peak_ghz * float((self.free_activity / activity) ** (1 / 3))


@dataclass(frozen=True, slots=True)
class Machine:
    """One gfx950 device. The defaults are the MI350X/MI355X."""

    # Topology.
    xcds: int = 8  # [S]
    cus_per_xcd: int = 32  # [S]
    shader_engines_per_xcd: int = 4  # [S] of CDNA3, [?] of CDNA4
    simds_per_cu: int = 4  # [S]
    waves_per_simd: int = 8  # [S]
    workgroups_per_cu: int = 32  # [S]
    vgprs_per_lane: int = 512  # [S] shared by the waves of a SIMD, in blocks of 8
    vgpr_block: int = 8  # [S]
    lds_bytes_per_cu: int = 160 * 1024  # [S]
    lds_block_bytes: int = 1280  # [S] LLVM: allocation granularity of gfx950
    line_bytes: int = 128  # [S]
    l1_bytes_per_cu: int = 32 * 1024  # [S]
    l2_bytes_per_xcd: int = 4 << 20  # [S]
    mall_bytes: int = 256 << 20  # [S]

    # Issue.
    slot_clk: int = 4  # [S] a SIMD issues every 4 clk, at most one instruction for each unit
    barrier_clk: int = 8  # [S]
    branch_taken_clk: int = 24  # [S]
    branch_clk: int = 8  # [?] not taken
    quarter_rate_clk: int = 16  # [S] LLVM: 32-bit integer multiplication
    trans_clk: int = 16  # [S] of the VALU
    mfma_result_states: int = (
        3  # [S] states of 4 clk after an MFMA's passes until its result is used elsewhere
    )
    mfma_to_lds_clk: int = 8  # [S] no ds_read in the slot after an MFMA
    sleep_clk: int = 64  # [S] of s_sleep, for each count

    # LDS.
    lds_latency_clk: int = 40  # [S] read of 4 or 8 bytes a lane, and any write; plus conflicts
    lds_wide_latency_clk: int = 8  # [M] read of 16 bytes a lane: this and, for each phase, what follows:
    lds_phase_latency_clk: int = 12  # [M] 56 for 64 lanes [S] (4 phases), 32 for lanes 0-15 [M] (2 phases)
    lds_queue: int = 16  # [S]
    lds_banks: int = (
        64  # [S] [?] each performs one lane's atomic a clock, whether or not lanes share an address
    )
    lanes_clk: int = 2  # [?] ds_bpermute and its like, of the LDS pipe; latency as a read of 4 bytes

    # Memory: latencies from issue to use, one after another through the levels.
    scalar_hit_clk: int = 200  # [?]
    scalar_cold_clk: int = 768  # [M]
    l1_hit_clk: int = 120  # [?] CDNA3: 115 to 125
    l2_hit_clk: int = 300  # [?] CDNA3: 250 to 310
    mall_clk: int = 600  # [?] CDNA3: about 500 at 2.1 GHz
    hbm_clk: int = 900  # [?] CDNA3: 750 to 850 at 2.1 GHz
    global_cold_clk: int = 1892  # [M] first load of a wave in a launch's first round, from issue to use
    store_clk: int = 300  # [?] until the write is acknowledged by L2
    atomic_clk: int = 400  # [?] performed in L2
    l1_bytes_per_clk: int = 64  # [S] of a compute unit
    l1_queue: int = 16  # [S] requests of the waves of one SIMD
    # [M] The assembly kernel of 256x256 tiles on up to 144 compute units, so short of neither power nor L2, takes
    # 1.07 us for the 64 KiB of a step, 61 GB/s. No kernel of the public tables gets more, small tiles get near that.
    operand_bytes_per_clk: float = 25.6  # of one compute unit from L2
    l2_write_bytes_per_clk_per_xcd: float = 64 * 16  # [S]
    mall_tb_s: float = 11.0  # [?] CDNA3: 11.9 measured of 17 peak
    hbm_tb_s: float = 6.4  # [S] 6.0 to 6.8 achieved of 8.0

    # Device.
    wave_start_clk: int = 720  # [M] first instruction of a launch: cold instruction cache
    wave_restart_clk: int = 100  # [?] first instruction of later workgroups
    dispatch_clk: int = 14  # [M] between workgroups of a shader engine
    # [M] The first two: shortest kernels, 1.9 us and more [S], less their own. The last: the four published Triton
    # products of fewer than 256 rows take 2.2 to 5.4 us more than modelled with 2.0; why is not known.
    launch_us: tuple[float, float, float] = (1.4, 2.0, 5.0)
    compile_us: float = 6.0  # [?] host time of one kernel in a compiled graph without graph replay
    eager_us: float = 18.0  # [S] host time of one eager operator
    model_error: float = 0.10  # [?] of time on the device, each way, beyond the hypotheses below

    # [M] Both give about 1.39 us for that step on all 256 compute units. The clock explains the public tables' 1.19 on
    # 192 and 1.28 on 208 as well (1.26, 1.29), and 1.14 on 144; the limit of L2 begins too late (1.07, 1.08, 1.07).
    hypotheses: tuple[Clock, ...] = (
        Clock("power-limited", peak_ghz=2.4, free_activity=0.37, operand_tb_s=39.0),
        Clock("operand-limited", peak_ghz=2.4, free_activity=1.0, operand_tb_s=12.6),
    )

    @property
    def cus(self) -> int:
        return self.xcds * self.cus_per_xcd


MI350 = Machine()
