"""`torch.ops.flycc.grouped_gemm`: problem -> config -> code object -> launch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from flycc.contracts import FlyccError, GroupedGemmProblem, Reason
from flycc.contracts.grouped_gemm import Ragged
from flycc.kernels import grouped_gemm as family
from flycc.runtime import choice, gemm, launching, plans, refusals, workspace
from flycc.runtime.device import Device
from flycc.runtime.devices import common_device, device_for
from flycc.runtime.launching import Launched
from flycc.runtime.library import LIBRARY
from flycc.runtime.loading import Loaded, load
from flycc.runtime.operands import GemmOperands, Matrix

_DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16"}
_PLANS = plans.Plans()

LIBRARY.define(
    "grouped_gemm(Tensor a, Tensor b, Tensor? offsets=None, Tensor? bias=None, *, bool trans_a=False, "
    "bool trans_b=False) -> Tensor"
)


@dataclass(frozen=True, slots=True)
class GroupedOperands:
    """The matrices of one launch: each [groups or 1, rows, columns], 1 where groups share out a dimension of it."""

    ragged: Ragged
    a: Matrix
    b: Matrix
    out: Matrix
    offsets: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, a: Tensor, b: Tensor, offsets: Tensor, bias: Tensor | None, out: Tensor) -> GroupedOperands:
        """Describe logical operands [M, K] or [G, M, K], and [K, N] or [G, K, N], at least one of which has no G, and
        a bias [G, N].

        Raises `FlyccError` for offsets that the kernel does not take.
        """
        if offsets.dtype != torch.int32 or offsets.dim() != 1:
            raise FlyccError(
                Reason(
                    "grouped-gemm.offsets",
                    f"offsets are {offsets.dtype} of shape {list(offsets.shape)}: the kernel takes int32 [groups]",
                )
            )
        a3, b3, out3 = (x if x.dim() == 3 else x[None] for x in (a, b, out))
        return cls(
            "k" if a.dim() == b.dim() else "m" if a.dim() == 2 else "n",
            Matrix.of(a3),
            Matrix.of(b3),
            Matrix(out3, False),
            offsets.contiguous(),
            bias,
        )

    def sizes(self) -> dict[str, int]:
        """The sizes the kernel takes, by the names of its arguments."""
        _, m, n = self.out.tensor.shape
        k = self.a.tensor.shape[1 if self.a.transposed else 2]
        return {"m": m, "n": n, "k": k, "groups": self.offsets.numel()}

    def strides(self) -> dict[str, int]:
        """The strides inside a matrix that the kernel takes, in elements, by the names of its arguments."""
        return {
            "ld_a": self.a.row_stride,
            "ld_b": self.b.row_stride,
            "ld_out": self.out.row_stride,
            "bias_n": _strides(self.bias)[1],
        }

    def steps(self) -> dict[str, int]:
        """What leads from one group to the next, in elements, by the names of the kernel's arguments."""
        # Whether the ragged dimension is that of an operand's rows, as stored; None where it has no such dimension.
        along_rows = {
            "a": {"m": not self.a.transposed, "n": None, "k": self.a.transposed},
            "b": {"m": None, "n": self.b.transposed, "k": not self.b.transposed},
            "out": {"m": True, "n": False, "k": None},
        }
        steps = {"group_bias": _strides(self.bias)[0]}
        for name, matrix in (("a", self.a), ("b", self.b), ("out", self.out)):
            rows = along_rows[name][self.ragged]
            steps[f"group_{name}"] = matrix.batch_stride
            steps[f"ragged_{name}"] = 0 if rows is None else matrix.row_stride if rows else 1
        return steps

    def problem(self) -> GroupedGemmProblem:
        """The concrete problem of this launch. Raises `FlyccError` for dtypes that have no name among problems'."""
        dtypes = {self.a.tensor.dtype, self.b.tensor.dtype}
        if len(dtypes) != 1 or not dtypes <= _DTYPES.keys():
            names = " and ".join(sorted(map(str, dtypes)))
            raise FlyccError(
                Reason("grouped-gemm.dtype", f"operands are {names}: both must be bfloat16 or float16")
            )
        return GroupedGemmProblem(
            dtype=_DTYPES[dtypes.pop()],  # type: ignore[arg-type]
            ragged=self.ragged,
            **self.sizes(),
            trans_a=self.a.transposed,
            trans_b=self.b.transposed,
            align_a=self.a.align,
            align_b=self.b.align,
            align_out=self.out.align,
            bias=self.bias is not None,
            align_bias=_bias_alignment(self.bias),
        )


