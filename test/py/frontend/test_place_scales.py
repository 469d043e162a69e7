"""Products of dequantised operands: which forms get a scaled product behind a guard, and that no bit changes by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import flycc
import flycc.runtime.ops  # defines torch.ops.flycc.*
from flycc.frontend.report import Candidate
from flycc.runtime import scale_guard

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
MX, PLAIN = F.ScalingType.BlockWise1x32, F.SwizzleType.NO_SWIZZLE
E8M0, E4M3 = torch.float8_e8m0fnu, torch.float8_e4m3fn
K = 96
HELD, FAILED = (1, 0), (0, 1)  # how often a guard held and failed
Side = tuple[Tensor, Tensor]


def scales(*shape: int, low: int, high: int) -> Tensor:
    return torch.randint(low, high + 1, shape, dtype=torch.uint8).view(E8M0)


def fp4(*rows: int, low: int = 124, high: int = 128) -> Side:
    """Any elements of e2m1, two a byte, and their scales."""
    data = torch.randint(0, 256, (*rows, K // 2), dtype=torch.uint8)
    return data.view(torch.float4_e2m1fn_x2), scales(*rows, K // 32, low=low, high=high)


def fp8(*rows: int) -> Side:
    return torch.randn(*rows, K).to(E4M3), scales(*rows, K // 32, low=120, high=130)


def mx(side: Side, dtype: torch.dtype = BF16) -> Tensor:
    return torch.ops.flycc.mx_dequantize(*side, dtype=dtype)


def spread(side: Side, dtype: torch.dtype = BF16) -> Tensor:
    data, scale = side
    wide = data.to(dtype).unflatten(-1, (-1, 32)) * scale.to(dtype)[..., None]
    return wide.flatten(-2)


def repeated(side: Side, dtype: torch.dtype = BF16) -> Tensor:
    data, scale = side
    return (data.float() * scale.float().repeat_interleave(32, -1)).to(dtype)


def expanded(side: Side, dtype: torch.dtype = BF16) -> Tensor:
    data, scale = side
    each = scale.to(dtype).unsqueeze(-1).expand(*scale.shape, 32).reshape(data.shape)
    return each * data.to(dtype)


def compiled(fn: Callable[..., Any], *inputs: Any, **options: Any) -> tuple[Any, flycc.Record, Candidate]:
    """The result of the compiled function, what was recorded, and what became of its one product."""
    record = flycc.explain(fn, *inputs, options=options)
    [product] = [c for graph in record.graphs for c in graph.report.nodes if "mm" in c.target]
    torch._dynamo.reset()
    return torch.compile(fn, backend="flycc", options=options)(*inputs), record, product


def same_bits(left: Tensor, right: Tensor) -> bool:
    """All NaNs are one, and so are zeros: a matrix unit may make +0 of a sum of -0 alone."""
    left, right = (side.nan_to_num(1.5, torch.inf, -torch.inf) + 0.0 for side in (left, right))
    return left.dtype == right.dtype and torch.equal(left, right)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_near_scales_are_left_to_the_mfma(dtype: torch.dtype) -> None:
    a, b = fp4(2, 5), fp4(16)

    def product(a: Side, b: Side) -> Tensor:
        return F.linear(mx(a, dtype), mx(b, dtype))

    result, record, candidate = compiled(product, a, b)
    assert same_bits(result, product(a, b))
    assert candidate.kernel == "flycc::scaled_gemm"
    assert "operand (from element, tree any), where " in candidate.placement
    assert [count.held for count in record.scale_guards.values()] == [1]


def test_far_scales_are_multiplied_as_written() -> None:
    """Sums that round in one order and not in another: the guard must fail, and what PyTorch computes must come."""
    a, b = fp4(5, low=100, high=150), fp4(16)
    a[1].view(torch.uint8)[0, :2] = torch.tensor([100, 150], dtype=torch.uint8)

    def product(a: Side, b: Side) -> Tensor:
        return F.linear(mx(a), mx(b))

    result, record, candidate = compiled(product, a, b)
    [count] = record.scale_guards.values()
    assert (count.held, count.failed) == (0, 1)
    assert count.a is not None
    assert (count.a.lo, count.a.hi) == (100, 150)
    assert count.spread >= 50
    assert count.missed == {"spread <= 10": 1}
    assert "missed: spread <= 10 (1 times)" in str(count)
    assert record.to_json()["scale_guards"]["graph 0, mm"]["missed"] == {"spread <= 10": 1}
    exact = mx(a, torch.float32).double() @ mx(b, torch.float32).double().T
    assert (
        (result - exact).abs()
        <= exact.abs() * 2**-8 + (mx(a).abs().double() @ mx(b).abs().double().T) * 2**-20
    ).all()
    assert candidate.kernel == "flycc::scaled_gemm"


def test_one_graph_takes_either_form() -> None:
    def product(a: Side, b: Side) -> Tensor:
        return F.linear(mx(a), mx(b)).relu()

    step = torch.compile(product, backend="flycc")
    b = fp4(16)
    with flycc.record.collect() as record:
        for low, high in ((124, 126), (100, 150), (124, 126)):
            a = fp4(5, low=low, high=high)
            step(a, b)
    [count] = record.scale_guards.values()
    assert (count.held, count.failed) == (2, 1)
    assert len(record.graphs) == 1


def test_verdicts_are_counted_by_graph() -> None:
    """Nodes of two graphs have the same names."""
    a, near, far = fp4(5), fp4(16), fp4(16)
    far[1].view(torch.uint8)[0, :2] = torch.tensor([100, 150], dtype=torch.uint8)

    def product(a: Side, b: Side, c: Side) -> tuple[Tensor, Tensor]:
        first = F.linear(mx(a), mx(b))
        torch._dynamo.graph_break()
        return first, F.linear(mx(a), mx(c))

    step = torch.compile(product, backend="flycc")
    for names in (["graph 0, mm", "graph 1, mm"], ["a graph compiled before", "a graph compiled before"]):
        with flycc.record.collect() as record:
            step(a, near, far)
        assert all(found.startswith(name) for found, name in zip(record.scale_guards, names, strict=True))
        assert [(count.held, count.failed) for count in record.scale_guards.values()] == [HELD, FAILED]


def test_rows_of_a_weight_may_lie_far_apart() -> None:
    """No result meets the scales of two rows, so that only the spread within a row counts."""
    a, (elements, scale) = fp4(5), fp4(16)
    scale.view(torch.uint8)[:] += torch.arange(-40, 40, 5, dtype=torch.int8)[:, None].view(torch.uint8)

    def product(a: Side, b: Side) -> Tensor:
        return F.linear(mx(a), mx(b))

    result, record, _ = compiled(product, a, (elements, scale))
    assert [count.held for count in record.scale_guards.values()] == [1]
    assert same_bits(result, product(a, (elements, scale)))


def test_nan_scales_make_nan_in_both_forms() -> None:
    a, b = fp4(5), fp4(16)
    a[1].view(torch.uint8)[2, 1] = 255

    def product(a: Side, b: Side) -> Tensor:
        return F.linear(mx(a), mx(b))

    result, record, _ = compiled(product, a, b)
    [count] = record.scale_guards.values()
    assert count.held == 1
    assert result[2].isnan().all()
    assert same_bits(result, product(a, b))


def test_epilogues_go_with_both_forms() -> None:
    a, b, bias, residual = fp4(2, 5), fp4(16), torch.randn(16).to(BF16), torch.randn(2, 5, 16).to(BF16)

    def product(a: Side, b: Side, bias: Tensor, residual: Tensor) -> Tensor:
        return residual + F.linear(mx(a), mx(b), bias).relu()

    result, _, candidate = compiled(product, a, b, bias, residual)
    assert candidate.kernel == "flycc::scaled_gemm"
    assert "+bias" in candidate.problem
    assert "relu" in candidate.problem
    _, counts, products = ran(product, a, b, bias, residual)
    assert (counts, products) == (HELD, {"flycc::scaled_gemm"})
    exact = mx(a, F32).double() @ mx(b, F32).double().T + bias.double()
    exact = exact.relu() + residual.double()
    assert ((result - exact).abs() <= exact.abs() * 2**-8).all()


def test_bytes_that_are_viewed_as_scales_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    a, (elements, scale) = fp4(5), fp4(16)
    bytes_ = scale.view(torch.uint8).clone()

    def product(a: Side, elements: Tensor, bytes_: Tensor) -> Tensor:
        return F.linear(mx(a), mx((elements, bytes_.view(E8M0))))

    read: list[Tensor] = []
    numbers = scale_guard._numbers
    monkeypatch.setattr(scale_guard, "_numbers", lambda range_: read.append(range_) or numbers(range_))
    _, counts, products = ran(product, a, elements, bytes_)
    assert (counts, products) == (HELD, {"flycc::scaled_gemm"})
    assert len(read) == 2  # once for each side, in two calls
    bytes_[0, 0] = 1
    assert ran(product, a, elements, bytes_)[1] == FAILED


def test_activations_quantised_in_the_graph_say_their_range() -> None:
    x, b = torch.randn(5, K).to(BF16), fp4(16)

    def product(x: Tensor, b: Side) -> Tensor:
        data, scale, _ = torch.ops.flycc.mx_quantize(x, format="e2m1")
        return F.linear(mx((data, scale)), mx(b))

    result, record, _ = compiled(product, x, b)
    [count] = record.scale_guards.values()
    assert count.a is not None
    assert 120 <= count.a.lo <= count.a.hi <= 128
    assert same_bits(result, product(x, b))


@pytest.mark.parametrize(
    ("write", "transposed"), [(mx, False), (spread, True), (repeated, False), (expanded, True)]
)
def test_ways_to_write_it_are_read_in_relaxed_mode(write: Callable[[Side], Tensor], transposed: bool) -> None:
    """fp8 sums round, so that only the relaxed mode may; against float64, to within the one rounding and float32's."""
    a, b = fp8(2, 5), fp8(16)

    def product(a: Side, b: Side) -> Tensor:
        left, right = write(a), write(b)
        return left @ right.t() if transposed else F.linear(left, right)

    exact, bound = (
        f(mx(a, F32).double()) @ f(mx(b, F32).double()).T for f in (lambda t: t, torch.Tensor.abs)
    )
    result, record, candidate = compiled(product, a, b, scale_placement="relaxed")
    assert candidate.kernel == "flycc::scaled_gemm"
    assert "relaxed: no proof of equal bits" in candidate.placement
    assert not record.scale_guards
    assert ((result - exact).abs() <= exact.abs() * 2**-8 + bound * K * 2**-24).all()
    result, _, candidate = compiled(product, a, b)
    assert candidate.kernel == "flycc::gemm"
    assert "depend on their order" in candidate.placement
    assert (
        same_bits(result, product(a, b))
        or ((result - exact).abs() <= exact.abs() * 2**-8 + bound * K * 2**-24).all()
    )


