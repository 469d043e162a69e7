"""Triton's kernels run unmodified: results against float64, the same in every wave order."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
from harness import SEED
from pairs import pairwise

pytest.importorskip("triton", reason="Triton, which compiles the kernels of this test, is not installed")

import triton_kernels as kernels

DTYPES = {
    "fp64": np.float64,
    "fp32": np.float32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e5": ml_dtypes.float8_e5m2,
    "i8": np.int8,
    "i32": np.int32,
    "i64": np.int64,
}
#: Half an ulp of 1 in each format.
HALF_ULP = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
ORDERS = ("reverse", ("random", SEED))
FLOATS = ("fp32", "fp16", "bf16")
i32, f32 = np.int32, np.float32


def in_every_order(launch: Callable[..., object], *outputs: np.ndarray) -> None:
    """Launch once a wave order; `outputs` (written by the kernel) must come out bit for bit the same."""
    initial = [out.copy() for out in outputs]
    launch(wave_order="lockstep")
    first = [out.copy() for out in outputs]
    for order in ORDERS:
        for out, start in zip(outputs, initial, strict=True):
            out[...] = start
        launch(wave_order=order)
        for out, wanted in zip(outputs, first, strict=True):
            assert out.tobytes() == wanted.tobytes(), f"{order} differs from lockstep, seed {SEED}"


def wide(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float64))


def within(got: np.ndarray, exact: torch.Tensor, bound: np.ndarray | float) -> None:
    error = np.abs(got.astype(np.float64) - exact.numpy())
    assert (error <= bound).all(), f"{(error - bound).max()} beyond the bound, seed {SEED}"


@pytest.mark.parametrize("kind", FLOATS)
def test_add(kind: str) -> None:
    rng = np.random.default_rng(SEED)
    kernel = kernels.build(
        kernels.add_vectors, {"x": f"*{kind}", "y": f"*{kind}", "out": f"*{kind}", "n": "i32"}, BLOCK=512
    )
    x, y = (rng.standard_normal(1300).astype(DTYPES[kind]) for _ in range(2))
    out = np.full_like(x, 7)
    in_every_order(lambda **o: kernel.launch((3,), x, y, out, i32(1299), **o), out)
    np.testing.assert_array_equal(out[:1299], (x + y)[:1299])
    assert out[1299] == 7


@pytest.mark.parametrize("kind", FLOATS)
def test_softmax(kind: str) -> None:
    rng = np.random.default_rng(SEED)
    kernel = kernels.build(
        kernels.softmax_rows,
        {"x": f"*{kind}", "out": f"*{kind}", "columns": "i32", "stride": "i32"},
        BLOCK=1024,
    )
    x = rng.standard_normal((3, 777)).astype(DTYPES[kind])
    out = np.zeros_like(x)
    in_every_order(lambda **o: kernel.launch((3,), x, out, i32(777), i32(777), **o), out)
    exact = torch.softmax(wide(x), 1)
    # exp2(x log2 e) with |x log2 e| < 16: 16 ulp of its argument and one of its own; a sum of 1024 in a tree
    # of ten levels; a division of 2.5 ulp. Then the rounding of the output, of a denormal at most 2^-25.
    bound = exact.numpy() * ((2 * 17 + 10 + 5) * 2.0**-24 + HALF_ULP[kind]) + 2.0**-25 * (kind == "fp16")
    within(out, exact, bound)


@pytest.mark.parametrize("kind", FLOATS)
def test_layer_norm(kind: str) -> None:
    rng = np.random.default_rng(SEED)
    names = {
        "x": f"*{kind}",
        "weight": f"*{kind}",
        "bias": f"*{kind}",
        "out": f"*{kind}",
        "columns": "i32",
        "epsilon": "fp32",
    }
    kernel = kernels.build(kernels.layer_norm_rows, names, BLOCK=1024)
    x = rng.standard_normal((3, 777)).astype(DTYPES[kind])
    weight, bias = (rng.standard_normal(777).astype(DTYPES[kind]) for _ in range(2))
    out = np.zeros_like(x)
    in_every_order(lambda **o: kernel.launch((3,), x, weight, bias, out, i32(777), f32(1e-5), **o), out)
    exact = torch.nn.functional.layer_norm(wide(x), (777,), wide(weight), wide(bias))
    size = np.abs(wide(weight).numpy()) * (np.abs(x.astype(np.float64)) + 1) * 1.2 + np.abs(
        bias.astype(np.float64)
    )
    # About 30 roundings of float32 on the way, each relative to the terms; then the output's.
    within(out, exact, size * 32 * 2.0**-24 + np.abs(exact.numpy()) * HALF_ULP[kind] * 1.01)


@pytest.mark.parametrize("kind", FLOATS)
def test_rms_norm(kind: str) -> None:
    rng = np.random.default_rng(SEED)
    names = {"x": f"*{kind}", "weight": f"*{kind}", "out": f"*{kind}", "columns": "i32", "epsilon": "fp32"}
    kernel = kernels.build(kernels.rms_norm_rows, names, BLOCK=1024)
    x, weight = (rng.standard_normal(shape).astype(DTYPES[kind]) for shape in ((3, 777), (777,)))
    out = np.zeros_like(x)
    in_every_order(lambda **o: kernel.launch((3,), x, weight, out, i32(777), f32(1e-5), **o), out)
    exact = torch.nn.functional.rms_norm(wide(x), (777,), wide(weight), 1e-5)
    within(out, exact, np.abs(exact.numpy()) * (24 * 2.0**-24 + HALF_ULP[kind]) + 2.0**-25 * (kind == "fp16"))


@pytest.mark.parametrize("block", [(64, 64, 64), (16, 16, 128)], ids=str)
@pytest.mark.parametrize(
    ("kind", "result"),
    [
        ("fp16", "fp32"),
        ("bf16", "bf16"),
        ("fp8e4nv", "fp32"),
        ("fp8e5", "fp32"),
        ("fp32", "fp32"),
        ("i8", "i32"),
    ],
)
def test_matrix_product(kind: str, result: str, block: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(SEED)
    bm, bn, bk = block if kind != "fp32" else (32, 32, 32)
    names = {"a": f"*{kind}", "b": f"*{kind}", "c": f"*{result}", "m": "i32", "n": "i32", "k": "i32"}
    kernel = kernels.build(kernels.multiply_matrices, names, BM=bm, BN=bn, BK=bk)
    m, n, k = 70, 90, 256
    a, b = ((rng.standard_normal(shape) * 4).astype(DTYPES[kind]) for shape in ((m, k), (k, n)))
    c = np.zeros((m, n), DTYPES[result])
    grid = (-(-m // bm), -(-n // bn))
    in_every_order(lambda **o: kernel.launch(grid, a, b, c, i32(m), i32(n), i32(k), **o), c)
    exact = wide(a) @ wide(b)
    if kind == "i8":
        np.testing.assert_array_equal(c, exact.numpy())
        return
    size = (wide(a).abs() @ wide(b).abs()).numpy()
    within(
        c, exact, (k + 1) * 2.0**-24 * size + np.abs(exact.numpy()) * HALF_ULP[result] * (result != "fp32")
    )


SCALED = {"e4m3": "fp8e4nv", "e5m2": "fp8e5", "e2m1": "u8"}


def scaled_operand(rng: np.random.Generator, form: str, rows: int, k: int):
    """(stored elements, E8M0 scales, the numbers they stand for)."""
    scales = rng.integers(117, 137, (rows, k // 32)).astype(np.uint8)
    if form == "e2m1":
        codes = rng.integers(0, 16, (rows, k)).astype(np.uint8)
        stored, values = codes[:, 0::2] | codes[:, 1::2] << 4, codes.view(ml_dtypes.float4_e2m1fn)
    else:
        stored = values = rng.standard_normal((rows, k)).astype(DTYPES[SCALED[form]])
    powers = np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=1)
    return stored, scales, torch.from_numpy(values.astype(np.float64) * powers)


@pytest.mark.parametrize("block", [(64, 64, 128), (16, 16, 256)], ids=str)
@pytest.mark.parametrize("b_form", SCALED)
@pytest.mark.parametrize("a_form", SCALED)
def test_scaled_product(a_form: str, b_form: str, block: tuple[int, int, int]) -> None:
    """The layouts of mixed formats and of their scales, as Triton knows them."""
    rng = np.random.default_rng(SEED)
    bm, bn, bk = block
    names = {
        "a": f"*{SCALED[a_form]}",
        "a_scale": "*u8",
        "b": f"*{SCALED[b_form]}",
        "b_scale": "*u8",
        "c": "*fp32",
        "m": "i32",
        "n": "i32",
        "k": "i32",
    }
    kernel = kernels.build(
        kernels.multiply_scaled, names, A_FORMAT=a_form, B_FORMAT=b_form, BM=bm, BN=bn, BK=bk
    )
    assert any("mfma_scale" in i.name for i in instructions(kernel))
    m, n, k = 64, 64, 512
    (a, a_scale, a_wide), (b, b_scale, b_wide) = (scaled_operand(rng, f, 64, k) for f in (a_form, b_form))
    c = np.zeros((m, n), np.float32)
    args = (a, a_scale, b, b_scale, c, i32(m), i32(n), i32(k))
    in_every_order(lambda **o: kernel.launch((m // bm, n // bn), *args, **o), c)
    within(c, a_wide @ b_wide.T, (k + 1) * 2.0**-24 * (a_wide.abs() @ b_wide.abs().T).numpy())


def instructions(kernel: kernels.Loaded):
    from flycc.emulator.isa.decode import decode_range

    descriptor = kernel.module.kernels[kernel.name].descriptor
    code = next(s for s in kernel.module.code.segments if s.executable)
    start = descriptor.entry - code.address
    return decode_range(code.data[start : start + descriptor.code_size], descriptor.entry)


def test_orders_of_sums_differ_within_the_bound() -> None:
    rng = np.random.default_rng(SEED)
    names = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"}
    kernel = kernels.build(kernels.multiply_matrices, names, BM=16, BN=16, BK=32)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((16, 32), (32, 16)))
    exact = wide(a) @ wide(b)
    results = {}
    for order in ("fast", "sequential", "exact"):
        c = results[order] = np.zeros((16, 16), f32)
        kernel.launch((1, 1), a, b, c, i32(16), i32(16), i32(32), mfma_order=order)
        within(c, exact, 33 * 2.0**-24 * (wide(a).abs() @ wide(b).abs()).numpy())
    # One instruction's K is the whole depth here, so its exact sum is the product rounded once.
    np.testing.assert_array_equal(results["exact"], exact.numpy().astype(f32))
    assert (results["sequential"] != results["exact"]).any()
    with pytest.raises(ValueError, match="mfma_order"):
        kernel.launch((1, 1), a, b, c, i32(16), i32(16), i32(32), mfma_order="random")


@pytest.mark.parametrize(("kind", "causal", "depth"), pairwise(["fp16", "bf16"], [False, True], [64, 128]))
def test_attention(kind: str, causal: bool, depth: int) -> None:
    rng = np.random.default_rng(SEED)
    names = {
        "q": f"*{kind}",
        "k": f"*{kind}",
        "v": f"*{kind}",
        "out": f"*{kind}",
        "length": "i32",
        "scale": "fp32",
    }
    kernel = kernels.build(kernels.attend, names, D=depth, BM=64, BN=64, CAUSAL=causal)
    heads, length = 2, 128
    q, k, v = (rng.standard_normal((heads, length, depth)).astype(DTYPES[kind]) for _ in range(3))
    out = np.zeros_like(q)
    args = (q, k, v, out, i32(length), f32(depth**-0.5))
    in_every_order(lambda **o: kernel.launch((length // 64, heads), *args, **o), out)
    tensors = [wide(x)[None] for x in (q, k, v)]
    exact = torch.nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal)[0]
    weights = torch.nn.functional.scaled_dot_product_attention(
        *tensors[:2], tensors[2].abs(), is_causal=causal
    )[0]
    # The weights are rounded to the input's format before they multiply |v|, the output once more; the
    # float32 steps in between are smaller by far (they get a fourth of it).
    within(out, exact, 1.25 * HALF_ULP[kind] * (weights.numpy() + np.abs(exact.numpy())))


def test_atomics() -> None:
    rng = np.random.default_rng(SEED)
    names = {"x": "*i32", "counts": "*i32", "extremes": "*i32", "total": "*fp32", "n": "i32"}
    kernel = kernels.build(kernels.histogram_and_extremes, names, BLOCK=256)
    x = rng.integers(0, 16, 1000).astype(i32)
    counts, extremes, total = np.zeros(16, i32), np.array([99, -99], i32), np.zeros(1, f32)
    args = (x, counts, extremes, total, i32(1000))
    in_every_order(lambda **o: kernel.launch((4,), *args, **o), counts, extremes, total)
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=16))
    # Lanes past the end hold 0 and are masked off the extremes.
    assert extremes.tolist() == [x.min(), x.max()]
    assert total[0] == x.sum()


def test_compare_and_swap() -> None:
    kernel = kernels.build(kernels.claim_once, {"slots": "*i32", "winners": "*i32"}, SLOTS=8)
    slots, winners = np.zeros(8, i32), np.zeros(1, i32)
    kernel.launch((50,), slots, winners)
    assert winners[0] == 8
    assert ((slots - 1) % 8 == np.arange(8)).all()


@pytest.mark.parametrize("kind", ["fp32", "fp16", "i32"])
def test_argmax_and_sort(kind: str) -> None:
    rng = np.random.default_rng(SEED)
    names = {"x": f"*{kind}", "where": "*i32", "ordered": f"*{kind}"}
    kernel = kernels.build(kernels.argmax_and_sort_rows, names, COLUMNS=256)
    x = (rng.standard_normal((3, 256)) * 1000).astype(DTYPES[kind])
    where, ordered = np.zeros(3, i32), np.zeros_like(x)
    in_every_order(lambda **o: kernel.launch((3,), x, where, ordered, **o), where, ordered)
    np.testing.assert_array_equal(where, x.argmax(axis=1))
    np.testing.assert_array_equal(ordered, np.sort(x, axis=1))


@pytest.mark.parametrize("kind", ["fp32", "i32"])
def test_scans(kind: str) -> None:
    rng = np.random.default_rng(SEED)
    kernel = kernels.build(
        kernels.scan_rows, {"x": f"*{kind}", "sums": f"*{kind}", "products": f"*{kind}"}, COLUMNS=512
    )
    x = (rng.choice([-1, 1], (2, 512)) * (1 if kind == "i32" else 1 + rng.random((2, 512)) / 100)).astype(
        DTYPES[kind]
    )
    sums, products = np.zeros_like(x), np.zeros_like(x)
    in_every_order(lambda **o: kernel.launch((2,), x, sums, products, **o), sums, products)
    exact = [torch.from_numpy(f(x.astype(np.float64), axis=1)) for f in (np.cumsum, np.cumprod)]
    within(
        sums, exact[0], 512 * 2.0**-24 * np.cumsum(np.abs(x.astype(np.float64)), axis=1) * (kind == "fp32")
    )
    within(products, exact[1], 512 * 2.0**-23 * np.abs(exact[1].numpy()) * (kind == "fp32"))


def philox(counter: int, seed: int, rounds: int = 10) -> int:
    """The first word of Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3")."""
    c, k = [counter & 0xFFFFFFFF, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(rounds):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ k[0], second & 0xFFFFFFFF, first >> 32 ^ c[3] ^ k[1], first & 0xFFFFFFFF]
        k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c[0]


