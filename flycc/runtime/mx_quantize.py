"""`torch.ops.flycc.mx_quantize`, `mx_dequantize` and `scale_range`: problem -> config -> code object -> launch."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TypeVar, get_args

import torch
from torch import Tensor

from flycc.contracts import FlyccError, MxDequantizeProblem, MxQuantizeProblem, Reason, ScaleRangeProblem
from flycc.contracts.mx import EMAX, LARGEST, NAN_BYTE, ZERO_BLOCK, ScaleRounding, WideDtype, carry
from flycc.contracts.scaled_gemm import BLOCK_K, ELEMENT_BITS, ElementFormat
from flycc.kernels import mx_quantize as family
from flycc.runtime import choice, launching, plans, refusals, workspace
from flycc.runtime.device import Device
from flycc.runtime.devices import common_device, device_for
from flycc.runtime.kept import Kept
from flycc.runtime.launching import Launched
from flycc.runtime.library import LIBRARY, not_differentiable
from flycc.runtime.loading import Loaded, load
from flycc.runtime.scaled_operands import FORMATS, ScaledOperand

LIBRARY.define(
    'mx_quantize(Tensor x, *, str format="e4m3", str rounding="floor") -> (Tensor data, Tensor scales, Tensor range)'
)
LIBRARY.define("mx_dequantize(Tensor data, Tensor scales, *, ScalarType dtype) -> Tensor")
LIBRARY.define("scale_range(Tensor scales, *, bool keep=False) -> Tensor")

#: Element types by the names of formats; one of e2m1 is a byte that holds two.
ELEMENTS: dict[ElementFormat, torch.dtype] = {name: dtype for dtype, name in FORMATS.items()}
SCALES = torch.float8_e8m0fnu

_WIDE: dict[torch.dtype, WideDtype] = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}
#: The magnitudes of e2m1, and what lies halfway between neighbours, with whether that rounds up to an even code.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_HALFWAY = tuple(((a + b) / 2, code % 2 == 1) for code, (a, b) in enumerate(itertools.pairwise(_E2M1)))

_QUANTIZE_PLANS, _DEQUANTIZE_PLANS, _RANGE_PLANS = plans.Plans(), plans.Plans(), plans.Plans()
#: What `scale_range` found of tensors that it was to keep.
_KEPT: Kept[Tensor] = Kept()

RowsProblem = TypeVar("RowsProblem", MxQuantizeProblem, MxDequantizeProblem)


def _chosen(problem: RowsProblem) -> family.RowsConfig:
    config = choice.choose(problem, family.choose)
    if isinstance(config, Reason):
        raise FlyccError(config)
    return config


def prepare_quantize(problem: MxQuantizeProblem, device: Device) -> tuple[family.RowsConfig, Loaded]:
    """The configuration and the loaded kernel for `problem`; compiled if this is its first use.

    Raises `FlyccError` with the reason where no kernel serves the problem or it cannot be built.
    """
    config = _chosen(problem)
    return config, load(family.quantize_kernel(problem, config), device)


def prepare_dequantize(problem: MxDequantizeProblem, device: Device) -> tuple[family.RowsConfig, Loaded]:
    """As `prepare_quantize`."""
    config = _chosen(problem)
    return config, load(family.dequantize_kernel(problem, config), device)


def prepare_range(problem: ScaleRangeProblem, device: Device) -> Loaded:
    """As `prepare_quantize`: there is one kernel."""
    return load(family.range_kernel(problem), device)


@dataclass(frozen=True, slots=True)
class Rows:
    """[..., N] as rows: `tensor` is [rows, N] with unit stride along N."""

    tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Rows:
        """Copies if the leading dimensions do not collapse, or N has no unit stride."""
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            tensor = tensor.contiguous()
        return cls(tensor.reshape(-1, tensor.shape[-1]))

    @property
    def contiguous(self) -> bool:
        return self.tensor.is_contiguous()

    @property
    def stride(self) -> int:
        """Between rows, in elements; PyTorch leaves that of a single row undefined."""
        return self.tensor.stride(0) if self.tensor.shape[0] > 1 else 0

    @property
    def align(self) -> int:
        """The largest power of two, at most 16, that divides the byte address of every row."""
        return math.gcd(16, self.tensor.data_ptr(), self.stride * self.tensor.element_size())


def launch_quantize(
    x: Tensor,
    results: tuple[Tensor, Tensor, Tensor],
    format: ElementFormat,
    rounding: ScaleRounding,
    device: Device,
) -> Launched:
    """Compute `results` = (data, scales, range) of an `x` with elements.

    Raises `FlyccError` before anything ran, or `DeviceError` from the launch.
    """
    rows = Rows.of(x)
    count, columns = rows.tensor.shape
    natural = MxQuantizeProblem(_WIDE[x.dtype], format, count, columns, rounding, rows.align)
    problem = family.flat(natural) if rows.contiguous else natural
    config, loaded = prepare_quantize(problem, device)
    shares = family.shares(problem, config)
    stride = rows.stride if problem is natural else shares.sizes["columns"]
    if reason := config.check_stride(problem, stride, x.element_size()):
        raise FlyccError(reason)
    data, scales, range_ = results
    numbers = {**shares.numbers, "ld_x": stride, "workgroups": shares.workgroups}
    outputs = {"data": data, "scales": scales}
    return _with_range(device, loaded, shares, {"x": rows.tensor}, outputs, range_, numbers)


def launch_dequantize(data: Tensor, scales: Tensor, out: Tensor, device: Device) -> Launched:
    """Compute `out`, which has elements. Raises as `launch_quantize` does."""
    rows, bytes_ = Rows.of(data.view(torch.uint8)), Rows.of(scales.view(torch.uint8))
    count, columns = rows.tensor.shape[0], out.shape[-1]
    natural = MxDequantizeProblem(FORMATS[data.dtype], _WIDE[out.dtype], count, columns, rows.align)
    problem = family.flat(natural) if rows.contiguous and bytes_.contiguous else natural
    config, loaded = prepare_dequantize(problem, device)
    shares = family.shares(problem, config)
    strides = {"ld_data": rows.stride, "ld_scales": bytes_.stride}
    width = shares.sizes["columns"]
    if problem is not natural:
        strides = {"ld_data": width * ELEMENT_BITS[problem.format] // 8, "ld_scales": width // BLOCK_K}
    for stride in (*strides.values(), width * out.element_size()):
        if reason := config.check_stride(problem, stride, 1):
            raise FlyccError(reason)
    numbers = {**shares.numbers, **strides}
    inputs = {"data": rows.tensor, "scales": bytes_.tensor}
    return launching.launch(device, loaded, shares.launch, inputs, {"out": out}, numbers)


def launch_range(scales: Tensor, range_: Tensor, device: Device) -> Launched:
    """Compute `range_` of `scales` that are not empty. Raises as `launch_quantize` does."""
    bytes_ = scales.contiguous().view(torch.uint8).flatten()
    if bytes_.data_ptr() % 4:
        bytes_ = bytes_.clone()
    problem = ScaleRangeProblem(bytes_.numel())
    shares = family.range_shares(problem)
    if isinstance(shares, Reason):
        raise FlyccError(shares)
    loaded = prepare_range(problem, device)
    return _with_range(device, loaded, shares, {"scales": bytes_}, {}, range_, shares.numbers)


def _with_range(
    device: Device,
    loaded: Loaded,
    shares: family.Shares,
    inputs: dict[str, Tensor],
    outputs: dict[str, Tensor],
    range_: Tensor,
    numbers: dict[str, int],
) -> Launched:
    """Launch a kernel whose workgroups' ranges come together."""
    partial = range_.new_empty(shares.workgroups)
    with workspace.counters(1, device, range_.device) as arrived:
        meeting = {"partial": partial, "arrived": arrived, "range": range_}
        return launching.launch(device, loaded, shares.launch, inputs, outputs | meeting, numbers)


