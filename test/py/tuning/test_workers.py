"""The processes that model candidates: what ends one costs one candidate."""

from __future__ import annotations

import os
from typing import Any

import pytest

from flycc.contracts import GemmProblem, Reason
from flycc.costmodel import Interval
from flycc.kernels.gemm import GemmConfig
from flycc.tuning.modelled import model, total
from flycc.tuning.workers import Workers

PROBLEM = GemmProblem("bf16", 64, 64, 256, trans_b=True)
GOOD = GemmConfig(64, 64, 64, 2, 2)


class Deadly:
    """A configuration that ends the process that receives it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)

    def __str__(self) -> str:
        return "deadly"


def test_a_worker_that_ends_loses_one_candidate() -> None:
    wrong = GemmConfig(64, 64, 5)
    with Workers(1) as workers:
        good, crash, invalid, again = workers.evaluate(PROBLEM, [GOOD, Deadly(), wrong, GOOD])
    expected = total(model(PROBLEM, GOOD))
    assert isinstance(expected, Interval)
    assert good == again == expected
    assert isinstance(crash, Reason)
    assert (crash.code, crash.sentence) == ("tune.crash", "deadly: the process that modelled it ended")
    assert isinstance(invalid, Reason)
    assert invalid.code == "tune.model"


def test_without_processes_the_work_is_done_here() -> None:
    with Workers(0) as workers:
        assert workers.evaluate(PROBLEM, [GOOD]) == [total(model(PROBLEM, GOOD))]
    with pytest.raises(ValueError, match="count: got -1"):
        Workers(-1)
