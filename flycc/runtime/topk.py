"""`torch.ops.flycc.topk`: problem -> config -> code object -> launch."""

from __future__ import annotations

import torch
from torch import Tensor

from flycc.contracts import FlyccError, Reason, TopkProblem
from flycc.runtime import refusals
from flycc.runtime.device import Device
from flycc.runtime.library import LIBRARY

LIBRARY.define(
    "topk(Tensor x, SymInt k, *, bool largest=True, bool sorted=True, bool deterministic=True)"
    " -> (Tensor values, Tensor indices)"
)


def prepare(problem: TopkProblem, device: Device) -> object:
    """The loaded kernels for `problem`; compiled if this is their first use.

    Raises `FlyccError` with the reason where no kernel serves the problem or it cannot be built.
    """
    raise FlyccError(Reason("topk.kernel", f"{problem}: there is no kernel yet"))


def topk(
    x: Tensor, k: int, *, largest: bool = True, sorted: bool = True, deterministic: bool = True
) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) along the last dimension, and their places there.

    Args:
        x: [..., N], float32, bfloat16, float16 or int32; or 0-d, which counts as one element.
        k: 0 to N.
        largest: whether the largest are meant; NaN is larger than all numbers.
        sorted: whether the results must come best first.
        deterministic: whether of equal values those with the lowest indices must be taken, in their order.

    Returns contiguous values [..., k] of the dtype of `x` and indices [..., k], int64.
    """
    values, indices = topk_fake(x, k, largest=largest, sorted=sorted, deterministic=deterministic)
    if not values.numel():
        return values, indices
    try:
        raise FlyccError(Reason("topk.kernel", "there is no kernel yet"))
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("topk", error)
        return _pytorch(x, k, largest, sorted, deterministic)


def _pytorch(x: Tensor, k: int, largest: bool, sorted: bool, deterministic: bool) -> tuple[Tensor, Tensor]:
    """The same by PyTorch's own operators. Its topk leaves open which of equal values it takes."""
    if not deterministic:
        values, indices = torch.topk(x, k, largest=largest, sorted=sorted)
        return values.contiguous(), indices.contiguous()
    values, indices = torch.sort(x, stable=True, descending=largest)
    if x.dim():
        values, indices = values[..., :k], indices[..., :k]
    return values.contiguous(), indices.contiguous()


def topk_fake(
    x: Tensor, k: int, *, largest: bool = True, sorted: bool = True, deterministic: bool = True
) -> tuple[Tensor, Tensor]:
    """The uninitialised results of `topk`, sizes checked."""
    size = x.shape[-1] if x.dim() else 1
    torch._check(k >= 0, lambda: "selected index k out of range")
    torch._check(k <= size, lambda: "selected index k out of range")
    shape = (*x.shape[:-1], k) if x.dim() else ()
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


LIBRARY.impl("topk", topk, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::topk", topk_fake, lib=LIBRARY)
