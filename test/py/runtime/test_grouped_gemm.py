"""flycc::grouped_gemm as a PyTorch operator: values, layouts, empty sizes, and what happens when something fails.

Values are small integers: their products' sums are exact in float32, so that PyTorch's own operator, or the exact
sums, rounded once, are the only right result.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator

import pytest
import torch
from pairs import pairwise
from torch import Tensor

from flycc.contracts import FlyccError, Reason
from flycc.runtime import grouped_gemm, refusals

COUNTS = [0, 1, 67, 0, 130, 3]
TOTAL = sum(COUNTS)
OFFSETS = torch.tensor(COUNTS).cumsum(0).int()


@pytest.fixture(autouse=True)
def _strict() -> Iterator[None]:
    torch.manual_seed(int(os.environ["FLYCC_TEST_SEED"]))
    with refusals.strict():
        yield


def integers(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randint(-4, 5, shape).to(dtype)


def exact(a: Tensor, b: Tensor, offsets: Tensor | None) -> Tensor:
    """The product of each group in float64, rounded once."""
    a64, b64 = a.double(), b.double()
    if offsets is None:
        return torch.bmm(a64, b64).to(a.dtype)
    starts = [0, *offsets.tolist()[:-1]]
    groups = [slice(start, end) for start, end in zip(starts, offsets.tolist(), strict=True)]
    if a.dim() == b.dim():
        return torch.stack([a64[:, part] @ b64[part] for part in groups]).to(a.dtype)
    if a.dim() == 2:
        return torch.cat([a64[part] @ b64[g] for g, part in enumerate(groups)]).to(a.dtype)
    return torch.cat([a64[g] @ b64[:, part] for g, part in enumerate(groups)], 1).to(a.dtype)


#: Shapes of a [.., M, K] and b [.., K, N] of each form.
FORMS = {
    "ragged m": ((TOTAL, 40), (6, 40, 24)),
    "ragged n": ((6, 24, 40), (40, TOTAL)),
    "ragged k": ((24, TOTAL), (TOTAL, 40)),
    "no offsets": ((6, 24, 40), (6, 40, 16)),
    "odd": ((TOTAL, 37), (6, 37, 21)),
}


@pytest.mark.parametrize(
    ("form", "trans_a", "trans_b", "dtype"),
    pairwise(FORMS, [False, True], [False, True], [torch.bfloat16, torch.float16]),
)
def test_forms_and_layouts(form: str, trans_a: bool, trans_b: bool, dtype: torch.dtype) -> None:
    """Transposed by the flag, and by the strides of the operand: the same."""
    a, b = (integers(*shape, dtype=dtype) for shape in FORMS[form])
    offsets = None if form == "no offsets" else OFFSETS
    expected = exact(a, b, offsets)
    stored = [x.mT.contiguous() if flag else x for x, flag in ((a, trans_a), (b, trans_b))]
    result = torch.ops.flycc.grouped_gemm(*stored, offsets, trans_a=trans_a, trans_b=trans_b)
    assert torch.equal(result, expected)
    logical = [x.mT if flag else x for x, flag in zip(stored, (trans_a, trans_b), strict=True)]
    assert torch.equal(torch.ops.flycc.grouped_gemm(*logical, offsets), expected)


@pytest.mark.parametrize("form", ["ragged m", "ragged k", "no offsets", "odd"])
@pytest.mark.parametrize("way", ["rows", "columns", "one row"])
def test_bias(form: str, way: str) -> None:
    """A row for each group, whatever its strides; added before the one rounding."""
    a, b = (integers(*shape) for shape in FORMS[form])
    offsets = None if form == "no offsets" else OFFSETS
    n = b.shape[-1]
    bias = integers(n, 6).mT if way == "columns" else integers(6 if way == "rows" else 1, n).expand(6, n)
    expected = exact(a.double(), b.double(), offsets)
    each = bias.double()
    expected += each[:, None] if expected.dim() == 3 else each.repeat_interleave(torch.tensor(COUNTS), 0)
    result = torch.ops.flycc.grouped_gemm(a, b, offsets, bias)
    assert torch.equal(result, expected.to(a.dtype))


@pytest.mark.parametrize("form", FORMS)
def test_results_are_contiguous(form: str) -> None:
    a, b = (integers(*shape) for shape in FORMS[form])
    assert torch.ops.flycc.grouped_gemm(a, b, None if form == "no offsets" else OFFSETS).is_contiguous()


@pytest.mark.parametrize("form", ["ragged m", "ragged k", "no offsets"])
def test_pytorchs_operator_gives_the_same(form: str) -> None:
    """Its rows have to start at multiples of 16 bytes."""
    a, b = (integers(*(TOTAL + 7 if size == TOTAL else size for size in shape)) for shape in FORMS[form])
    offsets = None if form == "no offsets" else torch.cat([OFFSETS[:-1], OFFSETS[-1:] + 7])
    assert torch.equal(torch.ops.flycc.grouped_gemm(a, b, offsets), torch._grouped_mm(a, b, offs=offsets))


def test_views_with_gaps_and_odd_offsets() -> None:
    a, b = integers(TOTAL + 3, 64)[3:, 5:38], integers(8, 50, 64)[1:7, 9:, 7:40].mT
    assert torch.equal(torch.ops.flycc.grouped_gemm(a, b, OFFSETS), exact(a, b, OFFSETS))


def test_offsets_with_gaps() -> None:
    offsets = torch.stack([OFFSETS, torch.full_like(OFFSETS, 9)], 1)[:, 0]
    assert not offsets.is_contiguous()
    a, b = integers(TOTAL, 40), integers(6, 40, 24)
    assert torch.equal(torch.ops.flycc.grouped_gemm(a, b, offsets), exact(a, b, OFFSETS))


def test_rows_of_no_group_change_nothing() -> None:
    a, b = integers(TOTAL + 20, 40), integers(6, 40, 24)
    a[TOTAL:] = float("nan")
    result = torch.ops.flycc.grouped_gemm(a, b, OFFSETS)
    assert result.shape == (TOTAL + 20, 24)
    assert torch.equal(result[:TOTAL], exact(a[:TOTAL], b, OFFSETS))


@pytest.mark.parametrize(
    ("a", "b", "counts"),
    [
        ((0, 8), (2, 8, 16), [0, 0]),
        ((5, 0), (2, 0, 16), [2, 3]),
        ((5, 8), (2, 8, 0), [2, 3]),
        ((4, 0), (0, 16), [0, 0]),
        ((2, 4, 0), (0, 16), [7, 9]),
    ],
)
def test_empty_sizes(a: tuple[int, ...], b: tuple[int, ...], counts: list[int]) -> None:
    """An empty sum is zero."""
    offsets = torch.tensor(counts).cumsum(0).int()
    result = torch.ops.flycc.grouped_gemm(integers(*a), integers(*b), offsets)
    shape = (2, a[0], b[1]) if len(a) == len(b) else (a[-2], b[-1])
    assert torch.equal(result, torch.zeros(shape, dtype=torch.bfloat16))


def test_the_operator_is_legal() -> None:
    a, b = integers(TOTAL, 16), integers(6, 16, 21)
    torch.library.opcheck(torch.ops.flycc.grouped_gemm.default, (a, b, OFFSETS), {"trans_a": False})


@pytest.mark.parametrize(
    ("a", "b", "offsets", "part"),
    [
        ((4, 8), (6, 9, 8), OFFSETS, "a has K = 8, b has K = 9"),
        ((4, 8), (5, 8, 8), OFFSETS, r"groups of a, b and offsets differ: \[5, 6\]"),
        ((5, 4, 8), (6, 8, 8), None, r"groups of a, b and offsets differ: \[5, 6\]"),
        ((4, 8), (6, 8, 8), None, "offsets are needed"),
        ((6, 4, 8), (6, 8, 8), OFFSETS, "offsets are needed unless"),
        ((1, 6, 4, 8), (6, 8, 8), OFFSETS, r"2 or 3 dimensions, got \(4, 3\)"),
    ],
)
def test_arguments_that_no_operator_takes(
    a: tuple[int, ...], b: tuple[int, ...], offsets: Tensor | None, part: str
) -> None:
    with pytest.raises(RuntimeError, match=part):
        torch.ops.flycc.grouped_gemm(integers(*a), integers(*b), offsets)


@pytest.mark.parametrize(
    ("a", "b", "bias"), [((4, 8), (6, 8, 8), (8,)), ((4, 8), (6, 8, 8), (6, 9)), ((6, 4, 8), (8, 8), (6, 8))]
)
def test_a_bias_that_is_no_row_for_each_group(
    a: tuple[int, ...], b: tuple[int, ...], bias: tuple[int, ...]
) -> None:
    with pytest.raises(RuntimeError, match=r"\[6, 8\] is accepted"):
        torch.ops.flycc.grouped_gemm(integers(*a), integers(*b), OFFSETS, integers(*bias))


@pytest.mark.parametrize("place", ["cpu", "meta"])
@pytest.mark.parametrize("shape", [(TOTAL, 8), (6, 4, 8)])
@pytest.mark.parametrize("wrong", ["b", "bias"])
def test_operands_of_another_type_are_named(shape: tuple[int, ...], wrong: str, place: str) -> None:
    given = {"a": integers(*shape), "b": integers(6, 8, 16), "bias": integers(6, 16)}
    if len(shape) == 2:
        given["offsets"] = OFFSETS
    for other in (torch.float16, torch.float32):
        arguments = {name: tensor.to(place) for name, tensor in given.items()}
        arguments[wrong] = arguments[wrong].to(other)
        with pytest.raises(RuntimeError, match=f"{wrong} is {other}; it must be that of a, torch.bfloat16"):
            torch.ops.flycc.grouped_gemm(**arguments)


@pytest.mark.parametrize("bias", [False, True])
def test_no_groups_write_nothing(bias: bool) -> None:
    empty = integers(0, 16) if bias else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = torch.ops.flycc.grouped_gemm(integers(5, 8), integers(0, 8, 16), OFFSETS[:0], empty)
    assert out.shape == (5, 16)


@pytest.mark.parametrize(
    ("a", "b", "offsets", "code"),
    [
        (integers(TOTAL, 8), integers(6, 8, 8), OFFSETS.long(), "grouped-gemm.offsets"),
        (integers(TOTAL, 8).float(), integers(6, 8, 8).float(), OFFSETS, "grouped-gemm.dtype"),
        (integers(TOTAL, 8), integers(6, 8, 8), OFFSETS.to("meta"), "device.mixed"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused(a: Tensor, b: Tensor, offsets: Tensor, code: str) -> None:
    with pytest.raises(FlyccError) as caught:
        grouped_gemm.grouped_gemm(a, b, offsets)
    assert caught.value.reason.code == code


def test_a_failed_launch_gives_pytorchs_result_one_warning_and_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing_launch(*_: object) -> None:
        raise FlyccError(Reason("device.launch", "planted"))

    monkeypatch.setattr(grouped_gemm, "launch", failing_launch)
    monkeypatch.setattr(refusals, "_warned", set())
    monkeypatch.setattr(refusals._policy, "strict", False)
    a, b = integers(TOTAL, 8), integers(6, 8, 16)
    heard: list[Reason] = []
    with refusals.listening(heard.append), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(torch.ops.flycc.grouped_gemm(a, b, OFFSETS), exact(a, b, OFFSETS))
    assert [reason.code for reason in heard] == ["device.launch"] * 3
    bias = integers(6, 16)
    rows = bias.repeat_interleave(torch.tensor(COUNTS), 0)
    expected = exact(a, b, OFFSETS) + rows  # rounded twice
    assert torch.equal(torch.ops.flycc.grouped_gemm(a, b, OFFSETS, bias), expected)
    longer = torch.cat([a, a[:1]])  # the last row is of no group
    assert torch.equal(torch.ops.flycc.grouped_gemm(longer, b, OFFSETS, bias)[:TOTAL], expected)
    assert len(caught) == 1
    assert "planted" in str(caught[0].message)
