"""How fast the emulated gfx950 is: wave-instructions a second, and seconds, on four kernels.

A figure is the best of several launches after a first one, which decodes and binds the code. "sanitized" has every
sanitizer on, "traced" records every instruction and access. CPU seconds are those of all threads, which neighbours on
the machine disturb less; in them every kernel is also put in proportion to NumPy's float32 product of two 512 x 512
matrices in the same run.

The yardstick, 350,000 wave-instructions/s on one core, is what is publicly said of a CDNA emulator that
JIT-compiles each instruction, on a GEMM like ours. It is not measured here.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from flycc import emulator
from flycc.cli.output import console, table
from flycc.codegen import compile_kernel
from flycc.contracts import GemmProblem
from flycc.emulator.trace_recorder import Recorder
from flycc.kernels import gemm

#: Wave-instructions a second; see above.
YARDSTICK = 350_000

#: Launches of a figure: at least so many, and so many seconds.
LAUNCHES, SECONDS = 5, 1.0

MATMUL = 512

Launch = Callable[..., emulator.LaunchStats]


@dataclass(frozen=True)
class Case:
    """A kernel to be measured. `launch(**options)` takes the options of flycc.emulator.launch."""

    name: str
    launch: Launch


def measure() -> dict[str, Any]:
    """Figures of all cases and ways to run them."""
    a, b = random_matrices()
    _, matmul = best(lambda: a @ b)
    figures = []
    for case in cases():
        for mode, options in MODES.items():
            figures.append({"kernel": case.name, "mode": mode, **rate(case.launch, options, matmul)})
    return {
        "matmul_512_cpu_s": matmul,
        "yardstick": {"wave_instructions_per_s": YARDSTICK, "source": "public figure, not measured"},
        "left_out": {} if has_triton() else dict.fromkeys(TRITON_CASES, "triton is not installed"),
        "figures": figures,
    }


#: How a kernel is run: what `launch` is given, made afresh for every launch.
MODES: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "sanitized": lambda: {"sanitize": "all"},
    "traced": lambda: {"observers": (Recorder(),)},
}


def rate(launch: Launch, options: Callable[[], dict[str, Any]], matmul: float) -> dict[str, Any]:
    """The best launch, and what follows from it."""
    stats = launch(**options())
    seconds, cpu_seconds = best(lambda: launch(**options()))
    return {
        "wave_instructions": stats.wave_instructions,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "wave_instructions_per_s": stats.wave_instructions / seconds,
        "wave_instructions_per_cpu_s": stats.wave_instructions / cpu_seconds,
        "matmuls": cpu_seconds / matmul,
    }


def best(call: Callable[[], object]) -> tuple[float, float]:
    """Least seconds, and least CPU seconds of all threads, of LAUNCHES or more calls in SECONDS or more."""
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    while len(seconds) < LAUNCHES or sum(seconds) < SECONDS:
        started, cpu_started = time.perf_counter(), time.process_time()
        call()
        seconds.append(time.perf_counter() - started)
        cpu_seconds.append(time.process_time() - cpu_started)
    return min(seconds), min(cpu_seconds)


def random_matrices() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((MATMUL, MATMUL)).astype(np.float32) for _ in range(2))
    return a, b


def cases() -> Iterator[Case]:
    """Our GEMM on a square and on a decoding step's sizes, and two Triton kernels where Triton is installed."""
    yield Case("GEMM 512x512x512 bf16", gemm_case(512, 512, 512))
    yield Case("GEMM 1x1536x576 bf16", gemm_case(1, 1536, 576))
    if has_triton():
        for name, make in TRITON_CASES.items():
            yield Case(name, make())


