"""A run that tested instructions of the emulator ends with a table of them, whether or not workers ran it."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import pytest

#: Names of the instructions that workers ran against a scalar reference.
_by_workers: set[str] = set()


def pytest_configure(config: pytest.Config) -> None:
    """One seed for the whole run; workers inherit the environment."""
    os.environ.setdefault("FLYCC_TEST_SEED", str(random.SystemRandom().randrange(2**31)))


@pytest.fixture(autouse=True, scope="module")
def _forget_what_dynamo_learnt() -> None:
    """A file's tests compile as if nothing had been compiled before, whatever ran in this process."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


def _executed_here() -> set[str]:
    harness = sys.modules.get("harness")
    return harness.executed if harness else set()


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["executed"] = sorted(_executed_here())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker ended; one that crashed left nothing."""
    _by_workers.update(getattr(node, "workeroutput", {}).get("executed", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if executed := _by_workers | _executed_here():
        sys.path.insert(0, str(terminalreporter.config.rootpath / "test" / "py" / "emulator"))
        import coverage_table

        coverage_table.write(terminalreporter, executed)
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"repeat with FLYCC_TEST_SEED={os.environ['FLYCC_TEST_SEED']}")
