"""Which nodes of an FX graph kernels might serve, by family."""

from __future__ import annotations

from torch.fx import Node

from flycc.contracts import (
    GemmProblem,
    GroupedGemmProblem,
    MxDequantizeProblem,
    MxQuantizeProblem,
    Problem,
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
from flycc.frontend.nodes import target_name

#: The families of candidates, by prefix of the target's name; the first that fits counts.
FAMILIES = {
    "aten.mm.": "gemm",
    "aten.addmm.": "gemm",
    "aten.bmm.": "gemm",
    "aten.baddbmm.": "gemm",
    "aten.linear.": "gemm",
    "aten.matmul.": "gemm",
    "aten._grouped_mm.": "grouped_gemm",
    "aten._scaled_mm": "scaled_gemm",
    "aten._scaled_grouped_mm": "scaled_grouped_gemm",
    "flycc.scaled_gemm.": "scaled_gemm",
    "flycc.scaled_grouped_gemm.": "scaled_grouped_gemm",
    "flycc.mx_quantize.": "mx_quantize",
    "flycc.mx_weight.": "mx_weight",
    "flycc.mx_dequantize.": "mx_dequantize",
    "flycc.sdpa.": "sdpa",
    "flycc.sdpa_backward.": "sdpa_backward",
    "flycc.rms_norm.": "rms_norm",
    "flycc.rms_norm_backward.": "rms_norm_backward",
    "aten._scaled_dot_product_": "sdpa",
    "higher_order.flex_attention": "sdpa",
    "aten._fused_rms_norm.": "rms_norm",
    "aten._fused_rms_norm_backward.": "rms_norm_backward",
    "aten.topk.": "topk",
    "aten.sort.": "topk",
    "aten.max.dim": "topk",
    "aten.min.dim": "topk",
    "aten.argmax.": "topk",
    "aten.argmin.": "topk",
    "aten.kthvalue.": "topk",
}

#: Operators of flycc that no pass raises: what they launch a kernel for, they keep.
KEPT_CALLS = frozenset({"flycc.mx_weight.default"})

#: The family that serves a type of problems.
FAMILY_OF_PROBLEM: dict[type[Problem], str] = {
    GemmProblem: "gemm",
    GroupedGemmProblem: "grouped_gemm",
    MxDequantizeProblem: "mx_dequantize",
    MxQuantizeProblem: "mx_quantize",
    RmsNormProblem: "rms_norm",
    RmsNormBackwardProblem: "rms_norm_backward",
    ScaledGemmProblem: "scaled_gemm",
    ScaledGroupedGemmProblem: "scaled_grouped_gemm",
    ScaleRangeProblem: "scale_range",
    SdpaBackwardProblem: "sdpa_backward",
    SdpaProblem: "sdpa",
    TopkProblem: "topk",
}

#: Every family that has kernels.
SERVED_FAMILIES = frozenset(FAMILY_OF_PROBLEM.values())

#: Reasons that say of an op that it only looks like one of a family: nothing was refused that a kernel is for.
NEAR_MISSES = frozenset(
    {
        "rms-norm.form",
        "rms-norm.mean-subtracted",
        "sdpa.form",
        "sdpa.softmax-dim",
        "topk.full-sort",
        "topk.kth-value",
    }
)


def family_of(node: Node) -> str | None:
    """The family that `node` is a candidate of, None where it is none by itself."""
    if node.op != "call_function":
        return None
    name = target_name(node)
    family = next((family for prefix, family in FAMILIES.items() if name.startswith(prefix)), None)
    return f"{family}_backward" if family == "sdpa" and "backward" in name else family


def family_of_reason(reason: Reason) -> str:
    """The family whose pass gave `reason`: what stands before the dot of its code."""
    return reason.code.partition(".")[0].replace("-", "_")


def unserved(family: str) -> Reason:
    """Why a candidate of `family` that no pass has spoken of stays on PyTorch."""
    sentence = f"no pass raised this form of {family}, and none gave a reason"
    return Reason(f"{family.replace('_', '-')}.unmatched", sentence)
