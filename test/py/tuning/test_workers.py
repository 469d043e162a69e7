"""The processes that model candidates: what ends one costs one candidate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
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


def test_workers_leave_ctrl_c_to_their_parent() -> None:
    with Workers(1) as workers:
        before = workers.evaluate(PROBLEM, [GOOD])
        assert workers._pool is not None
        (worker,) = workers._pool._processes
        os.kill(worker, signal.SIGINT)
        assert workers.evaluate(PROBLEM, [GOOD]) == before
        assert list(workers._pool._processes) == [worker]


_PARENT = """
import os, sys, time
from flycc.contracts import GemmProblem
from flycc.kernels.gemm import GemmConfig
from flycc.tuning.workers import Workers

if __name__ == "__main__":
    with Workers(1) as workers:
        workers.evaluate(GemmProblem("f32", 8, 8, 8), [GemmConfig(64, 64, 64)])  # is refused
        print(*workers._pool._processes, flush=True)
        time.sleep(60)
"""


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(_PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        worker = int(parent.stdout.readline())
        os.kill(worker, 0)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    for _ in range(200):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the worker still runs after 20 s")
