"""aten::topk and its out= variant."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flycc.contracts import Reason
from flycc.eager.calls import Calls
from flycc.eager.operands import EMPTY, NOT_PLAIN, is_plain, layout
from flycc.eager.overrides import Overrides

CALLS = Calls("topk", "topk")

_OUT = Reason(
    "eager.out",
    "out= tensors that have another shape or dtype, gaps, or memory in common with another tensor are PyTorch's own",
)


def install(overrides: Overrides) -> None:
    """Put both overloads over ATen's."""
    original, original_out = overrides.original("topk"), overrides.original("topk.values")

    def topk(
        keyset: torch.DispatchKeySet,
        x: Tensor,
        k: int,
        dim: int = -1,
        largest: bool = True,
        sorted: bool = True,
    ) -> Any:
        served = _serve(x, k, dim, largest, sorted)
        return original.call_boxed(keyset, x, k, dim, largest, sorted) if served is None else served

    def topk_out(
        keyset: torch.DispatchKeySet,
        x: Tensor,
        k: int,
        dim: int = -1,
        largest: bool = True,
        sorted: bool = True,
        *,
        values: Tensor,
        indices: Tensor,
    ) -> Any:
        served = _serve(x, k, dim, largest, sorted, (values, indices))
        if served is None:
            return original_out.call_boxed(keyset, x, k, dim, largest, sorted, values=values, indices=indices)
        return values.copy_(served[0]), indices.copy_(served[1])

    overrides.put("topk", topk)
    overrides.put("topk.values", topk_out)


def _serve(
    x: Tensor, k: int, dim: int, largest: bool, sorted: bool, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor] | None:
    """Values and indices of `torch.topk`, contiguous, or None for a call that is PyTorch's."""
    if not is_plain(x):
        CALLS.refuse(NOT_PLAIN)
        return None
    kind = (layout(x), k, dim, largest, sorted)
    if CALLS.refused_before(kind):
        return None
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank or not 0 <= k <= (x.shape[dim] if x.dim() else 1):
        return None  # PyTorch's error
    if not x.numel() or not k:
        CALLS.refuse(EMPTY, kind)
    elif out is not None and not _takes(out, x, k, dim):
        CALLS.refuse(_OUT)
    else:
        return CALLS.attempt(kind, lambda: _call(x, k, dim, largest, sorted))
    return None


def _call(x: Tensor, k: int, dim: int, largest: bool, sorted: bool) -> tuple[Tensor, Tensor]:
    """The same by flycc's operator, which takes the last dimension, with the strides of a new tensor."""
    if dim in (-1, x.dim() - 1) or not x.dim():
        return torch.ops.flycc.topk(x, k, largest=largest, sorted=sorted)
    values, indices = torch.ops.flycc.topk(x.movedim(dim, -1), k, largest=largest, sorted=sorted)
    moved = values.movedim(-1, dim), indices.movedim(-1, dim)
    # With k = 1 these are contiguous already, but for the stride of the one place.
    return tuple(result.reshape(-1).view(result.shape) for result in moved)  # type: ignore[return-value]


def _takes(out: tuple[Tensor, Tensor], x: Tensor, k: int, dim: int) -> bool:
    """Whether the results of a top-k of `x` can simply be copied to `out`."""
    shape = list(x.shape)
    if shape:
        shape[dim] = k
    memory = {tensor.untyped_storage().data_ptr() for tensor in (x, *out)}
    return len(memory) == 3 and all(
        is_plain(tensor)
        and tensor.device == x.device
        and tensor.dtype == dtype
        and list(tensor.shape) == shape
        and tensor.is_contiguous()
        for tensor, dtype in zip(out, (x.dtype, torch.int64), strict=True)
    )
