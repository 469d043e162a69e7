"""The search: deterministic, resumable, within its budget, and right where the model's times are known."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flycc.contracts import FlyccError, GemmProblem, Reason, RmsNormBackwardProblem, RmsNormProblem
from flycc.costmodel import Interval
from flycc.kernels import gemm
from flycc.kernels.gemm.space import space, vgprs
from flycc.tuning import journal
from flycc.tuning.analytic import estimate_us, lower_us
from flycc.tuning.family import FAMILIES
from flycc.tuning.journal import Journal
from flycc.tuning.modelled import model, total
from flycc.tuning.search import TIE, Budget, ordered, tune
from flycc.tuning.workers import Found, Workers

PROBLEM = GemmProblem("bf16", 128, 4096, 4096, trans_b=True)
OWN = gemm.choose(PROBLEM)


class FakeWorkers(Workers):
    """Times from a table instead of the model; `asked` has what was evaluated, in order."""

    def __init__(self, times: dict[Any, Found]) -> None:
        super().__init__(0)
        self.times, self.asked = times, list[Any]()

    def evaluate(self, problem: Any, configs: Sequence[Any]) -> list[Found]:
        self.asked += configs
        return [self.times[config] for config in configs]


def around(us: float) -> Interval:
    return Interval(0.9 * us, us, 1.1 * us)


def estimates(problem: Any = PROBLEM, *, seed: int | None = None) -> FakeWorkers:
    """As the closed form has them; with a seed, off by up to 15% each way."""
    off = random.Random(seed).uniform if seed is not None else lambda low, high: 1.0
    return FakeWorkers(
        {
            config: around(max(lower_us(problem, config), estimate_us(problem, config) * off(0.85, 1.15)))
            for config in (*space(problem), OWN)
        }
    )


def test_the_search_finds_what_an_exhaustive_one_finds(tmp_path: Path) -> None:
    """Pruning leaves out what estimates put 40% beyond the best; off by 15% each way, 1.15 / 0.85 = 1.35."""
    seed = random.randrange(1 << 30)
    print(f"{seed=}")
    workers = estimates(seed=seed)
    pruned = tune(PROBLEM, workers, journal=tmp_path / "pruned")
    whole = tune(PROBLEM, estimates(seed=seed), prune=False, journal=tmp_path / "whole")
    assert pruned.fastest == whole.fastest
    assert len(workers.asked) < whole.space == len(whole.ranked)
    assert pruned.space == len(pruned.ranked) + pruned.pruned


def test_a_tie_goes_to_the_kernels_own_choice(tmp_path: Path) -> None:
    for apart, kept in ((0.98 * TIE, True), (1.02 * TIE, False)):
        times: dict[Any, Found] = {config: around(50.0) for config in space(PROBLEM)}
        times[OWN] = around(50.0 * (1 + apart))
        tuned = tune(PROBLEM, FakeWorkers(times), prune=False, journal=tmp_path / str(apart))
        assert (tuned.best.config == OWN) is kept
        assert tuned.fastest.time == around(50.0)


def test_a_budget_of_candidates_is_kept_and_gives_the_same_answer(tmp_path: Path) -> None:
    found = [
        tune(PROBLEM, estimates(seed=7), Budget(candidates=6), journal=tmp_path / str(i)) for i in range(2)
    ]
    assert [len(tuned.ranked) for tuned in found] == [6, 6]
    assert found[0].ranked == found[1].ranked
    assert found[0].space == 6 + found[0].pruned + found[0].unseen


def test_a_budget_of_seconds_ends_after_a_batch(tmp_path: Path) -> None:
    tuned = tune(PROBLEM, estimates(), Budget(seconds=1e-9), prune=False, journal=tmp_path)
    assert len(tuned.ranked) == 4
    assert tuned.unseen == tuned.space - 4


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path) -> None:
    class Interrupted(FakeWorkers):
        def evaluate(self, problem: Any, configs: Sequence[Any]) -> list[Found]:
            if len(self.asked) >= 4:
                raise KeyboardInterrupt
            return super().evaluate(problem, configs)

    times = estimates(seed=3).times
    first, second = Interrupted(times), FakeWorkers(times)
    with pytest.raises(KeyboardInterrupt):
        tune(PROBLEM, first, journal=tmp_path)
    resumed = tune(PROBLEM, second, journal=tmp_path)
    assert not set(first.asked) & set(second.asked)
    alone = tune(PROBLEM, FakeWorkers(times), journal=tmp_path / "other")
    assert resumed.ranked == alone.ranked


def test_a_damaged_journal_is_a_warning_and_starts_again(tmp_path: Path) -> None:
    tune(PROBLEM, estimates(), Budget(candidates=4), journal=tmp_path)
    path = Journal(PROBLEM, tmp_path).path
    stored = json.loads(path.read_text())
    next(iter(stored["body"]["found"].values()))["typical"] = 0.001
    path.write_text(json.dumps(stored))
    with pytest.warns(RuntimeWarning, match="damaged tuning journal"):
        assert not Journal(PROBLEM, tmp_path).found


@pytest.mark.parametrize(
    "found",
    [
        {"low": "a", "typical": "b", "high": 1},
        {"low": 1.0, "typical": float("nan"), "high": 1.0},
        {"low": 1.0, "typical": None, "high": 1.0},
        {"low": 3.0, "typical": 2.0, "high": 1.0},
        {"low": -1.0, "typical": 2.0, "high": 3.0},
        {"low": True, "typical": 2.0, "high": 3.0},
        {"low": 1.0, "typical": 2.0, "high": 10**400},
        {"low": 1.0, "typical": 2.0},
        {"code": 5, "sentence": []},
        [],
        5,
    ],
    ids=lambda found: str(found)[:50],
)
def test_a_journal_of_wrong_values_starts_again(found: object, tmp_path: Path) -> None:
    path = Journal(PROBLEM, tmp_path).path
    body = {"problem": repr(PROBLEM), "model": journal.model_digest(), "found": {str(OWN): found}}
    path.write_text(json.dumps({"digest": journal._digest(body), "body": body}))
    with pytest.warns(RuntimeWarning, match="starting again"):
        assert not Journal(PROBLEM, tmp_path).found


def test_a_journal_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(Journal(PROBLEM, tmp_path).path)
    with pytest.warns(RuntimeWarning, match="no regular file"):
        assert not Journal(PROBLEM, tmp_path).found


@pytest.mark.parametrize(
    ("code", "again"), [("tune.crash", True), ("codegen.linker", True), ("codegen.stage", False)]
)
def test_a_failure_that_may_pass_is_tried_again(code: str, again: bool, tmp_path: Path) -> None:
    times = estimates().times
    failing = FakeWorkers({**times, OWN: Reason(code, "the process ended")})
    tune(PROBLEM, failing, Budget(candidates=3), journal=tmp_path)
    later = FakeWorkers(times)
    tuned = tune(PROBLEM, later, Budget(candidates=3), journal=tmp_path)
    assert later.asked == ([OWN] if again else [])
    assert (tuned.own is not None) is again


def test_the_digest_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each room that decides modelled times, and FlyDSL's version."""
    found = {journal.model_digest.__wrapped__()}
    for room in ("codegen", "costmodel", "emulator", "kernels"):
        with monkeypatch.context() as patch:
            (tmp_path / room).mkdir()
            patch.setattr(getattr(journal, room), "__file__", str(tmp_path / room / "__init__.py"))
            found.add(journal.model_digest.__wrapped__())
    monkeypatch.setattr(journal, "version", lambda package: f"another {package}")
    found.add(journal.model_digest.__wrapped__())
    assert len(found) == 6


