"""`torch.ops.flycc.rms_norm_mx`: rows that are normalised and quantised in one launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flycc.contracts.mx import ScaleRounding
from flycc.contracts.scaled_gemm import BLOCK_K, ElementFormat
from flycc.runtime import plans, refusals, rms_norm
from flycc.runtime.devices import common_device, device_for
from flycc.runtime.library import LIBRARY
from flycc.runtime.mx_quantize import mx_quantize, mx_quantize_fake

LIBRARY.define(
    "rms_norm_mx(Tensor x, Tensor? weight, Tensor? residual, float eps, *, bool weight_offset=False, "
    'bool cast_before_weight=False, ScalarType? out_dtype=None, str format="e4m3", str rounding="floor") '
    "-> (Tensor data, Tensor scales, Tensor new_residual)"
)

_PLANS = plans.Plans()
#: Types that kernels quantise as they normalise.
_SIXTEEN = (torch.bfloat16, torch.float16)


def rms_norm_mx(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    eps: float,
    *,
    weight_offset: bool = False,
    cast_before_weight: bool = False,
    out_dtype: torch.dtype | None = None,
    format: ElementFormat = "e4m3",
    rounding: ScaleRounding = "floor",
) -> tuple[Tensor, Tensor, Tensor]:
    """`mx_quantize` of the y of `rms_norm_fwd`, bit for bit, and the new residual of that.

    Arguments are theirs. One launch where x and y are of 16 bits and rows have whole blocks; else those two.
    Returns data and scales as `mx_quantize` does, and x + residual, or an empty tensor without `residual`.
    """
    arguments = (eps, weight_offset, cast_before_weight, out_dtype, format, rounding)
    if made := _PLANS.repeat((x, weight, residual), arguments):
        return made[0], made[1], made[2]
    options: dict[str, Any] = {"weight_offset": weight_offset, "cast_before_weight": cast_before_weight}
    out_dtype = out_dtype or x.dtype

    def by_two() -> tuple[Tensor, Tensor, Tensor]:
        y, new_residual, _ = rms_norm.rms_norm_fwd(x, weight, residual, eps, out_dtype=out_dtype, **options)
        data, scales, _ = mx_quantize(y, format=format, rounding=rounding)
        return data, scales, new_residual

    if not served(x, out_dtype):
        return by_two()
    results = _fake(
        x, weight, residual, eps, out_dtype=out_dtype, format=format, rounding=rounding, **options
    )
    try:
        given = {"x": x, "weight": weight, "residual": residual}
        device = device_for(common_device(**given))
        names = zip(("y", "scales", "new_residual"), results, strict=True)
        launched = rms_norm.launch(
            x,
            weight,
            residual,
            eps,
            {name: result for name, result in names if result.numel()},
            device,
            out_dtype=out_dtype,
            mx=format,
            mx_rounding=rounding,
            **options,
        )
        _PLANS.keep(given, arguments, results, [launched])
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("rms-norm", error)
        return by_two()
    return results


def served(x: Tensor, out_dtype: torch.dtype) -> bool:
    """Whether one launch does both for an `x` of this shape and type."""
    return x.numel() > 0 and x.dtype in _SIXTEEN and out_dtype in _SIXTEEN and x.shape[-1] % BLOCK_K == 0


def _fake(
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    eps: float,
    *,
    weight_offset: bool = False,
    cast_before_weight: bool = False,
    out_dtype: torch.dtype | None = None,
    format: ElementFormat = "e4m3",
    rounding: ScaleRounding = "floor",
) -> tuple[Tensor, Tensor, Tensor]:
    """The uninitialised results of `rms_norm_mx`, what was given checked."""
    y, new_residual, _ = rms_norm.rms_norm_fwd_fake(x, weight, residual, eps, out_dtype=out_dtype)
    data, scales, _ = mx_quantize_fake(y, format=format, rounding=rounding)
    return data, scales, new_residual


LIBRARY.impl("rms_norm_mx", rms_norm_mx, "CompositeExplicitAutograd")
torch.library.register_fake("flycc::rms_norm_mx", _fake, lib=LIBRARY)
