"""PyTorch's shape rules for MX-scaled products, where they are wrong or missing: without them nothing can be traced.

In PyTorch 2.13 the meta function of `aten._scaled_mm_v2` takes the size of B's scales from M instead of N, K of e2m1
operands from their packed size, and plain (not swizzled) scales only in a build for ROCm; `aten._scaled_grouped_mm_v2`
has none. `mend` gives MX recipes the rules below, on CPU tensors and those of ROCm GPUs; all else stays PyTorch's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, _meta_registrations
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import ScalingType, SwizzleType

#: The versions whose rules these are known to mend. Others are left as they are.
_VERSIONS = ("2.13.",)
#: PyTorch's function that has the rules, and its parameters.
_NAME = "_check_scaled_mm_sizes_v2"
_PARAMETERS = (
    "self mat2 scale_a scale_recipe_a scale_b scale_recipe_b bias out_dtype "
    "swizzle_a swizzle_b use_fast_accum"
)
_GROUPED = "aten::_scaled_grouped_mm_v2"
_PACKED = torch.float4_e2m1fn_x2
_ELEMENTS = (torch.float8_e4m3fn, torch.float8_e5m2, _PACKED)
#: Types of results of products of MX operands.
_RESULTS = (torch.bfloat16, torch.float16, torch.float32)
#: What is registered stays registered as long as this lives.
_LIBRARY = torch.library.Library("aten", "IMPL")


def mend() -> None:
    """Mend the rules of this PyTorch, if they need it; once."""
    if not torch.__version__.startswith(_VERSIONS):
        return
    rules = getattr(_meta_registrations, _NAME, None)
    known = rules is not None and " ".join(inspect.signature(rules).parameters) == _PARAMETERS
    if known and not _are_right(rules):
        setattr(_meta_registrations, _NAME, _mended(rules))
    if not torch._C._dispatch_has_kernel_for_dispatch_key(_GROUPED, "Meta"):
        _LIBRARY.impl(_GROUPED.partition("::")[2], _grouped, "Meta")


def _are_right(rules: Any) -> bool:
    """Whether `rules` take products with plain scales, one of e4m3 and one of e2m1, M, N and K all different."""
    recipe, plain = [ScalingType.BlockWise1x32], [SwizzleType.NO_SWIZZLE]
    with FakeTensorMode():
        scales = [torch.empty(rows, 8, dtype=torch.float8_e8m0fnu) for rows in (64, 96)]
        for dtype, inner in ((torch.float8_e4m3fn, 256), (_PACKED, 128)):
            a, b = (torch.empty(rows, inner, dtype=dtype) for rows in (64, 96))
            try:
                # Not by the operator, which would log that it fails.
                rules(a, b.t(), scales[:1], recipe, scales[1:], recipe, None, torch.bfloat16, plain, plain)
            except (RuntimeError, ValueError):
                return False
    return True


def _mended(rules: Any) -> Any:
    """PyTorch's `rules`, but for MX recipes."""

    @functools.wraps(rules)
    def check_scaled_mm_sizes_v2(
        self: Tensor,
        mat2: Tensor,
        scale_a: list[Tensor],
        scale_recipe_a: list[ScalingType],
        scale_b: list[Tensor],
        scale_recipe_b: list[ScalingType],
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        swizzle_a: list[SwizzleType] | None = None,
        swizzle_b: list[SwizzleType] | None = None,
        use_fast_accum: bool = False,
    ) -> Tensor:
        if not (_is_mx(scale_recipe_a, scale_recipe_b, self, mat2) and self.dim() == mat2.dim() == 2):
            return rules(
                self,
                mat2,
                scale_a,
                scale_recipe_a,
                scale_b,
                scale_recipe_b,
                bias,
                out_dtype,
                swizzle_a,
                swizzle_b,
                use_fast_accum,
            )
        k = _same_k(self, mat2)
        for name, rows, scale, swizzle in (
            ("scale_a", self.shape[0], scale_a, swizzle_a),
            ("scale_b", mat2.shape[1], scale_b, swizzle_b),
        ):
            _check_scales(name, scale, (_swizzled if _is_swizzled(swizzle) else _plain)(rows, k))
        dtype = out_dtype or self.dtype
        _check_result(dtype, bias, mat2.shape[1])
        return torch.empty(self.shape[0], mat2.shape[1], dtype=dtype, device=self.device)

    return check_scaled_mm_sizes_v2