def table(packed: Tensor) -> Tensor:
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    values = torch.tensor(magnitudes + [-m for m in magnitudes], dtype=BF16)
    return values[torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()]


def bits(packed: Tensor) -> Tensor:
    """As a float32 of the exponent and the bit behind it; 0 and 0.5 have none of their own."""
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).view(*packed.shape[:-1], -1).to(torch.int32)
    magnitude = codes & 7
    wide = ((magnitude << 22) + (126 << 23)).view(F32)
    wide[magnitude == 0] = 0.0
    wide = torch.where(magnitude == 1, 0.5, wide)
    return (wide.view(torch.int32) | (codes & 8) << 28).view(F32).to(BF16)


@pytest.mark.parametrize("unpack", [table, bits])
def test_fp4_unpacked_by_hand(unpack: Callable[[Tensor], Tensor]) -> None:
    a, b = fp4(2, 5), fp4(16)
    bytes_a, bytes_b = (side[0].view(torch.uint8) for side in (a, b))

    def product(a: Tensor, sa: Tensor, b: Tensor, sb: Tensor) -> Tensor:
        left, right = (unpack(x) * s.to(BF16).repeat_interleave(32, -1) for x, s in ((a, sa), (b, sb)))
        return F.linear(left, right)

    result, record, candidate = compiled(product, bytes_a, a[1], bytes_b, b[1])
    assert candidate.kernel == "flycc::scaled_gemm"
    assert [count.held for count in record.scale_guards.values()] == [1]
    assert same_bits(result, F.linear(mx(a), mx(b)))


