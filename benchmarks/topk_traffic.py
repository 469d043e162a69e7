"""Bytes that the top-k kernels move against the least possible, from emulated launches of published and odd shapes.

The configuration is that of the whole batch; the rows of one workgroup are emulated, of normal random float32. The
least is every element once, and every result, an element and an int64, once. "moved" is what lanes ask for, with
every repetition; "lines" counts whole 128-byte lines, once for each workgroup that touches them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from flycc import emulator
from flycc.benchmarks.modelled_times import show_times, with_times
from flycc.benchmarks.traffic import Traffic, traffic
from flycc.cli.output import table
from flycc.codegen import compile_kernel
from flycc.contracts import TopkProblem
from flycc.kernels import topk

#: (rows, columns, k) of the published fp32 table.
SHAPES: tuple[tuple[int, int, int], ...] = (
    *((256, 1024, 8), (256, 8192, 16), (4096, 1024, 8), (4096, 2048, 2), (4096, 4096, 8), (4096, 8192, 16)),
    *((16384, 1024, 2), (16384, 1024, 8), (16384, 4096, 8), (16384, 8192, 2)),
    *((256, 8192, 64), (2048, 8192, 64), (4096, 8192, 64), (256, 32768, 256), (2048, 32768, 256)),
    *((4096, 32768, 256), (256, 16384, 257), (2048, 16384, 257), (4096, 16384, 257), (256, 32768, 350)),
    *((2048, 32768, 350), (4096, 32768, 350), (256, 32768, 390), (2048, 32768, 390), (4096, 32768, 390)),
    *((256, 131072, 768), (2048, 131072, 768), (4096, 131072, 768), (256, 32768, 833), (2048, 32768, 833)),
    *((4096, 32768, 833), (256, 262144, 1024), (2048, 262144, 1024)),
    # Rows of an odd length, which start anywhere.
    *((4096, 4097, 8), (2048, 32769, 256), (256, 131073, 768)),
)
_ELEMENT, _INDEX = 4, 8


def measure() -> list[dict[str, Any]]:
    """A figure for each shape, with its times."""
    return [with_times(TopkProblem("f32", *shape), shape, figure(*shape)) for shape in SHAPES]


def figure(rows: int, columns: int, k: int) -> dict[str, Any]:
    """What the kernels of one shape move, as a multiple of the least, and how."""
    config = topk.choose(TopkProblem("f32", rows, columns, k))
    assert isinstance(config, topk.TopkConfig)
    traced_rows = min(rows, config.steps[0].variant.rows)
    found = launches(config, traced_rows)
    row_bytes = columns * _ELEMENT + k * (_ELEMENT + _INDEX)
    least = traced_rows * row_bytes
    widths: Counter[int] = Counter()
    for one in found:
        for (_, _, size), count in one.widths.items():
            widths[size] += count
    return {
        "rows": rows,
        "columns": columns,
        "k": k,
        "config": str(config),
        "least_bytes": rows * row_bytes,
        "moved_over_least": sum(one.requested.total() for one in found) / least,
        "lines_over_least": sum(one.lines.total() for one in found) / least,
        "accesses": {
            f"{number} {name} {kind} {size}": count
            for number, one in enumerate(found)
            for (name, kind, size), count in sorted(one.widths.items())
        },
        "share_of_16_bytes": widths[16] / widths.total(),
        "lds_clocks": [one.lds_clocks for one in found],
        "lds_conflict_clocks": [one.lds_conflict_clocks for one in found],
        "waves_per_compute_unit": [one.waves_per_unit for one in found],
    }


def launches(config: topk.TopkConfig, rows: int) -> list[Traffic]:
    """The traffic of each launch of `config`, on `rows` rows."""
    memory, rng = emulator.Memory(), np.random.default_rng(config.steps[0].n)
    columns = config.steps[0].n
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    source = {"x": (memory.register(x, name="x"), x.nbytes)}
    found = []
    for step in config.steps:
        results = rows * step.parts * step.k
        sizes = {"values": results * _ELEMENT, "indices": results * _INDEX, "work": 4 * rows * step.work}
        arrays = {name: np.zeros(size, np.uint8) for name, size in sizes.items() if size}
        operands = source | {
            name: (memory.register(array, name=name), array.nbytes) for name, array in arrays.items()
        }
        compiled = compile_kernel(topk.kernel(step.variant))
        arguments = {"places": 0, "work": 0} | {name: address for name, (address, _) in operands.items()}
        arguments |= {"ld_x": columns, "n": step.n, "k": step.k, "rows": rows, "chunk": step.chunk}
        kernel = emulator.load(compiled.elf).kernels[compiled.symbol]
        kernarg = compiled.kernarg.pack(arguments)
        found.append(traffic(kernel, topk.launch(step, rows), kernarg, memory, operands))
        source = {"x": operands["values"], "places": operands["indices"]}
        columns = step.parts * step.k
    return found


def show(figures: list[dict[str, Any]]) -> None:
    """The table a person reads."""
    shapes = [f"{f['rows']}x{f['columns']} k {f['k']}" for f in figures]
    rows = [
        (
            shape,
            f"{f['moved_over_least']:.3f}",
            f"{f['lines_over_least']:.3f}",
            f"{f['share_of_16_bytes']:.0%}",
            f"{sum(f['lds_conflict_clocks']) / max(1, sum(f['lds_clocks'])):.0%}",
            " ".join(map(str, f["waves_per_compute_unit"])),
            f["config"],
        )
        for shape, f in zip(shapes, figures, strict=True)
    ]
    headings = ("shape", "moved", "lines", "16 B", "conflicts", "waves", "configuration")
    table("Top-k of float32: bytes over the least, emulated", headings, rows)
    show_times("Top-k of float32: modelled us, and published us", list(zip(shapes, figures, strict=True)))