def _grouped(
    self: Tensor,
    mat2: Tensor,
    scale_a: list[Tensor],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[Tensor],
    recipe_b: list[int],
    swizzle_b: list[int],
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """Of rows by group, [T, K] and [G, K, N], with plain MX scales [T, ceil(K / 32)] and [G, N, ceil(K / 32)], or the
    latter as [G, N * ceil(K / 32)]; of other recipes those that PyTorch has for `_scaled_grouped_mm`."""
    dtype = out_dtype or torch.bfloat16
    if not _is_mx(recipe_a, recipe_b, self, mat2):
        return _meta_registrations.meta_scaled_grouped_mm(
            self, mat2, scale_a[0], scale_b[0], offs, bias, None, dtype, use_fast_accum
        )
    torch._check_value(
        self.dim() == 2 and mat2.dim() == 3 and offs is not None and offs.dim() == 1,
        lambda: "MX grouped products take [T, K] and [G, K, N], and offs [G]",
    )
    assert offs is not None, "checked"
    torch._check_value(
        offs.dtype == torch.int32 and offs.shape[0] == mat2.shape[0],
        lambda: f"offs must be {torch.int32} [{mat2.shape[0]}], got {offs.dtype} {list(offs.shape)}",
    )
    torch._check_value(
        not _is_swizzled(swizzle_a) and not _is_swizzled(swizzle_b),
        lambda: "MX grouped scales must be NO_SWIZZLE",
    )
    k = _same_k(self, mat2)
    groups, _, n = mat2.shape
    _check_scales("scale_a", scale_a, _plain(self.shape[0], k))
    _check_scales("scale_b", scale_b, groups * _plain(n, k))
    _check_result(dtype, bias, groups * n)
    return torch.empty(self.shape[0], n, dtype=dtype, device=self.device)


def _is_mx(recipe_a: Sequence[Any], recipe_b: Sequence[Any], *operands: Tensor) -> bool:
    """Whether both recipes are MX, and the operands such that kernels of AMD's, or emulated ones, take them."""
    mx = [ScalingType.BlockWise1x32.value]
    if any([getattr(x, "value", x) for x in recipe] != mx for recipe in (recipe_a, recipe_b)):
        return False
    # A fake tensor is on "meta" while a meta function runs.
    places = (getattr(x, "fake_device", x.device) for x in operands)
    ours = all(place.type == "cpu" or torch.version.hip is not None for place in places)
    return ours and all(x.dtype in _ELEMENTS for x in operands)


def _is_swizzled(swizzle: Sequence[Any] | None) -> bool:
    return any(getattr(x, "value", x) == SwizzleType.SWIZZLE_32_4_4.value for x in swizzle or ())


def _same_k(a: Tensor, b: Tensor) -> Any:
    """The elements along K, of which two of e2m1 share a byte."""
    k, other = (size * 2 if x.dtype == _PACKED else size for x, size in ((a, a.shape[-1]), (b, b.shape[-2])))
    torch._check_value(k == other, lambda: f"self has K = {k} elements, mat2 has {other}")
    return k


def _plain(rows: Any, k: Any) -> Any:
    """How many scales [rows, ceil(K / 32)] are."""
    return rows * _over(k, 32)


def _swizzled(rows: Any, k: Any) -> Any:
    """How many they are in tiles of 128 rows x 4 blocks."""
    return _over(rows, 128) * 128 * _over(_over(k, 32), 4) * 4


def _over(x: Any, y: int) -> Any:
    """x / y, rounded up; x may be a symbol."""
    return (x + y - 1) // y


def _check_scales(name: str, scales: Sequence[Tensor], count: Any) -> None:
    torch._check_value(
        len(scales) == 1 and scales[0].dtype == torch.float8_e8m0fnu,
        lambda: (
            f"{name} of an MX product must be one {torch.float8_e8m0fnu} tensor, got {[x.dtype for x in scales]}"
        ),
    )
    torch._check_value(
        scales[0].numel() == count, lambda: f"{name} must have {count} elements, got {list(scales[0].shape)}"
    )


def _check_result(dtype: torch.dtype, bias: Tensor | None, count: Any) -> None:
    torch._check_value(
        dtype in _RESULTS,
        lambda: f"out_dtype of an MX product must be one of {', '.join(map(str, _RESULTS))}, got {dtype}",
    )
    if bias is not None:
        torch._check_value(
            bias.numel() == count, lambda: f"bias must have {count} elements, got {list(bias.shape)}"
        )
