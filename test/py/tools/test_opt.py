"""flycc-opt: what it imports, and that its landmarks are those of code generation. The rest is tested by lit."""

from __future__ import annotations

import subprocess
import sys

from flycc.codegen import GROUPS
from flycc.tools.opt import KERNEL_STAGES


def test_graph_stages_import_no_framework() -> None:
    """The tool starts in a fraction of a second because torch and FlyDSL, a second each, are not imported."""
    program = "import sys, flycc.tools.opt; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "flydsl", "flycc.codegen"} & set(modules.stdout.split())


def test_landmarks() -> None:
    assert KERNEL_STAGES == GROUPS
