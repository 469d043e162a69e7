"""Tiles that the published kernels' names spell out."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedKernel:
    """A kernel's peer class, and its tile as (m, n, k, K-splits, LDS buffers)."""

    peer: str
    tile: tuple[int, int, int, int, int]


#: LDS buffers where the name does not tell.
DOUBLE_BUFFER = 2

#: peer class -> pattern with the groups m, n and optionally k, split, stages.
_PATTERNS = {
    "aiter-flydsl": r"flydsl_gemm(?P<stages>\d+)_abf16_\w*?_t(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_split_k(?P<split>\d+)_",
    "aiter-asm": r"bf16gemm_bf16_tn_(?P<m>\d+)x(?P<n>\d+)",
    "aiter-asm-splitk": r"bf16gemm_fp32bf16_tn_(?P<m>\d+)x(?P<n>\d+)",
    "aiter-asm-mxfp4": r"f4gemm_bf16_per1x32Fp4_BpreShuffle_(?P<m>\d+)x(?P<n>\d+)",
    "aiter-ck-mxfp4": r"a4w4_blockscale_\d+x(?P<m>\d+)x(?P<n>\d+)x(?P<bytes>\d+)_",
    "aiter-ck-fp8": r"a8w8_rowwise_\d+x(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_",
    "aiter-flydsl-fp8": r"flydsl_bpreshuf\w+?_(?:\dw_)?(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_F8_F8_",
}
#: Elements of K that a step takes where the name does not tell.
_STEP_K = {"aiter-asm": 64, "aiter-asm-splitk": 64, "aiter-asm-mxfp4": 256}
#: Names of whole libraries in the public tuning tables.
_LIBRARIES = {"native": "aiter-aten", "auto": "aiter-triton"}
#: Tuning tables that give the logarithm of the number of K-splits.
_SPLIT_LOG2 = ("aiter-asm-mxfp4", "aiter-ck-mxfp4", "aiter-ck-fp8")


def named(name: str, split_k: int = 0) -> NamedKernel | str | None:
    """The kernel of that name; a peer class alone where the name is that of a library; None if unknown or without a
    tile.

    `split_k` is the tuning table's column of that name: K-splits or, for some kernels, their logarithm.
    """
    if name in _LIBRARIES:
        return _LIBRARIES[name]
    for peer, pattern in _PATTERNS.items():
        if found := re.search(pattern, name):
            part = {key: int(value) for key, value in found.groupdict().items()}
            step_k = part["k"] if "k" in part else 2 * part["bytes"] if "bytes" in part else _STEP_K[peer]
            split = part.get("split") or (2**split_k if peer in _SPLIT_LOG2 else max(1, split_k))
            if min(part["m"], part["n"], step_k, split) < 1:
                return None
            return NamedKernel(peer, (part["m"], part["n"], step_k, split, part.get("stages", DOUBLE_BUFFER)))
    return None
