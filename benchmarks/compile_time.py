"""How long `torch.compile` with flycc takes for a small Llama, as a multiple of backend="aot_eager" in the same run.

aot_eager traces and splits the graphs of the same model (Dynamo, AOTAutograd) and runs them eagerly. flycc's graphs
are smaller, as it keeps composites whole, so the multiple can be below 1. Every compilation happens in a fresh process
that has compiled a Llama of one layer with aot_eager, and something trivial with the backend to be measured, so that
what all share is imported. "cold" starts with an empty cache of code objects, "warm" with a full one. The seconds are
those of compilation, as `flycc.record` counts them, without the forward pass.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from flycc.cli.output import console, table
from flycc.contracts import FlyccError, Reason

LAYERS, ROUNDS = 4, 3


def measure() -> dict[str, Any]:
    """Medians over ROUNDS; the kinds take turns."""
    if not importlib.util.find_spec("transformers"):
        raise FlyccError(
            Reason("bench.packages", "the benchmark needs transformers; pip install 'flycc[demo]'")
        )
    results: dict[str, list[dict[str, Any]]] = {"aot_eager": [], "cold": [], "warm": []}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as cache:
            for kind, of_kind in results.items():
                backend = "aot_eager" if kind == "aot_eager" else "flycc"
                of_kind.append(in_a_process(backend, cache))
    seconds = {kind: statistics.median(one["compile_s"] for one in runs) for kind, runs in results.items()}
    return {
        "layers": LAYERS,
        "seconds": seconds,
        "ratio": {kind: seconds[kind] / seconds["aot_eager"] for kind in ("cold", "warm")},
        "phases_s": {kind: median_phases(results[kind]) for kind in ("cold", "warm")},
    }


def median_phases(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {name: statistics.median(run["phases_s"][name] for run in runs) for name in runs[0]["phases_s"]}


def in_a_process(backend: str, cache: str) -> dict[str, Any]:
    """What `compile_once` returns in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "flycc.benchmarks.compile_time", backend],
        env=os.environ | {"FLYCC_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FlyccError(Reason("bench.compile", f"compiling with {backend} failed: {done.stderr[-500:]}"))
    return json.loads(done.stdout.splitlines()[-1])


def compile_once(backend: str) -> dict[str, Any]:
    """Compile the model with one forward pass; seconds of compilation, and those of flycc's phases."""
    import torch

    from flycc.record import collect

    tokens = torch.zeros((1, 16), dtype=torch.int64)
    with torch.no_grad():
        torch.compile(llama(1), backend="aot_eager")(tokens)
        torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2))
        torch.compiler.reset()
        with collect() as record:
            torch.compile(llama(LAYERS), backend=backend)(tokens)
    return {"compile_s": record.compile_seconds, "phases_s": dict(record.phase_seconds)}


def llama(layers: int) -> Any:
    """A transformers Llama in bfloat16 with random weights."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def show(figures: dict[str, Any]) -> None:
    """The table a person reads."""
    seconds, ratio = figures["seconds"], figures["ratio"]
    rows = [("aot_eager", f"{seconds['aot_eager']:.2f}", "1.0")]
    rows += [(f"flycc, {kind} cache", f"{seconds[kind]:.2f}", f"{ratio[kind]:.1f}") for kind in ratio]
    table(f"Compiling a Llama of {figures['layers']} layers", ("backend", "seconds", "x aot_eager"), rows)
    console.print()
    phases = figures["phases_s"]
    rows = [(name, *(f"{phases[kind].get(name, 0.0):.2f}" for kind in ratio)) for name in phases["cold"]]
    table("flycc's phases in seconds", ("phase", *ratio), rows)


if __name__ == "__main__":
    print(json.dumps(compile_once(sys.argv[1])))
