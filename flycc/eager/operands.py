"""What eager mode asks of a tensor before a kernel family does, and the reasons it refuses with."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from flycc.contracts import Reason

NOT_PLAIN = Reason(
    "eager.plain", "an operand is of a tensor subclass, sparse or nested; kernels take plain strided tensors"
)
EMPTY = Reason("eager.empty", "the result is empty, so there is nothing to launch")

_PLAIN = (Tensor, torch.nn.Parameter)


def is_plain(tensor: Tensor) -> bool:
    """Whether `tensor` is strided, not nested, and of no subclass but `Parameter`."""
    return type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_nested


def layout(tensor: Tensor | None) -> Hashable:
    """What of an operand refusals depend on."""
    return tensor if tensor is None else (tensor.dtype, tensor.shape, tensor.stride())
