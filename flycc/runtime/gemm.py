"""`torch.ops.flycc.gemm`: problem -> config -> code object -> launch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from flycc.contracts import FlyccError, GemmProblem, Reason
from flycc.kernels import gemm as family
from flycc.runtime import choice, refusals
from flycc.runtime.device import Device
from flycc.runtime.devices import common_device, device_for
from flycc.runtime.library import LIBRARY
from flycc.runtime.loading import Loaded, load
from flycc.runtime.operands import GemmOperands

LIBRARY.define(
    "gemm(Tensor a, Tensor b, Tensor? bias=None, *, bool trans_a=False, bool trans_b=False) -> Tensor"
)


def prepare(
    problem: GemmProblem, device: Device, strides: Mapping[str, int] = MappingProxyType({})
) -> tuple[family.GemmConfig, Loaded]:
    """The configuration and the loaded kernel for `problem`; compiled if this is its first use.

    `strides` are those inside a matrix, in elements, by the names of the kernel's arguments. Raises `FlyccError`
    with the reason where no kernel serves the problem or it cannot be built.
    """
    config = choice.choose(problem, family.choose)
    if isinstance(config, Reason):
        raise FlyccError(config)
    if reason := config.check_strides(strides):
        # Smaller tiles reach farther.
        reaching = (other for other in family.candidates(problem) if not other.check_strides(strides))
        config = next(reaching, None)
        if config is None:
            raise FlyccError(reason)
    return config, load(family.kernel(problem, config), device)


def launch(operands: GemmOperands, device: Device) -> None:
    """Compute `operands.out`. Raises `FlyccError` before anything ran, or `DeviceError` from the launch."""
    problem = operands.problem()
    strides = operands.strides()
    # Those between matrices are only ever multiplied in 64 bits.
    within = {name: stride for name, stride in strides.items() if "batch" not in name}
    config, loaded = prepare(problem, device, within)
    geometry = family.launch(problem, config)
    inputs = [operands.a.tensor, operands.b.tensor]
    if operands.bias is not None:
        inputs.append(operands.bias)
    with device.mapped(inputs, [operands.out]) as addresses:
        a, b, *bias, out = addresses
        pointers = {"a": a, "b": b, "bias": bias[0] if bias else 0, "out": out}
        kernarg = loaded.spec.kernarg.pack({**family.ABSENT, **pointers, **strides, **operands.sizes()})
        device.launch(loaded.handle, geometry.grid, geometry.block, kernarg)


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
        device = device_for(common_device(a=a, b=b, bias=bias))
        launch(GemmOperands.of(left, right, bias, out), device)
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("gemm", error)
        return _pytorch(left, right, bias)
    return out


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


LIBRARY.impl("gemm", gemm, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::gemm", gemm_fake, lib=LIBRARY)
