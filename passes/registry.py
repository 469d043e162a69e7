"""Our passes by the names that pipelines spell."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch_mlir import ir

from flycc.passes.flycc_dce import flycc_dce
from flycc.passes.fuse_epilogue import fuse_cast, fuse_epilogue
from flycc.passes.match_gemm import match_gemm
from flycc.passes.match_grouped_gemm import match_grouped_gemm
from flycc.passes.match_mx import match_mx
from flycc.passes.match_rms_norm import match_rms_norm
from flycc.passes.match_scaled_gemm import match_scaled_gemm
from flycc.passes.match_scaled_grouped_gemm import match_scaled_grouped_gemm
from flycc.passes.match_sdpa import match_sdpa
from flycc.passes.match_topk import match_topk
from flycc.passes.place_scales import place_scales

#: A pass rewrites the module it is given in place. The first line of its docstring says what it does.
Pass = Callable[[ir.Operation], None]

#: In the order in which they run.
PASSES: Mapping[str, Pass] = {
    # Before the products that attention written by hand is made of are taken for what they are.
    "match-sdpa": match_sdpa,
    "match-gemm": match_gemm,
    "match-grouped-gemm": match_grouped_gemm,
    "match-scaled-gemm": match_scaled_gemm,
    "match-scaled-grouped-gemm": match_scaled_grouped_gemm,
    "fuse-epilogue": fuse_epilogue,
    "match-rms-norm": match_rms_norm,
    "match-topk": match_topk,
    "fuse-cast": fuse_cast,
    "flycc-dce": flycc_dce,
    # Forms in regions of their own come last: no pass looks for more to raise in them.
    "place-scales": place_scales,
    "match-mx": match_mx,
}

#: Every pass.
MATCH_PIPELINE = ",".join(PASSES)
