"""`flycc bench eager_overhead`: it measures calls that are refused, without and with the overrides."""

from __future__ import annotations

import pytest
import torch

from flycc import eager
from flycc.benchmarks import eager_overhead


def test_figures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(eager_overhead, "ROUNDS", 3)
    monkeypatch.setattr(eager_overhead, "CALLS", 20)
    before = {op.name: (op.served, sum(op.refused.values())) for op in eager.status().ops}
    figures = eager_overhead.measure()
    eager_overhead.show(figures)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    for row in figures["microseconds"].values():
        assert min(row["pytorch"], row["bare"], row["flycc"]) > 0
    # The calls with the overrides are refused, all of them, and the others are not seen.
    for op, kinds in (("topk", 2), ("rms_norm", 3)):
        status = eager.status()[op]
        assert status.served == before[op][0]
        assert sum(status.refused.values()) == before[op][1] + kinds * 3 * 21


@pytest.mark.parametrize("name", eager_overhead.cases())
def test_the_overrides_reach_every_case(name: str) -> None:
    call = eager_overhead.cases()[name].call
    with eager.enabled():
        before = sum(sum(op.refused.values()) for op in eager.status().ops)
        call()
        assert sum(sum(op.refused.values()) for op in eager.status().ops) == before + 1
    assert not torch.is_inference_mode_enabled()
