"""Which configurations serve which problems, launch geometry, and the kernel argument segment."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace

import pytest

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import Epilogue, GemmProblem, Reason
from flycc.kernels import gemm
from flycc.kernels.common.spec import KernargLayout
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.gemm.config import RINGS
from flycc.kernels.gemm.space import space

PROBLEM = GemmProblem("bf16", 40, 576, 576, trans_b=True)


def refusal(problem: GemmProblem, config: GemmConfig | None = None) -> Reason:
    reason = config.is_valid(problem) if config else gemm.choose(problem)
    assert isinstance(reason, Reason)
    return reason


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        ({"dtype": "f32"}, "gemm.dtype", "f32"),
        ({"k": 0}, "gemm.size", "k = 0"),
        ({"m": -1}, "gemm.size", "m = -1"),
        ({"batch": 65536}, "gemm.size", "batch = 65536"),
        ({"n": 2**30}, "gemm.size", "n = 1073741824"),
        ({"align_b": 1}, "gemm.align", "align_b = 1"),
        ({"align_out": 3}, "gemm.align", "align_out = 3"),
    ],
)
def test_problems_that_no_configuration_serves(change: dict[str, int], code: str, part: str) -> None:
    problem = replace(PROBLEM, **change)
    reason = refusal(problem)
    assert reason.code == code
    assert part in reason.sentence
    assert not [*gemm.candidates(problem)]


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (GemmConfig(0, 64, 64), "at least 1"),
        (GemmConfig(24, 64, 64), "multiples of 16"),
        (GemmConfig(64, 64, 64, waves_m=8), "multiples of 16"),
        (GemmConfig(64, 64, 48), "multiple of 32"),
        (GemmConfig(512, 64, 64, waves_m=32), "2048 work-items"),
        (GemmConfig(256, 256, 256, waves_m=2, waves_n=2), "bytes of LDS"),
        (GemmConfig(64, 64, 64, waves_k=2), "cannot be split"),
        (GemmConfig(96, 64, 64, waves_m=2, waves_n=2), "16-byte chunks"),
        (GemmConfig(16, 48, 64, waves_k=2, staged=False), "evenly"),
        (GemmConfig(64, 64, 64, 2, 2, stages_m=2, stages_n=3), "not the shorter one"),
        (GemmConfig(64, 64, 64, 2, 2, stages_m=2), "at least 2 tiles"),
        (GemmConfig(64, 64, 64, 2, 2, staged=False, stages_m=2, stages_n=2), "rings are staged"),
        (GemmConfig(64, 64, 32, 2, 2, stages_m=2, stages_n=2), "tile_k of 64 or 128"),
        (GemmConfig(256, 256, 64, 2, 4, stages_m=3, stages_n=3), "bytes of LDS"),
        (GemmConfig(64, 64, 64, stages_m=5, stages_n=5), "80 loads in flight"),
    ],
)
def test_configurations_that_serve_nothing(config: GemmConfig, part: str) -> None:
    reason = refusal(PROBLEM, config)
    assert reason.code == "gemm.config"
    assert part in reason.sentence
    with pytest.raises(ValueError, match=part):
        gemm.kernel(PROBLEM, config)


RING = GemmConfig(64, 64, 64, 2, 2, stages_m=3, stages_n=3)


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        ({"align_b": 8}, "gemm.align", "align_b = 8"),
        ({"k": 580}, "gemm.size", "k = 580, along which a is contiguous"),
        ({"k": "s0"}, "gemm.size", "known multiples of 8"),
        ({"trans_a": True, "m": 36}, "gemm.size", "m = 36, along which a is contiguous"),
        ({"trans_b": False, "n": 580}, "gemm.size", "n = 580, along which b is contiguous"),
        ({"m": 2**21, "n": 2**21}, "gemm.size", "32768 x 32768 tiles"),
    ],
)
def test_problems_that_rings_do_not_serve(change: dict[str, int], code: str, part: str) -> None:
    assert RING.is_valid(PROBLEM) is None
    assert RING.is_valid(replace(PROBLEM, k=577, trans_a=True, trans_b=False)) is None
    reason = refusal(replace(PROBLEM, **change), RING)
    assert reason.code == code
    assert part in reason.sentence


def test_rings_of_narrow_tiles_take_operands_contiguous_along_k() -> None:
    narrow = GemmConfig(32, 64, 64, 1, 2, stages_m=3, stages_n=3)
    assert narrow.is_valid(PROBLEM) is None
    reason = refusal(replace(PROBLEM, trans_a=True), narrow)
    assert (reason.code, "tile's 32 rows" in reason.sentence) == ("gemm.layout", True)


def test_choice_goes_by_shape() -> None:
    def chosen(**sizes: int | str | bool) -> GemmConfig:
        config = gemm.choose(replace(PROBLEM, **sizes))
        assert isinstance(config, GemmConfig)
        return config

    decode, prefill, large = chosen(m=1), chosen(m=40), chosen(m=4096, n=4096)
    assert len({decode, prefill, large}) == 3
    assert (decode.tile_m, decode.staged) == (16, False)
    assert decode.tile_m < prefill.tile_m < large.tile_m
    assert not chosen(m="s0").split
    # A partial step is avoided where it costs: where a workgroup takes several tiles.
    assert 576 % chosen(m=1, n=49152).step_k == 0
    # Rows of B of which a workgroup takes less than a line cost a line.
    assert chosen(m=1, n=4096, k=4096, trans_b=False).tile_n == 64


@pytest.mark.parametrize(("m", "n"), [(16, 4096), (128, 4096), (512, 4096), (2048, 4096), (4096, 256)])
def test_k_is_shared_where_compute_units_would_be_idle(m: int, n: int) -> None:
    problem = replace(PROBLEM, m=m, n=n, k=4096)
    config = gemm.choose(problem)
    assert isinstance(config, GemmConfig)
    assert gemm.shares(problem, config).workgroups == 256


def test_many_rows_take_rings_where_operands_allow_it() -> None:
    large = replace(PROBLEM, m=4096, n=4096)
    config = gemm.choose(large)
    assert isinstance(config, GemmConfig)
    assert (config.ring, config.tile_m, config.tile_n) == (True, 256, 256)
    for change in ({"align_a": 8}, {"k": 577}, {"m": 32}):
        other = gemm.choose(replace(large, **change))
        assert isinstance(other, GemmConfig)
        assert not other.ring


def test_all_candidates_are_valid_and_distinct() -> None:
    for m in (1, 40, 4096):
        found = [*gemm.candidates(replace(PROBLEM, m=m))]
        assert len(set(found)) == len(found) >= 3
        assert all(config.is_valid(PROBLEM) is None for config in found)


GELU_RESIDUAL = Epilogue(activation="gelu", residual=True)
#: Of 8192 x 8192 x 8192, and whether the largest tiles have registers for that.
LARGEST = {
    "bias and gelu": ({"bias": True, "align_bias": 16, "epilogue": Epilogue(activation="gelu")}, True),
    "gated": (
        {"align_residual": 16, "epilogue": Epilogue(gated=True, activation="silu", residual=True)},
        True,
    ),
    "bias along M": ({"bias": True, "align_bias": 2}, False),
    "two addends": (
        {"bias": True, "align_bias": 16, "align_residual": 16, "epilogue": GELU_RESIDUAL, "trans_a": True},
        False,
    ),
    "two unaligned addends": (
        {"bias": True, "align_bias": 2, "align_residual": 2, "epilogue": GELU_RESIDUAL},
        False,
    ),
    "two float32 results": (
        {"epilogue": Epilogue(activation="gelu", preactivation=True, out_dtype="f32")},
        False,
    ),
}


@pytest.mark.parametrize("name", LARGEST)
def test_what_is_chosen_does_not_spill(name: str) -> None:
    tail, largest = LARGEST[name]
    problem = GemmProblem("bf16", 8192, 8192, 8192, **({"trans_b": True} | tail))
    config = gemm.choose(problem)
    assert isinstance(config, GemmConfig)
    assert (config == RINGS[0]) == largest
    reason = RINGS[0].is_valid(problem)
    assert (reason is None) == largest
    assert reason is None or reason.code == "gemm.registers"
    compiled = compile_kernel(gemm.kernel(problem, config))
    found = emulator.load(compiled.elf).kernels[compiled.symbol].descriptor
    assert (found.spilled_vgprs, found.scratch_bytes) == (0, 0)


def test_the_largest_tiles_do_not_share_k() -> None:
    for m in (4096, 6144):
        problem = GemmProblem("bf16", m, 6144, 8192, trans_b=True)
        for config in (*space(problem), *gemm.candidates(problem)):
            assert config.is_valid(problem) is None
            assert config.sums <= 128 or not config.split


def test_binary_does_not_depend_on_sizes() -> None:
    config = GemmConfig(64, 64, 64, waves_m=2, waves_n=2)
    spec = gemm.kernel(PROBLEM, config)
    assert gemm.kernel(replace(PROBLEM, m=4000, n=1536, k=8), config) == spec
    assert gemm.kernel(replace(PROBLEM, m="s0"), config) == spec
    others = [
        {"dtype": "f16"},
        {"trans_a": True},
        {"trans_b": False},
        {"bias": True},
        {"align_a": 8},
        {"align_b": 4},
        {"align_out": 2},
        {"k": 575},
        {"batch": 7},
    ]
    assert gemm.kernel(replace(PROBLEM, batch="s0"), config) == gemm.kernel(replace(PROBLEM, batch=7), config)
    unknown_n = gemm.kernel(replace(PROBLEM, n="s1"), config)
    assert unknown_n == gemm.kernel(replace(PROBLEM, align_out=2), config)
    specs = [gemm.kernel(replace(PROBLEM, **other), config) for other in others]
    specs.append(gemm.kernel(PROBLEM, GemmConfig(128, 128, 64, waves_m=2, waves_n=2)))
    assert len({s.key for s in [spec, *specs]}) == len({s.symbol for s in [spec, *specs]}) == len(specs) + 1


def test_strides_that_32_bit_offsets_cannot_reach() -> None:
    config = GemmConfig(64, 64, 64, waves_m=2, waves_n=2)
    assert config.check_strides({"ld_a": config.max_stride, "bias_m": 0}) is None
    for bad in (-1, config.max_stride + 1):
        reason = config.check_strides({"ld_a": 8, "ld_b": bad})
        assert reason is not None
        assert reason.code == "gemm.stride"
        assert f"ld_b = {bad}" in reason.sentence


def test_launch_geometry() -> None:
    config = GemmConfig(64, 64, 64, waves_m=2, waves_n=2)
    launch = gemm.launch(replace(PROBLEM, m=65, n=128, batch=3), config)
    assert (launch.grid, launch.block) == ((2, 2, 3), (256, 1, 1))
    with pytest.raises(ValueError, match="every size must be known"):
        gemm.launch(replace(PROBLEM, m="s0"), config)
    launch = gemm.launch(replace(PROBLEM, m=65, n=130, batch=3), RING)
    assert (launch.grid, launch.block) == ((6, 1, 3), (256, 1, 1))


def test_kernarg_layout_is_the_binarys() -> None:
    compiled = compile_kernel(gemm.kernel(PROBLEM, gemm.choose(PROBLEM)))
    kernel = emulator.load(compiled.elf).kernels[compiled.symbol].descriptor
    kinds = {"ptr": "Q", "i64": "q", "i32": "i", "f32": "f"}
    formats = [f"<{kinds[kind]}" for _, kind in compiled.kernarg.fields]
    assert [arg.size for arg in kernel.args] == [struct.calcsize(form) for form in formats]
    values = {name: number + 1 for number, name in enumerate(compiled.kernarg.names)}
    data = compiled.kernarg.pack(values)
    assert len(data) == kernel.kernarg_size
    for arg, form, value in zip(kernel.args, formats, values.values(), strict=True):
        assert struct.unpack_from(form, data, arg.offset) == (value,)


def test_kernarg_packing() -> None:
    layout = KernargLayout((("flag", "i32"), ("pointer", "ptr"), ("count", "i64")))
    assert layout.pack({"flag": -1, "count": -2, "pointer": 3}).hex() == (
        "ffffffff" + "00000000" + "0300000000000000" + "feffffffffffffff"
    )
    with pytest.raises(ValueError, match=r"missing \['count'\], unknown \['size'\]"):
        layout.pack({"flag": 0, "pointer": 0, "size": 0})
    with pytest.raises(ValueError, match=r"flag: 2147483648 does not fit i32"):
        layout.pack({"flag": 2**31, "pointer": 0, "count": 0})


def test_describing_kernels_does_not_import_flydsl() -> None:
    program = (
        "import sys; from flycc.kernels import gemm; from flycc.contracts import GemmProblem\n"
        "p = GemmProblem('bf16', 1, 64, 64); gemm.kernel(p, gemm.choose(p)); print('flydsl' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("size", [33, 48, 64])
def test_a_small_result_takes_a_small_tile(size: int) -> None:
    config = gemm.choose(GemmProblem("bf16", size, size, 64, trans_b=True))
    assert isinstance(config, gemm.GemmConfig)
    assert config.tile_m <= 64
    assert config.tile_n <= 64
