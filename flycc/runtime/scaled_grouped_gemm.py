"""`torch.ops.flycc.scaled_grouped_gemm`: products of MX-scaled rows by group (tokens by expert)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NoReturn

import torch
from torch import Tensor

from flycc.contracts import FlyccError, Reason, ScaledGroupedGemmProblem
from flycc.kernels import mx
from flycc.kernels import mx_grouped as family
from flycc.runtime import choice, derivatives, launching, plans, refusals, workspace
from flycc.runtime.device import Device
from flycc.runtime.devices import common_device, device_for
from flycc.runtime.gemm import differ
from flycc.runtime.launching import Launched
from flycc.runtime.library import LIBRARY
from flycc.runtime.loading import Loaded, load
from flycc.runtime.operands import steps
from flycc.runtime.scaled_gemm import DTYPES, whole_pairs
from flycc.runtime.scaled_operands import ScaledOperand, other_place, row_alignment

_PLANS = plans.Plans()
LIBRARY.define(
    "scaled_grouped_gemm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor offsets, Tensor? bias=None, *, "
    "ScalarType out_dtype) -> Tensor"
)


@dataclass(frozen=True, slots=True)
class ScaledGroupedOperands:
    """What one launch takes: `a` and `b` bytes [T, K] and [G, N, K] as stored, their block scales, and the rest."""

    left: ScaledOperand
    right: ScaledOperand
    k: int
    a: Tensor
    b: Tensor
    scale_a: Tensor
    scale_b: Tensor
    offsets: Tensor
    bias: Tensor | None
    out: Tensor

    @classmethod
    def of(
        cls, left: ScaledOperand, right: ScaledOperand, offsets: Tensor, bias: Tensor | None, out: Tensor
    ) -> ScaledGroupedOperands:
        """Copies operands that are not stored as kernels take them. `out` is contiguous, with one element at least."""
        k = whole_pairs(left.k, left.format, right.format)
        scale_a, scale_b = left.stored_scales(), right.stored_scales()
        assert scale_a is not None, "_checked"
        assert scale_b is not None, "_checked"
        return cls(
            left, right, k, left.stored(k), right.stored(k), scale_a, scale_b, offsets.contiguous(), bias, out
        )

    def problem(self) -> ScaledGroupedGemmProblem:
        """The concrete problem of this launch."""
        m, n = self.out.shape
        return ScaledGroupedGemmProblem(
            self.left.format,
            self.right.format,
            DTYPES[self.out.dtype],  # type: ignore[arg-type]
            self.offsets.numel(),
            m,
            n,
            self.k,
            bias=self.bias is not None,
            align_a=row_alignment(self.a),
            align_b=row_alignment(self.b),
            align_scale_a=row_alignment(self.scale_a),
            align_scale_b=row_alignment(self.scale_b),
            align_out=row_alignment(self.out),
            align_bias=2 if self.bias is None or self.bias.stride(1) != 1 else row_alignment(self.bias),
        )

    def strides(self) -> dict[str, int]:
        """Strides inside a matrix, by the names of the kernel's arguments: of operands in pairs of bytes, else in
        elements."""
        return {
            "ld_a": steps(self.a)[0] // 2,
            "ld_b": steps(self.b)[1] // 2,
            "ld_out": steps(self.out)[0],
            "bias_n": 0 if self.bias is None else steps(self.bias)[1],
        }

    def numbers(self) -> dict[str, int]:
        """What else the kernel takes, by the names of its arguments, but for the number of workgroups."""
        problem = self.problem()
        return {
            "m": self.out.shape[0],
            "n": self.out.shape[1],
            "k": mx.pairs(mx.widest(problem.group), self.k),
            "groups": self.offsets.numel(),
            "group_b": steps(self.b)[0] // 2,
            "group_bias": 0 if self.bias is None else steps(self.bias)[0],
        }

    def inputs(self) -> dict[str, Tensor]:
        """The tensors that the kernel reads, by the names of its arguments."""
        names = ("a", "b", "scale_a", "scale_b", "offsets", "bias")
        return {name: tensor for name in names if (tensor := getattr(self, name)) is not None}


def serve(problem: ScaledGroupedGemmProblem, device: Device) -> None:
    """Compile and load what a call launches for `problem`: nothing where it is empty, or where K, for which
    kernels are made, is not known yet. Raises as `prepare` does."""
    if 0 in (problem.groups, problem.m, problem.n, problem.k) or not isinstance(problem.k, int):
        return
    k = whole_pairs(problem.k, problem.format_a, problem.format_b)
    problem = problem if k == problem.k else replace(problem, k=k, align_a=16, align_b=16)  # copies
    prepare(problem, device)


def prepare(
    problem: ScaledGroupedGemmProblem, device: Device, strides: Mapping[str, int] = MappingProxyType({})
) -> tuple[family.MxGroupedConfig, Loaded]:
    """The configuration and the loaded kernel for `problem`; compiled if this is its first use.

    `strides` are those of `ScaledGroupedOperands`. Raises `FlyccError` with the reason where no kernel serves the
    problem or it cannot be built.
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


def launch(operands: ScaledGroupedOperands, device: Device) -> Launched:
    """Compute `operands.out`. Raises `FlyccError` before anything ran, or `DeviceError` from the launch."""
    problem = operands.problem()
    strides = operands.strides()
    config, loaded = prepare(problem, device, strides)
    geometry = family.launch(problem, config)
    outputs = {"out": operands.out}
    numbers = strides | operands.numbers() | {"workgroups": geometry.grid[0]}
    with ExitStack() as stack:
        if config.tile.split:
            place, workgroups = operands.out.device, geometry.grid[0]
            counters = workspace.counters(config.counters(workgroups), device, place)
            outputs["partial"] = workspace.sums(config.sums(workgroups), place)
            outputs["arrived"] = stack.enter_context(counters)
        return launching.launch(device, loaded, geometry, operands.inputs(), outputs, numbers)


