"""Modelled attention: how far workgroups walk is known, and some stand for all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flycc import codegen, emulator
from flycc.contracts import SdpaBackwardProblem, SdpaProblem
from flycc.costmodel import MI350, Reuse, predict, representative
from flycc.costmodel.streams import programs
from flycc.emulator.trace import Trace
from flycc.emulator.trace_recorder import Recorder
from flycc.kernels import attention
from flycc.tuning import modelled_attention
from flycc.tuning.modelled import model, predicted, steps, total


def _plan(problem: SdpaProblem | SdpaBackwardProblem) -> tuple[attention.Step, ...]:
    """All launches but that of delta."""
    if isinstance(problem, SdpaProblem):
        found = attention.plan(problem, *modelled_attention.band(problem))
    else:
        found = attention.plan_backward(problem)
    assert isinstance(found, tuple)
    return tuple(step for step in found if step.what != "delta")


def _trace(
    problem: SdpaProblem | SdpaBackwardProblem,
    step: attention.Step,
    workgroups: list[tuple[int, int, int]] | None = None,
) -> Trace:
    """Of these workgroups of a launch, or of all."""
    one = modelled_attention.attending(problem, step)
    compiled = codegen.compile_kernel(one.spec)
    kernel = emulator.load(compiled.elf).kernels[compiled.symbol]
    memory, recorder = emulator.Memory(), Recorder()
    pointers = {
        name: memory.register(np.zeros(size, np.uint8)) if size else 0 for name, size in one.buffers.items()
    }
    packed = one.spec.kernarg.pack({**pointers, **one.numbers})
    grid, block = one.launch.grid, one.launch.block
    chosen = {} if workgroups is None else {"workgroups": workgroups}
    emulator.launch(kernel, grid, block, packed, memory, observers=(recorder,), **chosen)
    return recorder.trace()


@pytest.mark.parametrize(("heads", "queries", "keys"), [(2, 760, 1290), (32, 200, 320)])
def test_how_far_workgroups_walk(heads: int, queries: int, keys: int) -> None:
    """The MFMAs that each workgroup executes are linear in the turns that it is said to make: forward, and of both
    gradients, of groups of two heads, with rows that fill no tile. Of two heads, whose last queries see not the first
    keys, and of many heads of two tiles, of which workgroups take two or more heads together."""
    forward = SdpaProblem(
        "bf16", 1, heads, heads // 2, queries, keys, 32, 32, lower=True, upper=True, lse=True
    )
    for problem in (forward, SdpaBackwardProblem(forward)):
        for step in _plan(problem):
            lengths = attention.walked(forward, step, *modelled_attention.band(forward))
            made = {p.workgroup[0]: p.macs for p in programs(_trace(problem, step), MI350, 1)}
            macs = np.array([made[number] for number in range(len(lengths))])
            least, most = lengths.argmin(), lengths.argmax()
            assert lengths[least] < lengths[most]
            each = (macs[most] - macs[least]) / (lengths[most] - lengths[least])
            assert each > 0
            assert macs == pytest.approx(macs[least] + (lengths - lengths[least]) * each), step.what


@pytest.mark.nightly
def test_a_few_lengths_give_what_all_workgroups_traced_give() -> None:
    """80 workgroups on a device of 8 compute units, up to three of which share one: within the interval."""
    few_units = replace(MI350, cus_per_xcd=1, shader_engines_per_xcd=1)
    forward = SdpaProblem("bf16", 1, 16, 16, 640, 640, 64, 64, upper=True, lse=True)
    reuse = Reuse(0.8, 0.5)
    for problem in (forward, SdpaBackwardProblem(forward)):
        for step in _plan(problem):
            lengths = attention.walked(forward, step, *modelled_attention.band(forward))
            some = _trace(problem, step, [(number, 0, 0) for number in representative(lengths)])
            few = predict(some, lengths=lengths, machine=few_units, reuse=reuse).device_us
            every = predict(_trace(problem, step), machine=few_units, reuse=reuse).device_us
            assert few.low < every.typical < few.high
            assert few.typical == pytest.approx(every.typical, rel=0.12)


def _problem(length: int, *, upper: bool = False) -> SdpaBackwardProblem:
    return SdpaBackwardProblem(SdpaProblem("bf16", 4, 16, 16, length, length, 64, 64, upper=upper, lse=True))


def _of_q(problem: SdpaBackwardProblem) -> tuple[attention.Step, ...]:
    """The launch that makes the gradient of Q."""
    return tuple(step for step in _plan(problem) if step.what == "dq")


def test_turns_left_out_count() -> None:
    """As if the whole launch were traced; what the model is unsure of is more than what they differ by."""
    problem = _problem(2048)
    plan = _of_q(problem)
    (whole,) = map(predicted, steps(problem, plan))
    (short,) = model(problem, plan)
    assert short.device_us.typical == pytest.approx(whole.device_us.typical, rel=0.05)
    assert short.flops == pytest.approx(whole.flops)


@pytest.mark.nightly
def test_an_upper_end_saves_work() -> None:
    """Of half of all pairs the masked tiles beyond: (2048 + 256) / 2 of 2048 keys."""
    whole, causal = (_problem(2048, upper=upper) for upper in (False, True))
    flops = [model(problem, _of_q(problem))[0].flops for problem in (whole, causal)]
    assert flops[1] / flops[0] == pytest.approx((2048 + 256) / 2 / 2048, rel=0.01)


@pytest.mark.nightly
@pytest.mark.parametrize("length", [1024, 4096])
def test_causal_attention_has_no_higher_rate(length: int) -> None:
    """Half of the pairs take at least half of the time, but for 3 %: the clock may be higher while some have ended."""
    whole = SdpaProblem("bf16", 16, 16, 16, length, length, 64, 64)
    us = []
    for problem in (whole, replace(whole, upper=True)):
        config = attention.chosen(problem)
        assert isinstance(config, attention.SdpaConfig)
        us.append(total(model(problem, config)).typical)
    assert us[1] >= us[0] / 2 * 0.97
