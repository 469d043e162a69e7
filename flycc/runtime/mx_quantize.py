"""`torch.ops.flycc.mx_quantize`, `mx_dequantize` and `scale_range`: problem -> config -> code object -> launch."""

from __future__ import annotations

import itertools
from typing import get_args

import torch
from torch import Tensor

from flycc.contracts.mx import EMAX, LARGEST, NAN_BYTE, ZERO_BLOCK, ScaleRounding, WideDtype, carry
from flycc.contracts.scaled_gemm import BLOCK_K, ELEMENT_BITS, ElementFormat
from flycc.runtime.library import LIBRARY

LIBRARY.define(
    'mx_quantize(Tensor x, *, str format="e4m3", str rounding="floor") -> (Tensor data, Tensor scales, Tensor range)'
)
LIBRARY.define("mx_dequantize(Tensor data, Tensor scales, *, ScalarType dtype) -> Tensor")
LIBRARY.define("scale_range(Tensor scales) -> Tensor")

#: Element types by the names of formats; one of e2m1 is a byte that holds two.
ELEMENTS: dict[ElementFormat, torch.dtype] = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e2m1": torch.float4_e2m1fn_x2,
}
FORMATS: dict[torch.dtype, ElementFormat] = {dtype: name for name, dtype in ELEMENTS.items()}
SCALES = torch.float8_e8m0fnu

_WIDE: dict[torch.dtype, WideDtype] = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
#: The magnitudes of e2m1, and what lies halfway between neighbours, with whether that rounds up to an even code.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_HALFWAY = tuple(((a + b) / 2, code % 2 == 1) for code, (a, b) in enumerate(itertools.pairwise(_E2M1)))


def mx_quantize(
    x: Tensor, *, format: ElementFormat = "e4m3", rounding: ScaleRounding = "floor"
) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks of 32 along the last dimension as E8M0 scales and elements: see `flycc.contracts.mx`.

    Args:
        x: [..., K] of bfloat16, float16 or float32; the last block may be short.
        format: "e4m3", "e5m2" or "e2m1".
        rounding: how scales are chosen, "floor" (OCP), "even" or "ceil".

    Returns contiguous data [..., K] (of e2m1 [..., ceil(K / 2)] bytes with two elements each, and a zero after an
    odd last one), scales [..., ceil(K / 32)] and their range, as `scale_range` has it.
    """
    mx_quantize_fake(x, format=format, rounding=rounding)
    return _quantize_in_pytorch(x, format, rounding)


def mx_dequantize(data: Tensor, scales: Tensor, *, dtype: torch.dtype) -> Tensor:
    """`element * 2^(byte - 127)` rounded once to `dtype`, bfloat16, float16 or float32; NaN where the byte is 255.

    Args:
        data: [..., K] of float8_e4m3fn or float8_e5m2, or [..., K / 2] of float4_e2m1fn_x2.
        scales: [..., ceil(K / 32)] of float8_e8m0fnu.

    Returns contiguous [..., K].
    """
    mx_dequantize_fake(data, scales, dtype=dtype)
    return _dequantize_in_pytorch(data, scales, dtype)


def scale_range(scales: Tensor) -> Tensor:
    """int32 [3]: the lowest and the highest of E8M0 bytes that are not 255 (127 and 127 if there is none), and whether
    (1 or 0) a byte is 255, which is NaN."""
    scale_range_fake(scales)
    return _range_in_pytorch(scales)


def _quantize_in_pytorch(
    x: Tensor, format: ElementFormat, rounding: ScaleRounding
) -> tuple[Tensor, Tensor, Tensor]:
    """The same by PyTorch's own operators."""
    columns, blocks = x.shape[-1], _blocks(x.shape[-1])
    wide = torch.nn.functional.pad(x.float(), (0, blocks * BLOCK_K - columns))
    wide = wide.reshape(*x.shape[:-1], blocks, BLOCK_K)
    amax = wide.abs().amax(-1)
    bytes_ = (((amax.view(torch.int32) + carry(format, rounding)) >> 23) - EMAX[format]).clamp(min=0)
    bytes_ = torch.where(amax == 0, ZERO_BLOCK, bytes_)
    finite = amax.isfinite()
    # Exact but where the quotient is too small for any format: the factors are normal numbers.
    factor = ((2 * ZERO_BLOCK - bytes_) << 23).view(torch.float32)
    scaled = (wide * factor[..., None]).clamp(-LARGEST[format], LARGEST[format])
    scaled = torch.where(finite[..., None], scaled, 0.0)
    flat = scaled.reshape(*x.shape[:-1], blocks * BLOCK_K)
    if format == "e2m1":
        codes = _e2m1_codes(flat)
        packed = codes[..., ::2] | codes[..., 1::2] << 4
        data = packed[..., : _stored(columns, format)].contiguous().view(ELEMENTS[format])
    else:
        data = flat[..., :columns].contiguous().to(ELEMENTS[format])
    scales = torch.where(finite, bytes_, NAN_BYTE).to(torch.uint8).view(SCALES)
    return data, scales, _range_in_pytorch(scales)