def prepare(
    problem: GroupedGemmProblem, device: Device, strides: Mapping[str, int] = MappingProxyType({})
) -> tuple[family.GroupedGemmConfig, Loaded]:
    """The configuration and the loaded kernel for `problem`; compiled if this is its first use.

    `strides` are those inside a matrix, in elements, by the names of the kernel's arguments. Raises `FlyccError`
    with the reason where no kernel serves the problem or it cannot be built.
    """
    config = choice.choose(problem, family.choose)
    if isinstance(config, Reason):
        raise FlyccError(config)
    if reason := config.check_strides(strides):
        # Smaller tiles reach farther.
        reaching = (other for other in family.space(problem) if not other.check_strides(strides))
        config = next(reaching, None)
        if config is None:
            raise FlyccError(reason)
    return config, load(family.kernel(problem, config), device)


def launch(operands: GroupedOperands, device: Device) -> Launched:
    """Compute `operands.out`. Raises `FlyccError` before anything ran, or `DeviceError` from the launch."""
    problem = operands.problem()
    strides = operands.strides()
    config, loaded = prepare(problem, device, strides)
    geometry = family.launch(problem, config)
    bias = {} if operands.bias is None else {"bias": operands.bias}
    inputs = {"a": operands.a.tensor, "b": operands.b.tensor, "offsets": operands.offsets, **bias}
    outputs = {"out": operands.out.tensor}
    numbers = strides | operands.steps() | operands.sizes() | {"workgroups": geometry.grid[0]}
    with ExitStack() as stack:
        if config.tile.split:
            place, workgroups = operands.out.tensor.device, geometry.grid[0]
            counters = workspace.counters(config.counters(workgroups), device, place)
            outputs["partial"] = workspace.sums(config.sums(workgroups), place)
            outputs["arrived"] = stack.enter_context(counters)
        return launching.launch(device, loaded, geometry, inputs, outputs, numbers)


