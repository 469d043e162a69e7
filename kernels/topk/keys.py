"""Elements as unsigned 32-bit keys whose order is the order of preference: a larger key comes first.

16-bit elements are in the upper half of their key, so that one rule serves every float type. All NaN share
one key, and so do -0.0 and 0.0: between equal keys the index decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import flydsl.expr as fx

_SIGN = 1 << 31
_MAGNITUDE = _SIGN - 1
_ALL = (1 << 32) - 1
#: The bits of infinity, with those of 16-bit types in the upper half.
_INFINITY = {"f32": 0x7F80_0000, "bf16": 0x7F80_0000, "f16": 0x7C00_0000}


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """How elements of an MLIR type map to keys and back."""

    dtype: str
    largest: bool

    @property
    def bits(self) -> int:
        """Upper bits of a key that may differ."""
        return 16 if self.dtype in ("bf16", "f16") else 32

    def key(self, word: fx.Uint32) -> fx.Uint32:
        """The key of an element's bits (uint32, a 16-bit element in the upper half)."""
        # A Python number that is no int32 would make FlyDSL widen the arithmetic to 64 bits.
        sign = fx.Uint32(_SIGN)
        if self.dtype == "i32":
            key = word ^ sign
        else:
            magnitude = word & _MAGNITUDE
            ordered = (word >= sign).select(~word, word ^ sign)
            number = (magnitude == 0).select(sign, ordered)
            key = (magnitude > _INFINITY[self.dtype]).select(fx.Uint32(_ALL), number)
        return key if self.largest else ~key

    def word(self, key: fx.Uint32) -> fx.Uint32:
        """The bits of an element with this key, but for those of `ambiguous` keys."""
        sign = fx.Uint32(_SIGN)
        ordered = key if self.largest else ~key
        if self.dtype == "i32":
            return ordered ^ sign
        return (ordered >= sign).select(ordered ^ sign, ~ordered)

    def ambiguous(self, key: fx.Uint32) -> fx.Boolean:
        """Whether elements of different bits have this key: the zeros, and the NaN."""
        ordered = key if self.largest else ~key
        return (ordered == fx.Uint32(_SIGN)) | (ordered == fx.Uint32(_ALL))


def pair_of(key: fx.Uint32, place: fx.Int32) -> fx.Uint64:
    """An element as one number: the better key is larger, and of equal keys the one at the lower place."""
    return (fx.Uint64(key) << fx.Uint64(32)) | fx.Uint64(fx.Uint32(~place))


def key_and_place(pair: fx.Uint64) -> tuple[fx.Uint32, fx.Int32]:
    """What `pair_of` made it of."""
    return fx.Uint32(pair >> fx.Uint64(32)), fx.Int32(~fx.Uint32(pair))
