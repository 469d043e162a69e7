"""Operators without a derivative: they compute what needs one, and raise where it is asked for, as PyTorch's own do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def wanted(tensors: Sequence[Tensor | None]) -> bool:
    """Whether autograd records what is computed from `tensors`."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def missing(operator: str, result: Tensor, tensors: Sequence[Tensor | None]) -> Tensor:
    """`result` of `tensors`, backward through which raises RuntimeError with the name of the `operator`.

    Not by a kernel for autograd's dispatch keys: one in Python takes 8 us a call, of those without gradients, too.
    """
    recorded: Tensor = _Missing.apply(operator, result, *tensors)
    return recorded


class _Missing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: str, result: Tensor, *tensors: Tensor | None) -> Tensor:
        ctx.operator = operator
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise RuntimeError(f"derivative for {ctx.operator} is not implemented")