def test_what_cannot_be_modelled_is_a_reason(tmp_path: Path) -> None:
    times = estimates().times
    crash = Reason("codegen.crash", "the compiler ended")
    second = ordered(PROBLEM, FAMILIES["gemm"])[1]
    tuned = tune(PROBLEM, FakeWorkers({**times, second: crash}), journal=tmp_path / "one")
    assert tuned.failed == ((second, crash),)
    with pytest.raises(FlyccError, match="the compiler ended"):
        tune(PROBLEM, FakeWorkers(dict.fromkeys(times, crash)), journal=tmp_path / "all")


def test_problems_that_cannot_be_tuned_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FlyccError, match="element type f32"):
        tune(GemmProblem("f32", 8, 8, 8), estimates(), journal=tmp_path)
    with pytest.raises(FlyccError, match="one configuration"):
        tune(RmsNormBackwardProblem("bf16", 8, 8192), estimates(), journal=tmp_path)


@pytest.mark.parametrize("text", ["", "0", "0s", "1.5", "-3", "60 s", "1m"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(FlyccError, match="60s"):
        Budget.parse(text)


def test_budgets_are_seconds_or_candidates() -> None:
    assert Budget.parse("1.5s") == Budget(seconds=1.5)
    assert Budget.parse("200") == Budget(candidates=200)


CHECKED = (
    gemm.GemmConfig(64, 64, 64, waves_m=2, waves_n=2),
    gemm.GemmConfig(128, 128, 64, waves_m=2, waves_n=2),
    gemm.GemmConfig(16, 64, 64, waves_k=4, staged=False),
)


@pytest.mark.parametrize("config", CHECKED, ids=str)
def test_the_closed_form_is_near_the_model(config: gemm.GemmConfig) -> None:
    """No modelled time lies below the lower bound, and the estimate is within what the search allows it to be off:
    a factor of 1.4 each way, for tiles that fit the problem."""
    rows = config.tile_m * random.choice((1, 4))
    problem = GemmProblem("bf16", rows, 64 * config.tile_n, random.choice((2048, 6144)), trans_b=True)
    print(problem)
    time = total(model(problem, config))
    assert lower_us(problem, config) <= time.typical
    assert 1 / 1.4 <= estimate_us(problem, config) / time.typical <= 1.4


@pytest.mark.parametrize("config", CHECKED, ids=str)
def test_registers_are_estimated(config: gemm.GemmConfig) -> None:
    """Within 50 % and a block of 32: what decides how many waves a SIMD holds, and whether registers are spilled."""
    from flycc import codegen, emulator

    compiled = codegen.compile_kernel(gemm.kernel(PROBLEM, config))
    real = emulator.load(compiled.elf).kernels[compiled.symbol].descriptor.vgpr_count
    assert abs(vgprs(config) - real) <= 0.5 * real + 32


def test_every_configuration_of_a_space_computes_its_problem() -> None:
    problems = (PROBLEM, GemmProblem("f16", 1, 8, 64), RmsNormProblem("bf16", 3, 2880, weight="bf16"))
    for problem in problems:
        family = FAMILIES["rms_norm" if isinstance(problem, RmsNormProblem) else "gemm"]
        configs = list(family.space(problem))
        assert len(configs) > 5
        assert len(set(configs)) == len(configs)
        assert all(config.is_valid(problem) is None for config in configs)
        assert all(family.read_config(family.write_config(config)) == config for config in configs)
