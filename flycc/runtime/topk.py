"""`torch.ops.flycc.topk`: problem -> config -> code object -> launch."""

from __future__ import annotations

import torch
from torch import Tensor

from flycc.contracts import FlyccError, Reason, TopkProblem
from flycc.kernels import topk as family
from flycc.runtime import choice, launching, plans, refusals
from flycc.runtime.device import Device
from flycc.runtime.devices import device_for
from flycc.runtime.launching import Launched
from flycc.runtime.library import LIBRARY
from flycc.runtime.loading import Loaded, load

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int32: "i32"}
_PLANS = plans.Plans()

LIBRARY.define(
    "topk(Tensor x, SymInt k, *, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)"
)


def prepare(problem: TopkProblem, device: Device) -> tuple[family.TopkConfig, tuple[Loaded, ...]]:
    """The configuration and the loaded kernels for `problem`; compiled if this is their first use.

    Raises `FlyccError` with the reason where no kernel serves the problem or it cannot be built.
    """
    config = choice.choose(problem, family.choose)
    if isinstance(config, Reason):
        raise FlyccError(config)
    return config, tuple(load(family.kernel(step.variant), device) for step in config.steps)


def launch(
    problem: TopkProblem, x: Tensor, values: Tensor, indices: Tensor, device: Device
) -> list[Launched]:
    """Compute `values` and `indices`, contiguous [rows, k], of `x` [rows, columns] with unit column stride.

    Raises `FlyccError` before anything ran, or `DeviceError` from a launch.
    """
    config, kernels = prepare(problem, device)
    rows = x.shape[0]
    stride = x.stride(0) if rows > 1 else 0
    if not 0 <= stride <= config.max_stride:
        raise FlyccError(
            Reason("topk.stride", f"rows {stride} elements apart: {config} takes 0 to {config.max_stride}")
        )
    places, launched = None, []
    for step, loaded in zip(config.steps, kernels, strict=True):
        last = step is config.steps[-1]
        found = values if last else values.new_empty((rows, step.parts * step.k))
        where = indices if last else indices.new_empty(found.shape, dtype=torch.int32)
        work = indices.new_empty((rows, step.work), dtype=torch.int32)
        inputs = {"x": x} if places is None else {"x": x, "places": places}
        outputs = {"values": found, "indices": where} | ({"work": work} if step.work else {})
        geometry = family.launch(step, rows)
        sizes = {"ld_x": stride, "n": step.n, "k": step.k, "rows": rows, "chunk": step.chunk}
        launched.append(launching.launch(device, loaded, geometry, inputs, outputs, sizes))
        x, places, stride = found, where, step.parts * step.k
    return launched


def topk(x: Tensor, k: int, *, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) along the last dimension, and their places there: of equal values those at the
    lowest places, as a stable sort has them.

    Args:
        x: [..., N], float32, bfloat16, float16 or int32; or 0-d, which counts as one element.
        k: 0 to N.
        largest: whether the largest are meant; NaN is larger than all numbers.
        sorted: whether the results must come best first.

    Returns contiguous values [..., k] of the dtype of `x` and indices [..., k], int64.
    """
    if made := _PLANS.repeat((x,), (k, largest, sorted)):
        return made[0], made[1]
    values, indices = topk_fake(x, k, largest=largest, sorted=sorted)
    if not values.numel():
        return values, indices
    try:
        device = device_for(x.device)
        rows = _rows(x)
        problem = _problem(rows, k, largest, sorted)
        if _out_of_reach(rows, problem):
            rows = rows.contiguous()
            problem = _problem(rows, k, largest, sorted)
        launched = launch(problem, rows, values, indices, device)
        _PLANS.keep({"x": x}, (k, largest, sorted), [values, indices], launched)
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("topk", error)
        return _pytorch(x, k, largest)
    return values, indices


def _rows(x: Tensor) -> Tensor:
    """`x` as [rows, columns] with unit column stride; a copy only where its strides allow no such view."""
    if not x.dim():
        return x.view(1, 1)
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        x = x.contiguous()
    return x.reshape(-1, x.shape[-1])


def _out_of_reach(rows: Tensor, problem: TopkProblem) -> bool:
    """Whether there is a kernel for `problem`, but these `rows` are farther apart than it reaches."""
    if rows.is_contiguous():
        return False
    config = family.choose(problem)
    return not isinstance(config, Reason) and rows.stride(0) > config.max_stride


def _problem(rows: Tensor, k: int, largest: bool, sorted: bool) -> TopkProblem:
    """The concrete problem of one call; raises `FlyccError` for a dtype that has no name among problems'."""
    if rows.dtype not in _DTYPES:
        names = ", ".join(str(dtype) for dtype in _DTYPES)
        raise FlyccError(Reason("topk.dtype", f"x is {rows.dtype}: the kernels take {names}"))
    size, (count, columns) = rows.element_size(), rows.shape
    address = rows.data_ptr() | (rows.stride(0) * size if count > 1 else 0)
    return TopkProblem(
        _DTYPES[rows.dtype],  # type: ignore[arg-type]
        count,
        columns,
        k,
        largest,
        sorted,
        min(16, address & -address),
    )


def _pytorch(x: Tensor, k: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The same by PyTorch's own operators. Its topk leaves open which of equal values it takes."""
    values, indices = torch.sort(x, stable=True, descending=largest)
    if x.dim():
        values, indices = values[..., :k], indices[..., :k]
    # Copies, as `contiguous` keeps the stride of a single place.
    return (
        values.clone(memory_format=torch.contiguous_format),
        indices.clone(memory_format=torch.contiguous_format),
    )


def topk_fake(x: Tensor, k: int, *, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    """The uninitialised results of `topk`, sizes checked."""
    size = x.shape[-1] if x.dim() else 1
    torch._check(k >= 0, lambda: "selected index k out of range")
    torch._check(k <= size, lambda: "selected index k out of range")
    shape = (*x.shape[:-1], k) if x.dim() else ()
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


LIBRARY.impl("topk", topk, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::topk", topk_fake, lib=LIBRARY)
