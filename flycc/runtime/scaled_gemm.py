"""`torch.ops.flycc.scaled_gemm`: products of MX-scaled operands."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NoReturn, get_args

import torch
from torch import Tensor

from flycc.contracts import Epilogue, FlyccError, Reason, ScaledGemmProblem
from flycc.contracts.gemm import Activation
from flycc.contracts.scaled_gemm import ELEMENT_BITS, ElementFormat
from flycc.kernels import mx as family
from flycc.kernels.mx import pack
from flycc.runtime import choice, derivatives, launching, plans, refusals, workspace
from flycc.runtime.device import Device
from flycc.runtime.devices import common_device, device_for
from flycc.runtime.gemm import ACTIVATIONS, broadcasts
from flycc.runtime.launching import Launched
from flycc.runtime.library import LIBRARY
from flycc.runtime.loading import Loaded, load
from flycc.runtime.operands import addend_alignment, steps
from flycc.runtime.scaled_operands import ScaledOperand, other_place, row_alignment

#: Types of results.
DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
_PLANS = plans.Plans()
LIBRARY.define(
    "scaled_gemm(Tensor a, Tensor b, Tensor? scale_a, Tensor? scale_b, Tensor? bias=None, *, Tensor? residual=None, "
    'str activation="none", ScalarType out_dtype) -> Tensor'
)


@dataclass(frozen=True, slots=True)
class ScaledGemmOperands:
    """What one launch takes: `a` and `b` bytes [rows, K] as stored, their scales, and bias and residual [M, N]."""

    left: ScaledOperand
    right: ScaledOperand
    k: int
    a: Tensor
    b: Tensor
    scale_a: Tensor | None
    scale_b: Tensor | None
    bias: Tensor | None
    residual: Tensor | None
    activation: Activation
    out: Tensor

    @classmethod
    def of(
        cls,
        left: ScaledOperand,
        right: ScaledOperand,
        bias: Tensor | None,
        residual: Tensor | None,
        activation: Activation,
        out: Tensor,
    ) -> ScaledGemmOperands:
        """Copies operands that are not stored as kernels take them. `out` is contiguous, with one element at least."""
        k = whole_pairs(left.k, left.format, right.format)
        bias, residual = (None if x is None else x.expand(out.shape) for x in (bias, residual))
        scales = left.stored_scales(), right.stored_scales()
        return cls(left, right, k, left.stored(k), right.stored(k), *scales, bias, residual, activation, out)

    def problem(self) -> ScaledGemmProblem:
        """The concrete problem of this launch."""
        (m, n), alignments = self.out.shape, {}
        for name in ("scale_a", "scale_b"):
            scale: Tensor | None = getattr(self, name)
            alignments[f"align_{name}"] = 16 if scale is None else row_alignment(scale)
        return ScaledGemmProblem(
            self.left.format,
            self.right.format,
            DTYPES[self.out.dtype],  # type: ignore[arg-type]
            m,
            n,
            self.k,
            self.left.kind,
            self.right.kind,
            bias=self.bias is not None,
            align_a=row_alignment(self.a),
            align_b=row_alignment(self.b),
            **alignments,
            align_out=row_alignment(self.out),
            align_bias=addend_alignment(self.bias),
            align_residual=addend_alignment(self.residual),
            epilogue=Epilogue(activation=self.activation, residual=self.residual is not None),
        )

    def strides(self) -> dict[str, int]:
        """The strides the kernel takes, by its arguments' names: of operands in pairs of bytes, else in elements."""
        strides = {"ld_a": steps(self.a)[0] // 2, "ld_b": steps(self.b)[0] // 2, "ld_out": steps(self.out)[0]}
        for name, operand in (("row_a", self.left), ("row_b", self.right)):
            if (scales := operand.row_scales) is not None:
                strides[name] = steps(scales)[0]
        for name, addend in (("bias", self.bias), ("residual", self.residual)):
            if addend is not None:
                strides |= dict(zip((f"{name}_m", f"{name}_n"), steps(addend), strict=True))
        return strides

    def inputs(self) -> dict[str, Tensor]:
        """The tensors that the kernel reads, by the names of its arguments."""
        names = ("a", "b", "scale_a", "scale_b", "bias", "residual")
        return {name: tensor for name in names if (tensor := getattr(self, name)) is not None}


def whole_pairs(k: int, a: ElementFormat, b: ElementFormat) -> int:
    """K, with as many elements of 0 as make rows of both operands whole pairs of bytes, inside the last block."""
    pair = 16 // min(ELEMENT_BITS[a], ELEMENT_BITS[b])
    return -(-k // pair) * pair


def serve(problem: ScaledGemmProblem, device: Device) -> None:
    """Compile and load what a call launches for `problem`: nothing where it is empty, or where K, for which
    kernels are made, is not known yet. Raises as `prepare` does."""
    if 0 in (problem.m, problem.n, problem.k) or not isinstance(problem.k, int):
        return
    k = whole_pairs(problem.k, problem.format_a, problem.format_b)
    problem = problem if k == problem.k else replace(problem, k=k, align_a=16, align_b=16)  # copies
    prepare(problem, device)


def prepare(
    problem: ScaledGemmProblem, device: Device, strides: Mapping[str, int] = MappingProxyType({})
) -> tuple[family.MxConfig, Loaded]:
    """The configuration and the loaded kernel for `problem`; compiled if this is its first use.

    `strides` are those of `ScaledGemmOperands`. Raises `FlyccError` with the reason where no kernel serves the problem
    or it cannot be built.
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
    if config.packed and all(isinstance(size, int) for size in (problem.m, problem.n)):
        load(pack.kernel(family.Packing.of(problem)), device)
    return config, load(family.kernel(problem, config), device)


def launch(operands: ScaledGemmOperands, device: Device) -> list[Launched]:
    """Compute `operands.out`. Raises `FlyccError` before anything ran, or `DeviceError` from a launch."""
    problem = operands.problem()
    strides = operands.strides()
    config, loaded = prepare(problem, device, strides)
    outputs = {"out": operands.out}
    m, n = operands.out.shape
    k = family.pairs(family.widest(problem), operands.k)
    numbers = {**family.ABSENT, **strides, "m": m, "n": n, "k": k}
    inputs = operands.inputs()
    packings = []
    if config.packed:
        packings.append(pack_scales(problem, inputs, device))
        inputs |= {name.replace("packed", "scale"): scales for name, scales in packings[0].outputs.items()}
    with ExitStack() as stack:
        if config.split:
            shares = family.shares(problem, config)
            place = operands.out.device
            outputs["partial"] = workspace.sums(max(1, shares.sums), place)
            outputs["arrived"] = stack.enter_context(workspace.counters(shares.counters, device, place))
            numbers |= {"parts": shares.parts, "part_k": shares.part_k, "whole": shares.whole}
        geometry = family.launch(problem, config)
        return [*packings, launching.launch(device, loaded, geometry, inputs, outputs, numbers)]


def pack_scales(problem: ScaledGemmProblem, inputs: Mapping[str, Tensor], device: Device) -> Launched:
    """Pack the block scales among `inputs`."""
    packing = family.Packing.of(problem)
    scales = {
        name: tensor
        for name, tensor in inputs.items()
        if name.startswith("scale") and getattr(problem, name) == "block"
    }
    packed = {
        name.replace("scale", "packed"): torch.empty(
            packing.bytes(name[-1]), dtype=torch.uint8, device=tensor.device
        )
        for name, tensor in scales.items()
    }
    kernel = load(pack.kernel(packing), device)
    return launching.launch(device, kernel, pack.launch(packing), scales, packed, packing.numbers)


def scaled_gemm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    activation: Activation = "none",
    out_dtype: torch.dtype,
) -> Tensor:
    """`activation(A @ B.T + bias) + residual` of scaled operands, summed in float32 and rounded once to `out_dtype`.

    Args:
        a: [M, K] of float8_e4m3fn or float8_e5m2, or [M, K / 2] of float4_e2m1fn_x2, two elements along K each, the
            first in the low half. Any strides.
        b: [N, K] or [N, K / 2], likewise; of the type of `a` or of another.
        scale_a: None for none; float8_e8m0fnu [M, ceil(K / 32)], one for each block of 32 along K; or float8_e8m0fnu or
            float32 [M, 1], one for each row, or [1, 1], one for all. Where a row has one block, its byte is a block's.
        scale_b: the same of `b`, with N rows.
        bias: broadcastable to the result, or None; of `out_dtype`, as the residual.
        residual: broadcastable to the result, or None.
        out_dtype: bfloat16, float16 or float32.

    Returns a contiguous [M, N]. It has no derivative: backward raises RuntimeError.
    """
    tensors = a, b, scale_a, scale_b, bias, residual
    if derivatives.wanted(tensors):
        with torch.no_grad():
            result = scaled_gemm(
                a, b, scale_a, scale_b, bias, residual=residual, activation=activation, out_dtype=out_dtype
            )
        return derivatives.missing("flycc::scaled_gemm", result, tensors)
    arguments = activation, out_dtype
    if made := _PLANS.repeat(tensors, arguments):
        return made[0]
    out, left, right = _checked(a, b, scale_a, scale_b, bias, residual, activation, out_dtype)
    if not out.numel():
        return out
    if left.k:  # else an empty sum; there is nothing to launch
        names = ("a", "b", "scale_a", "scale_b", "bias", "residual")
        given = dict(zip(names, tensors, strict=True))
        try:
            device = device_for(common_device(**given))
            operands = ScaledGemmOperands.of(left, right, bias, residual, activation, out)
            _PLANS.keep(given, arguments, [out], launch(operands, device))
            return out
        except Exception as error:  # a model never breaks because of us: see refusals.refuse
            refusals.refuse("scaled-gemm", error)
    return out.copy_(_pytorch(left, right, bias, residual, activation))


def _pytorch(
    a: ScaledOperand, b: ScaledOperand, bias: Tensor | None, residual: Tensor | None, activation: Activation
) -> Tensor:
    """The float32 result by PyTorch's own operators: sums of scaled elements in float64, which holds each of them
    exactly, rounded to float32, and from there on as a kernel does it: scales of rows in float32, A's first."""
    y = (a.elements() @ b.elements().T).float()
    if (rows := a.row_scales) is not None:
        y = y * rows.float()
    if (columns := b.row_scales) is not None:
        y = y * columns.float().T
    if bias is not None:
        y = y + bias
    y = ACTIVATIONS[activation](y)
    return y if residual is None else y + residual


def _checked(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: Activation,
    out_dtype: torch.dtype,
) -> tuple[Tensor, ScaledOperand, ScaledOperand]:
    """The uninitialised result and the operands; all arguments are checked."""
    if elsewhere := other_place(a=a, b=b, scale_a=scale_a, scale_b=scale_b, bias=bias, residual=residual):
        fail(elsewhere)
    operands = []
    for name, data, scale in (("a", a, scale_a), ("b", b, scale_b)):
        if data.dim() != 2:
            fail(f"{name} must have 2 dimensions, got {list(data.shape)}")
        operand = ScaledOperand.of(name, data, scale)
        if isinstance(operand, str):
            fail(operand)
        operands.append(operand)
    left, right = operands
    torch._check(
        left.k == right.k,
        lambda: f"flycc::scaled_gemm: a has K = {left.k}, b has K = {right.k} elements a row",
    )
    if out_dtype not in DTYPES:
        fail(f"out_dtype must be one of {', '.join(map(str, DTYPES))}, got {out_dtype}")
    if activation not in ACTIVATIONS:
        fail(f"activation must be one of {', '.join(get_args(Activation))}, got {activation!r}")
    shape = (a.shape[0], b.shape[0])
    for name, addend in (("bias", bias), ("residual", residual)):
        if addend is None:
            continue
        if addend.dtype != out_dtype:
            fail(f"{name} is {addend.dtype}; it must be that of the result, {out_dtype}")
        if not broadcasts(addend.shape, shape):
            fail(f"{name} {list(addend.shape)} does not broadcast to the result {list(shape)}")
    return a.new_empty(shape, dtype=out_dtype), left, right


def fail(sentence: str) -> NoReturn:
    raise RuntimeError(f"flycc::scaled_gemm: {sentence}")


def _scaled_gemm_fake(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    activation: Activation = "none",
    out_dtype: torch.dtype,
) -> Tensor:
    return _checked(a, b, scale_a, scale_b, bias, residual, activation, out_dtype)[0]


LIBRARY.impl("scaled_gemm", scaled_gemm, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::scaled_gemm", _scaled_gemm_fake, lib=LIBRARY)