def _e2m1_codes(values: Tensor) -> Tensor:
    """uint8, of float32 of at most 6: sign, then how many of the halfway points a magnitude is beyond."""
    codes = torch.signbit(values).to(torch.uint8) << 3
    magnitude = values.abs()
    for point, up in _HALFWAY:
        codes += magnitude >= point if up else magnitude > point
    return codes


def _dequantize_in_pytorch(data: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The same by PyTorch's own operators."""
    if FORMATS[data.dtype] == "e2m1":
        codes = data.view(torch.uint8)
        codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).int()
        values = data.new_tensor(_E2M1 + tuple(-value for value in _E2M1), dtype=torch.float32)[codes]
    else:
        values = data.float()
    factor = scales.float().repeat_interleave(BLOCK_K, -1)[..., : values.shape[-1]]
    # The one rounding: a product of an element and a power of two is a float32, or overflows.
    return (values * factor).to(dtype)


def _range_in_pytorch(scales: Tensor) -> Tensor:
    """The same by PyTorch's own operators."""
    bytes_ = scales.view(torch.uint8).flatten().int()
    nan = bytes_ == NAN_BYTE
    low = torch.where(nan, NAN_BYTE, bytes_)
    high = torch.where(nan, -1, bytes_)
    ends = bytes_.new_tensor([NAN_BYTE, -1])
    low, high = torch.cat((low, ends[:1])).amin(), torch.cat((high, ends[1:])).amax()
    none = high < 0
    return torch.stack(
        (torch.where(none, ZERO_BLOCK, low), torch.where(none, ZERO_BLOCK, high), nan.any().int())
    ).to(torch.int32)


def mx_quantize_fake(
    x: Tensor, *, format: ElementFormat = "e4m3", rounding: ScaleRounding = "floor"
) -> tuple[Tensor, Tensor, Tensor]:
    """The uninitialised results of `mx_quantize`, what was given checked."""
    torch._check(x.dim() > 0, lambda: "flycc::mx_quantize: x has no dimension to take blocks along")
    _one_of("mx_quantize", "x", x.dtype, tuple(_WIDE))
    _one_of("mx_quantize", "format", format, tuple(ELEMENTS))
    _one_of("mx_quantize", "rounding", rounding, get_args(ScaleRounding))
    lead, columns = x.shape[:-1], x.shape[-1]
    return (
        x.new_empty((*lead, _stored(columns, format)), dtype=ELEMENTS[format]),
        x.new_empty((*lead, _blocks(columns)), dtype=SCALES),
        x.new_empty(3, dtype=torch.int32),
    )


def mx_dequantize_fake(data: Tensor, scales: Tensor, *, dtype: torch.dtype) -> Tensor:
    """The uninitialised result of `mx_dequantize`, what was given checked."""
    torch._check(data.dim() > 0, lambda: "flycc::mx_dequantize: data has no dimension to take blocks along")
    _one_of("mx_dequantize", "data", data.dtype, tuple(FORMATS))
    _one_of("mx_dequantize", "scales", scales.dtype, (SCALES,))
    _one_of("mx_dequantize", "dtype", dtype, tuple(_WIDE))
    columns = data.shape[-1] * (8 // ELEMENT_BITS[FORMATS[data.dtype]])
    wanted = (*data.shape[:-1], _blocks(columns))
    torch._check(
        scales.shape == wanted,
        lambda: f"flycc::mx_dequantize: scales are {list(scales.shape)}, must be {list(wanted)}",
    )
    return data.new_empty((*data.shape[:-1], columns), dtype=dtype)


def scale_range_fake(scales: Tensor) -> Tensor:
    """The uninitialised result of `scale_range`, what was given checked."""
    _one_of("scale_range", "scales", scales.dtype, (SCALES,))
    return scales.new_empty(3, dtype=torch.int32)


def _blocks(columns: int) -> int:
    return (columns + BLOCK_K - 1) // BLOCK_K


def _stored(columns: int, format: ElementFormat) -> int:
    """Stored elements of a row."""
    return (columns + 1) // 2 if format == "e2m1" else columns


def _one_of(op: str, name: str, given: object, accepted: tuple[object, ...]) -> None:
    torch._check(
        given in accepted,
        lambda: f"flycc::{op}: {name} is {given}, must be one of {', '.join(map(str, accepted))}",
    )


for _name, _function, _fake in (
    ("mx_quantize", mx_quantize, mx_quantize_fake),
    ("mx_dequantize", mx_dequantize, mx_dequantize_fake),
    ("scale_range", scale_range, scale_range_fake),
):
    LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flycc::{_name}", _fake, lib=LIBRARY)
