"""aten::_fused_rms_norm, which torch.rms_norm calls where x and weight agree in dtype, and its gradient.

On GPUs it has a kernel and a derivative, and overriding the kernels is enough. On the CPU it is a composite, of
operators that autograd differentiates one by one. There a call that a kernel may serve is sent through the derivative
that PyTorch has for GPUs (also in forward mode, and twice), which leads to aten::_fused_rms_norm_backward; any other
call runs the composite, as without flycc. The derivative saves x and weight. Where the composite would not, copies
stand in for them, so that they may still be changed in place, or be inference tensors. A kernel for the CPU would make
tracing keep the operator whole, where it is taken apart without flycc; so flycc's stands at the one key between
autograd and the backends, BackendSelect.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from flycc.contracts import Reason
from flycc.eager.calls import Calls
from flycc.eager.operands import EMPTY, NOT_PLAIN, is_plain, layout
from flycc.eager.overrides import Kernel, Overrides

CALLS = Calls("rms_norm", "rms-norm")
BACKWARD_CALLS = Calls("rms_norm_backward", "rms-norm")

FORWARD, BACKWARD = "_fused_rms_norm", "_fused_rms_norm_backward"

_DTYPE = Reason("rms-norm.dtype", "x is not of a floating-point type")

_BACKEND_SELECT = torch._C.DispatchKeySet(torch._C.DispatchKey.BackendSelect)

_thread = threading.local()


class _Refused(Exception):
    """No kernel serves a call that was sent through the derivative; it is the composite's."""


def install(overrides: Overrides) -> None:
    """Put forward and backward over ATen's."""
    overrides.put(BACKWARD, _backward_kernel(overrides))
    if overrides.key != "CPU":
        overrides.put(FORWARD, _gpu_kernel(overrides.original(FORWARD)))
        return
    composite = overrides.original(FORWARD, "AutogradCPU")
    overrides.put(FORWARD, _above_autograd(composite, _derivative()), "AutogradCPU")
    overrides.put(FORWARD, _below_autograd(composite), "BackendSelect")


def _derivative() -> Kernel:
    """PyTorch's derivative, which stands where the composite does while the CPU has a kernel."""
    probe = Overrides("CPU")
    try:
        probe.put(FORWARD, torch.library.fallthrough_kernel)
        return probe.original(FORWARD, "AutogradCPU")
    finally:
        probe.remove()


def _gpu_kernel(original: Kernel) -> Callable[..., Any]:
    """The backend's kernel: flycc's or `original`."""

    def kernel(
        keyset: torch.DispatchKeySet, x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
    ) -> Any:
        served = _forward(x, shape, weight, eps)
        return original.call_boxed(keyset, x, shape, weight, eps) if served is None else served

    return kernel


def _above_autograd(composite: Kernel, derivative: Kernel) -> Callable[..., Any]:
    """Through `derivative` to `_below_autograd`, or `composite`."""

    def kernel(
        keyset: torch.DispatchKeySet, x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
    ) -> Any:
        if _traced():
            return composite.call_boxed(keyset, x, shape, weight, eps)
        if not _all_plain(x, weight):
            CALLS.refuse(NOT_PLAIN)
        elif not CALLS.refused_before(kind := _kind(x, shape, weight, eps)):
            saved = _as_saved(x, weight)
            _thread.routed = kind
            try:
                return derivative.call_boxed(keyset, saved[0], shape, saved[1], eps)
            except _Refused:
                pass
            finally:
                _thread.routed = None
        return composite.call_boxed(keyset, x, shape, weight, eps)

    return kernel


