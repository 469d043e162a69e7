"""What crosses from room to room: Problems and Reasons. Imports nothing of ours.

Both `flycc.dialects` (op -> Problem) and `flycc.kernels` (Problem -> kernel) need these names while
neither may import the other, so they live below both.
"""

from flycc.contracts.errors import FlyccError, flycc_error_in
from flycc.contracts.gemm import GemmProblem
from flycc.contracts.reason import Reason

__all__ = ["FlyccError", "GemmProblem", "Reason", "flycc_error_in"]
