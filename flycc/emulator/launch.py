"""Launches: splitting a grid into batches, the state a wave starts with, and packing of arguments."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flycc.emulator.errors import EmulatorError
from flycc.emulator.execute import Executor, WaveOrder
from flycc.emulator.memory import Memory
from flycc.emulator.observe import Observer, Watch
from flycc.emulator.program import Kernel, Module
from flycc.emulator.sanitize import Finding, Findings, SanitizerError, selected
from flycc.emulator.sanitize import observers as sanitizers
from flycc.emulator.state import ALL_LANES, EXEC, LANES, MFMA_ORDERS, Batch, Mode

Extent = tuple[int, int, int]

#: Waves that run together at most: enough to hide the cost of the interpreter, few enough for the caches.
MAX_WAVES = 256

#: The largest size of a grid or block in one dimension.
MAX_EXTENT = (1 << 31) - 1

#: Bytes of scratch of a batch of several workgroups, and of batch state that a kernel keeps for its next launches.
KEPT_BYTES = 256 << 20

MAX_INSTRUCTIONS = 20_000_000
LDS_BYTES = 160 * 1024


@dataclass(frozen=True, slots=True)
class LaunchStats:
    """What a launch took: instructions summed over waves, workgroups, and wall-clock seconds of emulation.

    `findings` are those of its sanitizers; `findings_dropped` counts what they saw beyond those kept.
    """

    wave_instructions: int
    workgroups: int
    seconds: float
    findings: tuple[Finding, ...] = ()
    findings_dropped: int = 0


def launch(
    kernel: Kernel,
    grid: Extent,
    block: Extent,
    kernarg: bytes,
    memory: Memory,
    *,
    dynamic_lds: int = 0,
    wave_order: WaveOrder = "lockstep",
    max_instructions: int = MAX_INSTRUCTIONS,
    observers: Sequence[Observer] = (),
    sanitize: str | Sequence[str] = (),
    raise_on_finding: bool = False,
    mfma_order: str = "fast",
    workgroups: Sequence[Extent] | None = None,
) -> LaunchStats:
    """Run `kernel` on `grid` workgroups of `block` work-items and return when all have ended.

    `kernarg` is the kernel argument segment, `dynamic_lds` bytes of LDS beyond those the kernel
    declares, `max_instructions` what a batch of waves may execute in all. Workgroups run in batches of
    unspecified order. `observers` are told what happens. `sanitize` is "all" or names out of
    `flycc.emulator.sanitize.SANITIZERS`: what those find is in the result, or with `raise_on_finding`
    in a SanitizerError. An error that ends the launch carries what was found before as notes.
    `mfma_order` is the order in which matrix instructions sum: "fast", "sequential" or "exact", as
    flycc.emulator.semantics.mfma defines them; the last two are slow references. `workgroups` are the ids
    of those of the grid that run, all by default.

    Raises MemoryFault, UnsupportedInstruction, RunawayKernel and other EmulatorErrors;
    ValueError for arguments that no launch accepts.
    """
    started = time.perf_counter()
    grid, block = _extent("grid", grid), _extent("block", block)
    _check(kernel, block, kernarg, dynamic_lds)
    if mfma_order not in MFMA_ORDERS:
        raise ValueError(f"mfma_order: got {mfma_order!r}; {', '.join(MFMA_ORDERS)} are accepted")
    names, findings = selected(sanitize), Findings(kernel.name)
    observers = (*sanitizers(names, findings), *observers)
    twins = "uninitialized" in names
    kernel.check()
    chosen = _chosen(grid, workgroups)
    count = grid[0] * grid[1] * grid[2] if chosen is None else len(chosen)
    waves_per_group = -(-block[0] * block[1] * block[2] // LANES)
    per_batch = max(1, MAX_WAVES // (1 + twins) // waves_per_group)
    scratch = waves_per_group * LANES * kernel.descriptor.scratch_bytes * (1 + twins)
    per_batch = max(1, min(per_batch, KEPT_BYTES // max(scratch, 1)))
    per_batch = -(-count // -(-count // per_batch))
    wave_instructions = 0
    padded = np.zeros(max(len(kernarg), kernel.descriptor.kernarg_size, 1), np.uint8)
    padded[: len(kernarg)] = np.frombuffer(kernarg, np.uint8)
    kernarg_address = memory.register(padded, name="kernarg", writable=False)
    code_base, mapped = _map_code(kernel, memory)
    try:
        for observer in observers:
            observer.launch_begins(kernel, grid, block, memory)
        with np.errstate(all="ignore"):
            for first in range(0, count, per_batch):
                last = min(first + per_batch, count)
                part = _workgroup_ids(grid, first, last) if chosen is None else chosen[first:last]
                watch = Watch(observers, twins) if observers else None
                everyone = np.concatenate([part, part]) if twins else part
                executor = _take_executor(
                    kernel, len(everyone), waves_per_group, dynamic_lds, watch, mfma_order
                )
                batch = executor.batch
                _initialise(batch, kernel, memory, everyone, block, padded, kernarg_address, code_base)
                for observer in observers:
                    observer.batch_begins(batch, part)
                try:
                    executor.run(wave_order, max_instructions)
                except EmulatorError as error:
                    wave_instructions += executor.wave_instructions
                    if not any(observer.stopped(batch, error) for observer in observers):
                        for finding in findings.all():
                            error.add_note(str(finding))
                        raise
                    break
                for observer in observers:
                    observer.batch_ends(batch)
                wave_instructions += executor.wave_instructions
                _keep_executor(kernel, executor)
    finally:
        for observer in observers:
            observer.launch_ends()
        for address in (kernarg_address, *mapped):
            memory.unregister(address)
    if raise_on_finding and findings.all():
        raise SanitizerError(findings.all())
    seconds = time.perf_counter() - started
    wave_instructions //= 1 + twins
    return LaunchStats(wave_instructions, count, seconds, findings.all(), findings.dropped)


def _extent(name: str, extent: Sequence[int]) -> Extent:
    values = tuple(int(n) for n in extent)
    if len(values) != 3 or min(values) < 1 or max(values) > MAX_EXTENT:
        raise ValueError(f"{name}: got {tuple(extent)}, three sizes of 1 to {MAX_EXTENT} are needed")
    return values  # type: ignore[return-value]


def _chosen(grid: Extent, workgroups: Sequence[Extent] | None) -> np.ndarray | None:
    """The ids as int64 [n, 3], or None for all of the grid."""
    if workgroups is None:
        return None
    ids = np.array([tuple(workgroup) for workgroup in workgroups], np.int64)
    if ids.ndim != 2 or ids.shape[1] != 3 or (ids < 0).any() or (ids >= grid).any():
        raise ValueError(
            f"workgroups: got {list(workgroups)!r:.100}; at least one id (x, y, z) within {grid} is accepted"
        )
    if len(np.unique(ids, axis=0)) < len(ids):
        raise ValueError("workgroups: an id is given twice")
    return ids


def _workgroup_ids(grid: Extent, first: int, end: int) -> np.ndarray:
    """(x, y, z) of workgroups `first` to `end`, x running fastest, int64 [n, 3]."""
    number = np.arange(first, end)
    return np.stack([number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1])], axis=1)


def _check(kernel: Kernel, block: Extent, kernarg: bytes, dynamic_lds: int) -> None:
    descriptor = kernel.descriptor
    items = block[0] * block[1] * block[2]
    if items > descriptor.max_workgroup_size:
        raise ValueError(
            f"block: {block} is {items} work-items; {kernel.name} allows {descriptor.max_workgroup_size}"
        )
    needed = max(
        (a.offset + a.size for a in descriptor.args if not a.value_kind.startswith("hidden")), default=0
    )
    if len(kernarg) < needed:
        raise ValueError(f"kernarg: got {len(kernarg)} bytes, {kernel.name} takes {needed}")
    if dynamic_lds < 0 or descriptor.lds_bytes + dynamic_lds > LDS_BYTES:
        raise ValueError(
            f"dynamic_lds: {dynamic_lds} on top of {descriptor.lds_bytes} is not within {LDS_BYTES} bytes"
        )
    if descriptor.round_mode_32 or descriptor.round_mode_16_64:
        raise EmulatorError(f"kernel {kernel.name}: only rounding to nearest even is emulated")
    if not {descriptor.denorm_mode_32, descriptor.denorm_mode_16_64} <= {0, 3}:
        raise EmulatorError(
            f"kernel {kernel.name}: denormals are flushed in sources and results, or in neither"
        )


def _map_code(kernel: Kernel, memory: Memory) -> tuple[int, list[int]]:
    """Make the code object's image readable; returns what to add to its virtual addresses."""
    segments = kernel.code.segments
    first = min(s.address for s in segments)
    image = np.zeros(max(s.address + len(s.data) for s in segments) - first, np.uint8)
    for segment in segments:
        at = segment.address - first
        image[at : at + len(segment.data)] = np.frombuffer(segment.data, np.uint8)
    address = memory.register(image, name="code", writable=False)
    return address - first, [address]


