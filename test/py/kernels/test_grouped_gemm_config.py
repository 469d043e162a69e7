"""Which configurations serve which grouped problems, launch geometry, and the kernel argument segment."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from flycc import emulator
from flycc.codegen import compile_kernel
from flycc.contracts import GroupedGemmProblem, Reason
from flycc.kernels import grouped_gemm
from flycc.kernels.gemm import GemmConfig
from flycc.kernels.grouped_gemm import GroupedGemmConfig

PROBLEM = GroupedGemmProblem("bf16", "m", 8, 4096, 576, 512, trans_b=True)
SMALL = GroupedGemmConfig(GemmConfig(64, 64, 64, waves_m=2, waves_n=2))


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        ({"dtype": "f32"}, "grouped-gemm.dtype", "f32"),
        ({"ragged": "b"}, "grouped-gemm.ragged", "'b'"),
        ({"groups": 0}, "grouped-gemm.groups", "groups = 0"),
        ({"m": 0}, "grouped-gemm.size", "m = 0"),
        ({"m": 2**31}, "grouped-gemm.size", "m = 2147483648"),
        ({"k": 0}, "grouped-gemm.size", "k = 0"),
        ({"n": 2**21, "groups": 2**20}, "grouped-gemm.size", "tiles"),
        ({"align_b": 1}, "grouped-gemm.align", "align_b = 1"),
        ({"bias": True, "ragged": "n"}, "grouped-gemm.bias", "share out N"),
    ],
)
def test_problems_that_no_configuration_serves(change: dict[str, int], code: str, part: str) -> None:
    problem = replace(PROBLEM, **change)
    reason = grouped_gemm.choose(problem)
    assert isinstance(reason, Reason)
    assert reason.code == code
    assert part in reason.sentence
    assert not list(grouped_gemm.space(problem))
    with pytest.raises(ValueError, match=code):
        grouped_gemm.kernel(problem, SMALL)


def test_configurations_whose_tile_serves_nothing() -> None:
    reason = GroupedGemmConfig(GemmConfig(24, 64, 64)).is_valid(PROBLEM)
    assert reason is not None
    assert reason.code == "grouped-gemm.config"
    assert "multiples of 16" in reason.sentence


def test_no_configuration_has_a_number_of_parts() -> None:
    """The kernel counts the parts."""
    split = GemmConfig(64, 64, 64, waves_m=2, waves_n=2, splits=2)
    assert GroupedGemmConfig(split).is_valid(PROBLEM) is None
    for other in (replace(split, tail=True), replace(split, splits=4)):
        reason = GroupedGemmConfig(other).is_valid(PROBLEM)
        assert reason is not None
        assert reason.code == "grouped-gemm.config"


def test_k_is_shared_where_compute_units_would_be_idle() -> None:
    """Whatever the offsets: parts have two steps along K at least, and none is left without any."""
    config = GroupedGemmConfig(GemmConfig(64, 64, 64, waves_m=2, waves_n=2, splits=2))
    problem = replace(PROBLEM, k=320)  # five steps
    assert [config.parts(problem, tiles, 256) for tiles in (1, 100, 128, 129, 256, 356, 400)] == [
        2,
        2,
        2,
        1,
        1,
        2,
        1,
    ]
    assert config.parts(replace(problem, k=1 << 20), 1, 256) == 256
    assert config.parts(replace(problem, k=64 * 9), 1, 4) == 3, (
        "the fourth of three steps each would have none"
    )
    assert config.parts(replace(problem, ragged="k", k=8 * 320), 1, 256) == 2
    assert grouped_gemm.launch(replace(problem, m=1), config).grid == (config.max_workgroups, 1, 1)


def test_choice_goes_by_the_rows_of_a_group() -> None:
    def tile_m(**change: int | str) -> int:
        config = grouped_gemm.choose(replace(PROBLEM, **change))
        assert isinstance(config, GroupedGemmConfig)
        return config.tile.tile_m

    few, some, many = tile_m(m=64), tile_m(m=512), tile_m(m=8192, n=4096)
    assert few < some < many
    assert tile_m(m=8192, n=4096, groups=128) == some, "a group has 64 rows"
    assert tile_m(m=8192, n=16) == some, "large tiles would leave most compute units without one"
    assert tile_m(m="s0") == tile_m(groups="s1") == some
    assert tile_m(ragged="n", m=16) < few


def test_rings_are_chosen_where_operands_are_aligned() -> None:
    def ring(**change: object) -> bool:
        config = grouped_gemm.choose(replace(PROBLEM, **change))
        assert isinstance(config, GroupedGemmConfig)
        return config.tile.ring

    assert ring()
    assert ring(trans_b=False)
    assert ring(ragged="k", trans_a=True, trans_b=False)
    assert not ring(k=508)
    assert not ring(align_a=8)
    assert not ring(ragged="k"), "a group may start at any element of the rows of A"


def test_every_configuration_of_the_space_is_valid_and_distinct() -> None:
    for change in ({"m": 64}, {"m": 8192}, {"ragged": "k"}, {"ragged": "n"}):
        found = list(grouped_gemm.space(replace(PROBLEM, **change)))
        assert len(set(found)) == len(found) >= 3
        assert all(config.is_valid(PROBLEM) is None for config in found)


def test_binary_does_not_depend_on_sizes() -> None:
    spec = grouped_gemm.kernel(PROBLEM, SMALL)
    assert grouped_gemm.kernel(replace(PROBLEM, m=4097, n=1536, k=8, groups=7), SMALL) == spec
    assert grouped_gemm.kernel(replace(PROBLEM, m="s0", groups="s1"), SMALL) == spec
    others = [{"dtype": "f16"}, {"trans_b": False}, {"ragged": "k"}, {"align_out": 2}, {"k": 575}]
    specs = [grouped_gemm.kernel(replace(PROBLEM, **other), SMALL) for other in others]
    assert len({s.key for s in [spec, *specs]}) == len({s.symbol for s in [spec, *specs]}) == len(specs) + 1


@pytest.mark.parametrize(
    ("ragged", "layout", "vectors"),
    [
        ("m", "NN", "v888"),
        ("m", "TN", "v188"),
        ("n", "NN", "v811"),
        ("n", "NT", "v881"),
        ("k", "NT", "v118"),
        ("k", "TN", "v888"),
    ],
)
def test_accesses_along_a_ragged_dimension_are_of_one_element(ragged: str, layout: str, vectors: str) -> None:
    trans = {"trans_a": layout[0] == "T", "trans_b": layout[1] == "T"}
    assert f"_{vectors}_" in grouped_gemm.kernel(replace(PROBLEM, ragged=ragged, **trans), SMALL).symbol


def test_launch_has_no_more_workgroups_than_tiles_or_than_the_gpu_holds() -> None:
    # 3 rows in 2 groups are 2 tiles down at most, 64 columns one across; workgroups go to 8 XCDs alike.
    small = grouped_gemm.launch(replace(PROBLEM, groups=2, m=3, n=64), SMALL)
    assert (small.grid, small.block) == ((8, 1, 1), (256, 1, 1))
    assert grouped_gemm.launch(replace(PROBLEM, m=2**20), SMALL).grid == (512, 1, 1)
    large = GroupedGemmConfig(GemmConfig(256, 128, 64, waves_m=4, waves_n=2))
    assert 2 * large.tile.lds_bytes > 160 * 1024
    assert grouped_gemm.launch(replace(PROBLEM, m=2**20), large).grid == (256, 1, 1)
    with pytest.raises(ValueError, match="every size must be known"):
        grouped_gemm.launch(replace(PROBLEM, m="s0"), SMALL)


@pytest.mark.parametrize(
    ("ragged", "tiles"),
    [
        # 4096 rows are 64 tiles of 64; 8 groups add one partial tile each at most.
        ("m", (64 + 8) * 9),
        ("n", 64 * (9 + 8)),
        ("k", 8 * 64 * 9),
    ],
)
def test_the_most_tiles_that_offsets_can_make(ragged: str, tiles: int) -> None:
    assert SMALL.max_tiles(replace(PROBLEM, ragged=ragged)) == tiles


def test_strides_that_32_bit_offsets_cannot_reach() -> None:
    limit = SMALL.tile.max_stride
    assert SMALL.check_strides({"ld_a": limit}) is None
    reason = SMALL.check_strides({"ld_a": 8, "ld_b": limit + 1})
    assert reason is not None
    assert reason.code == "grouped-gemm.stride"
    assert f"ld_b = {limit + 1}" in reason.sentence


def test_kernarg_layout_is_the_binarys() -> None:
    compiled = compile_kernel(grouped_gemm.kernel(PROBLEM, SMALL))
    kernel = emulator.load(compiled.elf).kernels[compiled.symbol].descriptor
    sizes = {"ptr": 8, "i64": 8, "i32": 4}
    assert [arg.size for arg in kernel.args] == [sizes[kind] for _, kind in compiled.kernarg.fields]
    values = {name: number + 1 for number, name in enumerate(compiled.kernarg.names)}
    data = compiled.kernarg.pack(values)
    assert len(data) == kernel.kernarg_size
    for arg, value in zip(kernel.args, values.values(), strict=True):
        assert int.from_bytes(data[arg.offset : arg.offset + arg.size], "little") == value


def test_describing_kernels_does_not_import_flydsl() -> None:
    program = (
        "import sys; from flycc.kernels import grouped_gemm as g; from flycc.contracts import GroupedGemmProblem\n"
        "p = GroupedGemmProblem('bf16', 'm', 4, 64, 64, 64); g.kernel(p, g.choose(p)); print('flydsl' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_problems_print_as_one_line() -> None:
    assert str(PROBLEM) == "grouped_gemm 8: *4096x576x512 bf16 NT align 16/16/16"
