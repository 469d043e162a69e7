"""The processes that compile and model candidates: none of them needs a GPU, and a crash costs one candidate.

LLVM runs in a process of each worker's own (see `flycc.codegen.worker`), so what it aborts on comes back as a Reason.
Should a worker itself end, those whose candidates were under way are tried again, one at a time, to tell which it was.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from flycc.contracts import FlyccError, Reason
from flycc.costmodel import Interval
from flycc.emulator.errors import EmulatorError
from flycc.tuning.modelled import model, total

#: A modelled time, or why there is none.
Found = Interval | Reason


def evaluate(problem: Any, config: Any) -> Found:
    """The modelled time of `problem` under `config`."""
    try:
        return total(model(problem, config))
    except FlyccError as error:
        return error.reason
    except (ValueError, EmulatorError) as error:
        return Reason("tune.model", f"{config}: {error}")


def _end_with_parent() -> None:
    """In a worker: end when the process that started it does, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """What is started inside is left alone by Ctrl-C, which a terminal sends to all: its parent ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Workers:
    """`count` processes; with 0 the work is done in this one. A context manager, at whose end the processes end."""

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"count: got {count}; 0 (this process) or more are accepted")
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=kind is None, cancel_futures=True)
            self._pool = None

    def evaluate(self, problem: Any, configs: Sequence[Any]) -> list[Found]:
        """One result for each configuration, in their order."""
        if not self.count:
            return [evaluate(problem, config) for config in configs]
        found = self._try(problem, configs)
        return [
            self._alone(problem, config) if result is None else result
            for config, result in zip(configs, found, strict=True)
        ]

    def _try(self, problem: Any, configs: Sequence[Any]) -> list[Found | None]:
        """As `evaluate`; None for those that were under way, or waiting, when a worker ended."""
        if self._pool is None:
            # Not forked: LLVM's and PyTorch's threads do not survive that.
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.count, spawn, initializer=_end_with_parent)
        results: list[Found | None] = []
        try:
            with _no_interrupts():
                futures = [self._pool.submit(evaluate, problem, config) for config in configs]
        except BrokenProcessPool:
            self._pool = None
            return [None] * len(configs)
        for future in futures:
            try:
                results.append(future.result())
            except BrokenProcessPool:
                self._pool = None
                results.append(None)
        return results

    def _alone(self, problem: Any, config: Any) -> Found:
        (result,) = self._try(problem, [config])
        return result or Reason("tune.crash", f"{config}: the process that modelled it ended")
