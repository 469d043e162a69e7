"""`flycc bench NAME`: run one of the benchmarks of benchmarks/, print its figures, and keep them as JSON."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
from importlib.metadata import version
from typing import Any

from flycc.cli.output import write_json

#: name -> the module of flycc.benchmarks that measures it, and what `flycc bench --help` says of it.
BENCHMARKS = {
    "emulator": ("emulator", "instructions a second of the emulated gfx950"),
    "compile": ("compile_time", "compilation of a small Llama, against aot_eager"),
    "costmodel": ("costmodel", "modelled times beside published ones: how far to believe them"),
    "gemm": ("gemm", "dense products, modelled, beside Triton's and published times"),
    "epilogues": ("epilogues", "epilogues in a product's kernel against a pass of their own, modelled"),
    "grouped": ("grouped", "grouped products, modelled, beside Triton's and published times"),
    "tuner": ("tuner", "configurations chosen without a GPU, against an exhaustive search by the model"),
    "launch": ("launch_overhead", "what a launch costs the host"),
    "norm_topk": ("norm_topk", "bytes that RMS norm and top-k move, against the least"),
    "mx": ("mx", "MX-scaled products, modelled, beside Triton's and published times"),
    "mx_quantize": (
        "mx_quantize",
        "MX quantisation, back, and ranges of scales, modelled, against HBM's rate",
    ),
    "sdpa": ("sdpa", "attention and its gradients, modelled, beside Triton's and published rates"),
    "eager_overhead": ("eager_overhead", "what eager mode adds to a call that it leaves to PyTorch"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    names = "; ".join(f"{name}: {summary}" for name, (_, summary) in BENCHMARKS.items())
    parser.add_argument("name", metavar="NAME", choices=BENCHMARKS, help=names)
    parser.add_argument(
        "--json", metavar="FILE", help="also write the figures as JSON ('-': standard output alone)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure, then report."""
    module = importlib.import_module(f"flycc.benchmarks.{BENCHMARKS[args.name][0]}")
    figures = module.measure()
    if args.json:
        write_json(args.json, {"benchmark": args.name, "machine": machine(), **figures})
    if args.json != "-":
        module.show(figures)
    return 0


def machine() -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "processor": f"{platform.system()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
    }
