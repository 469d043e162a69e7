"""How long one of our kernels would take: a Problem and a Config, compiled, emulated in part, and modelled.

    predictions = model(problem, config)      # one for each kernel launch of the op
    total(predictions)                           # modelled 12.3 us [11.0, 14.1]

A few workgroups of the compiled binary run on the emulated gfx950 (the first, its neighbours and the last), on operands
of the full size that are zero, but for the rows of a top-k that are looked at, which are random, and the offsets of
groups. A matrix product with a long K runs with a shorter one, and so does attention without a band with fewer keys or
queries; the model carries its loop on. Of attention in a band, workgroups that walk through few and many tiles run.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from flycc import codegen, emulator
from flycc.contracts import FlyccError, GemmProblem, GroupedGemmProblem, Reason, RmsNormProblem, TopkProblem
from flycc.contracts.scaled_gemm import BLOCK_K, ScaledGemmProblem
from flycc.contracts.sdpa import SdpaBackwardProblem, SdpaProblem
from flycc.costmodel import Floor, Interval, Prediction, loop_turns, neighbours, predict, representative
from flycc.emulator.trace import Trace
from flycc.emulator.trace_recorder import Recorder
from flycc.kernels import attention, gemm, grouped_gemm, mx, rms_norm, topk
from flycc.kernels.common.spec import KernelSpec, Launch
from flycc.kernels.mx import pack
from flycc.tuning import modelled_attention
from flycc.tuning.modelled_attention import AnyProblem

Problem: TypeAlias = (
    GemmProblem
    | GroupedGemmProblem
    | RmsNormProblem
    | ScaledGemmProblem
    | SdpaBackwardProblem
    | SdpaProblem
    | TopkProblem
)
Config: TypeAlias = (
    attention.DecodeConfig
    | attention.SdpaConfig
    | attention.WideConfig
    | tuple[attention.BackwardStep, ...]
    | gemm.GemmConfig
    | grouped_gemm.GroupedGemmConfig
    | mx.MxConfig
    | rms_norm.RmsNormConfig
    | topk.TopkConfig
)

_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "i32": 4, "none": 0}
#: Turns of a product's main loop that are emulated: the model needs 15 to see its pace, and some to spare. Longer
#: rings take two for each tile more: one until it is loaded, and at the end one that loads nothing.
_TURNS, _SHORT_RING = 20, 5
#: Turns of a main loop may differ from steps along K by this: the last or first step may stand outside of it.
_APART = 2
#: Rows of a top-k, at either end, that hold random values, and the most of these.
_FILLED_ROWS, _MOST_FILLED = 64, 1 << 26
#: Instructions that a wave may take: the model simulates each. Rows of 15 million columns take so many.
_MOST_INSTRUCTIONS = 100_000
#: The same where a workgroup computes tile after tile, or goes through the keys of attention so.
_MOST_OF_TILES = 300_000
#: Buffers from this size on are files with holes: few workgroups run, and they touch little of a large buffer.
_LARGE_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Step:
    """One launch of a kernel. `buffers` are the bytes behind each pointer (0: null), `filled` the name, element type
    and row size of the one that holds random values, `contents` the values of others that are not zero."""

    spec: KernelSpec
    launch: Launch
    buffers: Mapping[str, int]
    numbers: Mapping[str, int | float]
    filled: tuple[str, str, int] | None = None
    #: What the counters of a product's tiles hold for a traced workgroup to be the last one to come.
    arrived: int = 0
    contents: Mapping[str, np.ndarray] = field(default_factory=dict)
    #: The first so many workgroups have something to do; None: all.
    busy: int | None = None

    @property
    def grid(self) -> tuple[int, int, int]:
        """The workgroups that count."""
        return self.launch.grid if self.busy is None else (self.busy, 1, 1)


def model(
    problem: Problem, config: Config, *, floor: Floor = "graph", offsets: Sequence[int] | None = None
) -> list[Prediction]:
    """The modelled launches that compute `problem` under `config`, in order.

    `offsets` are where the groups of a grouped product end; by default they are equal, to one.

    Raises ValueError if `config` does not compute `problem`, a size is not known or `offsets` do not apply, and
    `FlyccError` if the kernel cannot be compiled, or runs for longer than can be modelled.
    """
    if isinstance(problem, GroupedGemmProblem):
        ends = equal_groups(problem) if offsets is None else tuple(map(int, offsets))
        return [_grouped_product(problem, config, ends, floor)]
    if offsets is not None:
        raise ValueError(
            f"offsets: got {list(offsets)}, but {problem} has no groups that share out a dimension"
        )
    return list(_modelled(problem, config, floor))


def total(predictions: list[Prediction]) -> Interval:
    """Time of launches one after another; the host's floor of all but the first hides behind the first."""
    device = [prediction.device_us for prediction in predictions[1:]]
    first = predictions[0].time
    return Interval(
        *(getattr(first, part) + sum(getattr(d, part) for d in device) for part in ("low", "typical", "high"))
    )


