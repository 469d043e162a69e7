"""Launches that are repeated without analysis: when they are, when not, and that results are right either way.

Operands of products are small whole numbers, so that the products are exact.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from conftest import on_device
from scaled_values import elements, scales, worth
from torch import Tensor
from torch.overrides import TorchFunctionMode

from flycc.contracts import GemmProblem
from flycc.kernels import gemm as family
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.mx import MxConfig
from flycc.runtime import (
    choice,
    devices,
    gemm,
    grouped_gemm,
    launching,
    mx_quantize,
    plans,
    refusals,
    rms_norm,
    rms_norm_mx,
    scaled_gemm,
    scaled_grouped_gemm,
    sdpa,
    topk,
)
from flycc.runtime.emulated import EmulatedDevice
from flycc.runtime.hip import HipDevice
from flycc.runtime.launching import Launched
from flycc.runtime.sdpa_operands import in_order


def whole(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Numbers from -2 to 2: 32 products of two add up to no more than 128 in size, which bfloat16 has exactly."""
    return torch.randint(-2, 3, shape).to(dtype)


def placed(device: HipDevice, tensor: Tensor) -> Tensor:
    """A copy of a dense tensor in memory of `device`, with its strides."""
    contiguous, back = in_order(tensor)
    return on_device(device, contiguous).permute(back)


class _InMemoryOf(TorchFunctionMode):
    """What PyTorch allocates is in memory of a device."""

    def __init__(self, device: HipDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.sum:  # what PyTorch computes itself comes after what was launched
            self.device.synchronize()
        result = func(*args, **(kwargs or {}))
        copies = (Tensor.contiguous, Tensor.clone, Tensor.reshape)
        copied = func in copies and result.data_ptr() != args[0].data_ptr()
        makers = (torch.empty, torch.zeros, torch.empty_like, Tensor.new_empty)
        if (copied or (func in makers and not result.is_meta)) and result.numel():
            return placed(self.device, result)
        return result


@pytest.fixture
def launched(device: HipDevice, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Launched]]:
    """The launches of calls that were analysed. CPU tensors are the device's, and a refusal is an error."""
    found: list[Launched] = []
    launch = launching.launch

    def remember(*arguments: Any) -> Launched:
        found.append(launch(*arguments))
        return found[-1]

    monkeypatch.setattr(launching, "launch", remember)
    monkeypatch.setitem(devices.GPUS, torch.device("cpu"), device)
    for module, name in _PLANS:
        monkeypatch.setattr(module, name, plans.Plans())
    with refusals.strict(), _InMemoryOf(device):
        yield found


_PLANS = (
    (gemm, "_PLANS"),
    (grouped_gemm, "_PLANS"),
    *((mx_quantize, name) for name in ("_QUANTIZE_PLANS", "_DEQUANTIZE_PLANS", "_RANGE_PLANS")),
    (rms_norm, "_PLANS"),
    (rms_norm, "_BACKWARD_PLANS"),
    (rms_norm_mx, "_PLANS"),
    (scaled_gemm, "_PLANS"),
    (scaled_grouped_gemm, "_PLANS"),
    (sdpa, "_PLANS"),
    (sdpa, "_BACKWARD_PLANS"),
    (topk, "_PLANS"),
)


def check(device: HipDevice, a: Tensor, b: Tensor, bias: Tensor | None = None, scale: float = 1.0) -> None:
    """One call with operands in the device's memory."""
    found = gemm.gemm(a, b, bias, trans_b=True, scale=scale)
    device.synchronize()
    wanted = scale * (a.float() @ b.float().mT) + (0 if bias is None else bias.float())
    assert torch.equal(found.float(), wanted)


def test_a_call_like_an_earlier_one_is_repeated(device: HipDevice, launched: list[Launched]) -> None:
    for _ in range(3):  # other numbers at other addresses
        check(device, *(on_device(device, whole(size, 32)) for size in (48, 40)))
    assert len(launched) == 1
    assert len(gemm._PLANS) == 1