def _take_executor(
    kernel: Kernel, groups: int, waves_per_group: int, dynamic_lds: int, watch: Watch | None, mfma_order: str
) -> Executor:
    """One of an earlier launch, or a new one; those with observers or unusual sums are not kept."""
    key = (groups, waves_per_group, dynamic_lds)
    kept = kernel.states.pop(key, None) if watch is None and mfma_order == "fast" else None
    if isinstance(kept, Executor):
        return kept
    descriptor = kernel.descriptor
    keeps = descriptor.denorm_mode_32, descriptor.denorm_mode_16_64
    mode = Mode(dx10_clamp=descriptor.dx10_clamp, may_flush=0 in keeps, mfma_order=mfma_order)
    batch = Batch(
        kernel=descriptor,
        groups=groups,
        waves_per_group=waves_per_group,
        registers=max(descriptor.vgpr_count, descriptor.accum_offset),
        accum_offset=descriptor.accum_offset,
        lds_size=descriptor.lds_bytes + dynamic_lds,
        scratch_size=-(-descriptor.scratch_bytes // 16) * 16,
        mode=mode,
        watch=watch,
    )
    return Executor(kernel, batch)


def _keep_executor(kernel: Kernel, executor: Executor) -> None:
    """Keep for the next launch of this size, and drop the least recently used ones beyond the budget."""
    batch, states = executor.batch, kernel.states
    extra = batch.lds_size - kernel.descriptor.lds_bytes
    if batch.watch is not None or batch.mode.mfma_order != "fast":
        return
    states[batch.groups, batch.waves_per_group, extra] = executor
    while len(states) > 1 and sum(e.batch.nbytes for e in states.values()) > KEPT_BYTES:  # type: ignore[attr-defined]
        del states[next(iter(states))]


def _initialise(
    batch: Batch,
    kernel: Kernel,
    memory: Memory,
    groups: np.ndarray,
    block: Extent,
    kernarg: np.ndarray,
    kernarg_address: int,
    code_base: int,
) -> None:
    """Initial register state (LLVM AMDGPU guide, "Initial Kernel Execution State")."""
    batch.reset(memory, groups)
    batch.code_base = code_base
    descriptor = kernel.descriptor
    batch.mode.denormals_f32 = descriptor.denorm_mode_32 != 0
    batch.mode.denormals_f16_f64 = descriptor.denorm_mode_16_64 != 0
    batch.mode.dx10_clamp = descriptor.dx10_clamp
    batch.mode.fp16_overflow = descriptor.fp16_overflow
    for what, first, count in descriptor.user_sgprs:
        if what == "kernarg_segment_ptr":
            batch.sgpr[:, first : first + 2] = np.array([kernarg_address], np.uint64).view(np.uint32)
        elif what == "kernarg_preload":
            offset = 4 * descriptor.kernarg_preload[1]
            words = np.zeros(4 * count, np.uint8)
            present = kernarg[offset : offset + 4 * count]
            words[: present.size] = present
            batch.sgpr[:, first : first + count] = words.view(np.uint32)
    at = sum(count for _, _, count in descriptor.user_sgprs)
    enabled = (
        descriptor.enable_workgroup_id_x,
        descriptor.enable_workgroup_id_y,
        descriptor.enable_workgroup_id_z,
    )
    for dimension, wanted in enumerate(enabled):
        if wanted:
            batch.sgpr[:, at] = np.repeat(groups[:, dimension], batch.waves_per_group)
            at += 1
    item = np.arange(batch.waves_per_group * LANES)
    packed = item % block[0] | item // block[0] % block[1] << 10 | item // (block[0] * block[1]) << 20
    if descriptor.workitem_dims == 1:
        packed &= 0x3FF
    exists = item < block[0] * block[1] * block[2]
    batch.vgpr[0] = np.tile((packed * exists).reshape(-1, LANES), (batch.groups, 1))
    if not exists.all():
        lanes = np.packbits(exists.reshape(-1, LANES), axis=1, bitorder="little").view(np.uint64)[:, 0]
        batch.sgpr64[:, EXEC // 2] = np.tile(lanes, batch.groups) & ALL_LANES
        batch.exec_changed()


def run(
    module: Module,
    kernel_name: str,
    grid: Extent,
    block: Extent,
    args: Sequence[np.ndarray | np.generic],
    *,
    dynamic_lds: int = 0,
    wave_order: WaveOrder = "lockstep",
    max_instructions: int = MAX_INSTRUCTIONS,
    observers: Sequence[Observer] = (),
    sanitize: str | Sequence[str] = (),
    raise_on_finding: bool = False,
    mfma_order: str = "fast",
    workgroups: Sequence[Extent] | None = None,
) -> LaunchStats:
    """Launch with arrays (as pointers, used in place) and numpy scalars as arguments, in metadata order."""
    if kernel_name not in module.kernels:
        raise ValueError(f"kernel_name: got {kernel_name!r}; the code object holds {sorted(module.kernels)}")
    kernel = module.kernels[kernel_name]
    grid, block = _extent("grid", grid), _extent("block", block)
    memory = Memory()
    kernarg = pack_arguments(kernel, grid, block, args, memory)
    return launch(
        kernel,
        grid,
        block,
        kernarg,
        memory,
        dynamic_lds=dynamic_lds,
        wave_order=wave_order,
        max_instructions=max_instructions,
        observers=observers,
        sanitize=sanitize,
        raise_on_finding=raise_on_finding,
        mfma_order=mfma_order,
        workgroups=workgroups,
    )


def pack_arguments(
    kernel: Kernel, grid: Extent, block: Extent, args: Sequence[np.ndarray | np.generic], memory: Memory
) -> bytes:
    """The kernarg segment for `args`; arrays are registered in `memory`, hidden arguments filled in."""
    visible = [a for a in kernel.descriptor.args if not a.value_kind.startswith("hidden")]
    if len(args) != len(visible):
        raise ValueError(f"args: got {len(args)}, {kernel.name} takes {len(visible)}")
    kernarg = bytearray(kernel.descriptor.kernarg_size)
    # One array given twice is one buffer, so that its accesses meet, in the race sanitizer too.
    addresses: dict[tuple[int, int, bool], int] = {}
    for i, (slot, value) in enumerate(zip(visible, args, strict=True)):
        if isinstance(value, np.ndarray):
            same = (value.ctypes.data, value.nbytes, value.flags.writeable)
            if same not in addresses:
                addresses[same] = memory.register(
                    value, name=slot.name or f"argument {i}", writable=value.flags.writeable
                )
            data = addresses[same].to_bytes(8, "little")
        else:
            data = np.asarray(value).tobytes()
        if len(data) != slot.size:
            raise ValueError(
                f"args[{i}]: {len(data)} bytes given, {slot.name!r} of {kernel.name} takes {slot.size}"
            )
        kernarg[slot.offset : slot.offset + slot.size] = data
    for slot in kernel.descriptor.args:
        for dimension, axis in enumerate("xyz"):
            hidden = {
                f"hidden_block_count_{axis}": grid[dimension],
                f"hidden_group_size_{axis}": block[dimension],
            }
            if slot.value_kind in hidden:
                data = hidden[slot.value_kind].to_bytes(slot.size, "little")
                kernarg[slot.offset : slot.offset + slot.size] = data
    return bytes(kernarg)