def grouped_gemm(
    a: Tensor,
    b: Tensor,
    offsets: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Tensor:
    """`torch._grouped_mm(a, b, offs=offsets)` and a bias, summed in float32 and rounded once, on a gfx950 kernel.

    Args:
        a: [M, K] or [G, M, K]; the last two the other way around with `trans_a`. bfloat16 or float16.
        b: [K, N] or [G, K, N]; the last two the other way around with `trans_b`. The dtype of `a`.
        offsets: int32 [G], where each group ends, ascending, in the dimension that the groups share out: M where
            only `b` has groups, N where only `a` has, K where neither has. None where both have.
        bias: [G, N], a row for each group, of the dtype of `a`; None where the groups share out N.

    Returns a contiguous [M, N], or [G, M, N] where both or neither operand has groups, of the dtype of `a`. As in
    PyTorch, what belongs to no group is not written.
    """
    if made := _PLANS.repeat((a, b, offsets, bias), (trans_a, trans_b)):
        return made[0]
    out = grouped_gemm_fake(a, b, offsets, bias, trans_a=trans_a, trans_b=trans_b)
    left = a.transpose(-1, -2) if trans_a else a
    right = b.transpose(-1, -2) if trans_b else b
    if not out.numel() or (offsets is not None and not offsets.numel()):
        return out
    if not left.shape[-1]:
        # Empty sums; there is nothing to launch.
        return _with_bias(out.zero_(), offsets, bias)
    try:
        given = {"a": a, "b": b, "offsets": offsets, "bias": bias}
        device = device_for(common_device(**given))
        if offsets is None:
            rows = None if bias is None else bias[:, None]
            launched = gemm.launch(GemmOperands.of(left, right, rows, out), device)
        else:
            launched = launch(GroupedOperands.of(left, right, offsets, bias, out), device)
        _PLANS.keep(given, (trans_a, trans_b), [out], [launched])
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("grouped-gemm", error)
        # Where PyTorch is not built for ROCm its rows may be padded.
        return _with_bias(torch._grouped_mm(left, right, offs=offsets).contiguous(), offsets, bias)
    return out


def _with_bias(out: Tensor, offsets: Tensor | None, bias: Tensor | None) -> Tensor:
    """`out` and the bias, by PyTorch's own operators, with its rounding."""
    if bias is None:
        return out
    if out.dim() == 3:
        return out.add_(bias[:, None])
    rows = torch.arange(out.shape[0], dtype=torch.int32, device=out.device)
    group = torch.searchsorted(offsets, rows, right=True).clamp_(
        max=bias.shape[0] - 1
    )  # any, beyond the last
    return out.add_(bias[group])


def _strides(bias: Tensor | None) -> tuple[int, int]:
    """From a group's bias to the next, and from a column to the next, in elements."""
    if bias is None:
        return 0, 0
    # PyTorch leaves the stride of a dimension of size 1 undefined.
    group, column = (
        stride if size > 1 else 0 for stride, size in zip(bias.stride(), bias.shape, strict=True)
    )
    return group, column


def _bias_alignment(bias: Tensor | None) -> int:
    """`GroupedGemmProblem.align_bias`."""
    return Matrix(bias[None], False).align if bias is not None and bias.stride(1) == 1 else 2


def grouped_gemm_fake(
    a: Tensor,
    b: Tensor,
    offsets: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Tensor:
    """The uninitialised result of `grouped_gemm`, shapes checked."""
    m, inner = (a.shape[-1], a.shape[-2]) if trans_a else (a.shape[-2], a.shape[-1])
    n, k = (b.shape[-2], b.shape[-1]) if trans_b else (b.shape[-1], b.shape[-2])
    ranks = (a.dim(), b.dim())
    torch._check(
        set(ranks) <= {2, 3}, lambda: f"flycc::grouped_gemm: a and b must have 2 or 3 dimensions, got {ranks}"
    )
    for name, tensor in (("b", b), ("bias", bias)):
        torch._check(
            tensor is None or tensor.dtype == a.dtype,
            lambda name=name, tensor=tensor: (
                f"flycc::grouped_gemm: {name} is {tensor.dtype}; it must be that of a, {a.dtype}"
            ),
        )
    torch._check(inner == k, lambda: f"flycc::grouped_gemm: a has K = {inner}, b has K = {k}")
    torch._check(
        (offsets is None) == (ranks == (3, 3)),
        lambda: "flycc::grouped_gemm: offsets are needed unless both a and b have three dimensions",
    )
    groups = [x.shape[0] for x in (a, b) if x.dim() == 3] + ([] if offsets is None else [offsets.shape[0]])
    torch._check(
        all(count == groups[0] for count in groups),
        lambda: f"flycc::grouped_gemm: groups of a, b and offsets differ: {groups}",
    )
    given = None if bias is None else bias.shape
    torch._check(
        given is None or (ranks != (3, 2) and given == (groups[0], n)),
        lambda: (
            f"flycc::grouped_gemm: bias is {given}: {[groups[0], n]} is accepted, and none where the groups share out N"
        ),
    )
    return a.new_empty((m, n) if ranks in ((2, 3), (3, 2)) else (groups[0], m, n))


LIBRARY.impl("grouped_gemm", grouped_gemm, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::grouped_gemm", grouped_gemm_fake, lib=LIBRARY)