def _other_dtype(device: HipDevice) -> tuple:
    return tuple(on_device(device, whole(size, 32, dtype=torch.float16)) for size in (48, 40))


def _other_stride(device: HipDevice) -> tuple:
    return on_device(device, whole(48, 40))[:, :32], on_device(device, whole(40, 32))


def _other_alignment(device: HipDevice) -> tuple:
    return on_device(device, whole(48 * 32 + 1))[1:].view(48, 32), on_device(device, whole(40, 32))


def _other_size(device: HipDevice) -> tuple:
    return on_device(device, whole(47, 32)), on_device(device, whole(40, 32))


def _with_bias(device: HipDevice) -> tuple:
    return *(on_device(device, whole(size, 32)) for size in (48, 40)), on_device(device, whole(40))


def _with_scale(device: HipDevice) -> tuple:
    return *(on_device(device, whole(size, 32)) for size in (48, 40)), None, 0.5


@pytest.mark.parametrize(
    "other", [_other_dtype, _other_stride, _other_alignment, _other_size, _with_bias, _with_scale]
)
def test_a_call_that_differs_is_analysed(
    device: HipDevice, launched: list[Launched], other: Callable[[HipDevice], tuple]
) -> None:
    same = [on_device(device, whole(size, 32)) for size in (48, 40)]
    for arguments in (same, other(device), same, other(device)):
        check(device, *arguments)
    assert len(launched) == len(gemm._PLANS) == 2


def test_quantising_and_back_are_repeated(device: HipDevice, launched: list[Launched]) -> None:
    for _ in range(3):
        x = on_device(device, torch.randn(40, 96))
        data, scales, found = mx_quantize.mx_quantize(x, format="e5m2")
        device.synchronize()
        wanted = mx_quantize._quantize_in_pytorch(x, "e5m2", "floor")
        for one, other in zip((data, scales), wanted, strict=False):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        again = mx_quantize.scale_range(scales)
        back = mx_quantize.mx_dequantize(data, scales, dtype=torch.float32)
        device.synchronize()
        assert found.tolist() == again.tolist() == wanted[2].tolist()
        assert torch.equal(back, mx_quantize._dequantize_in_pytorch(data, scales, torch.float32))
    assert len(launched) == 3


def test_scaled_products_are_repeated(device: HipDevice, launched: list[Launched]) -> None:
    """With block scales, row scales and a bias; sums are exact."""
    for _ in range(3):
        a, b = elements("e2m1", 5, 256), elements("e4m3", 7, 256)
        scale_a, scale_b = scales(125, 129, 5, 8), torch.randint(1, 9, (7, 1)).float()
        bias = torch.randint(-9, 10, (7,)).float()
        given = [on_device(device, x) for x in (a, b, scale_a, scale_b, bias)]
        found = scaled_gemm.scaled_gemm(*given, out_dtype=torch.float32)
        device.synchronize()
        assert torch.equal(found, (worth(a, scale_a) @ worth(b, scale_b).T + bias).float())
    assert len(launched) == len(scaled_gemm._PLANS) == 1


