"""Matrix instructions: how long one keeps the MFMA pipe of its SIMD busy, and what it computes."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(r"v_(s?)mf(?:ma|mac)_(?:scale_)?[fi]\d+_(\d+)x(\d+)x(\d+)_(?:(\d+)b_)?(\w+)")
_FORMAT = re.compile(r"(?:cbsz|blgp):(\d)")
_FP8_FORMATS = (0, 1)  # cbsz, blgp: fp8, bf8, fp6, bf6, fp4

#: Multiply-adds a clock of one SIMD, by the element type's part of the mnemonic. [S]
_MACS_PER_CLK = {"f64": 16, "f32": 32, "f16": 512, "bf16": 512, "i8": 1024, "fp8": 1024, "bf8": 1024}
_MACS_PER_CLK_NARROW = 2048  # f8f6f4 with neither operand of 8 bits [S]
_MACS_PER_CLK_BLOCKS = 128  # several blocks of 16 bits and less, as on CDNA3 [S]


class Mfma(NamedTuple):
    """`clk` of the pipe (four times LLVM's passes) and multiply-adds, zeros of a sparse operand not counted."""

    clk: int
    macs: int


def mfma(name: str, text: str) -> Mfma:
    """The cost of a v_mfma_* or v_smfmac_* by mnemonic and, for operand formats, its disassembly.

    A shape that needs fewer clocks than its result takes to leave the pipe, 16 for 16x16 and 32 for 32x32, takes
    those: 16x16x16 costs as much as 16x16x32. Raises ValueError for a name that is no matrix instruction's.
    """
    matched = _NAME.match(name)
    if matched is None:
        raise ValueError(f"name: {name!r} is no matrix instruction")
    sparse, m, n, k, blocks, types = matched.groups()
    macs = int(m) * int(n) * int(k) * int(blocks or 1) // (2 if sparse else 1)
    rate = _rate(types, text)
    if blocks and rate > _MACS_PER_CLK_BLOCKS:
        rate = _MACS_PER_CLK_BLOCKS
    least = 8 if blocks else int(m)
    return Mfma(max(least, macs // rate), macs)


def _rate(types: str, text: str) -> int:
    if types != "f8f6f4":
        return _MACS_PER_CLK[types.split("_")[0]]
    given = [int(value) for value in _FORMAT.findall(text)]
    both_narrow = len(given) == 2 and not any(value in _FP8_FORMATS for value in given)
    return _MACS_PER_CLK_NARROW if both_narrow else _MACS_PER_CLK["fp8"]
