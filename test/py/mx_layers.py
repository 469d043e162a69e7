"""Linear layers of MX operands by PyTorch and ml_dtypes, without flycc: what option `mx` makes of a model."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import torch
from torch import Tensor, nn

#: The element type, the exponent of its largest number, and that number.
ELEMENTS = {"mxfp8": (ml_dtypes.float8_e4m3fn, 8, 448.0), "mxfp4": (ml_dtypes.float4_e2m1fn, 2, 6.0)}


def dequantised(x: Tensor, mx: str) -> Tensor:
    """float32 [..., K] of what OCP's rule makes of `x`, bfloat16 or float16: scales 2^(floor(log2 amax) - emax),
    elements to the nearest, ties to even."""
    element, emax, largest = ELEMENTS[mx]
    values = x.detach().float().numpy()
    blocks = []
    for start in range(0, values.shape[-1], 32):
        block = values[..., start : start + 32]
        _, exponent = np.frexp(np.abs(block).max(-1, keepdims=True, initial=0))
        scale = np.ldexp(np.float32(1), exponent - 1 - emax)
        blocks.append(np.clip(block / scale, -largest, largest).astype(element).astype(np.float32) * scale)
    return torch.from_numpy(np.concatenate(blocks, -1))


def quantise_layers(model: nn.Module, mx: str, keep: Sequence[str] = ()) -> None:
    """Makes the linear layers of `model` but those that `keep` names products of dequantised operands: float32 sums,
    then one rounding."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and name not in keep:
            layer.dequantised = dequantised(layer.weight, mx)
            layer.register_forward_hook(lambda layer, inputs, _: _product(layer, *inputs, mx))


def _product(layer: nn.Linear, x: Tensor, mx: str) -> Tensor:
    sums = dequantised(x, mx) @ layer.dequantised.T
    return (sums if layer.bias is None else sums + layer.bias.float()).to(x.dtype)
