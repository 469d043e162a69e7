"""Which configuration of a kernel to use, decided by the cost model."""

from flycc.tuning.choice import Autotune, install, prepare
from flycc.tuning.modelled import model, total

__all__ = ["Autotune", "install", "model", "prepare", "total"]
