"""Peers: the equation of products by tile, the names and data behind it, and the fit of its constants."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flycc.benchmarks import costmodel, costmodel_fit
from flycc.benchmarks.costmodel_data import products, rowwise
from flycc.costmodel import MI350
from flycc.costmodel.peers import BY_KEY, PEERS, NamedKernel, Product, named, predict, rms_norm, topk
from flycc.costmodel.peers.constants import COVERAGE, fitted
from flycc.costmodel.peers.products import best_parts_us, sequence_parts_us
from flycc.costmodel.peers.tiled import BF16, MXFP4, START, Tiles, Work, parts_us, time_us, total

SIZES = st.integers(1, 1 << 15)
ATEN = topk.START["aten"]
TILES = st.sampled_from([(16, 64, 128, 1, 2), (64, 64, 64, 4, 3), (128, 128, 64, 1, 4), (256, 256, 64, 1, 2)])


def us(m: int, n: int, k: int, tile: tuple[int, ...], c=START) -> float:
    tiles = Tiles.of([tile])
    sizes = (np.array([size * 1.0]) for size in (m, n, k))
    return float(time_us(Work.dense(*sizes, tiles, BF16), tiles, BF16, c)[0])


@given(SIZES, SIZES, SIZES, TILES)
def test_parts_are_not_negative_and_more_work_takes_longer(m, n, k, tile) -> None:
    tiles = Tiles.of([tile])
    work = Work.dense(np.array([m * 1.0]), np.array([n * 1.0]), np.array([k * 1.0]), tiles, BF16)
    parts = parts_us(work, tiles, BF16, START)
    assert all(value[0] >= -1e-9 for value in parts.values())
    assert float(total(parts)[0]) == pytest.approx(us(m, n, k, tile))
    # A whole tile more of M or N, or a step more in every split of K, costs time.
    assert us(m + tile[0], n, k, tile) >= us(m, n, k, tile) * (1 - 1e-9)
    assert us(m, n + tile[1], k, tile) >= us(m, n, k, tile) * (1 - 1e-9)
    assert us(m, n, k + tile[2] * tile[3], tile) > us(m, n, k, tile)


def test_no_time_is_below_the_bounds_of_the_machine() -> None:
    """At mfma_efficiency 1 and an unlimited path, a large product takes what its MFMAs take at the peak clock."""
    free = replace(
        START,
        mfma_efficiency=1.0,
        launch_us=0.0,
        step_us=0.0,
        lag=0.0,
        prologue_us=0.0,
        cu_bytes_per_us=np.inf,
        wg_bytes_per_us=np.inf,
        store_bytes_per_us=np.inf,
    )
    m, k = 16384, 8192
    flops = 2 * m * m * k
    peak = 2 * 512 * 4 * MI350.cus * 2.4e3  # FLOP a microsecond: 512 multiply-adds a clock of each SIMD
    # Soft maximum with HBM's time h of a compute time t: at most t (1 + (h/t)^4 / 4).
    bound = flops / peak
    hbm = (2 * m * k + m * m) * 2 / 5.8e6
    assert (
        bound <= us(m, m, k, (256, 256, 64, 1, 2), free) <= bound * (1 + (hbm / bound) ** 4 / 4) * (1 + 1e-9)
    )


def test_steps_of_a_long_k_cost_what_the_equation_says() -> None:
    """The slope over K of one round: norm of latency, MFMA and operand stream, worked out by hand."""
    tile = (256, 256, 64, 1, 2)
    c = START
    mfma = 256 * 256 * 64 / 512 / 4 / 2.4e3
    operands = 512 * 64 * 2
    latency = c.step_us + operands / c.wg_bytes_per_us + c.lag * mfma
    limits = (latency, mfma / c.mfma_efficiency, operands / c.cu_bytes_per_us)
    step = sum(limit**4 for limit in limits) ** 0.25
    slope = (us(4096, 4096, 1 << 21, tile) - us(4096, 4096, 1 << 20, tile)) / (1 << 14)
    # Operands of 17 GB are 1.2 MB short of infinitely far; HBM hides behind the steps but for its fourth power.
    hbm = 2 * 4096 * 64 * 2 / 5.8e6
    assert step * (1 - 1e-3) < slope < step * (1 + (hbm / step) ** 4)


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("native", 0, "aiter-aten"),
        ("auto", 0, "aiter-triton"),
        ("nonesuch", 0, None),
        ("_ZN5aiter24bf16gemm_bf16_tn_0x256E", 1, None),
        ("a4w4_blockscale_256x64x128x0_16x16_16x16", 0, None),
        ("_ZN5aiter24bf16gemm_bf16_tn_256x256E", 1, NamedKernel("aiter-asm", (256, 256, 64, 1, 2))),
        (
            "_ZN5aiter39bf16gemm_fp32bf16_tn_96x64_splitk_cleanE",
            4,
            NamedKernel("aiter-asm-splitk", (96, 64, 64, 4, 2)),
        ),
        (
            "_ZN5aiter42f4gemm_bf16_per1x32Fp4_BpreShuffle_160x256E",
            2,
            NamedKernel("aiter-asm-mxfp4", (160, 256, 256, 4, 2)),
        ),
        (
            "flydsl_gemm5_abf16_wbf16_bf16_t32x64x128_split_k4_block_m_warp1_block_n_warp4_block_k_warp1",
            4,
            NamedKernel("aiter-flydsl", (32, 64, 128, 4, 5)),
        ),
        (
            "a4w4_blockscale_256x64x128x128_16x16_16x16",
            0,
            NamedKernel("aiter-ck-mxfp4", (64, 128, 256, 1, 2)),
        ),
    ],
)
def test_names(name: str, split: int, expected: object) -> None:
    assert named(name, split) == expected


def test_the_fastest_tile_is_chosen() -> None:
    peer = BY_KEY["gemm/aiter-aten/bf16"]
    shapes = [(16, 4096, 4096), (512, 4096, 4096), (4096, 4096, 8192), (1, 512, 256)]
    parts, chosen = best_parts_us(
        peer, peer.constants, [Product((m,), n, k) for m, n, k in shapes], peer.tiles
    )
    for (m, n, k), best, index in zip(shapes, total(parts), chosen, strict=True):
        allowed = [t for t in peer.tiles if t[3] == 1 or -(-k // t[2]) >= 2 * t[3]]
        assert best == pytest.approx(min(us(m, n, k, tile, peer.constants) for tile in allowed))
        assert best == pytest.approx(us(m, n, k, peer.tiles[index], peer.constants))


def test_groups() -> None:
    peer = BY_KEY["grouped_gemm/flydsl/bf16"]
    one = predict(peer, Product((512,), 4096, 4096)).time
    assert predict(peer, Product((512, 0), 4096, 4096)).time == one
    tile = (128, 128, 64, 1, 2)
    work, _ = best_parts_us(peer, peer.constants, [Product((300, 0, 100), 4096, 4096)], [tile])
    # 300 and 100 rows are 3 + 1 tiles of 128, as many as 512 rows in one product; they read two matrices of weights.
    single, _ = best_parts_us(peer, peer.constants, [Product((512,), 4096, 4096)], [tile])
    assert total(work)[0] >= total(single)[0]
    assert work["store"][0] == pytest.approx(single["store"][0])

    each = BY_KEY["gemm/aten/bf16"]
    twice = sequence_parts_us(each, each.constants, Product((256, 0, 256), 4096, 4096), 8.0)
    once = sequence_parts_us(each, each.constants, Product((256,), 4096, 4096), 8.0)
    assert sum(twice.values()) == pytest.approx(2 * sum(once.values()))


def test_scales_are_read_too() -> None:
    assert MXFP4.element_bytes == 17 / 32  # 16 bytes of values and one scale in 32 elements
    assert BF16.element_bytes == 2


def test_norm_reads_long_rows_twice_and_odd_rows_by_element() -> None:
    c = rms_norm.Constants(1.0, 1e6, 5e5, cached_elements=1000, element_ps=1e4, row_ns=0.0)

    def parts(n: float) -> dict[str, float]:
        found = rms_norm.parts_us(np.array([100.0]), np.array([n]), np.array([2.0]), c)
        return {name: float(value[0]) for name, value in found.items()}

    assert parts(1000) == {"launch": 1.0, "memory": 0.4, "second read": 0.0, "loads by element": 0.0}
    assert parts(1004)["second read"] == pytest.approx(100 * 1004 * 2 / 1e6)
    assert parts(1001)["loads by element"] > 0
    rate = [parts(n)["memory"] / n for n in (rms_norm.OVERLAP_ELEMENTS, rms_norm.OVERLAP_ELEMENTS + 4)]
    assert rate[1] == pytest.approx(2 * rate[0])  # half the bandwidth where one row fits


def test_topk_ways_and_floor() -> None:
    assert [topk.way(n, k) for n, k in ((1024, 8), (8192, 16), (16384, 8), (8192, 64))] == [
        "register",
        "register",
        "radix",
        "radix",
    ]
    small = topk.predict("flydsl", 1, 64, 2)
    assert small.time.typical == pytest.approx(fitted("topk/register").constants["floor_us"])
    assert topk.predict("flydsl", 1 << 20, 8192, 16).time.typical > 1000


def test_a_fit_finds_the_constants_that_made_the_times() -> None:
    rng = np.random.default_rng(costmodel_fit.FOLDS)
    truth = {"launch_us": 4.0, "slope": 0.02}
    x = rng.uniform(10, 10000, 200)

    def model(c: dict[str, float]) -> np.ndarray:
        return c["launch_us"] + c["slope"] * x

    noisy = model(truth) * np.exp(rng.normal(0, 0.02, x.shape))
    noisy[:10] *= 5  # rows that something else disturbed
    found = costmodel_fit.fit(
        model, noisy, {"launch_us": 2.0, "slope": 0.1}, {"launch_us": 2.0, "slope": 2.0}
    )
    # 200 rows of 2% noise: 0.2% of error if all were of slope; 5% of rows pull at a robust fit by well below 3%.
    assert found["slope"] == pytest.approx(truth["slope"], rel=0.03)
    assert found["launch_us"] == pytest.approx(truth["launch_us"], rel=0.1)


def test_constants_obey_the_machine_and_come_from_these_rows() -> None:
    """Every class has constants, and the errors that the file states are those of the constants beside them."""
    predicted = costmodel.fitted_predictions()
    assert sum(map(len, predicted.values())) == len(products()) + len(rowwise())
    for entry in costmodel.kernels(predicted, predicted, predicted):
        found = fitted(entry["class"])
        assert found.rows == entry["rows"]
        # Four digits of each constant, each of which moves the time by at most its own share.
        assert found.error == pytest.approx(entry["error"], abs=2e-3)
    for peer in PEERS:
        if not peer.sequence_of:
            constants = asdict(peer.constants)
            assert all(constants[name] <= most * (1 + 1e-3) for name, most in costmodel_fit.LIMITS.items())


def test_targets_hold() -> None:
    predicted = costmodel.fitted_predictions()
    for target in costmodel.targets(predicted, predicted):
        assert target["error"] <= target["worst_class"] <= target["most"]
    ranking = costmodel.rankings(predicted)[0]
    assert ranking["count"] > 100
    assert ranking["right"] >= 0.9


@pytest.mark.parametrize("known_tile", [True, False])
def test_intervals_hold_what_they_state(known_tile: bool) -> None:
    """Of every class with many rows, both where the name tells the tile and where the class chooses it.

    The quantile is of rows left out, drawn a little to that of other classes: 4% of slack on 55 rows and more.
    """
    counts = np.zeros(2)
    for key, rows in costmodel.fitted_predictions().items():
        ratios = np.array([(each.known if known_tile else each.chosen) / each.row.us for each in rows])
        half = [fitted(key).spread(each.row.m, known_tile=known_tile) for each in rows]
        within = np.maximum(ratios, 1 / ratios) - 1 <= half
        counts += within.sum(), within.size
        if len(rows) >= costmodel_fit.MANY_ROWS:
            assert within.mean() >= COVERAGE - 0.04, key
    assert counts[0] / counts[1] >= COVERAGE


def test_a_chosen_tile_is_less_sure_than_a_known_one() -> None:
    peer, problem = BY_KEY["gemm/aiter-asm-splitk/bf16"], Product((1024,), 4096, 4096)
    chosen = predict(peer, problem)
    m, n, k = (int(size) for size in chosen.kernel.partition(" ")[0].split("x"))
    known = predict(peer, problem, NamedKernel(peer.name, (m, n, k, 1, 2)))
    assert known.time.typical == chosen.time.typical
    assert known.time.high < chosen.time.high


@pytest.mark.parametrize("n", [1 << 16, 1 << 20, (1 << 20) + 1])
@pytest.mark.parametrize("m", [1, 8, 64])
def test_few_rows_use_few_compute_units(m: int, n: int) -> None:
    """A row is a workgroup's, whose compute unit moves 64 bytes a clock: 2.4 GHz, in and out."""
    bound = 2 * n * 4 / (64 * 2.4e3)
    for peer in ("aten", "flydsl"):
        assert rms_norm.predict(peer, m, n, "f32").time.typical >= bound
    scan = fitted("topk/register").constants["scan_ps"] * 1e-6 * 256
    assert topk.predict("flydsl", 1, 8192, 16).time.typical >= 8192 * 16 * scan
    # ATen shares a row among workgroups of 16,384 elements: half as many units take twice as long.
    alone, all_busy = (topk.aten_us(*np.array([[m * 1.0], [1024.0], [8.0]]), ATEN) for m in (1, 256))
    assert alone["memory"] == pytest.approx(all_busy["memory"])


