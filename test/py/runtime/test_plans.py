"""Launches that are repeated without analysis: when they are, when not, and that results are right either way.

Operands are small whole numbers, so that products are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from conftest import on_device
from torch import Tensor

from flycc.contracts import GemmProblem
from flycc.kernels import gemm as family
from flycc.runtime import choice, gemm, plans, refusals
from flycc.runtime.emulated import EmulatedDevice
from flycc.runtime.hip import HipDevice


def whole(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Numbers from -2 to 2: 32 products of two add up to no more than 128 in size, which bfloat16 has exactly."""
    return torch.randint(-2, 3, shape).to(dtype)


@pytest.fixture
def analysed(device: HipDevice, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[GemmProblem]]:
    """The problems of calls that were analysed. Results are in the stand-in's memory, and a refusal is an error."""
    problems: list[GemmProblem] = []
    first, allocate = gemm.launch, gemm._results

    def launch(operands, device):
        problems.append(operands.problem())
        return first(operands, device)

    def empty(shape, *, dtype, device=None) -> Tensor:
        return on_device(gemm.device_for(None), torch.zeros(shape, dtype=dtype))

    monkeypatch.setattr(gemm, "device_for", lambda _: device)
    monkeypatch.setattr(gemm, "launch", launch)
    monkeypatch.setattr(
        gemm, "_results", lambda *given: [empty(x.shape, dtype=x.dtype) for x in allocate(*given)]
    )
    monkeypatch.setattr(plans, "torch", SimpleNamespace(empty=empty))
    monkeypatch.setattr(gemm, "_PLANS", plans.Plans())
    with refusals.strict():
        yield problems


def check(device: HipDevice, a: Tensor, b: Tensor, bias: Tensor | None = None, scale: float = 1.0) -> None:
    """One call with operands in the device's memory."""
    found = gemm.gemm(a, b, bias, trans_b=True, scale=scale)
    device.synchronize()
    wanted = scale * (a.float() @ b.float().mT) + (0 if bias is None else bias.float())
    assert torch.equal(found.float(), wanted)


def test_a_call_like_an_earlier_one_is_repeated(device: HipDevice, analysed: list[GemmProblem]) -> None:
    for _ in range(3):  # other numbers at other addresses
        check(device, *(on_device(device, whole(size, 32)) for size in (48, 40)))
    assert len(analysed) == 1
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
    device: HipDevice, analysed: list[GemmProblem], other: Callable[[HipDevice], tuple]
) -> None:
    same = [on_device(device, whole(size, 32)) for size in (48, 40)]
    for arguments in (same, other(device), same, other(device)):
        check(device, *arguments)
    assert len(analysed) == len(gemm._PLANS) == 2


def test_zeros_of_either_sign_are_different_scales(device: HipDevice) -> None:
    a, b = (on_device(device, torch.ones(size, 32).bfloat16()) for size in (48, 40))
    for scale in (0.0, -0.0, 0.0, -0.0):
        out = gemm.gemm(a, b, trans_b=True, scale=scale)
        device.synchronize()
        assert not out.any()
        assert out.signbit().all() == (math.copysign(1, scale) < 0)


def test_another_choice_of_configurations_is_analysed(device: HipDevice, analysed: list[GemmProblem]) -> None:
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
    assert (len(asked), len(analysed)) == (2, 4)


def test_an_operand_that_is_copied_is_copied_each_time(
    device: HipDevice, analysed: list[GemmProblem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy has an address that nobody knows beforehand. Neither dimension of `a` has neighbours in memory."""
    monkeypatch.setattr(
        torch.Tensor,
        "contiguous",
        lambda x: (
            x if x.is_contiguous() else on_device(device, x.clone(memory_format=torch.contiguous_format))
        ),
    )
    for _ in range(2):
        a = on_device(device, whole(48, 64))[:, ::2]
        check(device, a, on_device(device, whole(40, 32)))
    assert len(analysed) == 2
    assert len(gemm._PLANS) == 0


def test_a_result_of_less_alignment_is_analysed(
    device: HipDevice, analysed: list[GemmProblem], monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = [on_device(device, whole(size, 32)) for size in (48, 40)]
    check(device, *operands)
    odd = lambda shape, *, dtype, device: torch.zeros(2 * 48 * 40, dtype=dtype)[1:]  # noqa: E731
    monkeypatch.setattr(plans, "torch", SimpleNamespace(empty=odd))
    check(device, *operands)
    assert len(analysed) == 2


def test_plans_are_bounded_and_those_in_use_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "KEPT", 8)
    kept, repeat = plans.Plans(), plans.Repeat(lambda *_: None)
    kept.keep(("used",), [torch.zeros(1)], repeat)
    for number in range(100):
        kept.keep((number,), [torch.zeros(1)], repeat)
        assert kept.find(("used",)) is not None
        assert kept.find((number,)) is not None
        assert len(kept) <= 8
    assert kept.find((1,)) is None


def test_threads_do_not_see_each_others_arguments(device: HipDevice, analysed: list[GemmProblem]) -> None:
    pairs = [[on_device(device, whole(size, 32)) for size in (48, 40)] for _ in range(4)]
    check(device, *pairs[0])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pair: gemm.gemm(*pair, trans_b=True, scale=1.0), pairs * 4))
    device.synchronize()
    for (a, b), out in zip(pairs * 4, found, strict=True):
        assert torch.equal(out.float(), a.float() @ b.float().mT)
    assert len(analysed) == 1


def test_devices_that_map_tensors_have_no_plans() -> None:
    assert EmulatedDevice().ready(None, (1, 1, 1), (64, 1, 1), bytes(8), [0]) is None  # type: ignore[arg-type]


def test_workspace_follows_the_pointers(device: HipDevice) -> None:
    launched: list[tuple[int, ...]] = []
    repeat = plans.Repeat(lambda *pointers: launched.append(pointers), sums=5, counters=3)
    for _ in range(2):
        repeat(device, torch.device("cpu"), 1, 2)
    assert [pointers[:2] for pointers in launched] == [(1, 2), (1, 2)]
    assert launched[0][3] == launched[1][3]  # the stream's counters
    assert all(pointers[2] for pointers in launched)