@lru_cache(maxsize=4096)
def _modelled(problem: Problem, config: Config, floor: Floor) -> tuple[Prediction, ...]:
    if isinstance(problem, GemmProblem | ScaledGemmProblem):
        return _products(problem, config, floor)
    if isinstance(problem, SdpaProblem | SdpaBackwardProblem):
        found = modelled_attention.launches(problem, config)  # type: ignore[arg-type]
        return tuple(_attention(problem, step, floor) for step in found)
    return tuple(predicted(step, floor) for step in steps(problem, config))


@lru_cache(maxsize=1024)
def _attention(
    problem: AnyProblem,
    step: attention.Step,
    floor: Floor,
) -> Prediction:
    """A launch of attention. Workgroups that all walk through as many tiles are modelled by some that walk through
    fewer; else, by some of the lengths there are."""
    whole = _attending(problem, step)
    if not attention.walks(step):
        return predicted(whole, floor)
    forward = modelled_attention.of_forward(problem)
    lengths = attention.walked(forward, step, *modelled_attention.band(forward))
    if lengths.min() < lengths.max():
        return _walking(problem, step, lengths, floor)
    if forward.lower or forward.upper:
        return predicted(whole, floor)
    short, left_out = modelled_attention.shortened(problem, step, _TURNS)
    trace = _trace(_attending(short, step))
    turns = loop_turns(trace)
    if turns is None or (left_out and turns < _APART):
        return predicted(whole, floor)
    return predict(trace, step.launch.grid, turns=turns + left_out, floor=floor)


def _walking(
    problem: AnyProblem,
    step: attention.Step,
    lengths: np.ndarray,
    floor: Floor,
) -> Prediction:
    """A launch of attention whose workgroups walk through so many tiles each. With an upper end alone an XCD fetches
    as much as without: what some of the workgroups need."""
    grid, reuse = step.launch.grid, None
    traced = [(number, 0, 0) for number in representative(lengths)]
    if modelled_attention.of_forward(problem).lower:
        traced = sorted({*traced, *neighbours(grid)})
    else:
        without = modelled_attention.changed(problem, upper=False)
        all_ = attention.walked(modelled_attention.of_forward(without), step, None, None)
        share = float(lengths.mean() / all_.mean())
        reuse = _attention(without, step, floor).reuse.of_fewer(share, "misses as without a band")
    trace = _trace(_attending(problem, step), traced)
    return predict(trace, grid, lengths=lengths, floor=floor, reuse=reuse)


def _attending(problem: AnyProblem, step: attention.Step) -> Step:
    one = modelled_attention.attending(problem, step)
    return Step(one.spec, one.launch, one.buffers, one.numbers)


def steps(problem: Problem, config: Config) -> list[Step]:
    """The launches that compute `problem` under `config`, with what they need to run. Raises as `model` does."""
    if isinstance(problem, ScaledGemmProblem):
        return [*_packing(problem, config), _scaled(problem, config)]
    if isinstance(problem, GemmProblem):
        return [_gemm(problem, config)]
    if isinstance(problem, GroupedGemmProblem):
        return [_grouped(problem, config, equal_groups(problem))]
    if isinstance(problem, SdpaProblem | SdpaBackwardProblem):
        found = modelled_attention.launches(problem, config)  # type: ignore[arg-type]
        return [_attending(problem, step) for step in found]
    return _norm(problem, config) if isinstance(problem, RmsNormProblem) else _selection(problem, config)


def predicted(step: Step, floor: Floor = "graph") -> Prediction:
    """One launch, modelled. Raises as `model` does."""
    return predict(_trace(step), step.grid, floor=floor)


