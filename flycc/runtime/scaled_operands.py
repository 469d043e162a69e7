"""Operands of MX-scaled products: what their scales are, and what they are worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flycc.contracts.scaled_gemm import BLOCK_K, ELEMENT_BITS, ElementFormat, ScaleKind
from flycc.runtime.gemm import differ
from flycc.runtime.operands import steps

#: PyTorch's element types that kernels take.
FORMATS: dict[torch.dtype, ElementFormat] = {
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.float4_e2m1fn_x2: "e2m1",
}
#: Bytes between rows that every kernel reaches.
_FAR_APART = 1 << 22
#: What the 16 numbers of e2m1 are worth, by their bits.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@dataclass(frozen=True, slots=True)
class ScaledOperand:
    """Elements [..., rows, K], of which two of e2m1 are one of `data`'s, and how `scale` scales them.

    `scale` is None, or E8M0 [..., rows, ceil(K / 32)] ("block"), or E8M0 or float32 [..., rows, 1], with stride 0 where
    all rows have one.
    """

    format: ElementFormat
    data: Tensor
    kind: ScaleKind
    scale: Tensor | None

    @classmethod
    def of(cls, name: str, data: Tensor, scale: Tensor | None) -> ScaledOperand | str:
        """Describe the operand `name` and its scale `scale_<name>`, or say in a sentence what is not accepted."""
        if data.dtype not in FORMATS:
            return f"{name} {list(data.shape)} is {data.dtype}; {', '.join(map(str, FORMATS))} are accepted"
        *lead, rows, inner = data.shape
        format_ = FORMATS[data.dtype]
        if scale is None:
            return cls(format_, data, "none", None)
        k = inner * 8 // ELEMENT_BITS[format_]
        blocks = (k + BLOCK_K - 1) // BLOCK_K
        is_bytes = scale.dtype == torch.float8_e8m0fnu
        if is_bytes and _may_be(scale.shape, (*lead, rows, blocks)):
            return cls(format_, data, "block", scale)
        if is_bytes or scale.dtype == torch.float32:
            for accepted in ((*lead, rows, 1), (1,) * data.dim()):
                if _may_be(scale.shape, accepted):
                    return cls(format_, data, "row" if is_bytes else "row_f32", scale.expand(*lead, rows, 1))
        return (
            f"scale_{name} is {scale.dtype} {list(scale.shape)}; of {name} {list(data.shape)} accepted are None, "
            f"{torch.float8_e8m0fnu} {[*lead, rows, blocks]}, and that or {torch.float32} {[*lead, rows, 1]} or "
            f"{[1] * data.dim()}"
        )

    @property
    def k(self) -> int:
        """Elements of a row."""
        return self.data.shape[-1] * 8 // ELEMENT_BITS[self.format]

    def stored(self, k: int) -> Tensor:
        """uint8 [..., rows, bytes of `k`]: the elements as kernels take them, K innermost and rows that begin at even
        addresses not too far apart, with zeros after the last where `k` is more than there are. A copy where they are
        not like that."""
        data, count = self.data.view(torch.uint8), k * ELEMENT_BITS[self.format] // 8
        inner = data.shape[-1]
        even = not any(number % 2 for number in (data.data_ptr(), *steps(data)[:-1]))
        near = steps(data)[-2] <= max(_FAR_APART, inner + 16)
        if even and near and inner == count and (data.stride(-1) == 1 or inner == 1):
            return data
        copy = data.new_zeros(*data.shape[:-1], -(-count // 16) * 16)
        copy[..., :inner] = data
        return copy[..., :count]

    def stored_scales(self) -> Tensor | None:
        """The scales as kernels take them: uint8 without gaps of blocks, uint8 or float32 of rows."""
        if self.scale is None or self.kind == "row_f32":
            return self.scale
        scale = self.scale.view(torch.uint8)
        return scale.contiguous() if self.kind == "block" else scale

    def elements(self) -> Tensor:
        """float64 [..., rows, K]: what the elements are worth, with their blocks' scales."""
        values = decoded(self.data)
        if self.kind != "block" or self.scale is None:
            return values
        return values * self.scale.double().repeat_interleave(BLOCK_K, -1)[..., : self.k]

    @property
    def row_scales(self) -> Tensor | None:
        """[..., rows, 1] by which sums of the elements are multiplied, if they are."""
        return None if self.kind == "block" else self.scale


def other_place(**tensors: Tensor | None) -> str | None:
    """Which of `tensors`, by the names of an op's arguments, is not on the device of the first, in a sentence."""
    (first, of_first), *others = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    for name, tensor in others:
        if tensor.device != of_first.device:
            return f"{name} is on {tensor.device}, {first} on {of_first.device}; all must be on one device"
    return None


def row_alignment(tensor: Tensor) -> int:
    """Largest power of two, at most 16, that divides the byte address of every row."""
    parts = tensor.data_ptr()
    for step in steps(tensor)[:-1]:
        parts |= step * tensor.element_size()
    return min(16, parts & -parts) if parts else 16


def decoded(data: Tensor) -> Tensor:
    """float64 [..., K]: what elements are worth without a scale."""
    if data.dtype != torch.float4_e2m1fn_x2:
        return data.double()
    pairs = data.view(torch.uint8)
    values = torch.tensor(_E2M1, dtype=torch.float64, device=data.device)
    return values[torch.stack((pairs & 15, pairs >> 4), -1).flatten(-2).int()]


def _may_be(shape: torch.Size, accepted: tuple[Any, ...]) -> bool:
    return len(shape) == len(accepted) and not any(map(differ, shape, accepted))