@pytest.mark.parametrize("other", ["high half first", "another value"])
def test_bytes_that_are_unpacked_to_something_else(other: str) -> None:
    a, b = fp4(5), fp4(16)

    def product(a: Tensor, sa: Tensor, b: Side) -> Tensor:
        packed = (a << 4) | (a >> 4) if other == "high half first" else a
        left = table(packed)
        if other == "another value":
            left = torch.where(left == 6, 8.0, left).to(BF16)
        return F.linear(left * sa.to(BF16).repeat_interleave(32, -1), mx(b))

    bytes_ = a[0].view(torch.uint8)
    result, _, candidate = compiled(product, bytes_, a[1], b)
    # What becomes of the table's values is no product with scales; swapped bytes are bytes, too.
    assert candidate.kernel == ("flycc::gemm" if other == "another value" else "flycc::scaled_gemm")
    assert same_bits(result, product(bytes_, a[1], b))


def test_constants_as_large_as_the_bytes_are_no_unpacking() -> None:
    """Run on all 256 bytes, the operators that meet them raise; the graph is not left to PyTorch for that."""

    def product(packed: Tensor) -> Tensor:
        weights = torch.tensor([1, 2, 4, 8] * 4, dtype=torch.uint8)
        return (packed & weights) + (packed & 15) + (packed >> 4)

    packed = torch.randint(0, 256, (16,), dtype=torch.uint8)
    step = torch.compile(product, backend="flycc", options={"strict": True})
    assert torch.equal(step(packed), product(packed))


