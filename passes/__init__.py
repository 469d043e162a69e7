"""Passes over the torch and flycc dialects. Imports neither torch nor flydsl."""

from flycc.passes.pipeline import PipelineError, Step, run_pipeline
from flycc.passes.registry import MATCH_PIPELINE, PASSES, Pass

__all__ = ["MATCH_PIPELINE", "PASSES", "Pass", "PipelineError", "Step", "run_pipeline"]