def test_products_whose_scales_are_packed_before_are_repeated(
    device: HipDevice, launched: list[Launched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both launches, and what lies between them."""
    ring = MxConfig(GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3), packed=True)
    monkeypatch.setattr(scaled_gemm.family, "choose", lambda problem: ring)
    for _ in range(3):
        a, b = elements("e2m1", 5, 256), elements("e2m1", 7, 256)
        scale_a, scale_b = scales(125, 129, 5, 8), scales(125, 129, 7, 8)
        given = [on_device(device, x) for x in (a, b, scale_a, scale_b)]
        found = scaled_gemm.scaled_gemm(*given, out_dtype=torch.float32)
        device.synchronize()
        assert torch.equal(found, (worth(a, scale_a) @ worth(b, scale_b).T).float())
    assert len(launched) == 2
    assert len(scaled_gemm._PLANS) == 1


def test_scaled_products_by_group_are_repeated(device: HipDevice, launched: list[Launched]) -> None:
    """With other ends of groups, too."""
    for ends in ([0, 9, 9], [4, 5, 9], [9, 9, 9]):
        a, b = elements("e4m3", 9, 128), elements("e4m3", 3, 8, 128)
        scale_a, scale_b = scales(125, 129, 9, 4), scales(125, 129, 3, 8, 4)
        given = [on_device(device, x) for x in (a, b, scale_a, scale_b, torch.tensor(ends).int())]
        found = scaled_grouped_gemm.scaled_grouped_gemm(*given, out_dtype=torch.float32)
        device.synchronize()
        group = torch.searchsorted(torch.tensor(ends), torch.arange(9), right=True)
        expected = torch.einsum("mk,mnk->mn", worth(a, scale_a), worth(b, scale_b)[group])
        assert torch.equal(found, expected.float())
    assert len(launched) == len(scaled_grouped_gemm._PLANS) == 1


def test_norms_that_quantise_are_repeated(device: HipDevice, launched: list[Launched]) -> None:
    found = []
    for size in (1.0, 2.0, 1.0):  # numbers that are doubled differ in their scales alone
        x, residual = (on_device(device, torch.full((3, 64), size).bfloat16()) for _ in range(2))
        weight = on_device(device, torch.full((64,), size).bfloat16())
        found.append(rms_norm_mx.rms_norm_mx(x, weight, residual, 0.0, format="e2m1"))
        device.synchronize()
        assert torch.equal(found[-1][2], x + residual)
    assert len(launched) == 1
    data, scales = zip(*(result[:2] for result in found), strict=True)
    for one in data:
        assert torch.equal(one.view(torch.uint8), data[0].view(torch.uint8))
    first, second, third = (one.view(torch.uint8).int() for one in scales)
    assert torch.equal(second, first + 1)
    assert torch.equal(third, first)


def test_zeros_of_either_sign_are_different_scales(device: HipDevice, launched: list[Launched]) -> None:
    a, b = (on_device(device, torch.ones(size, 32).bfloat16()) for size in (48, 40))
    for scale in (0.0, -0.0, 0.0, -0.0):
        out = gemm.gemm(a, b, trans_b=True, scale=scale)
        device.synchronize()
        assert not out.any()
        assert out.signbit().all() == (math.copysign(1, scale) < 0)
    assert len(launched) == 2


def test_another_choice_of_configurations_is_analysed(device: HipDevice, launched: list[Launched]) -> None:
    operands = [on_device(device, whole(size, 32)) for size in (48, 40)]
    asked = []

    def provider(problem: GemmProblem) -> family.GemmConfig:
        asked.append(problem)
        return family.GemmConfig(64, 64, 64, waves_m=2, waves_n=2)

    check(device, *operands)
    choice.install(provider)
    try:
        check(device, *operands)
        check(device, *operands)
        assert len(asked) == 1
        choice.changed()
        check(device, *operands)
        assert len(asked) == 2
    finally:
        choice.remove(provider)
    check(device, *operands)
    assert (len(asked), len(launched)) == (2, 4)


def test_an_operand_that_is_copied_is_copied_each_time(device: HipDevice, launched: list[Launched]) -> None:
    """A copy has an address that nobody knows beforehand. Neither dimension of `a` has neighbours in memory."""
    for _ in range(2):
        a = on_device(device, whole(48, 64))[:, ::2]
        check(device, a, on_device(device, whole(40, 32)))
    assert len(launched) == 2
    assert len(gemm._PLANS) == 0


def test_a_tensor_that_changes_in_place_is_another(device: HipDevice, launched: list[Launched]) -> None:
    a, b = (on_device(device, whole(32, 32)) for _ in range(2))
    room = on_device(device, whole(32 * 32 + 1))
    for count, change in enumerate((lambda: None, a.t_, lambda: a.set_(room[1:].view(32, 32))), 1):
        change()
        for _ in range(2):
            check(device, a, b)
        assert len(launched) == len(gemm._PLANS) == count


def test_a_result_of_less_alignment_is_analysed(
    device: HipDevice, launched: list[Launched], monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = [on_device(device, whole(size, 32)) for size in (48, 40)]
    check(device, *operands)
    odd = lambda *shape, dtype, device: torch.zeros(2 * 48 * 40, dtype=dtype)[1:]  # noqa: E731
    monkeypatch.setattr(torch, "empty", odd)
    check(device, *operands)
    assert len(launched) == 2


def test_shares_of_k_are_added_up(device: HipDevice, launched: list[Launched]) -> None:
    """Room for the sums is made for each call; counters are the stream's."""
    config = family.GemmConfig(64, 64, 64, waves_m=2, waves_n=2, splits=4)

    def provider(problem: GemmProblem) -> family.GemmConfig:
        return config

    choice.install(provider)
    try:
        for _ in range(3):
            # Five products at most are not 0, so that their sum is exact.
            a, b = torch.zeros(40, 520), whole(72, 520)
            a[:, ::128] = whole(40, 5)
            check(device, on_device(device, a.bfloat16()), on_device(device, b))
    finally:
        choice.remove(provider)
    [one] = launched
    assert {"partial", "arrived"} <= one.outputs.keys()
    assert len(gemm._PLANS) == 1


def randn(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def _offsets(*ends: int) -> Tensor:
    return torch.tensor(ends, dtype=torch.int32)


_CALLS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[list[Tensor | None], dict[str, Any]]]]] = {
    "residual": (
        gemm.gemm,
        lambda: (
            [randn(20, 24), randn(24, 32), randn(32)],
            {"residual": randn(20, 32), "activation": "silu"},
        ),
    ),
    "pre-activation": (
        gemm.gemm_with_preactivation,
        lambda: ([randn(20, 24), randn(32, 24)], {"trans_b": True, "activation": "relu"}),
    ),
    "gated": (
        gemm.gemm,
        lambda: ([randn(20, 24), randn(24, 32)], {"b2": randn(24, 32), "activation": "silu"}),
    ),
    "groups": (
        grouped_gemm.grouped_gemm,
        lambda: ([randn(20, 24), randn(3, 24, 16), _offsets(5, 5, 20), randn(3, 16)], {}),
    ),
    "batch": (
        grouped_gemm.grouped_gemm,
        lambda: ([randn(3, 20, 24), randn(3, 16, 24), None, randn(3, 16)], {"trans_b": True}),
    ),
    "norm": (rms_norm.rms_norm_fwd, lambda: ([randn(5, 48), randn(48), None], {"eps": 1e-5})),
    "norm of a sum": (
        rms_norm.rms_norm_fwd,
        lambda: ([randn(5, 48), None, randn(5, 48)], {"eps": 1e-5, "want_rstd": True}),
    ),
    "gradient": (
        rms_norm.rms_norm_bwd,
        lambda: ([randn(5, 48), randn(5, 48), randn(48), torch.rand(5) + 1], {}),
    ),
    "gradient in steps": (
        rms_norm.rms_norm_bwd,
        lambda: ([randn(2, 40000), randn(2, 40000), randn(40000), torch.rand(2) + 1], {}),
    ),
    "gradient without weight": (
        rms_norm.rms_norm_bwd,
        lambda: ([randn(5, 48), randn(5, 48), None, torch.rand(5) + 1], {}),
    ),
    "topk": (topk.topk, lambda: ([randn(4, 100)], {"k": 5})),
    "topk in steps": (topk.topk, lambda: ([randn(1, 40000)], {"k": 3, "sorted": False})),
    "attention": (
        sdpa.sdpa_fwd,
        lambda: (
            [randn(2, 20, 3, 64).transpose(1, 2), randn(2, 1, 33, 64), randn(2, 1, 33, 64)],
            {"scale": 0.1, "upper": 0, "want_lse": True, "layout": "bshd"},
        ),
    ),
    "attention in steps": (
        sdpa.sdpa_fwd,
        lambda: ([randn(1, 3, 1, 64), randn(1, 1, 600, 64), randn(1, 1, 600, 64)], {"scale": 0.1}),
    ),
    "attention's gradients in steps": (
        sdpa.sdpa_bwd,
        lambda: (
            [
                *(randn(2, 20, 3, 64).transpose(1, 2) for _ in range(2)),
                *(randn(2, 1, 33, 64) for _ in range(2)),
                randn(2, 3, 20, 64),
                torch.rand(2, 3, 20) + 5,
            ],
            {"scale": 0.1},
        ),
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.nightly) if x == "gradient in steps" else x for x in _CALLS],
)
def test_repeated_calls_have_the_bits_of_the_emulated_device(
    name: str, device: HipDevice, launched: list[Launched]
) -> None:
    op, make = _CALLS[name]
    for _ in range(2):
        given, options = make()
        operands = [None if x is None else placed(device, x) for x in given]
        others = {key: placed(device, x) if isinstance(x, Tensor) else x for key, x in options.items()}
        found = op(*operands, **others)
        once = len(launched)
        device.synchronize()
        found = found if isinstance(found, tuple) else (found,)
        with torch._C.DisableTorchFunction(), pytest.MonkeyPatch.context() as patch:
            patch.delitem(devices.GPUS, torch.device("cpu"))
            wanted = op(*given, **options)
        launched[once:] = []
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        for x, y in zip(found, wanted, strict=True):
            assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride())
            assert torch.equal(x, y)
    assert len(launched) == once
    assert (once > 1) == ("in steps" in name)


