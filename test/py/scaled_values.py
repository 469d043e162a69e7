"""Random operands of MX-scaled products, and what they are worth by another decoder than the runtime's."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.float4_e2m1fn_x2}
_NUMPY = {
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
    torch.float8_e8m0fnu: ml_dtypes.float8_e8m0fnu,
}


def elements(form: str, *shape: int, wide: bool = False) -> Tensor:
    """Elements [..., K], packed to K / 2 for e2m1: integers up to 4 in size, or `wide`, any finite ones."""
    if form == "e2m1":
        pairs = (*shape[:-1], shape[-1] // 2)
        return torch.randint(0, 256, pairs, dtype=torch.uint8).view(TYPES[form])
    if not wide:
        return torch.randint(-4, 5, shape).to(TYPES[form])
    codes = torch.randint(0, 256, shape, dtype=torch.uint8)
    codes[~codes.view(TYPES[form]).float().isfinite()] = 0
    return codes.view(TYPES[form])


def scales(low: int, high: int, *shape: int) -> Tensor:
    """E8M0 bytes from `low` to `high`."""
    return torch.randint(low, high + 1, shape, dtype=torch.uint8).view(torch.float8_e8m0fnu)


def worth(data: Tensor, scale: Tensor | None = None) -> Tensor:
    """float64 [..., K]: elements times the scales of their blocks or rows."""
    raw = np.ascontiguousarray(data.view(torch.uint8).numpy())
    if data.dtype == torch.float4_e2m1fn_x2:
        nibbles = np.stack([raw & 15, raw >> 4], -1).reshape(*raw.shape[:-1], -1)
        values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    else:
        values = raw.view(_NUMPY[data.dtype]).astype(np.float64)
    result = torch.from_numpy(values)
    if scale is None:
        return result
    if scale.dtype == torch.float8_e8m0fnu:
        bytes_ = np.ascontiguousarray(scale.view(torch.uint8).numpy())
        factors = torch.from_numpy(bytes_.view(ml_dtypes.float8_e8m0fnu).astype(np.float64))
    else:
        factors = scale.double()
    block = torch.arange(result.shape[-1]) // 32
    return result * (factors if factors.shape[-1] == 1 else factors[..., block])
