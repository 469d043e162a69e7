"""The record: phases add up to the time that passed, each counted once."""

import time

import torch

from flycc import record


def test_nested_phases_are_counted_once():
    with record.collect() as collected:
        started = time.perf_counter()
        with record.phase("outer"):
            time.sleep(0.02)
            for _ in range(2):
                with record.phase("inner"):
                    time.sleep(0.03)
        elapsed = time.perf_counter() - started
    seconds = collected.phase_seconds
    assert seconds["inner"] >= 0.06
    assert 0.02 <= seconds["outer"] <= elapsed - seconds["inner"] + 1e-6


def test_nothing_is_recorded_after_the_block():
    with record.collect() as collected:
        pass
    with record.phase("late"):
        pass
    assert "late" not in collected.phase_seconds


def test_a_reset_of_dynamo_inside_the_block_is_no_error():
    with record.collect() as collected:
        torch._dynamo.reset()
        torch.compile(lambda x: x + 1, backend="flycc")(torch.ones(2))
    assert len(collected.graphs) == 1
