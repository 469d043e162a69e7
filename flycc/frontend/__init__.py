"""FX in, FX out. The only room that knows FX and the torch-mlir importer."""

from flycc.frontend.compile import compile_graph
from flycc.frontend.derivatives import check_derivatives
from flycc.frontend.expert_loops import roll_up_expert_loops
from flycc.frontend.flex_attention import keep_flex_attention
from flycc.frontend.inductor import compile_with_inductor
from flycc.frontend.keep_whole import keep_whole
from flycc.frontend.mx_linear import quantize_linears
from flycc.frontend.report import Candidate, Report
from flycc.frontend.scaled_mm_meta import mend as mend_scaled_mm
from flycc.frontend.stacked_products import stack_products

__all__ = [
    "Candidate",
    "Report",
    "check_derivatives",
    "compile_graph",
    "compile_with_inductor",
    "keep_flex_attention",
    "keep_whole",
    "mend_scaled_mm",
    "quantize_linears",
    "roll_up_expert_loops",
    "stack_products",
]
