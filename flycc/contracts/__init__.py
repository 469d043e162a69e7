"""What crosses from room to room: Problems and Reasons. Imports nothing of ours.

Both `flycc.dialects` (op -> Problem) and `flycc.kernels` (Problem -> kernel) need these names while
neither may import the other, so they live below both.
"""

from flycc.contracts.errors import FlyccError, flycc_error_in
from flycc.contracts.gemm import Epilogue, GemmProblem
from flycc.contracts.grouped_gemm import GroupedGemmProblem
from flycc.contracts.mx import MxDequantizeProblem, MxQuantizeProblem, ScaleRangeProblem
from flycc.contracts.reason import Reason
from flycc.contracts.rms_norm import RmsNormBackwardProblem, RmsNormProblem
from flycc.contracts.scaled_gemm import ScaledGemmProblem
from flycc.contracts.scaled_grouped_gemm import ScaledGroupedGemmProblem
from flycc.contracts.sdpa import SdpaBackwardProblem, SdpaProblem
from flycc.contracts.topk import TopkProblem

#: What an op of the flycc dialect asks of a kernel.
Problem = (
    GemmProblem
    | GroupedGemmProblem
    | MxDequantizeProblem
    | MxQuantizeProblem
    | RmsNormBackwardProblem
    | RmsNormProblem
    | ScaleRangeProblem
    | ScaledGemmProblem
    | ScaledGroupedGemmProblem
    | SdpaBackwardProblem
    | SdpaProblem
    | TopkProblem
)

__all__ = [
    "Epilogue",
    "FlyccError",
    "GemmProblem",
    "GroupedGemmProblem",
    "MxDequantizeProblem",
    "MxQuantizeProblem",
    "Problem",
    "Reason",
    "RmsNormBackwardProblem",
    "RmsNormProblem",
    "ScaleRangeProblem",
    "ScaledGemmProblem",
    "ScaledGroupedGemmProblem",
    "SdpaBackwardProblem",
    "SdpaProblem",
    "TopkProblem",
    "flycc_error_in",
]
