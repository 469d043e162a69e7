"""Modelled gradients of attention: workgroups that do as much as others on average stand for all of them."""

from __future__ import annotations

import pytest

from flycc.contracts import SdpaBackwardProblem, SdpaProblem
from flycc.kernels import attention
from flycc.tuning.modelled import model, predicted, steps


def _problem(length: int, *, upper: bool = False) -> SdpaBackwardProblem:
    return SdpaBackwardProblem(SdpaProblem("bf16", 4, 16, 16, length, length, 64, 64, upper=upper, lse=True))


def _of_q(problem: SdpaBackwardProblem) -> tuple[attention.BackwardStep, ...]:
    """The launch that makes the gradient of Q."""
    plan = attention.plan_backward(problem)
    assert isinstance(plan, tuple)
    return tuple(step for step in plan if step.what == "dq")


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