def mx_quantize(
    x: Tensor, *, format: ElementFormat = "e4m3", rounding: ScaleRounding = "floor"
) -> tuple[Tensor, Tensor, Tensor]:
    """Blocks of 32 along the last dimension as E8M0 scales and elements: see `flycc.contracts.mx`.

    Args:
        x: [..., K] of bfloat16, float16 or float32; the last block may be short.
        format: "e4m3", "e5m2" or "e2m1".
        rounding: how scales are chosen, "floor" (OCP), "even" or "ceil".

    Returns contiguous data [..., K] (of e2m1 [..., ceil(K / 2)] bytes with two elements each, and a zero after an
    odd last one), scales [..., ceil(K / 32)] and their range, as `scale_range` has it. There is no
    gradient: no result needs one.
    """
    if made := _QUANTIZE_PLANS.repeat((x,), (format, rounding)):
        return made[0], made[1], made[2]
    results = mx_quantize_fake(x, format=format, rounding=rounding)
    if not x.numel():
        return _quantize_in_pytorch(x, format, rounding)
    try:
        device = device_for(x.device)
        launched = launch_quantize(x, results, format, rounding, device)
        _QUANTIZE_PLANS.keep({"x": x}, (format, rounding), results, [launched])
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("mx-quantize", error)
        return _quantize_in_pytorch(x, format, rounding)
    return results


