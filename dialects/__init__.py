"""The flycc dialect: op definitions, their verifiers, and op -> Problem. Imports neither torch nor flydsl."""

from collections.abc import Callable
from typing import Any

from torch_mlir import ir

from flycc.contracts import Problem
from flycc.dialects import gemm, grouped_gemm, mx, rms_norm, scaled_gemm, scaled_grouped_gemm, sdpa, topk
from flycc.dialects.base import load
from flycc.dialects.gemm import GemmOp, build_gemm
from flycc.dialects.grouped_gemm import GroupedGemmOp, build_grouped_gemm
from flycc.dialects.mx import MxDequantizeOp, MxQuantizeOp, build_mx_dequantize, build_mx_quantize
from flycc.dialects.rms_norm import RmsNormBackwardOp, RmsNormOp, build_rms_norm, build_rms_norm_backward
from flycc.dialects.scale_guard import (
    ScaleGuardOp,
    VersionedOp,
    build_scale_guard,
    build_versioned,
    build_yield,
    yielded,
)
from flycc.dialects.scaled_gemm import ScaledGemmOp, build_scaled_gemm
from flycc.dialects.scaled_grouped_gemm import ScaledGroupedGemmOp, build_scaled_grouped_gemm
from flycc.dialects.sdpa import SdpaBackwardOp, SdpaOp, build_sdpa, build_sdpa_backward
from flycc.dialects.topk import TopkOp, build_topk

__all__ = [
    "GemmOp",
    "GroupedGemmOp",
    "MxDequantizeOp",
    "MxQuantizeOp",
    "RmsNormBackwardOp",
    "RmsNormOp",
    "ScaleGuardOp",
    "ScaledGemmOp",
    "ScaledGroupedGemmOp",
    "SdpaBackwardOp",
    "SdpaOp",
    "TopkOp",
    "VersionedOp",
    "build_gemm",
    "build_grouped_gemm",
    "build_mx_dequantize",
    "build_mx_quantize",
    "build_rms_norm",
    "build_rms_norm_backward",
    "build_scale_guard",
    "build_scaled_gemm",
    "build_scaled_grouped_gemm",
    "build_sdpa",
    "build_sdpa_backward",
    "build_topk",
    "build_versioned",
    "build_yield",
    "load",
    "problem",
    "yielded",
]

_PROBLEMS: dict[type, Callable[[Any], Problem]] = {
    GemmOp: gemm.problem,
    GroupedGemmOp: grouped_gemm.problem,
    MxDequantizeOp: mx.dequantize_problem,
    MxQuantizeOp: mx.quantize_problem,
    RmsNormOp: rms_norm.problem,
    RmsNormBackwardOp: rms_norm.backward_problem,
    ScaledGemmOp: scaled_gemm.problem,
    ScaledGroupedGemmOp: scaled_grouped_gemm.problem,
    SdpaBackwardOp: sdpa.backward_problem,
    SdpaOp: sdpa.problem,
    TopkOp: topk.problem,
}


def problem(op: ir.OpView) -> Problem:
    """The Problem that a verified op of the dialect poses."""
    return _PROBLEMS[type(op)](op)
