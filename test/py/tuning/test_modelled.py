"""Our kernels' modelled times: representative workgroups, shortened loops, several launches."""

from __future__ import annotations

import resource
import time

import pytest

from flycc.contracts import FlyccError, GemmProblem, RmsNormProblem, TopkProblem
from flycc.costmodel import Interval
from flycc.kernels import gemm, rms_norm, topk
from flycc.tuning import modelled as room
from flycc.tuning.modelled import _modelled, model, total


@pytest.mark.parametrize(
    "config",
    [
        gemm.GemmConfig(64, 64, 64, waves_m=2, waves_n=2),
        gemm.GemmConfig(16, 64, 64, waves_k=4, staged=False),
        gemm.GemmConfig(64, 64, 64, 2, 2, stages_m=9, stages_n=9),
    ],
    ids=str,
)
def test_a_shortened_loop_stands_for_the_whole(
    config: gemm.GemmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pace of a loop is steady after its first turns, so carrying it on gives what all of it gives: within 2%,
    a turn's worth at either end of about 50."""
    problem = GemmProblem("bf16", 128, 256, 50 * config.step_k, trans_b=True)
    short = total(model(problem, config)).typical
    monkeypatch.setattr(room, "_TURNS", 10**6)
    _modelled.cache_clear()
    whole = total(model(problem, config)).typical
    assert short == pytest.approx(whole, rel=0.02)


def test_more_work_takes_longer() -> None:
    config = gemm.GemmConfig(64, 64, 64, waves_m=2, waves_n=2)

    def us(m: int, k: int) -> float:
        return total(model(GemmProblem("bf16", m, 4096, k, trans_b=True), config)).typical

    assert us(256, 1024) < us(256, 4096) < us(2048, 4096)
    assert us(2048, 4096) > 2 * us(256, 4096)  # 2,048 workgroups are rounds, 256 are one


def test_launches_are_added_without_their_floors() -> None:
    problem = TopkProblem("f32", 2, 1 << 17, 64)
    config = topk.choose(problem)
    assert len(config.steps) > 1
    predictions = model(problem, config)
    assert len(predictions) == len(config.steps)
    expected = predictions[0].time.typical + sum(p.device_us.typical for p in predictions[1:])
    assert total(predictions).typical == pytest.approx(expected)
    assert isinstance(total(predictions), Interval)


def test_a_configuration_that_does_not_serve_is_refused() -> None:
    config = gemm.GemmConfig(64, 64, 64, waves_m=2, waves_n=2)
    with pytest.raises(ValueError, match="element type"):
        model(GemmProblem("f32", 64, 64, 64), config)


def test_large_operands_take_no_memory() -> None:
    """A language model's last layer: 9 GB of results, of which a few tiles are written."""
    problem = GemmProblem("bf16", 32768, 128256, 4096, trans_b=True)
    config = gemm.GemmConfig(128, 128, 64, waves_m=2, waves_n=2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (
        total(model(problem, config)).typical > 2 * 32768 * 128256 * 4096 / 2.52e9
    )  # the peak of the matrix units
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 << 20  # KB: a fifth


def test_what_runs_too_long_is_refused() -> None:
    problem = RmsNormProblem("bf16", 1, 100_000_000, weight="bf16")
    config = rms_norm.choose(problem)
    started = time.perf_counter()
    with pytest.raises(FlyccError, match=r"more than 100,000 instructions: too long"):
        model(problem, config)
    assert time.perf_counter() - started < 60
