"""The custom operators that a rebuilt FX graph calls: `torch.ops.flycc.*`.

They are ordinary PyTorch operators with fake implementations, so a graph that calls them is legal for
Inductor and for export. Whatever fails inside one goes to PyTorch's own operator, with a reason.
Importing this module defines them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flycc.contracts import (
    FlyccError,
    GemmProblem,
    GroupedGemmProblem,
    MxDequantizeProblem,
    MxQuantizeProblem,
    Reason,
    RmsNormBackwardProblem,
    RmsNormProblem,
    ScaledGemmProblem,
    ScaledGroupedGemmProblem,
    ScaleRangeProblem,
    SdpaBackwardProblem,
    SdpaProblem,
    TopkProblem,
)
from flycc.runtime import (  # noqa: F401 (some only define operators)
    gemm,
    grouped_gemm,
    mx_quantize,
    mx_weight,
    refusals,
    rms_norm,
    rms_norm_mx,
    scale_guard,
    scaled_gemm,
    scaled_grouped_gemm,
    sdpa,
    topk,
)
from flycc.runtime.device import Device
from flycc.runtime.devices import device_for

#: Every family by the type of its problems: (prefix of its reasons' codes, what chooses and loads a kernel).
_FAMILIES: dict[type, tuple[str, Callable[[Any, Device], object]]] = {
    GemmProblem: ("gemm", gemm.prepare),
    GroupedGemmProblem: ("grouped-gemm", grouped_gemm.prepare),
    MxDequantizeProblem: ("mx-dequantize", mx_quantize.prepare_dequantize),
    MxQuantizeProblem: ("mx-quantize", mx_quantize.prepare_quantize),
    RmsNormProblem: ("rms-norm", rms_norm.prepare),
    RmsNormBackwardProblem: ("rms-norm", rms_norm.prepare_backward),
    ScaleRangeProblem: ("scale-range", mx_quantize.prepare_range),
    ScaledGemmProblem: ("scaled-gemm", scaled_gemm.serve),
    ScaledGroupedGemmProblem: ("scaled-grouped-gemm", scaled_grouped_gemm.serve),
    SdpaBackwardProblem: ("sdpa", sdpa.prepare_backward),
    SdpaProblem: ("sdpa", sdpa.prepare),
    TopkProblem: ("topk", topk.prepare),
}


def serve(problem: Any, device: torch.device) -> Reason | None:
    """Why no kernel can serve `problem` on `device`, or None, with its kernel compiled and loaded."""
    family, prepare = _FAMILIES[type(problem)]
    try:
        prepare(problem, device_for(device))
    except FlyccError as error:
        if not refusals.is_answer(family, error.reason):  # its kernel cannot be built
            refusals.warn_once(f"a matched {family}", error.reason)
        return error.reason
    return None


def describe(problem: Any) -> str:
    """Which launches serve `problem`, for reports; "" for families of one launch."""
    return sdpa.describe(problem) if isinstance(problem, SdpaProblem | SdpaBackwardProblem) else ""