def test_scales_that_are_no_blocks_along_k_stay() -> None:
    """One scale for each 32 rows: written alike, but no MFMA's operand."""
    a, b = torch.randn(32, K).to(E4M3), fp8(16)
    column = scales(1, K, low=120, high=130)

    def product(a: Tensor, column: Tensor, b: Side) -> Tensor:
        return F.linear(a.to(BF16) * column.to(BF16), spread(b))

    _, _, candidate = compiled(product, a, column, b, scale_placement="relaxed")
    assert candidate.kernel == "flycc::gemm"
    assert candidate.placement.startswith("as written: a is not row-major")


def test_dynamic_rows_do_not_recompile() -> None:
    b = fp4(16)

    def product(a: Side, b: Side) -> Tensor:
        return F.linear(mx(a), mx(b))

    step = torch.compile(product, backend="flycc")
    with flycc.record.collect() as record:
        for rows in (3, 7, 12):
            a = fp4(2, rows)
            for part in a:
                torch._dynamo.mark_dynamic(part, 1)
            assert same_bits(step(a, b), product(a, b))
    assert len(record.graphs) == 1
    [count] = record.scale_guards.values()
    assert count.held == 3


@pytest.mark.nightly
def test_inductor_takes_both_forms() -> None:
    b = fp4(16)

    def product(a: Side, b: Side) -> Tensor:
        return F.linear(mx(a), mx(b)).abs()

    step = torch.compile(product, backend="flycc", options={"fallback": "inductor"})
    with flycc.record.collect() as record:
        for high in (126, 150):
            a = fp4(5, low=124, high=high)
            step(a, b)
    assert [(count.held, count.failed) for count in record.scale_guards.values()] == [(1, 1)]


def scaled_mm(a: Side, b: Side) -> Tensor:
    return F.scaled_mm(a[0], b[0].t(), a[1], MX, b[1], MX, PLAIN, PLAIN, output_dtype=BF16)


