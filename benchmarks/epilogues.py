"""Products with their epilogues in one kernel, modelled, against a product and a pass of pointwise operations after it.

The separate pass is charged the least it can take: its bytes at HBM's rate, and no launch. The products are as flycc
chooses them by default; of a gated one both halves are one product of twice as many columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flycc.benchmarks.products import tracked
from flycc.contracts import Epilogue, GemmProblem, Reason
from flycc.costmodel import MI350
from flycc.kernels import gemm
from flycc.kernels.gemm.config import ELEMENT_BYTES
from flycc.tuning.choice import looked_up
from flycc.tuning.family import FAMILIES
from flycc.tuning.modelled import model, total
from flycc.tuning.table import read, shipped_path

_SWIGLU = Epilogue(gated=True, activation="silu")
#: M, N, K, whether there is a bias, and the epilogue.
CASES = (
    (4096, 14336, 4096, False, _SWIGLU),
    (32, 14336, 4096, False, _SWIGLU),
    (4096, 4096, 4096, True, Epilogue(activation="gelu")),
    (512, 4096, 4096, False, Epilogue(residual=True)),
)


def measure() -> dict[str, Any]:
    """Everything, as plain data; times are in us and modelled."""
    return {"modelled": True, "epilogues": [figure(*case) for case in tracked(CASES, "epilogues")]}


def figure(m: int, n: int, k: int, bias: bool, epilogue: Epilogue) -> dict[str, Any]:
    """One product."""
    fused = GemmProblem(
        "bf16", m, n, k, trans_b=True, bias=bias, align_bias=16, align_residual=16, epilogue=epilogue
    )
    plain = replace(fused, n=gemm.product_columns(fused), bias=False, epilogue=Epilogue())
    tensors = (3 if epilogue.gated else 2) + epilogue.residual
    after = tensors * m * n * ELEMENT_BYTES / MI350.hbm_tb_s / 1e6
    chosen = {name: _chosen(problem) for name, problem in (("fused", fused), ("product", plain))}
    times = {
        name: total(model(problem, chosen[name])).typical
        for name, problem in (("fused", fused), ("product", plain))
    }
    return {
        "problem": f"{m}x{n}x{k}{'+bias' if bias else ''}{epilogue}",
        "config": {name: str(config) for name, config in chosen.items()},
        **times,
        "pass": after,
        "speedup": (times["product"] + after) / times["fused"],
    }


def _chosen(problem: GemmProblem) -> Any:
    """The configuration without tables of the user's own."""
    family = FAMILIES["gemm"]
    key = family.key(problem)
    assert key is not None
    config = looked_up(problem, family, key, (read(shipped_path("gemm"), family),)) or gemm.choose(problem)
    assert not isinstance(config, Reason)
    return config


def show(figures: dict[str, Any]) -> None:
    """A line for each product."""
    print(f"{'modelled us':36} fused  product + pass  speedup  fused tile")
    for row in figures["epilogues"]:
        print(
            f"{row['problem']:36} {row['fused']:5.1f}  {row['product']:7.1f} + {row['pass']:4.1f}  "
            f"{row['speedup']:6.2f}x  {row['config']['fused']}"
        )
