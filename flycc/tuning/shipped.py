"""What the shipped tables cover: published shapes, and the linear layers and norms of common models.

A layer is (N, K) of `linear(x, weight)` with the weight stored [N, K], on one GPU, as the model's configuration file
gives its sizes. Projections that inference engines put together (q, k and v; gate and up) are there both ways. Expert
layers of mixtures of experts are grouped products, of which the published ones with equal groups are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flycc.contracts import GemmProblem, GroupedGemmProblem, RmsNormProblem
from flycc.tuning.family import BUCKETS

#: (N, K) of the layers, by model.
LAYERS: dict[str, tuple[tuple[int, int], ...]] = {
    "Llama 3.1 8B": (
        (4096, 4096),
        (1024, 4096),
        (6144, 4096),
        (14336, 4096),
        (28672, 4096),
        (4096, 14336),
        (128256, 4096),
    ),
    "Llama 3.1 70B": (
        (8192, 8192),
        (1024, 8192),
        (10240, 8192),
        (28672, 8192),
        (57344, 8192),
        (8192, 28672),
        (128256, 8192),
    ),
    "Qwen3 32B": (
        (8192, 5120),
        (1024, 5120),
        (10240, 5120),
        (5120, 8192),
        (25600, 5120),
        (51200, 5120),
        (5120, 25600),
        (151936, 5120),
    ),
    "Mixtral 8x7B": ((4096, 4096), (1024, 4096), (6144, 4096), (8, 4096), (32000, 4096)),
    "DeepSeek-V3": (
        (1536, 7168),
        (24576, 1536),
        (576, 7168),
        (2112, 7168),
        (32768, 512),
        (7168, 16384),
        (18432, 7168),
        (36864, 7168),
        (7168, 18432),
        (2048, 7168),
        (4096, 7168),
        (7168, 2048),
        (256, 7168),
        (129280, 7168),
    ),
    "GPT-OSS 120B": ((4096, 2880), (512, 2880), (5120, 2880), (2880, 4096), (128, 2880), (201088, 2880)),
}
#: (N, K) of the published products of bf16 (benchmarks/data/published/dense_bf16_nt.csv) that no layer above has.
PUBLISHED = ((4096, 8192), (256, 4096))
#: (groups, rows of each, N, K) of the published grouped products whose groups are equal and whose time is published
#: (benchmarks/data/published/grouped_bf16.csv).
GROUPED = (
    (8, 512, 8192, 2048),
    (8, 512, 4096, 4096),
    (4, 2048, 8192, 8192),
    (8, 256, 8192, 8192),
    (8, 512, 2048, 8192),
    (16, 256, 2048, 2048),
    (16, 128, 4096, 4096),
    (8, 512, 14336, 4096),
    (8, 512, 256, 4096),
    (8, 512, 4096, 14336),
)
#: Row lengths of the RMS norms: of the models' hidden states, of DeepSeek-V3's compressed queries and keys, of Qwen3's
#: heads, and the published ones.
NORM_COLUMNS = (128, 512, 1536, 2880, 4096, 5120, 7168, 8192, 16384)


#: The families that there are shipped tables of.
SHIPPED = ("gemm", "grouped_gemm", "rms_norm")


def shipped_problems(family: str) -> Iterator[Any]:
    """The problems that the shipped table of `family` has entries for, in the order of their importance."""
    if family == "gemm":
        layers = dict.fromkeys([*(layer for model in LAYERS.values() for layer in model), *PUBLISHED])
        for n, k in layers:
            for m in BUCKETS:
                yield GemmProblem("bf16", m, n, k, trans_b=True)
    elif family == "grouped_gemm":
        for groups, rows, n, k in GROUPED:
            yield GroupedGemmProblem("bf16", "m", groups, groups * rows, n, k, trans_b=True)
    elif family == "rms_norm":
        for columns in NORM_COLUMNS:
            for rows in BUCKETS:
                yield RmsNormProblem("bf16", rows, columns, weight="bf16")
