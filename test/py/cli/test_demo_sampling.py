"""The demo's sampling step: the compiled top-k draws what sorting draws, ties included, without the model."""

from __future__ import annotations

import os

import torch

from flycc.cli import demo
from flycc.record import collect


def test_the_compiled_step_draws_what_sorting_draws() -> None:
    seed = int(os.environ["FLYCC_TEST_SEED"])
    torch.manual_seed(seed)
    print(f"FLYCC_TEST_SEED={seed}")
    # Steps of 1/4, so that many logits are equal, among the candidates and across their end.
    logits = torch.randint(-20, 20, (1000,)).bfloat16() / 4
    torch._dynamo.reset()
    with collect() as record:
        ours = demo.sample(torch.compile(demo.candidates, backend="flycc"), logits)
    assert record.families()["topk"]["kernel"] == 1
    assert not record.launch_refusals
    theirs = demo.sample(demo.candidates_by_sorting, logits)
    assert ours.candidates == theirs.candidates
    assert len(set(ours.candidates)) == demo.CANDIDATES
    assert torch.equal(ours.probabilities, theirs.probabilities)
    assert ours.token == theirs.token
    assert ours.token in ours.candidates
