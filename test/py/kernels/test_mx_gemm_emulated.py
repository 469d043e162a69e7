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

import numpy as np
import pytest
from emulated_gemm import half_ulp
from emulated_mx_gemm import ELEMENTS, Mx, Side, decoded, reference, relative_rms, rounded

from flycc.contracts.scaled_gemm import ElementFormat, ScaleKind
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.mx import MxConfig

CONFIGS = {
    "direct": GemmConfig(16, 16, 128, waves_k=4, staged=False),
    "direct blocks": GemmConfig(32, 64, 64, waves_k=2, staged=False),
    "direct split": GemmConfig(32, 32, 64, waves_k=2, staged=False, splits=3),
    "staged": GemmConfig(64, 64, 64, 2, 2),
    "ring": GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3),
    "ring split": GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3, splits=3),
    "staggered": GemmConfig(256, 128, 64, 2, 4, stages_m=2, stages_n=2, schedule="staggered"),
}
#: 32 and 160 end within an MFMA, 40 within a block; the last has many steps, and scales of 4 bytes a row in part.
SIZES_K = (32, 40, 96, 160, 512, 1440, 8192)
FORMATS: tuple[ElementFormat, ...] = ("e4m3", "e5m2", "e2m1")
KINDS: tuple[ScaleKind, ...] = ("none", "block", "row", "row_f32")

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


def check(case: Mx, config: GemmConfig, **how: object) -> np.ndarray:
    result = case.run(MxConfig(config), **how)  # type: ignore[arg-type]
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
    ("first", "second"), [pair for pair in itertools.product(FORMATS, FORMATS) if pair[0] != pair[1]]
)
def test_formats_mix(first: ElementFormat, second: ElementFormat) -> None:
    """The kernel that is chosen, and K that ends within a block."""
    rng = np.random.default_rng([seed, *map(ord, first + second)])
    check(Mx(side(rng, first, 19, 1160), side(rng, second, 35, 1160)), CONFIGS["direct blocks"])


@pytest.mark.parametrize("kind_a", KINDS)
@pytest.mark.parametrize("kind_b", KINDS)
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
