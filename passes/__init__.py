"""Passes over the torch and flycc dialects. Imports neither torch nor flydsl."""

from flycc.passes.pipeline import PipelineError, run_pipeline
from flycc.passes.registry import MATCH_PIPELINE, PASSES

__all__ = ["MATCH_PIPELINE", "PASSES", "PipelineError", "run_pipeline"]
