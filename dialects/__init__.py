"""The flycc dialect: op definitions, their verifiers, and op -> Problem. Imports neither torch nor flydsl."""

from flycc.dialects.base import load
from flycc.dialects.gemm import GemmOp, build_gemm, problem

__all__ = ["GemmOp", "build_gemm", "load", "problem"]
