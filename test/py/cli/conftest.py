"""Commands are processes of their own: nothing that Dynamo has learnt of one test's models may meet another's."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _forgetful_dynamo() -> Iterator[None]:
    yield
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
