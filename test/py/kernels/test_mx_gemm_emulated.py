"""MX products on the emulated gfx950 against float64 of the dequantised operands.

Bounds. Products of two elements and their scales are exact in float32 (at most 8 significant bits) as long as they are
normal numbers; the emulator's MFMA sums 128 of them in float64 and rounds once. Whatever the order, K terms go through
at most K roundings, so a sum is off by at most g = K u / (1 - K u), u = 2^-24, of the sum of magnitudes (Higham,
Accuracy and Stability of Numerical Algorithms, section 4.2); row scales round it twice more, and the result once.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import emulated_mx_gemm
import numpy as np
import pytest
from emulated_gemm import Stored, half_ulp
from emulated_mx_gemm import ELEMENTS, Mx, Side, decoded, reference, relative_rms, rounded

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import Epilogue
from flycc.contracts.gemm import Activation
from flycc.contracts.scaled_gemm import ElementFormat, ScaledGemmProblem, ScaleKind
from flycc.kernels import mx
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.mx import MxConfig, pack

CONFIGS = {
    "direct": GemmConfig(16, 16, 128, waves_k=4, staged=False),
    "direct blocks": GemmConfig(32, 64, 64, waves_k=2, staged=False),
    "direct split": GemmConfig(32, 32, 64, waves_k=2, staged=False, splits=3),
    "direct square": GemmConfig(64, 64, 64, waves_k=4, staged=False, splits=2),
    "staged": GemmConfig(64, 64, 64, 2, 2),
    "ring": GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3),
    "ring split": GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3, splits=3),
    "staggered": GemmConfig(256, 128, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered"),
}
#: Serves elements of 8 bits with packed scales.
LARGEST = GemmConfig(384, 256, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered")
#: 32 and 160 end within an MFMA, 40 within a block; the last has many steps, and scales of 4 bytes a row in part.
SIZES_K = (32, 40, 96, 160, 512, 1440, 8192)
FORMATS: tuple[ElementFormat, ...] = ("e4m3", "e5m2", "e2m1")
KINDS: tuple[ScaleKind, ...] = ("none", "block", "row", "row_f32")
QUICK = {("none", "none"), ("row", "block"), ("row_f32", "row")}

seed = int(os.environ["FLYCC_TEST_SEED"])


def codes_of(rng: np.random.Generator, element: ElementFormat, rows: int, k: int) -> np.ndarray:
    """Finite elements, of all codes."""
    every = np.arange(16 if element == "e2m1" else 256, dtype=np.uint8)
    return rng.choice(every[np.isfinite(decoded(element, every))], (rows, k))


def side(
    rng: np.random.Generator,
    element: ElementFormat,
    rows: int,
    k: int,
    kind: ScaleKind = "block",
    scales: tuple[int, int] = (100, 155),
    **placed: int,
) -> Side:
    """Random elements, and random scales whose bytes lie in a range."""
    shape: tuple[int, ...] = (rows, -(-k // 32)) if kind == "block" else (rows,)
    found = rng.integers(*scales, shape).astype(np.uint8)
    if kind == "row_f32":
        found = rng.standard_normal(rows).astype(np.float32)
    return Side(element, codes_of(rng, element, rows, k), kind, found, **placed)


def check(case: Mx, config: GemmConfig, packed: bool = False, **how: object) -> np.ndarray:
    result = case.run(MxConfig(config, packed), **how)  # type: ignore[arg-type]
    assert not result.findings
    exact, magnitude = reference(case)
    u = 2.0**-24
    error = (case.sizes[2] * u / (1 - case.sizes[2] * u) + 2 * u) * magnitude
    if case.bias is not None:
        exact = exact + rounded(case.bias, case.dtype)
        error = error + u * (abs(exact) + error)
    assert (abs(result.out - exact) <= error + half_ulp(abs(exact) + error, case.dtype)).all()
    return result.out


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("count", [1, pytest.param(len(SIZES_K), marks=pytest.mark.nightly)])
def test_sizes(name: str, count: int) -> None:
    """K takes `count` of the sizes with each size of elements, rows any number, results all types."""
    rng = np.random.default_rng([seed, *map(ord, name)])
    for element in ("e4m3", "e2m1"):
        served = [
            k for k in SIZES_K if k != 40 or not CONFIGS[name].ring
        ]  # rings take whole chunks of 16 bytes
        for k in rng.permutation(served)[:count].tolist():
            m, n = (int(size) for size in rng.integers(1, 66, 2))
            operands = side(rng, element, m, k), side(rng, element, n, k)
            case = Mx(*operands, rng.choice(["bf16", "f16", "f32"]), out_padding=int(rng.integers(0, 3)))
            if case.dtype == "f16":  # of small numbers, so that results are finite
                operands = (
                    side(rng, element, m, k, scales=(110, 120)),
                    side(rng, element, n, k, scales=(110, 120)),
                )
                case = replace(case, a=operands[0], b=operands[1])
            check(case, CONFIGS[name])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("e4m3", "e2m1"),
        ("e2m1", "e5m2"),
        *(
            pytest.param(*pair, marks=pytest.mark.nightly)
            for pair in (("e5m2", "e4m3"), ("e4m3", "e5m2"), ("e2m1", "e4m3"), ("e5m2", "e2m1"))
        ),
    ],
)
def test_formats_mix(first: ElementFormat, second: ElementFormat) -> None:
    """The kernel that is chosen, and K that ends within a block."""
    rng = np.random.default_rng([seed, *map(ord, first + second)])
    case = Mx(side(rng, first, 19, 1160), side(rng, second, 35, 1160))
    config = mx.choose(case.problem(Stored(np.zeros((1, 19, 35)), "bf16")))
    assert isinstance(config, MxConfig)
    check(case, config.tile)


@pytest.mark.parametrize(
    ("kind_a", "kind_b"),
    [
        pair if pair in QUICK else pytest.param(*pair, marks=pytest.mark.nightly)
        for pair in itertools.product(KINDS, KINDS)
    ],
)
def test_kinds_of_scales(kind_a: ScaleKind, kind_b: ScaleKind) -> None:
    rng = np.random.default_rng([seed, *map(ord, kind_a + kind_b)])
    element = FORMATS[rng.integers(3)]
    check(Mx(side(rng, element, 35, 768, kind_a), side(rng, element, 19, 768, kind_b)), CONFIGS["ring"])


@pytest.mark.parametrize("element", FORMATS)
def test_relative_rms(element: ElementFormat) -> None:
    """Normal numbers that are quantised as the OCP rule does it: bf16 results are off by 0.002 at most."""
    rng = np.random.default_rng([seed, *map(ord, element)])
    case = Mx(quantised(rng, element, 40, 1024), quantised(rng, element, 24, 1024))
    assert relative_rms(case.run(MxConfig(CONFIGS["direct"])).out, reference(case)[0]) <= 0.002


def quantised(rng: np.random.Generator, element: ElementFormat, rows: int, k: int) -> Side:
    values = rng.standard_normal((rows, k // 32, 32))
    largest = float(np.nanmax(decoded(element, codes_of(rng, element, 64, 64))))
    exponents = np.floor(np.log2(abs(values).max(2))) - np.floor(np.log2(largest))
    scaled = np.clip(np.ldexp(values, -exponents.astype(np.int64)[..., None]), -largest, largest)
    codes = scaled.astype(np.float32).astype(ELEMENTS[element]).view(np.uint8).reshape(rows, k)
    return Side(element, codes, "block", (exponents + 127).astype(np.uint8))


#: Ways of scales: byte by byte, in dwords of which lanes take a byte, packed in dwords of which MFMAs do.
WAYS = {
    "bytes": (MxConfig(CONFIGS["direct blocks"]), 160),
    "dwords": (MxConfig(CONFIGS["direct blocks"]), 1024),
    "dwords, ring": (MxConfig(CONFIGS["ring"]), 640),
    "packed": (MxConfig(CONFIGS["ring"], packed=True), 160),
}


@pytest.mark.parametrize("way", WAYS)
def test_scales_of_all_bytes(way: str) -> None:
    """Bytes of 0 to 254, so that sums overflow, vanish or both.

    float32 ends at 2^128 and has multiples of 2^-149: each of K roundings may be off by half of that, too.
    """
    rng = np.random.default_rng([seed, *map(ord, way)])
    config, k = WAYS[way]
    element = FORMATS[rng.integers(3)]
    case = Mx(side(rng, element, 35, k, scales=(0, 255)), side(rng, element, 19, k, scales=(0, 255)), "f32")
    out = case.run(config).out
    exact, magnitude = reference(case)
    error = k * 2.0**-24 * magnitude + k * 2.0**-149
    surely = abs(exact) + error < 2.0**127
    assert (abs(out - exact)[surely & np.isfinite(out)] <= error[surely & np.isfinite(out)]).all()
    within = magnitude < 2.0**127  # no order of additions leaves the range
    assert np.isfinite(out[within]).all()
    assert not np.isfinite(out[abs(exact) - error >= 2.0**128]).any()


@pytest.mark.parametrize("way", WAYS)
def test_a_byte_of_255_makes_its_row_nan(way: str) -> None:
    """Also where all elements of its block are zero, and only there: neighbours' bytes, and those that lie behind K, do
    nothing."""
    rng = np.random.default_rng([seed, *map(ord, way)])
    config, k = WAYS[way]
    a, b = side(rng, "e4m3", 35, k), side(rng, "e4m3", 19, k)
    rows, columns = rng.choice(35, 3, replace=False), rng.choice(19, 2, replace=False)
    for operand, lines in ((a, rows), (b, columns)):
        scales = operand.scales.copy()
        for line in lines:
            block = rng.integers(scales.shape[1])
            scales[line, block] = 255
            operand.codes[line, 32 * block : 32 * block + 32] = 0
        scales[lines[0]] = 255
        operand.scales = scales
        operand.__post_init__()
    out = Mx(a, b, "f32").run(config).out
    expected = np.zeros((35, 19), bool)
    expected[rows], expected[:, columns] = True, True
    assert (np.isnan(out) == expected).all()


@pytest.mark.parametrize("way", WAYS)
def test_zero_blocks_are_zero_whatever_their_scales(way: str) -> None:
    rng = np.random.default_rng([seed, *map(ord, way)])
    config, k = WAYS[way]
    a, b = side(rng, "e2m1", 33, k, scales=(0, 255)), side(rng, "e2m1", 17, k, scales=(0, 127))
    a = replace(a, codes=np.zeros_like(a.codes))
    assert not Mx(a, b, "f32").run(config).out.any()


@pytest.mark.parametrize(("first", "second"), [("e4m3", "e4m3"), ("e2m1", "e2m1"), ("e2m1", "e5m2")])
def test_one_block_is_exact(first: ElementFormat, second: ElementFormat) -> None:
    """A dot of 32 products of one scale, rounded once to float32, is what the documented accumulation gives."""
    rng = np.random.default_rng([seed, *map(ord, first + second)])
    case = Mx(side(rng, first, 33, 32), side(rng, second, 18, 32), "f32")
    assert (case.run(MxConfig(CONFIGS["direct blocks"])).out == rounded(reference(case)[0], "f32")).all()


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("direct split", False),
        ("ring", False),
        ("staggered", True),
        *(
            pytest.param(name, packed, marks=pytest.mark.nightly)
            for name, packed in (("ring split", False), ("ring split", True), ("staggered", False))
        ),
    ],
)
def test_wave_order_does_not_matter_and_sanitizers_are_quiet(name: str, packed: bool) -> None:
    rng = np.random.default_rng([seed, *map(ord, name)])
    config = MxConfig(CONFIGS[name], packed)
    element: ElementFormat = rng.choice(["e4m3", "e2m1"])
    case = Mx(side(rng, element, 70, 1184, misalign=0), side(rng, element, 90, 1184), "f32")
    results = [case.run(config, order, sanitize="all") for order in ("lockstep", "serial", int(seed % 100))]
    assert not any(result.findings for result in results)
    assert all((result.stored.buffer == results[0].stored.buffer).all() for result in results[1:])


def test_a_turn_of_half_of_a_parts_rows() -> None:
    """The largest tiles, of elements of 8 bits: in any order of waves the same, with nothing to report."""
    rng = np.random.default_rng([seed])
    case = Mx(side(rng, "e4m3", 330, 416), side(rng, "e5m2", 250, 416))
    results = [
        check(case, LARGEST, packed=True, wave_order=order, sanitize="all")
        for order in ("serial", int(seed % 100))
    ]
    assert (results[0] == results[1]).all()


@pytest.mark.nightly
@pytest.mark.parametrize("activation", ["none", "relu", "silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("more", ["bias", "pre", "f32", "bias f32", "bias pre"])
def test_the_largest_tiles_spill_nothing(activation: Activation, more: str) -> None:
    """Whatever else is taken beside their sums."""
    epilogue = Epilogue(
        activation=activation,
        preactivation="pre" in more,
        out_dtype="f32" if "f32" in more else None,
    )
    sizes, bias = (384, 256, 4096), "bias" in more
    problem = ScaledGemmProblem("e4m3", "e5m2", "bf16", *sizes, bias=bias, align_bias=16, epilogue=epilogue)
    compiled = compile_kernel(mx.kernel(problem, MxConfig(LARGEST, packed=True)))
    found = emulator.load(compiled.elf).kernels[compiled.symbol].descriptor
    assert (found.spilled_vgprs, found.scratch_bytes) == (0, 0)


def test_epilogue() -> None:
    """A bias, relu and a residual, in that order, in results of float32."""
    rng = np.random.default_rng([seed])
    case = Mx(
        side(rng, "e2m1", 37, 256, scales=(125, 130)),
        side(rng, "e4m3", 40, 256, "row", scales=(125, 130)),
        "bf16",
        bias=100 * rng.standard_normal(40),
        residual=100 * rng.standard_normal((37, 40)),
        epilogue=Epilogue(activation="relu", residual=True, out_dtype="f32"),
    )
    assert case.bias is not None
    assert case.residual is not None
    sums, magnitude = reference(case)
    exact = np.maximum(sums + rounded(case.bias, "bf16"), 0) + rounded(case.residual, "bf16")
    error = 259 * 2.0**-24 * (magnitude + abs(case.bias) + abs(case.residual))
    assert (abs(case.run(MxConfig(CONFIGS["direct blocks"])).out - exact) <= error).all()


@pytest.mark.parametrize(
    ("rows", "k", "formats", "align"),
    [((130, 70), 1536, "e2m1 e2m1", 16), ((70, 3), 1056, "e4m3 e5m2", 1), ((3, 200), 9600, "e2m1 e5m2", 4)],
)
def test_packing(rows: tuple[int, int], k: int, formats: str, align: int) -> None:
    rng = np.random.default_rng([seed, *rows])
    first, second = formats.split()
    aligned = {"align_scale_a": align, "align_scale_b": align}
    problem = ScaledGemmProblem(first, second, "bf16", *rows, k, **aligned)  # type: ignore[arg-type]
    packing, memory = mx.Packing.of(problem), emulator.Memory()
    scales = [rng.integers(0, 256, (count, packing.blocks)).astype(np.uint8) for count in rows]
    found = [np.full(packing.bytes(operand), 9, np.uint8) for operand in "ab"]
    pointers = {
        name: memory.register(array.reshape(-1), writable="packed" in name)
        for name, array in zip(("scale_a", "scale_b", "packed_a", "packed_b"), (*scales, *found), strict=True)
    }
    compiled, geometry = compile_kernel(pack.kernel(packing)), pack.launch(packing)
    kernel = emulator.load(compiled.elf).kernels[compiled.symbol]
    kernarg = compiled.kernarg.pack({**pointers, **packing.numbers})
    emulator.launch(kernel, geometry.grid, geometry.block, kernarg, memory)
    for given, packed in zip(scales, found, strict=True):
        assert (packed == emulated_mx_gemm.packed(given, packing)).all()
