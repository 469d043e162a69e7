"""The custom operators that a rebuilt FX graph calls: `torch.ops.flycc.*`.

They are ordinary PyTorch operators with fake implementations, so a graph that calls them is legal for
Inductor and for export. Whatever fails inside one goes to PyTorch's own operator, with a reason.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from flycc.contracts import FlyccError, GemmProblem, Reason
from flycc.runtime import gemm as gemm_runtime
from flycc.runtime import refusals
from flycc.runtime.device import Device
from flycc.runtime.emulated import EmulatedDevice
from flycc.runtime.hip import HipDevice
from flycc.runtime.operands import GemmOperands

_library = torch.library.Library("flycc", "FRAGMENT")
_library.define(
    "gemm(Tensor a, Tensor b, Tensor? bias=None, *, bool trans_a=False, bool trans_b=False) -> Tensor"
)


@functools.cache
def emulated_device() -> Device:
    """The one emulated gfx950 of this process."""
    return EmulatedDevice()


def device_for(device: torch.device) -> Device:
    """The device that runs kernels on tensors of a PyTorch device. Raises `FlyccError` where there is none."""
    if device.type == "cpu":
        return emulated_device()
    if device.type != "cuda":
        raise FlyccError(
            Reason(
                "device.type",
                f"tensors on {device}: flycc launches on CPU tensors (emulated) and on ROCm GPUs",
            )
        )
    if torch.version.hip is None:
        raise FlyccError(
            Reason(
                "device.type",
                f"tensors on {device}: this PyTorch is not built for ROCm, so that is no AMD GPU",
            )
        )
    found = _hip_device(torch.cuda.current_device() if device.index is None else device.index)
    if isinstance(found, Reason):
        raise FlyccError(found)
    return found


@functools.cache
def _hip_device(index: int) -> Device | Reason:
    """One device for each GPU of this process, or why it is none, found out once."""
    try:
        return HipDevice(index)
    except FlyccError as error:
        return error.reason


def serve_gemm(problem: GemmProblem, device: torch.device) -> Reason | None:
    """Why `flycc::gemm` cannot serve `problem` on `device`, or None, with its kernel compiled and loaded."""
    try:
        gemm_runtime.prepare(problem, device_for(device))
    except FlyccError as error:
        # That a family does not cover a problem is an answer; that its kernel cannot be built is a failure.
        if not error.reason.code.startswith("gemm."):
            refusals.warn_once("a matched gemm", error.reason)
        return error.reason
    return None


def gemm(
    a: Tensor, b: Tensor, bias: Tensor | None = None, *, trans_a: bool = False, trans_b: bool = False
) -> Tensor:
    """`torch.matmul(a, b) + bias`, accumulated in float32 and rounded once, on a gfx950 kernel.

    Args:
        a: [..., M, K], or [..., K, M] with `trans_a`; bfloat16 or float16.
        b: [..., K, N], or [..., N, K] with `trans_b`; the dtype of `a`. Batches broadcast as in `torch.matmul`.
        bias: broadcastable to the result, or None; the dtype of `a`.

    Returns a contiguous [..., M, N] of the dtype of `a`.
    """
    left = a.transpose(-1, -2) if trans_a else a
    right = b.transpose(-1, -2) if trans_b else b
    out = gemm_fake(a, b, bias, trans_a=trans_a, trans_b=trans_b)
    if not out.numel():
        return out
    if not left.shape[-1]:
        # An empty sum; there is nothing to launch.
        return out.zero_() if bias is None else out.copy_(bias)
    try:
        device = device_for(_common_device(a, b, bias))
        gemm_runtime.launch(GemmOperands.of(left, right, bias, out), device)
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("gemm", error)
        return _pytorch(left, right, bias)
    return out


def _common_device(a: Tensor, b: Tensor, bias: Tensor | None) -> torch.device:
    """Where all operands are: PyTorch also takes a scalar bias that is on the CPU, a kernel does not."""
    for name, other in (("b", b), ("bias", bias)):
        if other is not None and other.device != a.device:
            raise FlyccError(Reason("device.mixed", f"a is on {a.device}, {name} is on {other.device}"))
    return a.device


def _pytorch(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """The same by PyTorch's own operators, with its rounding."""
    if bias is None:
        result = torch.matmul(left, right)
    elif left.dim() == right.dim() == 2:
        result = torch.addmm(bias, left, right)
    elif left.dim() == right.dim() == 3 and left.shape[0] == right.shape[0]:
        result = torch.baddbmm(bias, left, right)
    else:
        result = torch.matmul(left, right).add_(bias)
    return result.contiguous()


def gemm_fake(
    a: Tensor, b: Tensor, bias: Tensor | None = None, *, trans_a: bool = False, trans_b: bool = False
) -> Tensor:
    """The uninitialised result of `gemm`, shapes checked."""
    m, inner = (a.shape[-1], a.shape[-2]) if trans_a else (a.shape[-2], a.shape[-1])
    n, k = (b.shape[-2], b.shape[-1]) if trans_b else (b.shape[-1], b.shape[-2])
    torch._check(inner == k, lambda: f"flycc::gemm: a has K = {inner}, b has K = {k}")
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*batch, m, n))


_library.impl("gemm", gemm, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::gemm", gemm_fake, lib=_library)