def scaled_grouped_gemm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype,
) -> Tensor:
    """For each group g of rows of `a`, `A_g @ B[g].T + bias[g]` of scaled operands, summed in float32 and rounded once.

    Args:
        a: [T, K] of float8_e4m3fn or float8_e5m2, or [T, K / 2] of float4_e2m1fn_x2, rows by group. Any strides.
        b: [G, N, K] or [G, N, K / 2], likewise; of the type of `a` or of another.
        scale_a: float8_e8m0fnu [T, ceil(K / 32)], one for each block of 32 along K.
        scale_b: float8_e8m0fnu [G, N, ceil(K / 32)].
        offsets: int32 [G], where each group ends, ascending. It is not read by the host, but where PyTorch computes.
        bias: [G, N], a row for each group, of `out_dtype`; or None.
        out_dtype: bfloat16, float16 or float32.

    Returns a contiguous [T, N]; rows of no group are not written. It has no derivative: backward raises RuntimeError.
    """
    tensors = a, b, scale_a, scale_b, offsets, bias
    if derivatives.wanted(tensors):
        with torch.no_grad():
            result = scaled_grouped_gemm(a, b, scale_a, scale_b, offsets, bias, out_dtype=out_dtype)
        return derivatives.missing("flycc::scaled_grouped_gemm", result, tensors)
    if made := _PLANS.repeat(tensors, (out_dtype,)):
        return made[0]
    out, left, right = _checked(a, b, scale_a, scale_b, offsets, bias, out_dtype)
    if not out.numel() or not offsets.numel():
        return out
    if left.k:  # else empty sums; there is nothing to launch
        given = dict(zip(("a", "b", "scale_a", "scale_b", "offsets", "bias"), tensors, strict=True))
        try:
            device = device_for(common_device(**given))
            operands = ScaledGroupedOperands.of(left, right, offsets, bias, out)
            _PLANS.keep(given, (out_dtype,), [out], [launch(operands, device)])
            return out
        except Exception as error:  # a model never breaks because of us: see refusals.refuse
            refusals.refuse("scaled-grouped-gemm", error)
    return _pytorch(left, right, offsets, bias, out)


def _pytorch(a: ScaledOperand, b: ScaledOperand, offsets: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """The same by PyTorch's own operators, sums in float64."""
    start, rows = 0, a.elements()
    for group, end in enumerate(offsets.tolist()):
        weights = ScaledOperand(b.format, b.data[group], b.kind, None if b.scale is None else b.scale[group])
        sums = (rows[start:end] @ weights.elements().T).float()
        out[start:end] = sums if bias is None else sums + bias[group]
        start = end
    return out


def _checked(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offsets: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype,
) -> tuple[Tensor, ScaledOperand, ScaledOperand]:
    """The uninitialised result and the operands; all arguments are checked."""
    if elsewhere := other_place(a=a, b=b, scale_a=scale_a, scale_b=scale_b, offsets=offsets, bias=bias):
        _fail(elsewhere)
    operands = []
    for name, data, scale, rank in (("a", a, scale_a, 2), ("b", b, scale_b, 3)):
        if data.dim() != rank:
            _fail(f"{name} must have {rank} dimensions, got {list(data.shape)}")
        operand = ScaledOperand.of(name, data, scale)
        if isinstance(operand, str):
            _fail(operand)
        if operand.kind != "block":
            _fail(
                f"scale_{name} must have a byte for each block of 32 along K, got {scale.dtype} {list(scale.shape)}"
            )
        operands.append(operand)
    left, right = operands
    torch._check(
        left.k == right.k,
        lambda: f"flycc::scaled_grouped_gemm: a has K = {left.k}, b has K = {right.k} elements a row",
    )
    groups, n = b.shape[0], b.shape[1]
    if offsets.dtype != torch.int32 or offsets.dim() != 1 or differ(offsets.shape[0], groups):
        _fail(f"offsets must be {torch.int32} [{groups}], got {offsets.dtype} {list(offsets.shape)}")
    if out_dtype not in DTYPES:
        _fail(f"out_dtype must be one of {', '.join(map(str, DTYPES))}, got {out_dtype}")
    if bias is not None:
        if bias.dim() != 2 or differ(bias.shape[0], groups) or differ(bias.shape[1], n):
            _fail(f"bias must be [{groups}, {n}], a row for each group, got {list(bias.shape)}")
        if bias.dtype != out_dtype:
            _fail(f"bias is {bias.dtype}; it must be that of the result, {out_dtype}")
    return a.new_empty((a.shape[0], n), dtype=out_dtype), left, right


def _fail(sentence: str) -> NoReturn:
    raise RuntimeError(f"flycc::scaled_grouped_gemm: {sentence}")


def _scaled_grouped_gemm_fake(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offsets: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype,
) -> Tensor:
    return _checked(a, b, scale_a, scale_b, offsets, bias, out_dtype)[0]


LIBRARY.impl("scaled_grouped_gemm", scaled_grouped_gemm, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::scaled_grouped_gemm", _scaled_grouped_gemm_fake, lib=LIBRARY)