def test_plans_are_bounded_and_those_in_use_stay(
    device: HipDevice, launched: list[Launched], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (on_device(device, whole(32, 32)) for _ in range(2))
    given, out = {"a": a, "b": b}, gemm.gemm(a, b)
    monkeypatch.setattr(plans, "KEPT", 8)
    kept = plans.Plans()
    kept.keep(given, ("used",), [out], launched)
    for number in range(100):
        kept.keep(given, (number,), [out], launched)
        assert kept.find((a, b), ("used",))[0] is not None
        assert kept.find((a, b), (number,))[0] is not None
        assert len(kept) <= 8
    assert kept.find((a, b), (1,))[0] is None


def test_a_forked_process_has_the_plans(device: HipDevice, launched: list[Launched]) -> None:
    """The stand-in's GPU is memory of the process, so each has its own; with real ones nobody may fork."""
    a, b = (on_device(device, whole(32, 32)) for _ in range(2))
    check(device, a, b)
    wanted = a.float() @ a.float().mT
    child = os.fork()
    if not child:
        found = gemm.gemm(a, a, None, trans_b=True, scale=1.0)
        device.synchronize()
        os._exit(int(len(launched) == 1 and bool((found.float() == wanted).all())))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    check(device, b, a)
    assert len(launched) == 1


def test_threads_do_not_see_each_others_arguments(device: HipDevice, launched: list[Launched]) -> None:
    pairs = [[on_device(device, whole(size, 32)) for size in (48, 40)] for _ in range(4)]
    check(device, *pairs[0])

    def call(pair: list[Tensor]) -> Tensor:
        with _InMemoryOf(device):
            return gemm.gemm(*pair, trans_b=True, scale=1.0)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, pairs * 4))
    device.synchronize()
    for (a, b), out in zip(pairs * 4, found, strict=True):
        assert torch.equal(out.float(), a.float() @ b.float().mT)
    assert len(launched) == 1


def test_devices_that_map_tensors_have_no_plans() -> None:
    assert EmulatedDevice().ready(None, (1, 1, 1), (64, 1, 1), bytes(8), [0]) is None  # type: ignore[arg-type]
