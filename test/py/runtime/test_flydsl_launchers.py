"""FlyDSL's own @flyc.jit launchers run unmodified on CPU tensors, through the HIP stand-in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LAUNCHERS = Path(__file__).with_name("flydsl_launchers.py")


def launched(case: str) -> str:
    # Its kernels lie beside it, which Python does not look for under PYTHONSAFEPATH.
    path = os.pathsep.join([str(LAUNCHERS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(LAUNCHERS), case],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("case", ["add", "copy", "multiply", "gemm"])
def test_results_are_those_of_pytorch(case: str) -> None:
    assert launched(case) == ""  # FlyDSL reports failed HIP calls there


def test_a_kernel_that_leaves_its_tensors_is_reported() -> None:
    said = launched("unregistered")
    assert len(re.findall(r"kernel add_arrays_0: global_store_dword .*accesses 4 bytes at 0x", said)) == 4
    assert "past the end of buffer tensor 2" in said
