"""Runs MX products by group on the emulated device, with memory laid out as for `emulated_mx_gemm`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from emulated_gemm import NUMPY_TYPES, Stored
from emulated_mx_gemm import Result, Side, rounded
from loaded_kernels import loaded

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import ScaledGroupedGemmProblem
from flycc.kernels import mx, mx_grouped

#: What the result holds before the launch.
BEFORE = -77.0
#: Workgroups of a launch, unless told: so few that each takes tile after tile.
WORKGROUPS = 8


@dataclass
class MxGrouped:
    """One launch: A's rows by group, and the rows of all groups' B, `n` of each. `offsets` are where groups end.

    `bias` float64 [groups, n] or None.
    """

    a: Side
    b: Side
    offsets: np.ndarray
    n: int
    dtype: str = "bf16"
    bias: np.ndarray | None = None
    out_padding: int = 0
    out_misalign: int = 0

    @property
    def sizes(self) -> tuple[int, int, int]:
        return len(self.a.codes), self.n, self.a.codes.shape[1]

    def problem(self, out: Stored) -> ScaledGroupedGemmProblem:
        return ScaledGroupedGemmProblem(
            self.a.element,
            self.b.element,
            self.dtype,  # type: ignore[arg-type]
            len(self.offsets),
            *self.sizes,
            bias=self.bias is not None,
            align_a=self.a.alignment,
            align_b=self.b.alignment,
            align_scale_a=self.a.scale_alignment,
            align_scale_b=self.b.scale_alignment,
            align_out=out.alignment,
        )

    def run(
        self,
        config: mx_grouped.MxGroupedConfig,
        wave_order: str | int = "lockstep",
        sanitize: str | tuple[str, ...] = (),
        workgroups: int = WORKGROUPS,
    ) -> Result:
        m, n, k = self.sizes
        out = Stored(np.full((1, m, n), BEFORE), self.dtype, self.out_padding, self.out_misalign)
        problem = self.problem(out)
        compiled = compile_kernel(mx_grouped.kernel(problem, config))
        memory = emulator.Memory()
        values: dict[str, int | float] = {
            "a": memory.register(self.a.buffer, name="a", writable=False),
            "b": memory.register(self.b.buffer, name="b", writable=False),
            "scale_a": memory.register(self.a.scale_buffer, name="scale_a", writable=False),
            "scale_b": memory.register(self.b.scale_buffer, name="scale_b", writable=False),
            "offsets": memory.register(self.offsets, name="offsets", writable=False),
            "out": memory.register(out.buffer, name="out"),
            "m": m,
            "n": n,
            "k": mx.pairs(mx.widest(problem.group), k),
            "groups": len(self.offsets),
            "workgroups": workgroups,
            "ld_a": self.a.stride // 2,
            "ld_b": self.b.stride // 2,
            "ld_out": out.stride,
            "group_b": n * self.b.stride // 2,
            **dict.fromkeys(("bias", "partial", "arrived", "group_bias", "bias_n"), 0),
        }
        if self.bias is not None:
            addends = self.bias.astype(NUMPY_TYPES[self.dtype]).view(np.uint8)
            values |= {"bias": memory.register(addends, name="bias", writable=False)}
            values |= {"group_bias": n, "bias_n": 1}
        arrived = np.zeros(config.counters(workgroups), np.int32)
        if config.tile.split:
            sums = np.full(config.sums(workgroups), np.nan, np.float32)
            values["partial"] = memory.register(sums, name="partial")
            values["arrived"] = memory.register(arrived, name="arrived")
        kernel = loaded(compiled)
        stats = emulator.launch(
            kernel,
            (workgroups, 1, 1),
            mx_grouped.launch(problem, config).block,
            compiled.kernarg.pack(values),
            memory,
            wave_order=wave_order,
            sanitize=sanitize,
        )
        assert not arrived.any(), "a launch leaves its counters at zero"
        return Result(out.read()[0], out, list(stats.findings), None)

    def clean(self, values: np.ndarray) -> Stored:
        """The memory of a result [m, n], float64, as it must be after a launch."""
        return Stored(rounded(values, self.dtype)[None], self.dtype, self.out_padding, self.out_misalign)


def reference(case: MxGrouped) -> tuple[np.ndarray, np.ndarray]:
    """The exact result in float64 (`BEFORE` where no group is), and the sums of its terms' magnitudes, [m, n] both."""
    a, b = case.a.elements(), case.b.elements().reshape(len(case.offsets), case.n, -1)
    exact, magnitude, start = np.full(case.sizes[:2], BEFORE), np.zeros(case.sizes[:2]), 0
    for group, end in enumerate(case.offsets):
        rows = slice(start, end)
        bias = np.zeros(case.n) if case.bias is None else case.bias[group]
        exact[rows] = a[rows] @ b[group].T + bias
        magnitude[rows] = abs(a[rows]) @ abs(b[group]).T + abs(bias)
        start = end
    return exact, magnitude