def _products(problem: Any, config: Any, floor: Floor) -> tuple[Prediction, ...]:
    """A launch of which only the last round is split counts as two, one after the other."""
    family, tile = _family(problem), _tile(config)
    found = [predicted(step, floor) for step in _packing(problem, config)]
    if not config.split:
        return (*found, _product(problem, config, family.launch(problem, config).grid, floor))
    shares = family.shares(problem, config)
    if shares.whole:
        unsplit = _with_tile(config, splits=1, tail=False)
        grid = family.launch(problem, unsplit).grid
        grid = (shares.whole, 1, grid[2]) if tile.ring else (shares.whole // grid[1] or 1, grid[1], grid[2])
        found.append(_product(problem, unsplit, grid, floor))
    if rest := shares.tiles - shares.whole:
        some = _with_tile(config, splits=shares.parts, tail=False)
        found.append(_product(problem, some, (rest * shares.parts, 1, shares.batch), floor))
    return tuple(found)


def _family(problem: Any) -> Any:
    """The kernels of a product."""
    return mx if isinstance(problem, ScaledGemmProblem) else gemm


def _tile(config: Any) -> gemm.GemmConfig:
    return config.tile if isinstance(config, mx.MxConfig) else config  # type: ignore[no-any-return]


def _with_tile(config: Any, **changes: Any) -> Any:
    tile = replace(_tile(config), **changes)
    return replace(config, tile=tile) if isinstance(config, mx.MxConfig) else tile


def _step_k(problem: Any, config: Any) -> int:
    """Elements of K in a step."""
    counted = mx.pairs(mx.widest(problem), BLOCK_K) if isinstance(problem, ScaledGemmProblem) else BLOCK_K
    return _tile(config).step_k * BLOCK_K // counted


def _product(problem: Any, config: Any, grid: tuple[int, int, int], floor: Floor) -> Prediction:
    """That of `grid` workgroups."""
    sizes = (problem.m, problem.n, problem.k)
    m, n, k = (
        size if isinstance(size, int) else 0 for size in sizes
    )  # launch() has checked that all are known
    tile, step_k = _tile(config), _step_k(problem, config)
    turns_each = math.ceil(k / (step_k * tile.splits))
    left_out = max(0, turns_each - _emulated_turns(tile))
    alike = replace(problem, m=_alike(m, tile.tile_m), n=_alike(n, tile.tile_n))
    if not left_out:
        return predict(_moved(_product_trace(alike, config), grid), grid, floor=floor)
    last = k % step_k if tile.splits == 1 else 0
    short = replace(alike, k=(turns_each - left_out) * tile.splits * step_k - (-last % step_k))
    trace = _product_trace(short, config)
    turns = _turns(short, config)
    if turns is None:  # a turn is not a step: nothing to go by but the whole
        return predict(_moved(_product_trace(alike, config), grid), grid, floor=floor)
    return predict(_moved(trace, grid), grid, turns=turns + left_out, floor=floor)


def _emulated_turns(config: Any) -> int:
    return _TURNS + 2 * max(0, config.stages_m - _SHORT_RING)


def _alike(size: int, tile: int) -> int:
    """A size whose workgroups do the same as those of `size`: sizes of one class share a trace.

    It is not below `size`, so that a trace spans at least the memory that the whole problem does.
    """
    whole = 1 << 2 * math.ceil(math.log(size, 4))
    return size if size <= 2 * tile or whole % tile else whole + size % tile


@lru_cache(maxsize=128)
def _product_trace(problem: Any, config: Any) -> Trace:
    return _trace(steps(problem, config)[-1])


@lru_cache(maxsize=1024)
def _turns(problem: Any, config: Any) -> int | None:
    """Turns of the main loop, if that covers all but `_APART` steps along K."""
    steps = math.ceil(problem.k / (_step_k(problem, config) * _tile(config).splits))
    return _of_steps(_product_trace(problem, config), steps)


def _of_steps(trace: Trace, steps: int) -> int | None:
    """Turns of the trace's main loop, if they are all but `_APART` of so many steps."""
    turns = loop_turns(trace)
    return turns if turns is not None and abs(turns - steps) <= _APART else None


def equal_groups(problem: GroupedGemmProblem) -> tuple[int, ...]:
    """Where groups that are equal, to one, end. Raises ValueError for sizes that are not known."""
    size, groups = getattr(problem, problem.ragged), problem.groups
    if not isinstance(size, int) or not isinstance(groups, int):
        raise ValueError(f"every size must be known, got {problem}")
    return tuple(size * (group + 1) // groups for group in range(groups))


@lru_cache(maxsize=4096)
def _grouped_product(
    problem: GroupedGemmProblem, config: Any, offsets: tuple[int, ...], floor: Floor
) -> Prediction:
    total = getattr(problem, problem.ragged)
    if len(offsets) != problem.groups or not all(0 <= a <= b <= total for a, b in pairwise((0, *offsets))):
        sentence = f"{problem.groups} are needed, in rising order, of 0 to {total}"
        raise ValueError(f"offsets: got {list(offsets)}; {sentence}")
    workgroups = grouped_gemm.launch(problem, config).grid[0]
    tiles = _group_tiles(problem, config, offsets)
    parts = config.parts(problem, tiles, workgroups)
    step = config.tile.step_k * parts
    sums = [b - a for a, b in pairwise((0, *offsets))] if problem.ragged == "k" else [problem.k]
    left_out = 0
    if len(set(sums)) == 1 and (parts == 1 or tiles < workgroups):  # all turns of each main loop are as many
        left_out = max(0, math.ceil(min(sums) / step) - _emulated_turns(config.tile))  # type: ignore[type-var]
    if left_out:
        less = left_out * step
        if problem.ragged == "k":
            ends = tuple(end - less * (group + 1) for group, end in enumerate(offsets))
            short = replace(problem, k=total - less * len(offsets))
        else:
            ends, short = offsets, replace(problem, k=problem.k - less)  # type: ignore[operator]
        shortened = _grouped(short, config, ends)
        trace = _trace(shortened)
        if (turns := _of_steps(trace, math.ceil(sums[0] / step) - left_out)) is not None:  # type: ignore[operator]
            return predict(trace, shortened.grid, turns=turns + left_out, floor=floor)
    # Groups that share out K differ in turns: there is nothing to go by but the whole.
    whole = _grouped(problem, config, offsets)
    return predict(_trace(whole), whole.grid, floor=floor)


def _moved(trace: Trace, grid: tuple[int, int, int]) -> Trace:
    """The trace with its last workgroup as the last one of `grid`."""
    waves = trace.waves.copy()
    for axis, traced, extent in zip("xyz", trace.info["grid"], grid, strict=True):
        if traced > 1:
            waves[axis][waves[axis] == traced - 1] = extent - 1
    return replace(trace, waves=waves, info={**trace.info, "grid": list(grid)})


def _gemm(problem: Any, config: Any) -> Step:
    geometry = gemm.launch(problem, config)
    sizes = {name: getattr(problem, name) for name in ("m", "n", "k")}
    m, n, k, batch = *sizes.values(), problem.batch
    element = _BYTES[problem.dtype]
    epilogue = problem.epilogue
    buffers = {
        "a": m * k,
        "b": n * k,
        "out": m * n,
        "bias": n * problem.bias,
        "b2": n * k * epilogue.gated,
        "residual": m * n * epilogue.residual,
        "pre": m * n * epilogue.preactivation,
    }
    numbers = {
        **{name: value for name, value in gemm.ABSENT.items() if name not in buffers},
        "batch_a": m * k,
        "batch_b": n * k,
        "batch_out": m * n,
        "bias_n": int(problem.bias),
        "residual_batch": m * n * epilogue.residual,
        "residual_m": n * epilogue.residual,
        "residual_n": int(epilogue.residual),
        "ld_a": m if problem.trans_a else k,
        "ld_b": k if problem.trans_b else n,
        "ld_out": n,
    }
    widths = dict.fromkeys(("out", "pre"), _BYTES[epilogue.out_dtype or problem.dtype])
    matrices = {
        name: count * widths.get(name, element) * (1 if name == "bias" else batch)
        for name, count in buffers.items()
    }
    kernel = gemm.kernel(problem, config)
    if not config.split:
        return Step(kernel, geometry, matrices, {**numbers, **sizes})
    shares = gemm.shares(problem, config)
    numbers = {name: number for name, number in numbers.items() if name not in ("partial", "arrived")}
    matrices |= {"partial": 4 * shares.sums, "arrived": 4 * shares.counters}
    numbers |= {"parts": shares.parts, "part_k": shares.part_k, "whole": shares.whole}
    return Step(kernel, geometry, matrices, {**numbers, **sizes}, arrived=gemm.others_arrived(shares.parts))


def _packing(problem: Any, config: Any) -> list[Step]:
    """The launch that packs a product's scales, if there is one."""
    if not isinstance(config, mx.MxConfig) or not config.packed:
        return []
    packing = mx.Packing.of(problem)
    buffers = {
        **{
            name: getattr(packing, name.replace("scale", "rows")) * packing.blocks
            for name in ("scale_a", "scale_b")
        },
        **{f"packed_{operand}": packing.bytes(operand) for operand in ("a", "b")},
    }
    return [Step(pack.kernel(packing), pack.launch(packing), buffers, packing.numbers)]


def _scaled(problem: Any, config: Any) -> Step:
    geometry = mx.launch(problem, config)
    m, n, k = problem.m, problem.n, problem.k
    epilogue, element = problem.epilogue, _BYTES[problem.dtype]
    result = _BYTES[epilogue.out_dtype or problem.dtype]
    pairs_a, pairs_b = (mx.pairs(form, k) for form in (problem.format_a, problem.format_b))
    buffers = {
        "a": 2 * m * pairs_a,
        "b": 2 * n * pairs_b,
        "scale_a": _scale_bytes(problem, config, "a", m),
        "scale_b": _scale_bytes(problem, config, "b", n),
        "out": m * n * result,
        "bias": n * element * problem.bias,
        "residual": m * n * element * epilogue.residual,
        "pre": m * n * result * epilogue.preactivation,
    }
    numbers = {
        **{name: value for name, value in mx.ABSENT.items() if name not in buffers},
        "m": m,
        "n": n,
        "k": mx.pairs(mx.widest(problem), k),
        "ld_a": pairs_a,
        "ld_b": pairs_b,
        "row_a": 1,
        "row_b": 1,
        "bias_n": int(problem.bias),
        "residual_m": n * epilogue.residual,
        "residual_n": int(epilogue.residual),
        "ld_out": n,
    }
    kernel = mx.kernel(problem, config)
    if not config.split:
        return Step(kernel, geometry, buffers, numbers)
    shares = mx.shares(problem, config)
    numbers = {name: number for name, number in numbers.items() if name not in ("partial", "arrived")}
    buffers |= {"partial": 4 * shares.sums, "arrived": 4 * shares.counters}
    numbers |= {"parts": shares.parts, "part_k": shares.part_k, "whole": shares.whole}
    return Step(kernel, geometry, buffers, numbers, arrived=gemm.others_arrived(shares.parts))


def _scale_bytes(problem: Any, config: Any, operand: str, rows: int) -> int:
    kind = getattr(problem, f"scale_{operand}")
    if kind == "block" and config.packed:
        return mx.Packing.of(problem).bytes(operand)
    return rows * {"none": 0, "block": -(-problem.k // BLOCK_K), "row": 1, "row_f32": 4}[kind]  # type: ignore[no-any-return]


def _grouped(problem: Any, config: Any, offsets: tuple[int, ...]) -> Step:
    geometry = grouped_gemm.launch(problem, config)
    groups, ragged, element = problem.groups, problem.ragged, _BYTES[problem.dtype]
    sizes = {name: getattr(problem, name) for name in ("m", "n", "k")}
    m, n, k = sizes.values()
    row_a, column_a = (1, m) if problem.trans_a else (k, 1)
    row_b, column_b = (1, k) if problem.trans_b else (n, 1)
    buffers = {
        "a": m * k * element * (groups if ragged == "n" else 1),
        "b": n * k * element * (groups if ragged == "m" else 1),
        "out": m * n * element * (groups if ragged == "k" else 1),
        "bias": groups * n * element * problem.bias,
        "offsets": 4 * groups,
        "partial": 4 * config.sums(geometry.grid[0]),
        "arrived": 4 * config.counters(geometry.grid[0]),
    }
    numbers = {
        "group_a": m * k if ragged == "n" else 0,
        "group_b": n * k if ragged == "m" else 0,
        "group_out": m * n if ragged == "k" else 0,
        "group_bias": n * problem.bias,
        "ragged_a": {"m": row_a, "n": 0, "k": column_a}[ragged],
        "ragged_b": {"m": 0, "n": column_b, "k": row_b}[ragged],
        "ragged_out": {"m": n, "n": 1, "k": 0}[ragged],
        "ld_a": max(row_a, column_a),
        "ld_b": max(row_b, column_b),
        "ld_out": n,
        "bias_n": int(problem.bias),
        "groups": groups,
        "workgroups": geometry.grid[0],
    }
    ends = {"offsets": np.array(offsets, np.int32)}
    tiles = _group_tiles(problem, config, offsets)
    parts = config.parts(problem, tiles, geometry.grid[0])
    busy = geometry.grid[0] if tiles >= geometry.grid[0] else max(tiles * parts, 1)
    spec = grouped_gemm.kernel(problem, config)
    return Step(
        spec,
        geometry,
        buffers,
        numbers | sizes,
        arrived=gemm.others_arrived(parts),
        contents=ends,
        busy=busy,
    )


def _group_tiles(problem: GroupedGemmProblem, config: Any, offsets: tuple[int, ...]) -> int:
    """The tiles of all groups, which end at these offsets."""
    sizes = {"m": problem.m, "n": problem.n}
    groups = (sizes | {problem.ragged: end - start} for start, end in pairwise((0, *offsets)))
    return sum(math.prod(config.tile.tiles(group["m"], group["n"])) for group in groups)


def _norm(problem: Any, config: Any) -> list[Step]:
    rows, columns = problem.rows, problem.columns
    size = rows * columns * _BYTES[problem.dtype]
    buffers = {
        "x": size,
        "residual": size * problem.residual,
        "weight": columns * _BYTES[problem.weight],
        "y": rows * columns * (_BYTES[problem.out_dtype] if problem.mx is None else 1),
        "scales": 0 if problem.mx is None else rows * columns // BLOCK_K,
        "new_residual": size * problem.residual,
        "rstd": 4 * rows * problem.rstd,
    }
    numbers = {
        "ld_x": columns,
        "ld_residual": columns * problem.residual,
        "rows": rows,
        "columns": columns,
        "whole": rms_norm.whole_columns(columns, problem.dtype),
        "eps": 1e-6,
    }
    return [Step(rms_norm.kernel(problem, config), rms_norm.launch(problem, config), buffers, numbers)]


def _selection(problem: Any, config: Any) -> list[Step]:
    rows, steps, stride, places = problem.rows, [], problem.columns, 0
    for step in config.steps:
        found = rows * step.parts * step.k
        last = step is config.steps[-1]
        buffers = {
            "x": rows * stride * _BYTES[problem.dtype],
            "places": places,
            "values": found * _BYTES[problem.dtype],
            "indices": found * (8 if last else 4),
            "work": 4 * rows * step.work,
        }
        numbers = {"ld_x": stride, "n": step.n, "k": step.k, "rows": rows, "chunk": step.chunk}
        spec = topk.kernel(step.variant)
        steps.append(Step(spec, topk.launch(step, rows), buffers, numbers, ("x", problem.dtype, stride)))
        stride, places = step.parts * step.k, 4 * found
    return steps


def _trace(step: Step, workgroups: Sequence[tuple[int, int, int]] | None = None) -> Trace:
    """What workgroups of a launch execute, by default the representative ones."""
    compiled = codegen.compile_kernel(step.spec)
    kernel = emulator.load(compiled.elf).kernels[compiled.symbol]
    memory, recorder = emulator.Memory(), Recorder()
    arrays = {name: _zeros(size) for name, size in step.buffers.items() if size} | dict(step.contents)
    if step.filled:
        name, dtype, row = step.filled
        _fill(arrays[name], dtype, row)
    if step.arrived:
        arrays["arrived"].view(np.int32)[:] = step.arrived
    pointers = {name: memory.register(arrays[name]) if size else 0 for name, size in step.buffers.items()}
    tiled = step.busy is not None or step.spec.family == "sdpa"
    most = _MOST_OF_TILES if tiled else _MOST_INSTRUCTIONS
    try:
        emulator.launch(
            kernel,
            step.launch.grid,
            step.launch.block,
            step.spec.kernarg.pack({**pointers, **step.numbers}),
            memory,
            workgroups=neighbours(step.grid) if workgroups is None else workgroups,
            observers=(recorder,),
            max_instructions=most,
        )
    except emulator.RunawayKernel as error:
        sentence = f"a workgroup runs for more than {most:,} instructions: too long to be modelled"
        raise FlyccError(Reason("model.too-long", sentence)) from error
    return recorder.trace()


def _zeros(size: int) -> np.ndarray:
    """Zero bytes that take memory only where they are touched."""
    if size < _LARGE_BYTES:
        return np.zeros(size, np.uint8)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, np.uint8, "w+", shape=(size,)).view(np.ndarray)


def _fill(array: np.ndarray, dtype: str, row: int) -> None:
    """Normally distributed values, the same every time, in the first and the last rows."""
    count = min(array.size // _BYTES[dtype], _FILLED_ROWS * row, _MOST_FILLED)
    values = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    raw: dict[str, np.ndarray] = {
        "f32": values,
        "i32": (values * 1e6).astype(np.int32),
        "f16": values.astype(np.float16),
    }
    data = raw[dtype] if dtype in raw else (values.view(np.uint32) >> 16).astype(np.uint16)
    array[: data.nbytes] = array[array.size - data.nbytes :] = data.view(np.uint8)