def mx_dequantize(data: Tensor, scales: Tensor, *, dtype: torch.dtype) -> Tensor:
    """`element * 2^(byte - 127)` rounded once to `dtype`, bfloat16, float16 or float32; NaN where the byte is 255.

    Args:
        data: [..., K] of float8_e4m3fn or float8_e5m2, or [..., K / 2] of float4_e2m1fn_x2.
        scales: [..., ceil(K / 32)] of float8_e8m0fnu.

    Returns contiguous [..., K].
    """
    if made := _DEQUANTIZE_PLANS.repeat((data, scales), (dtype,)):
        return made[0]
    out = mx_dequantize_fake(data, scales, dtype=dtype)
    if not out.numel():
        return out
    try:
        given = {"data": data, "scales": scales}
        device = device_for(common_device(**given))
        _DEQUANTIZE_PLANS.keep(given, (dtype,), [out], [launch_dequantize(data, scales, out, device)])
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("mx-dequantize", error)
        return _dequantize_in_pytorch(data, scales, dtype)
    return out


def scale_range(scales: Tensor, *, keep: bool = False) -> Tensor:
    """int32 [3]: the lowest and the highest of E8M0 bytes that are not 255 (127 and 127 if there is none), and whether
    (1 or 0) a byte is 255, which is NaN.

    With `keep`, what was found of this very tensor (a weight's scales) is remembered until it is written to, as far as
    `Kept` sees that.
    """
    if not keep:
        return _found_range(scales)
    return _KEPT.get(
        scales, None, lambda: _found_range(scales)
    ).clone()  # the caller may do what it wants with it


def _found_range(scales: Tensor) -> Tensor:
    if made := _RANGE_PLANS.repeat((scales,), ()):
        return made[0]
    range_ = scale_range_fake(scales)
    if not scales.numel():
        return _range_in_pytorch(scales)
    try:
        device = device_for(scales.device)
        _RANGE_PLANS.keep({"scales": scales}, (), [range_], [launch_range(scales, range_, device)])
    except Exception as error:  # a model never breaks because of us: see refusals.refuse
        refusals.refuse("scale-range", error)
        return _range_in_pytorch(scales)
    return range_


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
    """The same by PyTorch's own operators. An element times a power of two is a float32, or overflows, so that the
    way from float64 through it rounds once."""
    return ScaledOperand(FORMATS[data.dtype], data, "block", scales).elements().to(dtype)


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


def scale_range_fake(scales: Tensor, *, keep: bool = False) -> Tensor:
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
    not_differentiable(_name)
