"""Every test starts from a fresh Dynamo and a fresh seed, printed so that a failure can be repeated."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_state() -> None:
    torch._dynamo.reset()
    seed = int(os.environ.get("FLYCC_TEST_SEED") or torch.seed() % 2**32)
    torch.manual_seed(seed)
    print(f"FLYCC_TEST_SEED={seed}")