def test_scales_of_rows_leave_the_sum() -> None:
    """Repeated along K in the graph they are one for each row: multiplied with what is summed, behind a guard."""
    (a, _), (b, _) = fp4(5), fp4(16)
    rows, columns = scales(5, 1, low=120, high=130), scales(16, 1, low=120, high=130)

    def repeated(scale: Tensor) -> Tensor:
        return scale.expand(-1, K // 32).contiguous()

    def product(a: Tensor, rows: Tensor, b: Tensor, columns: Tensor) -> Tensor:
        return scaled_mm((a, repeated(rows)), (b, repeated(columns)))

    for holds in (True, False):
        result, record, candidate = compiled(product, a, rows, b, columns)
        exact = mx((a, repeated(rows)), F32) @ mx((b, repeated(columns)), F32).T
        assert candidate.kernel == "flycc::scaled_gemm"
        assert candidate.placement.startswith("hoisted (tree mfma), where 3 <= a <= ")
        assert [count.held for count in record.scale_guards.values()] == [int(holds)]
        assert same_bits(result, exact.to(BF16))
        rows.view(torch.uint8)[2] = 1  # times 2^-126: what is summed may no longer be exact


def test_scales_of_one_are_dropped() -> None:
    (a, _), b = fp4(5), fp4(16)

    def product(a: Tensor, b: Side) -> Tensor:
        return scaled_mm((a, torch.ones(5, K // 32, dtype=E8M0)), b)

    result, record, candidate = compiled(product, a, b)
    assert "e2m1:none x e2m1:block" in candidate.problem
    assert not record.scale_guards
    assert same_bits(result, (mx((a, torch.ones(5, K // 32).to(E8M0)), F32) @ mx(b, F32).T).to(BF16))


def ran(fn: Callable[..., Tensor], *inputs: Any) -> tuple[Tensor, tuple[int, int], set[str]]:
    """The result of the compiled function, how often its guard held and failed, and the products that ran."""
    torch._dynamo.reset()
    step = torch.compile(fn, backend="flycc")
    step(*inputs)
    with flycc.record.collect() as record, profile(activities=[ProfilerActivity.CPU]) as profiled:
        result = step(*inputs)  # compiling would count both forms
    [count] = record.scale_guards.values()
    products = {"flycc::scaled_gemm", "flycc::gemm", "aten::mm"}
    return result, (count.held, count.failed), products & {event.key for event in profiled.key_averages()}


def with_bytes(side: Side, byte: int, columns: int = K // 32) -> Side:
    return side[0], torch.full((*side[1].shape[:-1], columns), byte, dtype=torch.uint8).view(E8M0)


@pytest.mark.parametrize(
    ("dtype", "byte_a", "byte_b", "verdict"),
    [
        (BF16, 127, 127, HELD),
        (BF16, 254, 100, FAILED),  # 6 * 2^127 is infinite, and NaN beside another
        (F16, 140, 114, HELD),
        (F16, 141, 114, FAILED),  # so is 6 * 2^14
        (F16, 140, 113, FAILED),  # half of 2^-14 is subnormal
        (F16, 150, 104, FAILED),
    ],
)
def test_form_that_runs_is_the_one_the_guard_says(
    dtype: torch.dtype, byte_a: int, byte_b: int, verdict: tuple[int, int]
) -> None:
    a, b = with_bytes(fp4(5), byte_a), with_bytes(fp4(16), byte_b)

    def product(a: Side, b: Side) -> Tensor:
        return F.linear(mx(a, dtype), mx(b, dtype))

    result, counts, products = ran(product, a, b)
    assert counts == verdict
    assert products == {"flycc::scaled_gemm" if verdict == HELD else "flycc::gemm"}
    eager = product(a, b)
    assert same_bits(result, eager)
    assert eager.isfinite().all() == (byte_a < 141)


def test_scales_that_pass_a_narrower_type_have_its_bounds() -> None:
    """2^-27 is 0 in float16, whatever the elements are multiplied in."""
    a, b = with_bytes(fp4(5), 100), with_bytes(fp4(16), 127)

    def product(a: Tensor, sa: Tensor, b: Side) -> Tensor:
        return F.linear(table(a) * sa.to(F16).to(BF16).repeat_interleave(32, -1), mx(b))

    result, counts, _ = ran(product, a[0].view(torch.uint8), a[1], b)
    assert counts == FAILED
    assert same_bits(result, product(a[0].view(torch.uint8), a[1], b))


@pytest.mark.parametrize(("byte_a", "byte_b"), [(250, 4), (4, 250)])
def test_scales_of_rows_keep_sums_finite_one_by_one(byte_a: int, byte_b: int) -> None:
    """Their product is 1, but a sum of products with elements alone times 2^123 is infinite."""
    a, b = with_bytes(fp4(5), byte_a, 1), with_bytes(fp4(16), byte_b, 1)

    def product(a: Tensor, sa: Tensor, b: Tensor, sb: Tensor) -> Tensor:
        return F.linear(table(a) * sa.to(BF16), table(b) * sb.to(BF16))

    inputs = a[0].view(torch.uint8), a[1], b[0].view(torch.uint8), b[1]
    result, counts, products = ran(product, *inputs)
    assert (counts, products) == (FAILED, {"flycc::gemm"})
    assert result.isfinite().all()
    assert same_bits(result, product(*inputs))


@pytest.mark.parametrize(("code", "value"), [(1, 0.25), (15, -5.0), (0, float("nan"))])
def test_another_table_is_no_e2m1(code: int, value: float) -> None:
    a, b = fp4(5), fp4(16)
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    entries = magnitudes + [-m for m in magnitudes]
    entries[code] = value

    def product(a: Tensor, sa: Tensor, b: Side) -> Tensor:
        left = torch.tensor(entries, dtype=BF16)[torch.stack((a & 15, a >> 4), -1).flatten(-2).long()]
        return F.linear(left * sa.to(BF16).repeat_interleave(32, -1), mx(b))

    bytes_ = a[0].view(torch.uint8)
    _, record, candidate = compiled(product, bytes_, a[1], b)
    assert candidate.kernel == "flycc::gemm"
    assert not record.scale_guards


NEAR: list[tuple[Callable[[Side], Tensor], str]] = [
    (
        lambda s: s[0].to(BF16) * s[1].to(BF16).repeat(1, 32),
        "a: its scales are not read as one for each block of 32",
    ),
    (lambda s: s[0].to(BF16), "a: no elements times scales"),
]


@pytest.mark.parametrize(("left", "note"), NEAR, ids=["repeat", "one operand"])
def test_near_misses_say_what_they_miss(left: Callable[[Side], Tensor], note: str) -> None:
    def product(a: Side, b: Side) -> Tensor:
        return F.linear(left(a), mx(b))

    record = flycc.explain(product, fp8(5), fp8(16))
    [placement] = [c.placement for graph in record.graphs for c in graph.report.nodes if "mm" in c.target]
    assert placement.startswith(f"as written: {note}"), placement


def test_short_blocks_are_named() -> None:
    def product(a: Side, b: Side) -> Tensor:
        return F.linear(mx(a), mx(b))

    short = [(data[:, :24].contiguous(), scale[:, :2].contiguous()) for data, scale in (fp4(5), fp4(16))]
    record = flycc.explain(product, *short)
    [placement] = [c.placement for graph in record.graphs for c in graph.report.nodes if "mm" in c.target]
    why = "its K is not known to be whole blocks of 32"
    assert placement == f"as written: a: {why}; b: {why}"


def test_scales_of_another_type_are_named() -> None:
    def product(a: Tensor, scale: Tensor, b: Side) -> Tensor:
        return F.linear(a.to(BF16) * scale.to(BF16), mx(b))

    record = flycc.explain(product, fp8(5)[0], torch.ones(5, 1), fp8(16))
    [placement] = [c.placement for graph in record.graphs for c in graph.report.nodes if "mm" in c.target]
    assert placement == "as written: a: its scales are f32; E8M0 is accepted"
