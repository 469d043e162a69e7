"""From the tensors of a matmul to the strided matrices that a GEMM kernel takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flycc.contracts import GemmProblem

_DTYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A batch of stored matrices: `tensor` is [batch, rows, columns] with unit stride along columns.

    `transposed` says that the logical operand is the transpose of what is stored. `batch_stride` and
    `row_stride` are in elements.
    """

    tensor: Tensor
    transposed: bool

    @classmethod
    def of(cls, logical: Tensor) -> Matrix:
        """Describe a logical [batch, rows, columns] operand, copying only if no dimension has unit stride."""
        if _unit(logical, -1):
            return cls(logical, False)
        if _unit(logical, -2):
            return cls(logical.transpose(-1, -2), True)
        return cls(logical.contiguous(), False)

    @property
    def batch_stride(self) -> int:
        return self.tensor.stride(0) if self.tensor.size(0) > 1 else 0

    @property
    def row_stride(self) -> int:
        # PyTorch leaves the stride of a dimension of size 1 undefined, and it may be huge.
        return self.tensor.stride(1) if self.tensor.size(1) > 1 else 0

    @property
    def align(self) -> int:
        """Largest power of two, at most 16, that divides the byte address of every stored row."""
        size = self.tensor.element_size()
        parts = self.tensor.data_ptr() | self.batch_stride * size
        if self.tensor.size(1) > 1:
            parts |= self.tensor.stride(1) * size
        return min(16, parts & -parts) if parts else 16


def _unit(tensor: Tensor, dim: int) -> bool:
    return tensor.stride(dim) == 1 or tensor.size(dim) == 1


@dataclass(frozen=True, slots=True)
class GemmOperands:
    """The matrices of one GEMM launch. `out` is [batch, M, N]; `bias` is expanded to the same shape."""

    a: Matrix
    b: Matrix
    out: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor) -> GemmOperands:
        """Flatten the logical operands of `torch.matmul(a, b) + bias` to one batch dimension.

        Args:
            a: logical [..., M, K].
            b: logical [..., K, N]; with two dimensions it is shared by the whole batch.
            bias: broadcastable to `out`, or None.
            out: [..., M, N], contiguous, at least one element.
        """
        m, k = a.shape[-2:]
        n = b.shape[-1]
        if b.dim() == 2 and (rows := _as_rows(a)) is not None:
            a3, out3, b3 = rows[None], out.view(1, -1, n), b[None]
            bias3 = None if bias is None else _flat(bias.expand(out.shape), out3.shape)
        else:
            batch = out.shape[:-2]
            a3 = _flat(a.expand(*batch, m, k), (-1, m, k))
            b3 = (
                b[None].expand(out[..., 0, 0].numel(), k, n)
                if b.dim() == 2
                else _flat(b.expand(*batch, k, n), (-1, k, n))
            )
            out3 = out.view(-1, m, n)
            bias3 = None if bias is None else _flat(bias.expand(out.shape), out3.shape)
        return cls(Matrix.of(a3), Matrix.of(b3), out3, bias3)

    def sizes(self) -> dict[str, int]:
        """The sizes the kernel takes, by the names of its arguments."""
        _, m, n = self.out.shape
        return {"m": m, "n": n, "k": self.a.tensor.shape[1 if self.a.transposed else 2]}

    def strides(self) -> dict[str, int]:
        """The strides the kernel takes, in elements, by the names of its arguments; all of a missing bias are 0."""
        # As for rows, the stride of a dimension of size 1 means nothing.
        bias, out = self.bias, Matrix(self.out, False)
        batch, m, n = (
            (0, 0, 0)
            if bias is None
            else (stride if size > 1 else 0 for size, stride in zip(bias.shape, bias.stride(), strict=True))
        )
        return {
            "batch_a": self.a.batch_stride,
            "batch_b": self.b.batch_stride,
            "batch_out": out.batch_stride,
            "ld_a": self.a.row_stride,
            "ld_b": self.b.row_stride,
            "ld_out": out.row_stride,
            "bias_batch": batch,
            "bias_m": m,
            "bias_n": n,
        }

    def problem(self) -> GemmProblem:
        """The concrete problem of this launch."""
        return GemmProblem(
            dtype=_DTYPES[self.out.dtype],  # type: ignore[arg-type]
            **self.sizes(),
            batch=self.out.shape[0],
            trans_a=self.a.transposed,
            trans_b=self.b.transposed,
            bias=self.bias is not None,
            align_a=self.a.align,
            align_b=self.b.align,
            align_out=Matrix(self.out, False).align,
        )


def _as_rows(a: Tensor) -> Tensor | None:
    """[..., M, K] as [rows, K] without a copy, or None where the strides do not allow it."""
    try:
        return a.view(-1, a.shape[-1])
    except RuntimeError:
        return None


def _flat(tensor: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
    """Collapse the leading dimensions; copies only where the strides do not collapse."""
    return tensor.reshape(shape)
