"""Which configuration of a kernel to use, decided by the cost model."""

from flycc.tuning.modelled import model, total

__all__ = ["model", "total"]