def test_what_is_outside_the_rows_is_told() -> None:
    inside = predict(BY_KEY["gemm/flydsl/bf16"], Product((512,), 4096, 4096))
    assert inside.notes == ()
    (note,) = predict(BY_KEY["gemm/flydsl/bf16"], Product((512,), 128, 4096)).notes
    assert note == "outside the rows fitted: N 128 (fitted 256 to 14,336)"
    # Only some K take the register way; of the others the rows begin far above.
    assert topk.predict("flydsl", 4096, 4096, 4).notes == ()
    assert "K 3" in topk.predict("flydsl", 4096, 4096, 3).notes[0]
    below, above = (
        predict(BY_KEY["gemm/aiter-triton/bf16"], Product((512,), n, 4096)).notes for n in (1023, 1024)
    )
    assert "no tuned configuration" in below[-1]
    assert not any("no tuned configuration" in note for note in above)


@pytest.mark.nightly
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_priors_do_not_hold_the_answers(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top-k's start from half or twice of what is known beforehand: rows left out are told as well, to 20%."""
    start = {
        name: type(value)(**{key: number * factor for key, number in asdict(value).items()})
        for name, value in topk.START.items()
    }
    monkeypatch.setattr(topk, "START", start)
    classes = {key: rows for key, rows in costmodel_fit.rows_by_class().items() if key.startswith("topk/")}
    found = costmodel_fit.left_out(classes, frozenset(), costmodel_fit.fold_within_class(classes))
    for rows in found.values():
        assert np.mean([abs(each.known / each.row.us - 1) for each in rows]) <= 0.2


@pytest.mark.nightly
def test_the_file_is_what_the_fit_gives() -> None:
    table, held_out = costmodel_fit.fit_all()
    assert sum(map(len, held_out.values())) == len(products()) + len(rowwise())
    for key, entry in table.items():
        found = fitted(key)
        assert found.held_out_error == pytest.approx(entry["held_out_error"], abs=2e-3)
        assert found.constants == pytest.approx(entry["constants"], rel=1e-2)
