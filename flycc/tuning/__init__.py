"""Which configuration of a kernel to use, decided by the cost model."""

from flycc.tuning.modelled import modelled, total

__all__ = ["modelled", "total"]