def _as_saved(x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Operands for the derivative, which saves both: those that the composite does not save for a gradient as copies.

    The composite squares x, or a float32 copy of an x of 16 bits, and multiplies weight with what depends on x; a
    factor is saved where the other needs a gradient.
    """
    if not torch.is_grad_enabled() or not (x.requires_grad or (weight is not None and weight.requires_grad)):
        return x, weight
    return (
        x if x.requires_grad and torch.promote_types(x.dtype, torch.float32) == x.dtype else x.clone(),
        weight if x.requires_grad or weight is None else weight.clone(),
    )


def _below_autograd(composite: Kernel) -> Callable[..., Any]:
    """flycc's kernel on the CPU, or `composite`; what is next on other devices."""
    whole = torch.ops.aten._fused_rms_norm.default

    def kernel(
        keyset: torch.DispatchKeySet, x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
    ) -> Any:
        if x.device.type != "cpu":
            return whole.redispatch(keyset - _BACKEND_SELECT, x, shape, weight, eps)
        kind: Hashable | None = getattr(_thread, "routed", None)
        served = _forward(x, shape, weight, eps, kind)
        if served is not None:
            return served
        if kind is not None:
            raise _Refused
        return composite.call_boxed(keyset, x, shape, weight, eps)

    return kernel


def _backward_kernel(overrides: Overrides) -> Callable[..., Any]:
    """aten::_fused_rms_norm_backward, by PyTorch's decomposition where the backend has no kernel of its own."""
    original = overrides.original(BACKWARD) if overrides.has_kernel(BACKWARD) else None

    def kernel(
        keyset: torch.DispatchKeySet,
        grad: Tensor,
        x: Tensor,
        shape: list[int],
        rstd: Tensor,
        weight: Tensor | None,
        mask: list[bool],
    ) -> Any:
        served = _backward(grad, x, shape, rstd, weight, mask)
        if served is not None:
            return served
        if original is not None:
            return original.call_boxed(keyset, grad, x, shape, rstd, weight, mask)
        return _decomposed(grad, x, shape, rstd, weight, mask)

    return kernel


def _forward(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None, kind: Hashable | None = None
) -> tuple[Tensor, Tensor] | None:
    """Results of aten::_fused_rms_norm, contiguous, or None for a call that is PyTorch's.

    `kind` is that of the call where it is not the operands'.
    """
    if not _all_plain(x, weight):
        CALLS.refuse(NOT_PLAIN)
        return None
    kind = kind or _kind(x, shape, weight, eps)
    if CALLS.refused_before(kind) or not _fits(x, shape, weight) or _refused(CALLS, kind, x):
        return None
    rows = x.shape[: x.dim() - len(shape)]

    def call() -> tuple[Tensor, Tensor]:
        # As PyTorch does: of the type that the sums are made in.
        epsilon = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps if eps is None else eps
        y, _, rstd = torch.ops.flycc.rms_norm_fwd(
            _as_rows(x, rows), _flat(weight), None, epsilon, want_rstd=True
        )
        return y.view(x.shape), rstd.view(*rows, *(1 for _ in shape))

    return CALLS.attempt(kind, call)


def _backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor | None, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None] | None:
    """Results of aten::_fused_rms_norm_backward, or None for a call that is PyTorch's."""
    if not (_all_plain(x, weight) and is_plain(grad)):
        BACKWARD_CALLS.refuse(NOT_PLAIN)
        return None
    kind = (_kind(x, shape, weight), layout(grad))
    if (
        BACKWARD_CALLS.refused_before(kind)
        or not _fits(x, shape, weight)
        or grad.shape != x.shape
        or _refused(BACKWARD_CALLS, kind, x)
    ):
        return None
    rows = x.shape[: x.dim() - len(shape)]

    def call() -> tuple[Tensor | None, Tensor | None]:
        dx, dweight = torch.ops.flycc.rms_norm_bwd(
            _as_rows(grad, rows), _as_rows(x, rows), _flat(weight), rstd.reshape(rows)
        )
        return (
            dx.view(x.shape) if mask[0] else None,
            dweight.view(weight.shape) if mask[1] and weight is not None else None,
        )

    return BACKWARD_CALLS.attempt(kind, call)


def _decomposed(*args: Any) -> Any:
    from torch._decomp import decomposition_table

    return decomposition_table[torch.ops.aten._fused_rms_norm_backward.default](*args)


def _refused(calls: Calls, kind: Hashable, x: Tensor) -> bool:
    """Whether the call is refused before its family is asked."""
    if not x.numel():
        calls.refuse(EMPTY, kind)
    elif not x.is_floating_point():
        calls.refuse(_DTYPE, kind)
    else:
        return False
    return True


def _fits(x: Tensor, shape: Sequence[int], weight: Tensor | None) -> bool:
    """Whether PyTorch has no error for these shapes and devices."""
    return (
        0 < len(shape) <= x.dim()
        and list(x.shape[-len(shape) :]) == list(shape)
        and (weight is None or (list(weight.shape) == list(shape) and weight.device == x.device))
    )


def _kind(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None = None) -> Hashable:
    return layout(x), len(shape), layout(weight), eps


def _all_plain(x: Tensor, weight: Tensor | None) -> bool:
    return is_plain(x) and (weight is None or is_plain(weight))


def _traced() -> bool:
    """Whether a dispatch mode is on, as while torch.compile traces. It is to see what it sees without flycc."""
    return torch._C._len_torch_dispatch_stack() > 0


def _as_rows(tensor: Tensor, rows: torch.Size) -> Tensor:
    """[*rows, N], the normalised dimensions as one."""
    return tensor.reshape(*rows, math.prod(tensor.shape[len(rows) :]))


def _flat(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.reshape(-1)