def test_philox() -> None:
    kernel = kernels.build(kernels.random_words, {"out": "*i32", "seed": "i32"}, BLOCK=256)
    out = np.zeros(512, i32)
    in_every_order(lambda **o: kernel.launch((2,), out, i32(1234), **o), out)
    np.testing.assert_array_equal(out.view(np.uint32), [philox(i, 1234) for i in range(512)])


def test_dropout() -> None:
    kernel = kernels.build(
        kernels.dropout, {"x": "*fp32", "out": "*fp32", "n": "i32", "keep": "fp32", "seed": "i32"}, BLOCK=512
    )
    x, out = np.ones(1000, f32), np.full(1000, 7, f32)
    in_every_order(lambda **o: kernel.launch((2,), x, out, i32(1000), f32(0.75), i32(SEED % 1000), **o), out)
    words = np.array([philox(i, SEED % 1000) for i in range(1000)], np.uint32).view(i32)
    # Triton folds a signed word to 31 bits and scales it to [0, 1).
    uniform = np.where(words < 0, ~words, words).astype(f32) * f32(4.6566127342e-10)
    np.testing.assert_allclose(out, np.where(uniform < f32(0.75), 1 / 0.75, 0), rtol=2.0**-23)


EIGHT_BITS = ("fp8e4nv", "fp8e5")
CASTS = [
    (source, target)
    for source in (*FLOATS, *EIGHT_BITS)
    for target in (*FLOATS, *EIGHT_BITS)
    if source != target and not {source, target} <= set(EIGHT_BITS)
]


