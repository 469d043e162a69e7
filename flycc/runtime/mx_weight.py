"""`torch.ops.flycc.mx_weight`: a weight in an MX format, quantised once."""

from __future__ import annotations

import torch
from torch import Tensor

from flycc.contracts.scaled_gemm import ElementFormat
from flycc.runtime.kept import Kept
from flycc.runtime.library import LIBRARY, not_differentiable
from flycc.runtime.mx_quantize import mx_quantize_fake

_KEPT: Kept[tuple[Tensor, Tensor]] = Kept()

LIBRARY.define('mx_weight(Tensor weight, *, str format="e4m3") -> (Tensor data, Tensor scales)')


def mx_weight(weight: Tensor, *, format: ElementFormat = "e4m3") -> tuple[Tensor, Tensor]:
    """The first two results of `flycc::mx_quantize`, computed once for each tensor and each time it was written to.

    Callers must not write to them. `Kept` says which writes are seen; the results are freed with the weight's memory.
    """

    def quantise() -> tuple[Tensor, Tensor]:
        # What is kept may be used in any mode.
        with torch.inference_mode(False), torch.no_grad():
            data, scales, _ = torch.ops.flycc.mx_quantize(weight, format=format)
        return data, scales

    return _KEPT.get(weight, format, quantise)


def _fake(weight: Tensor, *, format: ElementFormat = "e4m3") -> tuple[Tensor, Tensor]:
    data, scales, _ = mx_quantize_fake(weight, format=format)
    return data, scales


LIBRARY.impl("mx_weight", mx_weight, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::mx_weight", _fake, lib=LIBRARY)
not_differentiable("mx_weight")
