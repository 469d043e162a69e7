"""Runs grouped GEMM kernels on the emulated device, with memory laid out as for `emulated_gemm`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from emulated_gemm import NUMPY_TYPES, Result, Stored, half_ulp
from loaded_kernels import loaded

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import GroupedGemmProblem
from flycc.contracts.grouped_gemm import Ragged
from flycc.kernels import grouped_gemm

#: What the result holds before the launch.
BEFORE = -77.0
#: Workgroups of a launch, unless told: so few that each takes tile after tile.
WORKGROUPS = 8


@dataclass
class Grouped:
    """One launch: `a` and `b` as stored (transposed where the flag says so), `out` by its padding.

    An operand is [groups, rows, columns], or [1, rows, columns] if the groups share out a dimension of it. `offsets`
    are where the groups end.
    """

    dtype: str
    ragged: Ragged
    a: Stored
    b: Stored
    offsets: np.ndarray
    trans_a: bool = False
    trans_b: bool = False
    out_padding: int = 0
    out_misalign: int = 0
    bias: Stored | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        a, b = self.a.values.shape, self.b.values.shape
        m, k = a[:0:-1] if self.trans_a else a[1:]
        return m, b[1] if self.trans_b else b[2], k

    @property
    def out_shape(self) -> tuple[int, int, int]:
        m, n, _ = self.sizes
        return (len(self.offsets) if self.ragged == "k" else 1), m, n

    def problem(self, out: Stored) -> GroupedGemmProblem:
        alignments = self.a.alignment, self.b.alignment, out.alignment
        return GroupedGemmProblem(
            self.dtype,  # type: ignore[arg-type]
            self.ragged,
            len(self.offsets),
            *self.sizes,
            self.trans_a,
            self.trans_b,
            *alignments,
            bias=self.bias is not None,
            align_bias=2 if self.bias is None else self.bias.alignment,
        )

    def run(
        self,
        config: grouped_gemm.GroupedGemmConfig,
        wave_order: str | int = "lockstep",
        sanitize: str | tuple[str, ...] = (),
        workgroups: int = WORKGROUPS,
    ) -> Result:
        out = Stored(np.full(self.out_shape, BEFORE), self.dtype, self.out_padding, self.out_misalign)
        problem = self.problem(out)
        compiled = compile_kernel(grouped_gemm.kernel(problem, config))
        memory = emulator.Memory()
        m, n, k = self.sizes
        row_a, column_a = (1, self.a.stride) if self.trans_a else (self.a.stride, 1)
        row_b, column_b = (1, self.b.stride) if self.trans_b else (self.b.stride, 1)
        values = {
            "a": memory.register(self.a.buffer, name="a", writable=False),
            "b": memory.register(self.b.buffer, name="b", writable=False),
            "offsets": memory.register(self.offsets, name="offsets", writable=False),
            "bias": 0
            if self.bias is None
            else memory.register(self.bias.buffer, name="bias", writable=False),
            "out": memory.register(out.buffer, name="out"),
            "partial": 0,
            "arrived": 0,
            "group_bias": 0 if self.bias is None else self.bias.stride,
            "bias_n": int(self.bias is not None),
            "group_a": self.a.batch_stride,
            "group_b": self.b.batch_stride,
            "group_out": out.batch_stride,
            "ragged_a": {"m": row_a, "n": 0, "k": column_a}[self.ragged],
            "ragged_b": {"m": 0, "n": column_b, "k": row_b}[self.ragged],
            "ragged_out": {"m": out.stride, "n": 1, "k": 0}[self.ragged],
            "m": m,
            "n": n,
            "k": k,
            "ld_a": self.a.stride,
            "ld_b": self.b.stride,
            "ld_out": out.stride,
            "groups": len(self.offsets),
            "workgroups": workgroups,
        }
        arrived = np.zeros(config.counters(workgroups), np.int32)
        if config.tile.split:
            sums = np.full(config.sums(workgroups), np.nan, np.float32)
            values["partial"] = memory.register(sums, name="partial")
            values["arrived"] = memory.register(arrived, name="arrived")
        kernel = loaded(compiled)
        stats = emulator.launch(
            kernel,
            (workgroups, 1, 1),
            grouped_gemm.launch(problem, config).block,
            compiled.kernarg.pack(values),
            memory,
            wave_order=wave_order,
            sanitize=sanitize,
        )
        assert not arrived.any(), "a launch leaves its counters at zero"
        waves = stats.workgroups * config.tile.waves
        return Result(out.read(), out.buffer.copy(), stats.wave_instructions / waves, stats.findings)

    def groups(self) -> Iterator[tuple[np.ndarray, np.ndarray, tuple[int | slice, ...]]]:
        """Of each group A and B in float64, as rounded to the element type, and where in `out` its product is."""
        a, b = self.a.read(), self.b.read()
        a, b = a.swapaxes(1, 2) if self.trans_a else a, b.swapaxes(1, 2) if self.trans_b else b
        start = 0
        for group, end in enumerate(self.offsets):
            part = slice(start, end)
            if self.ragged == "m":
                yield a[0, part], b[group], (0, part)
            elif self.ragged == "n":
                yield a[group], b[0][:, part], (0, slice(None), part)
            else:
                yield a[0][:, part], b[0, part], (group,)
            start = end


def reference(case: Grouped) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The exact result (up to float64; `BEFORE` where no group is), the sum of the magnitudes of its terms, and how
    many terms there are, all [1 or groups, m, n].
    """
    exact, magnitude = np.full(case.out_shape, BEFORE), np.zeros(case.out_shape)
    terms = np.zeros(case.out_shape)
    for group, (a, b, place) in enumerate(case.groups()):
        bias = np.zeros(1) if case.bias is None else case.bias.read()[0, group]
        exact[place], magnitude[place] = a @ b + bias, abs(a) @ abs(b) + abs(bias)
        terms[place] = a.shape[1] + (case.bias is not None)
    return exact, magnitude, terms


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 `values`, which float32 holds exactly, as the element type has them."""
    return values.astype(np.float32).astype(NUMPY_TYPES[dtype]).astype(np.float64)


def bound(case: Grouped) -> np.ndarray:
    """How far a result may be from the exact one: as `emulated_gemm.bound` has it, K being that of the group."""
    exact, magnitude, terms = reference(case)
    roundings = terms * 2.0**-24
    error = roundings / (1 - roundings) * magnitude
    return error + half_ulp(abs(exact) + error, case.dtype)