@pytest.mark.parametrize(("source", "target"), CASTS)
def test_casts_are_exact(source: str, target: str) -> None:
    """Rounded to nearest even; overflows to fp8 give the largest number, as Triton sets the mode for."""
    rng = np.random.default_rng(SEED)
    kernel = kernels.build(kernels.convert, {"x": f"*{source}", "out": f"*{target}", "n": "i32"}, BLOCK=512)
    x = (rng.standard_normal(700) * 2.0 ** rng.integers(-12, 12, 700)).astype(DTYPES[source])
    x[:4] = [0, -0.0, 1, -1]
    out = np.zeros(700, DTYPES[target])
    kernel.launch((2,), x, out, i32(700))
    values = x.astype(np.float32)
    if target.startswith("fp8"):
        largest = float(ml_dtypes.finfo(DTYPES[target]).max)
        values = np.clip(values, -largest, largest)
    with np.errstate(over="ignore"):
        expected = values.astype(DTYPES[target])
    code = f"u{out.itemsize}"
    same = (out.view(code) == expected.view(code)) | (np.isnan(values) & np.isnan(out.astype(np.float32)))
    assert same.all(), f"{x[~same][:4]} gave {out[~same][:4]}, expected {expected[~same][:4]}, seed {SEED}"


def test_elementary_functions() -> None:
    rng = np.random.default_rng(SEED)
    kernel = kernels.build(kernels.elementary, {"x": "*fp32", "out": "*fp32", "n": "i32"}, BLOCK=256)
    n = 500
    x = (rng.standard_normal(n) * 10).astype(f32)
    out = np.zeros((10, n), f32)
    in_every_order(lambda **o: kernel.launch((2,), x, out, i32(n), **o), out)
    d = wide(x)
    #: (exact, ulps): those of Triton's expansions and of the hardware's v_exp and v_log, 1 ulp each; an
    #: exponential also has the error of its argument x log2 e, |x| < 64 times half an ulp.
    cases = [
        (d.exp(), 64),
        (d.abs().log(), 4),
        (d.sin(), 4),
        (d.cos(), 4),
        (d.abs().sqrt(), 2),
        (torch.erf(d), 4),
        (d.sigmoid(), 68),
        (d.floor(), 0),
        (1 / d, 0.5),
        (d.abs().sqrt(), 0.5),
    ]
    for got, (exact, ulps) in zip(out, cases, strict=True):
        # Near a zero of log, sin or cos the error is relative to the argument's own, 2^-24.
        size = np.maximum(np.abs(exact.numpy()), 2.0**-6)
        within(got, exact, 1.001 * ulps * 2.0**-23 * size)


@pytest.mark.parametrize("kind", ["i8", "i32", "i64"])
def test_integer_division(kind: str) -> None:
    rng = np.random.default_rng(SEED)
    names = {"a": f"*{kind}", "b": f"*{kind}", "quotient": f"*{kind}", "remainder": f"*{kind}", "n": "i32"}
    kernel = kernels.build(kernels.divide_integers, names, BLOCK=256)
    info = np.iinfo(DTYPES[kind])
    a = rng.integers(info.min, info.max, 300).astype(DTYPES[kind])
    b = np.maximum(rng.integers(1, info.max, 300) >> rng.integers(0, info.bits - 2, 300), 1).astype(
        DTYPES[kind]
    )
    quotient, remainder = np.zeros_like(a), np.zeros_like(a)
    in_every_order(
        lambda **o: kernel.launch((2,), a, b, quotient, remainder, i32(300), **o), quotient, remainder
    )
    expected = [
        abs(int(x)) // int(y) * (1 if x >= 0 else -1) for x, y in zip(a, b, strict=True)
    ]  # toward zero
    assert quotient.tolist() == expected
    assert remainder.tolist() == [int(x) - q * int(y) for x, y, q in zip(a, b, expected, strict=True)]
