"""From the tensors of a matmul to the strided matrices that a GEMM kernel takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flycc.contracts import Epilogue, GemmProblem
from flycc.contracts.gemm import Activation

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
    """The matrices of one GEMM launch.

    `out` and `pre` are [batch, M, N], `bias` and `residual` are expanded to that. `b2` has the strides of `b`.
    """

    a: Matrix
    b: Matrix
    out: Tensor
    bias: Tensor | None
    b2: Matrix | None = None
    residual: Tensor | None = None
    pre: Tensor | None = None
    scale: float = 1.0
    activation: Activation = "none"

    @classmethod
    def of(
        cls,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None,
        out: Tensor,
        *,
        b2: Tensor | None = None,
        residual: Tensor | None = None,
        pre: Tensor | None = None,
        scale: float = 1.0,
        activation: Activation = "none",
    ) -> GemmOperands:
        """Flatten the logical operands of `torch.matmul(a, b) + bias`, and what follows, to one batch dimension.

        Args:
            a: logical [..., M, K].
            b: logical [..., K, N]; with two dimensions it is shared by the whole batch.
            bias: broadcastable to `out`, or None.
            out: [..., M, N], contiguous, at least one element.
            b2: of the shape of `b`; copied, and `b` too, if their strides differ.
            residual: broadcastable to `out`, or None.
            pre: like `out`, or None.
        """
        m, k = a.shape[-2:]
        n = b.shape[-1]
        rows = _as_rows(a) if b.dim() == 2 else None
        if rows is not None:
            a3, shape = rows[None], (1, rows.shape[0], n)
        else:
            batch = out.shape[:-2]
            a3 = _flat(a.expand(*batch, m, k), (-1, m, k))
            shape = (a3.shape[0], m, n)

        def weights(b: Tensor) -> Tensor:
            if b.dim() == 2:
                return b[None].expand(shape[0], k, n)
            return _flat(b.expand(*out.shape[:-2], k, n), (-1, k, n))

        def addend(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else _flat(tensor.expand(out.shape), shape)

        first, second = Matrix.of(weights(b)), None
        if b2 is not None:
            first, second = _alike(first, weights(b2))
        return cls(
            Matrix.of(a3),
            first,
            out.view(shape),
            addend(bias),
            second,
            addend(residual),
            None if pre is None else pre.view(shape),
            scale,
            activation,
        )

    def inputs(self) -> dict[str, Tensor]:
        """The tensors that the kernel reads, by the names of its arguments."""
        given = {
            "a": self.a.tensor,
            "b": self.b.tensor,
            "bias": self.bias,
            "b2": None if self.b2 is None else self.b2.tensor,
            "residual": self.residual,
        }
        return {name: tensor for name, tensor in given.items() if tensor is not None}

    def outputs(self) -> dict[str, Tensor]:
        """The tensors that the kernel writes, by the names of its arguments."""
        return {"out": self.out} if self.pre is None else {"out": self.out, "pre": self.pre}

    def sizes(self) -> dict[str, int]:
        """The sizes the kernel takes, by the names of its arguments."""
        _, m, n = self.out.shape
        return {"m": m, "n": n, "k": self.a.tensor.shape[1 if self.a.transposed else 2]}

    def strides(self) -> dict[str, int]:
        """The strides the kernel takes, in elements, by the names of its arguments; none of what is absent."""
        out = Matrix(self.out, False)
        strides = {
            "batch_a": self.a.batch_stride,
            "batch_b": self.b.batch_stride,
            "batch_out": out.batch_stride,
            "ld_a": self.a.row_stride,
            "ld_b": self.b.row_stride,
            "ld_out": out.row_stride,
        }
        for name, addend in (("bias", self.bias), ("residual", self.residual)):
            if addend is not None:
                names = (f"{name}_{dim}" for dim in ("batch", "m", "n"))
                strides.update(zip(names, steps(addend), strict=True))
        return strides

    def problem(self) -> GemmProblem:
        """The concrete problem of this launch."""
        dtype = _DTYPES[self.a.tensor.dtype]
        out_dtype = _DTYPES[self.out.dtype]
        epilogue = Epilogue(
            self.scale != 1,
            self.activation,
            self.b2 is not None,
            self.residual is not None,
            self.pre is not None,
            None if out_dtype == dtype else out_dtype,  # type: ignore[arg-type]
        )
        return GemmProblem(
            dtype=dtype,  # type: ignore[arg-type]
            **self.sizes(),
            batch=self.out.shape[0],
            trans_a=self.a.transposed,
            trans_b=self.b.transposed,
            bias=self.bias is not None,
            align_a=self.a.align,
            align_b=self.b.align if self.b2 is None else min(self.b.align, self.b2.align),
            align_out=min(Matrix(out, False).align for out in self.outputs().values()),
            align_bias=addend_alignment(self.bias),
            align_residual=addend_alignment(self.residual),
            epilogue=epilogue,
        )


def _alike(b: Matrix, b2: Tensor) -> tuple[Matrix, Matrix]:
    """`b` and the logical `b2` as matrices with the same strides, both copied where theirs differ."""
    second = Matrix(b2.transpose(-1, -2) if b.transposed else b2, b.transposed)
    if _unit(second.tensor, -1) and steps(second.tensor)[:2] == steps(b.tensor)[:2]:
        return b, second
    return Matrix(b.tensor.contiguous(), b.transposed), Matrix(second.tensor.contiguous(), b.transposed)


def steps(tensor: Tensor) -> list[int]:
    """Strides in elements; 0 along dimensions of size 1, where they mean nothing and may be huge."""
    return [stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]


def addend_alignment(addend: Tensor | None) -> int:
    """`align_bias` and `align_residual` of a [..., M, N]."""
    if addend is None or addend.stride(-1) != 1:
        return 2
    parts = addend.data_ptr()
    for step in steps(addend)[:-1]:
        parts |= step * addend.element_size()
    return min(16, parts & -parts)


def _as_rows(a: Tensor) -> Tensor | None:
    """[..., M, K] as [rows, K] without a copy, or None where the strides do not allow it."""
    try:
        return a.view(-1, a.shape[-1])
    except RuntimeError:
        return None


def _flat(tensor: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
    """Collapse the leading dimensions; copies only where the strides do not collapse."""
    return tensor.reshape(shape)