def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def gemm_case(m: int, n: int, k: int) -> Launch:
    """A launch of flycc's own kernel; b is [n, k], as in torch.nn.Linear."""
    problem = GemmProblem("bf16", m, n, k, trans_b=True)
    config = gemm.choose(problem)
    assert isinstance(config, gemm.GemmConfig)
    compiled, extent = compile_kernel(gemm.kernel(problem, config)), gemm.launch(problem, config)
    memory = emulator.Memory()
    sizes = {"m": m, "n": n, "k": k, "ld_a": k, "ld_b": k, "ld_out": n}
    arrays = {"a": normal(m, k), "b": normal(n, k), "out": normal(m, n)}
    if config.split:
        shares = gemm.shares(problem, config)
        sizes |= {"parts": shares.parts, "part_k": shares.part_k, "whole": shares.whole}
        arrays |= {
            "partial": np.empty(shares.sums, np.float32),
            "arrived": np.zeros(shares.counters, np.int32),
        }
    values: dict[str, int | float] = {**dict.fromkeys(compiled.kernarg.names, 0), **gemm.ABSENT, **sizes}
    values |= {name: memory.register(array, name=name) for name, array in arrays.items()}
    kernel = emulator.load(compiled.elf).kernels[compiled.symbol]
    kernarg = compiled.kernarg.pack(values)
    return partial(emulator.launch, kernel, extent.grid, extent.block, kernarg, memory)


def rms_norm_case(rows: int = 256, columns: int = 2048) -> Launch:
    from flycc.benchmarks import triton_kernels as kernels

    types = {"x": "*bf16", "weight": "*bf16", "out": "*bf16", "epsilon": "fp32"}
    made = kernels.compile_kernel(kernels.rms_norm, types, {"COLUMNS": columns, "BLOCK": columns})
    args: list[np.ndarray | np.generic] = [
        normal(rows, columns),
        normal(1, columns),
        normal(rows, columns),
        np.float32(1e-6),
    ]
    return triton_launch(made, (rows, 1, 1), args)


def attention_case(heads: int = 4, length: int = 512, features: int = 64) -> Launch:
    from flycc.benchmarks import triton_kernels as kernels

    rows = columns = 64
    types = dict.fromkeys(("q", "k", "v", "out"), "*bf16") | {"length": "i32", "scale": "fp32"}
    made = kernels.compile_kernel(kernels.attention, types, {"D": features, "ROWS": rows, "COLUMNS": columns})
    tensors = [normal(heads * length, features) for _ in range(4)]
    args: list[np.ndarray | np.generic] = [*tensors, np.int32(length), np.float32(features**-0.5)]
    return triton_launch(made, (length // rows, heads, 1), args)


TRITON_CASES: dict[str, Callable[[], Launch]] = {
    "RMSNorm 256x2048 bf16": rms_norm_case,
    "attention 4x512x64 bf16": attention_case,
}


def triton_launch(made: Any, grid: tuple[int, int, int], args: list[np.ndarray | np.generic]) -> Launch:
    module = emulator.load(made.elf)
    hidden = [np.uint64(0)] * (len(module.kernels[made.name].descriptor.args) - len(args))
    block = (made.threads, 1, 1)
    return partial(emulator.run, module, made.name, grid, block, [*args, *hidden], dynamic_lds=made.lds)


def normal(rows: int, columns: int) -> np.ndarray:
    """Normally distributed bfloat16 as its bits, uint16 [rows, columns]."""
    values = np.random.default_rng(rows * columns).standard_normal((rows, columns))
    return values.astype(ml_dtypes.bfloat16).view(np.uint16)


def show(figures: dict[str, Any]) -> None:
    """The table a person reads."""
    rows = [
        (
            figure["kernel"],
            figure["mode"],
            f"{figure['seconds']:.4f}",
            f"{figure['wave_instructions_per_s']:,.0f}",
            f"{figure['wave_instructions_per_cpu_s']:,.0f}",
            f"{figure['matmuls']:.1f}",
        )
        for figure in figures["figures"]
    ]
    table("The emulated gfx950", ("kernel", "mode", "seconds", "wave-instr./s", "per CPU s", "matmuls"), rows)
    console.print(
        f"\nmatmuls: CPU seconds / those of NumPy's 512x512x512 ({figures['matmul_512_cpu_s'] * 1e3:.2f} ms here)"
    )
    console.print(
        f"yardstick: {YARDSTICK:,} wave-instructions/s on a GEMM, a public figure, not measured here"
    )
    for name, why in figures["left_out"].items():
        console.print(f"{name} left out: {why}")
