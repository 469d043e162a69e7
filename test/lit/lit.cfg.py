"""lit configuration: tests run flycc-opt and filecheck of the Python that runs lit, and no LLVM tools."""
# ruff: noqa: F821 -- lit provides `config`

import os
import sys
from pathlib import Path

import lit.formats

config.name = "flycc"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir"]
config.test_source_root = str(Path(__file__).parent)
config.environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
# Where the package is not installed but found on PYTHONPATH, it is the one to be tested.
config.environment |= {
    name: os.environ[name] for name in ("PYTHONPATH", "PYTHONSAFEPATH") if name in os.environ
}
